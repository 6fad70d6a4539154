"""Ledgers on disk, one segment each: append, read, index, roll. Knows no topics and no cursors."""
