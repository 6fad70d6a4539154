"""Consumers and readers of several topics or partitions: one for each of them, taken together."""
