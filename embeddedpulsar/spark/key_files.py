"""The private keys of a query: one file, or one for each name of a key."""

from __future__ import annotations

from embeddedpulsar.crypto.key_reader import CryptoKeyReader, EncryptionKeyInfo
from embeddedpulsar.exceptions import CryptoError

Paths = tuple[tuple[str, str], ...]
"""Names of keys, and PEM files; the name ``""`` is that of all others."""


class KeyFiles(CryptoKeyReader):
    """Private keys by name, each read from its file when it is needed.

    Args:
        paths: where they are.
    """

    def __init__(self, paths: Paths) -> None:
        self._readers = {name: CryptoKeyReader("", path) for name, path in paths}

    def get_private_key(self, key_name: str, metadata: dict[str, str]) -> EncryptionKeyInfo:
        """The key of that name.

        Raises:
            CryptoError: there is no file for it, or it cannot be read.
        """
        reader = self._readers.get(key_name, self._readers.get(""))
        if reader is None:
            raise CryptoError(
                f"option cryptoPrivateKeyPath names no file for the key {key_name!r}, only for "
                f"{', '.join(self._readers)}"
            )
        return reader.get_private_key(key_name, metadata)


def key_reader(paths: Paths) -> CryptoKeyReader | None:
    """A reader of these keys; None if there are none."""
    return KeyFiles(paths) if paths else None
