"""The ordered ledgers of one topic as a single log: add, read, find, trim."""
