"""Encrypted entries: what of them stays readable, and where (docs/format/frame.md).

The body of an encrypted entry is metadata, envelope, fields and ciphertext. The plaintext is what would stand
behind the metadata without encryption, compressed or not, so encrypting is a step behind encoding and
decrypting one before decoding. This module knows the bytes, and no cipher.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final
from zlib import crc32

from embeddedpulsar.encryption import EncryptedKey, EncryptionFacts
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.format.columns import PADDING
from embeddedpulsar.format.entry import EncodedEntry
from embeddedpulsar.format.entry_view import METADATA, SEEN, EntryView, decode
from embeddedpulsar.format.frame import (
    CODEC_ENCRYPTED,
    CODEC_SNAPPY,
    FLAG_BATCHED,
    FLAG_CHUNKS,
    FLAG_DELIVER_AT,
    FLAG_ENCRYPTED,
    FLAG_TRANSACTION,
    KIND_ENTRY,
    MAGIC,
    METADATA_SIZE,
    FrameHeader,
)
from embeddedpulsar.format.packed_map import pack_map, unpack_map

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
_ALSO_CLEAR: Final = FLAG_DELIVER_AT | FLAG_CHUNKS | FLAG_TRANSACTION

Cipher = Callable[[bytes, bytes, bytes], bytes]
"""(iv, plaintext or ciphertext, associated data) -> the other."""


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
        """What the application is told; without keys if these are malformed and that is why it failed.

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
            codec if codec <= CODEC_SNAPPY else 0,
            METADATA.unpack_from(self._metadata)[1] if codec else 0,
            self.count if self.batched else -1,
            self.associated_data(topic),
            is_failed,
        )


def associated_data(flags: int, count: int, topic: str, clear: bytes) -> bytes:
    """The topic, and everything that is stored with an entry and known before it is appended."""
    return b"".join((AHEAD.pack(flags, count), topic.encode(), b"\0", clear))


def seal_entry(
    encoded: EncodedEntry, topic: str, last_sequence_id: int, fields: bytes, iv: bytes, encrypt: Cipher
) -> EncodedEntry:
    """Encrypt an encoded entry.

    Args:
        encoded: as `encode` made it.
        topic: full name of the topic it is for.
        last_sequence_id: the highest of its messages, which is that of the last where they are automatic.
        fields: the packed map with the keys, for an entry that needs nothing else in the clear.
        iv: 12 bytes that were never used before with the key.
        encrypt: makes ciphertext and tag.
    """
    body = b"".join(encoded.parts)
    start = encoded.metadata_length
    metadata, plain = body[:start], body[start:]
    deliver_at = 0
    if encoded.flags & _ALSO_CLEAR:
        view = decode(_header(encoded.codec, encoded.flags, 0, 0, encoded.count, start), body, 0)
        deliver_at = max(view.deliver_at() or (0,))
        fields = _more_fields(view, fields)
    envelope = ENVELOPE.pack(
        len(fields),
        len(plain) + TAG_SIZE,
        AES_256_GCM,
        encoded.codec,
        0,
        0,
        last_sequence_id,
        deliver_at,
        iv,
        0,
    )
    clear = b"".join((metadata, envelope, fields, PADDING[-len(fields) & 7]))
    flags = encoded.flags | FLAG_ENCRYPTED
    cipher = encrypt(iv, plain, associated_data(flags, encoded.count, topic, clear))
    part = b"".join((clear, cipher, PADDING[-len(cipher) & 7]))
    return EncodedEntry(
        [part], len(part), crc32(part), encoded.count, start, CODEC_ENCRYPTED, flags, encoded.key_hash
    )


def pack_keys(keys: Sequence[EncryptedKey]) -> bytes:
    """The fields of an entry that needs nothing else in the clear."""
    return pack_map({FIELD_KEYS: [[key.name, key.value, key.metadata] for key in keys]})


def _more_fields(view: EntryView, fields: bytes) -> bytes:
    more = unpack_map(fields)
    chunk, transaction = view.chunk(0), view.transaction()
    if chunk:
        more[FIELD_CHUNK] = chunk
    if transaction is not None:
        more[FIELD_TRANSACTION] = list(transaction)
    return pack_map(more)


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


def opened_view(sealed: SealedView, plain: bytes) -> EntryView:
    """The entry that was encrypted.

    Raises:
        CorruptionError: whoever encrypted it had the key, and no entry.
    """
    metadata = sealed._metadata
    header = _header(
        sealed.envelope[3],
        sealed.flags,
        sealed.entry_id,
        sealed.publish_time,
        sealed.count,
        len(metadata),
    )
    if header.codec == CODEC_ENCRYPTED:
        raise CorruptionError(reason=f"entry {sealed.entry_id} is encrypted twice")
    view = decode(header, metadata + plain, sealed.ledger_id)
    return _as_assigned(view, sealed)


def raw_view(sealed: SealedView) -> EntryView:
    """The entry as one message whose payload is the ciphertext."""
    header = _header(0, 0, sealed.entry_id, sealed.publish_time, 1, len(sealed._metadata))
    cipher = sealed.payload
    body = b"".join((sealed._metadata, struct.pack("<ii", 0, len(cipher)), cipher))
    return _as_assigned(decode(header, body, sealed.ledger_id), sealed)


def _as_assigned(view: EntryView, sealed: SealedView) -> EntryView:
    view.redelivery_count = sealed.redelivery_count
    view.number = sealed.number
    view.skip = sealed.skip if view.count == sealed.count else None
    return view


def _header(
    codec: int, flags: int, entry_id: int, publish_time: int, count: int, metadata_length: int
) -> FrameHeader:
    assert metadata_length >= METADATA_SIZE
    return FrameHeader(
        0, 0, 0, 0, MAGIC, KIND_ENTRY, codec, flags, entry_id, publish_time, count, metadata_length, 0
    )
