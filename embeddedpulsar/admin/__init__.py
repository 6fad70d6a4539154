"""Administration of a store: creating, growing, listing and deleting topics, and their policies."""
