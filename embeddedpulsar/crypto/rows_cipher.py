"""Staged rows, encrypted with a key of their file that is stored nowhere."""

from __future__ import annotations

import os
from typing import Any, Final

from embeddedpulsar.crypto.key_wrap import DATA_KEY_SIZE

_IV_SIZE: Final = 12


class RowsCipher:
    """Role: encrypts the records of one staged file, or decrypts them in the same order. Invariants: a key
    serves one file. Callers: one thread.

    Args:
        key: of the file; None for a new one.
    """

    def __init__(self, key: bytes | None = None) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self.key: Final = key or os.urandom(DATA_KEY_SIZE)
        self._cipher: Final[Any] = AESGCM(self.key)
        self._count = 0

    def encrypt(self, parts: list[Any]) -> list[Any]:
        """The columns of the next record, as they are staged."""
        return [self._cipher.encrypt(self._iv(), b"".join(parts), None)]

    def decrypt(self, columns: Any) -> bytes:
        """The columns of the next record."""
        return bytes(self._cipher.decrypt(self._iv(), columns, None))

    def _iv(self) -> bytes:
        self._count += 1
        return self._count.to_bytes(_IV_SIZE, "big")
