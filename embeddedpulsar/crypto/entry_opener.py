"""The decrypting half: from encrypted entries to entries."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

from embeddedpulsar.crypto.key_reader import CryptoKeyReader
from embeddedpulsar.crypto.key_wrap import require_cryptography, unwrap
from embeddedpulsar.encryption import EncryptedKey, EncryptionContext, EncryptionFacts
from embeddedpulsar.exceptions import CorruptionError, CryptoError
from embeddedpulsar.format.entry_view import EntryView
from embeddedpulsar.format.sealed_entry import opened_view
from embeddedpulsar.format.sealed_view import SealedView

_MOST_KEYS: Final = 256
"""Data keys that are remembered: each producer has one at a time."""


class EntryOpener:
    """Decrypts the entries of one topic.

    Role: finds a key of an entry that its reader can unwrap. Unwrapping costs a millisecond, so unwrapped
    keys are remembered. Nothing is remembered of failures: a key may appear later.

    Thread-safe: the worst two threads can do is unwrap a key twice.

    Args:
        topic: full name.
        reader: where private keys come from; None if there are none.

    Raises:
        ImportError: there is a reader, and the extra ``crypto`` is not installed.
    """

    def __init__(self, topic: str, reader: CryptoKeyReader | None) -> None:
        if reader is not None:
            require_cryptography()
        self._topic = topic
        self._reader = reader
        self._known: OrderedDict[bytes, Any] = OrderedDict()

    def open(self, sealed: SealedView) -> EntryView:
        """Decrypt an entry.

        Raises:
            CryptoError: there is no key for it, or it is not what its producer encrypted.
        """
        facts, plain = self.plain(sealed)
        try:
            view = opened_view(sealed, plain)
        except CorruptionError as error:
            raise CryptoError(f"entry {sealed.ledger_id}:{sealed.entry_id}: {error.reason}") from error
        view.encryption = EncryptionContext(facts)
        return view

    def plain(self, sealed: SealedView) -> tuple[EncryptionFacts, bytes]:
        """What stands behind the metadata of an entry; errors as in `open`."""
        if self._reader is None:
            raise CryptoError("there is no crypto_key_reader; give one with the private key")
        from cryptography.exceptions import InvalidTag

        try:
            facts = sealed.facts(self._topic, False)
            cipher = self._cipher(facts.keys)
            return facts, cipher.decrypt(facts.param, sealed.payload, facts.associated_data)
        except InvalidTag:
            raise CryptoError(
                f"entry {sealed.ledger_id}:{sealed.entry_id} is not what its producer encrypted for "
                f"{self._topic}: it was changed, or copied from elsewhere"
            ) from None
        except CorruptionError as error:
            raise CryptoError(f"entry {sealed.ledger_id}:{sealed.entry_id}: {error.reason}") from error

    def knows(self, sealed: SealedView) -> bool:
        """Whether a data key of the entry was unwrapped: what failed nevertheless was the entry alone."""
        try:
            return any(key.value in self._known for key in sealed.keys_wrapped())
        except CorruptionError:
            return True

    def _cipher(self, keys: tuple[EncryptedKey, ...]) -> Any:
        for key in keys:
            cipher = self._known.get(key.value)
            if cipher is not None:
                return cipher
        errors = []
        for key in keys:
            try:
                return self._unwrapped(key)
            except CryptoError as error:
                errors.append(error)
        raise errors[0] if errors else CryptoError("the entry names no key")

    def _unwrapped(self, key: EncryptedKey) -> Any:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        assert self._reader is not None
        try:
            pem, _ = self._reader.get_private_key(key.name, dict(key.metadata))
        except CryptoError:
            raise
        except Exception as error:
            raise CryptoError(f"the key reader has no private key {key.name!r}: {error!r}") from error
        cipher = AESGCM(unwrap(pem, key.value, key.name))
        self._known[key.value] = cipher
        while len(self._known) > _MOST_KEYS:
            self._known.popitem(last=False)
        return cipher
