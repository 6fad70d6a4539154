"""Compaction: the newest message of each key of a topic, and reading these before the rest of the log."""
