"""The program `embeddedpulsar`; and `python -m embeddedpulsar.cli.check`, which checks a store."""
