"""Chunked messages as a subscription sees them.

Incomplete ones, their expiry, and acknowledging all parts as one.
"""
