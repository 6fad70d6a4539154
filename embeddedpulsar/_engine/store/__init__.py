"""A topic: its managed ledger, its producers and its subscriptions, found through the store."""
