"""Where public and private keys come from."""

from __future__ import annotations

from embeddedpulsar.exceptions import CryptoError
from embeddedpulsar.records import NamedTuple


class EncryptionKeyInfo(NamedTuple):
    """A key, and what is to be known of it.

    Attributes:
        key: in PEM form.
        metadata: of a public key, stored in the clear with every message it serves, so that the consumer's
            key reader may choose by it (a version, say).

    Example:
        >>> EncryptionKeyInfo(b"-----BEGIN PUBLIC KEY-----...", {"version": "3"}).metadata
        {'version': '3'}
    """

    key: bytes
    metadata: dict[str, str] = {}


class Encryption(NamedTuple):
    """What of a producer's options is about encryption.

    Attributes:
        names: of the public keys; none for a producer whose entries are encrypted before it gets them.
        reader: where they come from.
    """

    names: tuple[str, ...]
    reader: CryptoKeyReader


class CryptoKeyReader:
    """Key files for end-to-end encryption: one pair, whatever name a key is asked for by.

    Producers read the public key, consumers and readers the private one; give ``""`` for the one that is not
    needed. Consumers that pass encrypted messages on to a dead letter or retry topic need both. RSA keys, and
    keys on elliptic curves, in PEM form; private keys without a password. The files are read when they are
    needed, again and again, so a key may be exchanged while programs run.

    Derive from it, without calling its ``__init__``, to fetch keys from elsewhere: define `get_public_key`,
    `get_private_key` or both. They may be called by any thread, also by several at once, and should return
    soon: senders and receivers wait for them.

    Args:
        public_key_path: a PEM file.
        private_key_path: a PEM file.

    Raises:
        ValueError: an argument is not a str.

    Example:
        >>> class Keys(CryptoKeyReader):
        ...     def __init__(self, private_keys):
        ...         self.private_keys = private_keys
        ...     def get_private_key(self, key_name, metadata):
        ...         return EncryptionKeyInfo(self.private_keys[key_name, metadata["version"]])
        >>> Keys({("orders", "3"): b"PEM"}).get_private_key("orders", {"version": "3"}).key
        b'PEM'
    """

    def __init__(self, public_key_path: str, private_key_path: str) -> None:
        for name, value in (("public_key_path", public_key_path), ("private_key_path", private_key_path)):
            if not isinstance(value, str):
                raise ValueError(
                    f"Argument {name} is expected to be of type 'str' and not '{type(value).__name__}'"
                )
        self.public_key_path = public_key_path
        self.private_key_path = private_key_path

    def get_public_key(self, key_name: str, metadata: dict[str, str]) -> EncryptionKeyInfo:
        """Return the public key of that name. Called with an empty ``metadata``.

        Raises:
            CryptoError: the file cannot be read.

        Example:
            >>> with open("public.pem", "wb") as file:
            ...     written = file.write(b"-----BEGIN PUBLIC KEY-----...")
            >>> CryptoKeyReader("public.pem", "").get_public_key("orders", {}).key
            b'-----BEGIN PUBLIC KEY-----...'
        """
        return EncryptionKeyInfo(_read(self.public_key_path, "public", key_name))

    def get_private_key(self, key_name: str, metadata: dict[str, str]) -> EncryptionKeyInfo:
        """Return the private key of that name, for which the metadata of its public key came along.

        Raises:
            CryptoError: the file cannot be read.
        """
        return EncryptionKeyInfo(_read(self.private_key_path, "private", key_name))


def _read(path: str, kind: str, key_name: str) -> bytes:
    if not path:
        raise CryptoError(f"the key reader has no {kind} key for {key_name!r}; give it {kind}_key_path")
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise CryptoError(f"the {kind} key {key_name!r} could not be read: {error}") from error
