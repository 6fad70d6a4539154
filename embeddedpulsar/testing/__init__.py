"""Conformance kit: harness, auditors and fakes for code that uses or extends the library."""
