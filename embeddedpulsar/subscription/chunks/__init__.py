"""Chunked messages in a subscription: incomplete ones, their expiry, and acknowledging all parts as one."""
