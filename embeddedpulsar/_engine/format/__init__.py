"""Bytes without I/O: every on-disk structure, its byte table, encoder, decoder and verifier."""
