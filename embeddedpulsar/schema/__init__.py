"""Codecs between message payloads and Python values."""
