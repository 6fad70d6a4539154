"""Policies of topics and namespaces: their values and documents, what changes them, and what follows them."""
