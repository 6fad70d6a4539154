"""Encrypted entries: what of them stays readable, and where (docs/format/frame.md).

The body of an encrypted entry is metadata, envelope, fields and ciphertext. The plaintext is what would stand
behind the metadata without encryption, compressed or not, so encrypting is a step behind encoding and
decrypting one before decoding. This module knows the bytes, and no cipher.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from zlib import crc32

from embeddedpulsar._engine.format.columns import PADDING
from embeddedpulsar._engine.format.document import pack_map, unpack_map
from embeddedpulsar._engine.format.entry import EncodedEntry
from embeddedpulsar._engine.format.entry_decoder import (
    AES_256_GCM,
    ENVELOPE,
    FIELD_CHUNK,
    FIELD_ENTRY,
    FIELD_KEYS,
    FIELD_TRANSACTION,
    TAG_SIZE,
    EntryView,
    SealedView,
    associated_data,
    decode,
    decompressed_columns,
    packed_area,
    sealed_view,
    split_verbatim,
)
from embeddedpulsar._engine.format.frame import (
    CODEC_ENCRYPTED,
    CODEC_PULSAR,
    FLAG_CHUNKS,
    FLAG_DELIVER_AT,
    FLAG_ENCRYPTED,
    FLAG_FIELDS,
    FLAG_TRANSACTION,
    KIND_ENTRY,
    MAGIC,
    METADATA_SIZE,
    FrameHeader,
)
from embeddedpulsar.encryption import EncryptedKey, EncryptionContext
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Final

_ALSO_CLEAR: Final = FLAG_DELIVER_AT | FLAG_CHUNKS | FLAG_TRANSACTION | FLAG_FIELDS

Cipher = Callable[[bytes, bytes, bytes], bytes]
"""(iv, plaintext or ciphertext, associated data) -> the other."""


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
    # Dispatch works without a key, so a delay, the chain of a chunked message, a transaction and the
    # fields of the entry are copied out of the columns into the clear. The application's properties and
    # keys stay inside.
    deliver_at = 0
    if encoded.flags & _ALSO_CLEAR:
        # Decoded from its own encoding rather than passed in: the rare entries pay, and the hot path
        # has no argument more.
        view = decode(_header(encoded.codec, encoded.flags, 0, 0, encoded.count, start), body, 0)
        deliver_at = max(view.deliver_at() or (0,))
        fields = _more_fields(view, fields)
    # Packed before the encryption: the envelope is part of the associated data, so a changed field
    # fails the tag.
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
    # The codec of the frame becomes `CODEC_ENCRYPTED`, the one of the columns stays in the envelope.
    # The flags of the columns stay as they are: they say what is inside once it is opened.
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
    if view.flags & FLAG_FIELDS:
        more[FIELD_ENTRY] = view.entry_fields().packed()
    return pack_map(more)


def pulsar_bytes(header: FrameHeader, body: bytes | memoryview) -> bytes | None:
    """An entry as a client of Pulsar sent it: the length of its metadata, the metadata, and the payload.

    Args:
        header, body: of a frame whose `body_crc` was verified.

    Returns:
        None for an entry that is not stored in this form.

    Raises:
        CorruptionError: the body does not have the shape its header claims.
    """
    if header.codec == CODEC_PULSAR:
        return split_verbatim(packed_area(body, header.metadata_length), header.flags)[1]
    if header.codec != CODEC_ENCRYPTED:
        return None
    sealed = sealed_view(header, bytes(body), 0)
    if not sealed.is_pulsar:
        return None
    own = sealed.pulsar_metadata()
    return b"".join((len(own).to_bytes(4, "big"), own, sealed.payload))


def opened_columns(sealed: SealedView, plain: bytes) -> bytes:
    """The columns of an encrypted entry, of what it was decrypted to.

    Raises:
        CorruptionError: that is no entry.
    """
    metadata, flags, count = sealed._metadata, sealed.flags, sealed.count
    if sealed.is_pulsar:
        from embeddedpulsar._engine.format.pulsar_batch import columns_of

        return columns_of(sealed.pulsar_metadata(), plain, sealed.transaction(), flags, count)
    codec = sealed.envelope[3]
    if not codec:
        return plain
    return decompressed_columns(codec, metadata, metadata + plain, len(metadata), flags, count)


def opened_view(sealed: SealedView, plain: bytes) -> EntryView:
    """The entry that was encrypted.

    Raises:
        CorruptionError: it was encrypted with the right key, but is no entry.
    """
    metadata = sealed._metadata
    if sealed.is_pulsar:
        plain = opened_columns(sealed, plain)
    header = _header(
        0 if sealed.is_pulsar else sealed.envelope[3],
        sealed.flags,
        sealed.entry_id,
        sealed.publish_time,
        sealed.count,
        len(metadata),
    )
    # The envelope names the codec, and a writer may name this one: decoding would then unpack
    # ciphertext as an entry.
    if header.codec == CODEC_ENCRYPTED:
        raise CorruptionError(reason=f"entry {sealed.entry_id} is encrypted twice")
    view = decode(header, metadata + plain, sealed.ledger_id)
    return _as_assigned(view, sealed)


def raw_view(sealed: SealedView, topic: str) -> EntryView:
    """The entry as one message whose payload is the ciphertext, with its encryption context."""
    # Flags and codec 0: what is delivered is a value of bytes, whatever it was before. One message,
    # because without the key nothing tells where the messages of a batch begin.
    header = _header(0, 0, sealed.entry_id, sealed.publish_time, 1, len(sealed._metadata))
    cipher = sealed.payload
    body = b"".join((sealed._metadata, struct.pack("<ii", 0, len(cipher)), cipher))
    raw = _as_assigned(decode(header, body, sealed.ledger_id), sealed)
    raw.encryption = EncryptionContext(sealed.facts(topic, True))
    return raw


def _as_assigned(view: EntryView, sealed: SealedView) -> EntryView:
    view.redelivery_count = sealed.redelivery_count
    view.number = sealed.number
    # A batch that is delivered as one message has no batch indexes, so acknowledgements of single
    # ones do not apply.
    view.skip = sealed.skip if view.count == sealed.count else None
    return view


def _header(
    codec: int, flags: int, entry_id: int, publish_time: int, count: int, metadata_length: int
) -> FrameHeader:
    assert metadata_length >= METADATA_SIZE
    return FrameHeader(
        0, 0, 0, 0, MAGIC, KIND_ENTRY, codec, flags, entry_id, publish_time, count, metadata_length, 0
    )
