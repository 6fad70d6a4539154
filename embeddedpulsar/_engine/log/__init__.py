"""The managed ledger of a topic: its ledgers on disk, one segment each, used as one log."""
