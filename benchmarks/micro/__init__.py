"""Small measurements of one layer, for tuning. The published figures come from benchmarks/run.py."""
