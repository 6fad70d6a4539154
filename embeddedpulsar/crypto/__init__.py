"""End-to-end encryption: a data key per producer, wrapped by public keys, opened by private ones.

Everything that needs the package ``cryptography`` (extra ``crypto``) is here, and imports it when it is first
used. docs/format/frame.md has the bytes.
"""
