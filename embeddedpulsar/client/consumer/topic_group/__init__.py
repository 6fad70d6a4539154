"""Consumers and readers of several topics or partitions.

One consumer or reader for each, taken together.
"""
