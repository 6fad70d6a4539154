"""Reading log files that cannot be trusted.

Finding the end of a log after a crash, and what damage leaves.
"""
