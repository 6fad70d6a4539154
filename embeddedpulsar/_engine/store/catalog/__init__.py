"""Which topics a store has, and where they lie.

The catalog, the layout of the root, making, growing, listing and deleting topics.
"""
