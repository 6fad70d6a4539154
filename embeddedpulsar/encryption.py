"""The encryption of a received message."""

from __future__ import annotations

from embeddedpulsar.enums import CompressionType
from embeddedpulsar.records import NamedTuple


class EncryptedKey(NamedTuple):
    """A data key as stored with an entry, wrapped for one private key."""

    name: str
    value: bytes
    metadata: dict[str, str]


class EncryptionFacts(NamedTuple):
    """The unencrypted metadata of an entry's encryption; see `EncryptionContext`."""

    keys: tuple[EncryptedKey, ...]
    param: bytes
    compression: int
    uncompressed_size: int
    batch_size: int
    associated_data: bytes
    is_failed: bool


class EncryptionKey:
    """A data key, wrapped for one private key. Immutable.

    Example:
        >>> EncryptionKey(EncryptedKey("orders-key", b"wrapped", {"version": "3"}))
        EncryptionKey(key=orders-key, value_len=7, metadata={'version': '3'})
        >>> key = EncryptionKey(EncryptedKey("orders-key", b"wrapped", {}))
        >>> key.key, key.value, key.metadata
        ('orders-key', b'wrapped', {})
    """

    def __init__(self, key: EncryptedKey) -> None:
        self._key = key

    @property
    def key(self) -> str:
        """The name of the key, as given to the producer."""
        return self._key.name

    @property
    def value(self) -> bytes:
        """The wrapped data key, which only the private key can unwrap."""
        return self._key.value

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata that the producer's key reader returned; a new dict."""
        # A new dict, so that no caller changes the metadata of other messages with the key.
        return dict(self._key.metadata)

    def __str__(self) -> str:
        return f"EncryptionKey(key={self.key}, value_len={len(self.value)}, metadata={self.metadata})"

    def __repr__(self) -> str:
        return str(self)


class EncryptionContext:
    """The encryption of a message, returned by `Message.encryption_context`; None without encryption.

    Immutable, without a limited lifetime. With it, and a private key, an application may decrypt the content
    that ``ConsumerCryptoFailureAction.CONSUME`` delivers: see docs/format/frame.md.

    Example:
        >>> facts = EncryptionFacts((), bytes(12), 0, 0, -1, b"", False)
        >>> context = EncryptionContext(facts)
        >>> context.is_decryption_failed(), context.batch_size(), context.algorithm()
        (False, -1, '')
        >>> context.keys(), len(context.param()), context.associated_data()
        ([], 12, b'')
        >>> context.compression_type(), context.uncompressed_message_size()
        (<CompressionType.NONE: 0>, 0)
    """

    def __init__(self, context: EncryptionFacts) -> None:
        self._facts = context

    def keys(self) -> list[EncryptionKey]:
        """Return the data key, wrapped once for each key of the producer."""
        # The facts are shared by the messages of the entry; objects are made for the message that is asked.
        return [EncryptionKey(key) for key in self._facts.keys]

    def param(self) -> bytes:
        """Return the initialization vector, 12 bytes."""
        return self._facts.param

    def algorithm(self) -> str:
        """Return ``""``, as ``pulsar-client`` does. The algorithm is AES-256-GCM."""
        return ""

    def compression_type(self) -> CompressionType:
        """Return the codec with which the entry was compressed before it was encrypted."""
        return CompressionType(self._facts.compression)

    def uncompressed_message_size(self) -> int:
        """Return the size in bytes of the entry's columns, decompressed; 0 if it was not compressed."""
        return self._facts.uncompressed_size

    def batch_size(self) -> int:
        """Return the number of messages in the entry; -1 if it is not a batch."""
        return self._facts.batch_size

    def is_decryption_failed(self) -> bool:
        """Return whether the message could not be decrypted, so that `Message.data` is ciphertext."""
        return self._facts.is_failed

    def associated_data(self) -> bytes:
        """Return the data that was authenticated with the ciphertext (not in ``pulsar-client``)."""
        return self._facts.associated_data

    def __str__(self) -> str:
        return (
            f"EncryptionContext(algorithm={self.algorithm()}, "
            f"compression_type={self.compression_type().name}, "
            f"uncompressed_message_size={self.uncompressed_message_size()}, "
            f"is_decryption_failed={self.is_decryption_failed()}, "
            f"keys=[{', '.join(str(key) for key in self.keys())}])"
        )

    def __repr__(self) -> str:
        return str(self)
