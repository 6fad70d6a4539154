"""One ledger is one segment: append, read, index, roll, recovery. Knows no cursors and no topics."""
