"""The encrypting half: the data key of one producer, and when it is changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from embeddedpulsar.crypto.key_reader import CryptoKeyReader
from embeddedpulsar.crypto.key_wrap import DATA_KEY_SIZE, require_cryptography, wrap
from embeddedpulsar.encryption import EncryptedKey
from embeddedpulsar.exceptions import CryptoError, PulsarException
from embeddedpulsar.format.entry import EncodedEntry
from embeddedpulsar.format.sealed_entry import Cipher, pack_keys, seal_entry
from embeddedpulsar.platform import fork

REFRESH_S: Final = 4 * 3600.0
_RETRY_S: Final = 60.0
_PREFIX_SIZE: Final = 4
_MOST_ENTRIES: Final = 1 << 32


class EntryCipher:
    """Encrypts the entries of one attachment of a producer to a topic.

    Role: makes a data key of 32 random bytes, has it wrapped by every public key, and uses it for four hours;
    then the keys are read again and the next one is made. If that fails the old one remains in use,
    ``on_stale`` is called, and after a minute it is tried again.

    Invariants: no initialization vector is used twice with one key: it is four random bytes of the key's and
    a counter of eight, of which a key sees 2^32 at most. A forked child makes a key of its own before it
    encrypts anything. Neither data keys nor private keys are ever written, logged or part of an error.

    Callers: one thread at a time (under the producer's lock).

    Args:
        topic: full name, which is authenticated with every entry.
        names: of the public keys, at least one.
        reader: where those come from.
        monotonic: the time in seconds.
        on_stale: called when the key could not be exchanged in time.

    Raises:
        ImportError: the extra ``crypto`` is not installed.
        CryptoError: a public key is not to be had.
    """

    def __init__(
        self,
        topic: str,
        names: Sequence[str],
        reader: CryptoKeyReader,
        monotonic: Callable[[], float],
        on_stale: Callable[[Exception], object],
    ) -> None:
        require_cryptography()
        self._topic = topic
        self._names = tuple(names)
        self._reader = reader
        self._monotonic = monotonic
        self._on_stale = on_stale
        self._encrypt: Cipher
        self._renew()

    def seal(self, encoded: EncodedEntry, last_sequence_id: int) -> EncodedEntry:
        """Encrypt an encoded entry, of which ``last_sequence_id`` is the highest.

        Raises:
            CryptoError: in a forked child, a public key is not to be had.
        """
        if fork.GENERATION != self._generation:
            self._renew()
        elif self._monotonic() >= self._due or self._count >= _MOST_ENTRIES:
            self._exchange()
        iv = self._prefix + self._count.to_bytes(8, "big")
        self._count += 1  # before it is used: an interrupt may waste one, never give it twice
        return seal_entry(encoded, self._topic, last_sequence_id, self._fields, iv, self._encrypt)

    def _exchange(self) -> None:
        try:
            self._renew()
        except Exception as error:
            if self._count >= _MOST_ENTRIES:
                raise
            self._due = self._monotonic() + _RETRY_S
            self._on_stale(error)

    def _renew(self) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        data_key = os.urandom(DATA_KEY_SIZE)
        wrapped = [self._wrapped(name, data_key) for name in self._names]
        self._fields = pack_keys(wrapped)
        cipher: Any = AESGCM(data_key)
        self._encrypt = cipher.encrypt
        self._prefix = os.urandom(_PREFIX_SIZE)
        self._count = 0
        self._generation = fork.GENERATION
        self._due = self._monotonic() + REFRESH_S

    def _wrapped(self, name: str, data_key: bytes) -> EncryptedKey:
        try:
            key, metadata = self._reader.get_public_key(name, {})
        except PulsarException:
            raise
        except Exception as error:
            raise CryptoError(f"the key reader has no public key {name!r}: {error!r}") from error
        return EncryptedKey(name, wrap(key, data_key, name), dict(metadata))
