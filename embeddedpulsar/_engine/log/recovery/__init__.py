"""Log files that cannot be trusted: the end of a log after a crash, and what damage leaves."""
