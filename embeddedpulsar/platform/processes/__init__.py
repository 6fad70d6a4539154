"""The processes of a store.

Waking them, sleeping until another one wakes this one, and knowing which are alive.
"""
