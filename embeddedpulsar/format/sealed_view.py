"""Encrypted entries as they are read: what of them can be asked for without a key (docs/format/frame.md)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

from embeddedpulsar.encryption import EncryptedKey, EncryptionFacts
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.format.compression import CODECS
from embeddedpulsar.format.entry_view import METADATA, SEEN, EntryView
from embeddedpulsar.format.frame import FLAG_BATCHED, FrameHeader
from embeddedpulsar.format.packed_map import unpack_map

ENVELOPE: Final = struct.Struct(
    "<"
    "I"  # 0  fields_length: bytes of the packed map behind this, without its padding
    "I"  # 4  cipher_length: bytes of the ciphertext, authentication tag included
    "B"  # 8  algorithm
    "B"  # 9  codec: how the columns were packed before
    "H"  # 10 reserved, 0
    "I"  # 12 reserved, 0
    "q"  # 16 last_sequence_id
    "q"  # 24 deliver_at: of the message that is due last, ms since 1970; 0 for none
    "12s"  # 32 iv
    "I"  # 44 reserved, 0
)
AES_256_GCM: Final = 1
IV_SIZE: Final = 12
TAG_SIZE: Final = 16
FIELD_KEYS: Final = "keys"
FIELD_CHUNK: Final = "chunk"
FIELD_TRANSACTION: Final = "transaction"
AHEAD: Final = struct.Struct("<II")  # flags and number of messages, which begin the associated data


class SealedView(EntryView):
    """An entry that is encrypted. What dispatch needs can be asked for; payload is the ciphertext.

    Attributes:
        envelope: its fields, as unpacked.
        fields: the packed map: keys, and of some entries a chunk's fields, or a transaction.
        clear: all bytes before the ciphertext, which were authenticated with it.
    """

    __slots__ = ("clear", "envelope", "fields")

    envelope: tuple[Any, ...]
    fields: dict[str, Any]
    clear: bytes

    def sequence_ids(self) -> Sequence[int]:
        """The first and the highest, which is the last; others are guesses if the application chose them."""
        first, last = self.first_sequence_id, self.envelope[6]
        if last - first == self.count - 1:
            return range(first, last + 1)
        return [first] * (self.count - 1) + [last]

    def deliver_at(self) -> list[int] | None:
        """The latest delivery time of the entry, for each message."""
        return [self.envelope[7]] * self.count if self.envelope[7] else None

    def chunk(self, i: int) -> dict[str, Any]:
        """The fields of a chunk, which is an entry of its own."""
        fields = self.fields.get(FIELD_CHUNK)
        return dict(fields) if isinstance(fields, dict) else {}

    def transaction(self) -> tuple[int, int] | None:
        """Transaction id of the entry."""
        found = self.fields.get(FIELD_TRANSACTION)
        return (found[0], found[1]) if isinstance(found, list) and len(found) == 2 else None

    def keys_wrapped(self) -> tuple[EncryptedKey, ...]:
        """The data key, once for each holder of a private key.

        Raises:
            CorruptionError: they do not have the shape they should.
        """
        try:
            return tuple(EncryptedKey(str(n), bytes(v), dict(m)) for n, v, m in self.fields[FIELD_KEYS])
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptionError(reason=f"entry {self.entry_id}: malformed encryption keys") from error

    def associated_data(self, topic: str) -> bytes:
        """What was authenticated together with the ciphertext of this entry on that topic."""
        return associated_data(self.flags, self.count, topic, self.clear)

    def facts(self, topic: str, is_failed: bool) -> EncryptionFacts:
        """The facts for the application; without keys if these are malformed and that is why it failed.

        Raises:
            CorruptionError: the keys are malformed, and nothing failed yet.
        """
        codec = self.envelope[3]
        keys: tuple[EncryptedKey, ...] = ()
        try:
            keys = self.keys_wrapped()
        except CorruptionError:
            if not is_failed:
                raise
        return EncryptionFacts(
            keys,
            self.envelope[8],
            codec if codec in CODECS else 0,
            METADATA.unpack_from(self._metadata)[1] if codec else 0,
            self.count if self.batched else -1,
            self.associated_data(topic),
            is_failed,
        )


def associated_data(flags: int, count: int, topic: str, clear: bytes) -> bytes:
    """The topic, and everything that is stored with an entry and known before it is appended."""
    return b"".join((AHEAD.pack(flags, count), topic.encode(), b"\0", clear))


def sealed_view(header: FrameHeader, body: bytes, ledger_id: int) -> SealedView:
    """The view of an encrypted entry whose `body_crc` was verified; called by `decode` alone.

    Raises:
        CorruptionError: the body does not have the shape its header claims.
    """
    SEEN.encrypted = True
    start = header.metadata_length
    at = start + ENVELOPE.size
    if at > len(body):
        raise CorruptionError(reason=f"entry {header.entry_id}: no room for an envelope")
    envelope = ENVELOPE.unpack_from(body, start)
    fields_length, cipher_length, algorithm = envelope[:3]
    begin = at + fields_length + (-fields_length & 7)
    end = begin + cipher_length
    if algorithm != AES_256_GCM or cipher_length < TAG_SIZE or end > len(body):
        raise CorruptionError(
            reason=f"entry {header.entry_id}: {cipher_length} bytes of ciphertext (algorithm {algorithm}) "
            f"in {len(body) - begin}"
        )
    view = SealedView()
    view.ledger_id = ledger_id
    view.entry_id = header.entry_id
    view.publish_time = header.publish_time
    view.count = header.message_count
    view.flags = header.flags
    view.codec = header.codec
    view.batched = header.flags & FLAG_BATCHED != 0
    view.payload = body[begin:end]
    view.offsets = [0, cipher_length]
    view.redelivery_count = 0
    view.acked = None
    view.number = 0
    view.skip = None
    view._metadata = body[:start]
    view._lazy = None
    view.envelope = envelope
    view.fields = unpack_map(body[at : at + fields_length])
    view.clear = body[:begin]
    return view
