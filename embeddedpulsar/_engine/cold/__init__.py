"""Locations outside of the store, and offloaded ledgers in them: reading, fetching back and removing them."""
