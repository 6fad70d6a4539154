"""Encrypted entries: any content comes back, and no changed bit gets through."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from embeddedpulsar._engine.format import frame
from embeddedpulsar._engine.format.entry import EncodedEntry, EntryContent, ProducerPrefix, decode, encode
from embeddedpulsar._engine.format.entry_decoder import SealedView
from embeddedpulsar._engine.format.sealed_entry import pack_keys, raw_view, seal_entry
from embeddedpulsar.crypto import EntryOpener, wrap
from embeddedpulsar.encryption import EncryptedKey
from embeddedpulsar.exceptions import CorruptionError, CryptoError
from tests.frames import contents, framed, unframed
from tests.support.key_files import KeyRing, key_pair
from tests.unit.format.test_entry import assert_same

PREFIX = ProducerPrefix("producer-1", 7, 3)
TOPIC = "persistent://public/default/t"
DATA_KEY = bytes(range(32))
FIELDS = pack_keys([EncryptedKey("app", wrap(key_pair("ec", 1)[0], DATA_KEY, "app"), {"version": "1"})])
IV = bytes(12)


def sealed(entry: EncodedEntry, last: int) -> EncodedEntry:
    """Encrypted with the data key of this test."""
    cipher: Any = AESGCM(DATA_KEY)
    return seal_entry(entry, TOPIC, last, FIELDS, IV, cipher.encrypt)


def last_id(content: EntryContent) -> int:
    """Sequence id of the last message."""
    if content.sequence_ids:
        return content.sequence_ids[-1]
    return content.first_sequence_id + len(content.values) - 1


@given(contents(), st.integers(0, 5), st.booleans())
def test_any_content_round_trips(content: EntryContent, codec: int, as_view: bool):
    """Every combination of columns, with every codec; what dispatch needs can be had without the key."""
    plain = encode(content, PREFIX, codec)
    entry = sealed(plain, last_id(content))
    assert entry.size == sum(map(len, entry.parts))
    assert not entry.size & 7
    view = unframed(framed(entry)[0], view=as_view)
    assert isinstance(view, SealedView)
    clear = unframed(framed(plain)[0])
    assert (view.count, view.batched, view.key_hash) == (clear.count, clear.batched, clear.key_hash)
    assert (view.producer_name, view.first_sequence_id) == (clear.producer_name, clear.first_sequence_id)
    assert view.sequence_ids()[-1] == clear.sequence_ids()[-1]
    assert max(view.deliver_at() or [0]) == max(clear.deliver_at() or [0])
    assert (view.chunk(0), view.transaction()) == (clear.chunk(0), clear.transaction())
    assert view.entry_fields() == clear.entry_fields()
    view.number, view.redelivery_count, view.skip = 0, 3, 5
    opened = EntryOpener(TOPIC, KeyRing()).open(view)
    assert (opened.redelivery_count, opened.skip) == (3, 5)
    assert_same(opened, content, PREFIX)
    raw = raw_view(view, "t")
    assert (raw.value(0), raw.count, raw.batched, raw.redelivery_count) == (view.payload, 1, False, 3)


@given(contents(max_messages=3), st.integers(0, 1), st.data())
def test_no_flipped_bit_gets_through(content: EntryContent, codec: int, data: st.DataObject):
    """Whoever changes a bit, and the checksums too, gets a refusal: of the shape, or of the cipher."""
    entry = sealed(encode(content, PREFIX, codec), last_id(content))
    body = bytearray(b"".join(entry.parts))
    view = unframed(framed(entry)[0])
    assert isinstance(view, SealedView)
    end = len(view.clear) + len(view.payload)  # behind it is padding, which says nothing
    bit = data.draw(st.integers(0, 8 * end - 1))
    body[bit >> 3] ^= 1 << (bit & 7)
    header = frame.read_header(framed(entry)[0], 0, len(framed(entry)[0]))
    with pytest.raises((CorruptionError, CryptoError)):
        EntryOpener(TOPIC, KeyRing()).open(decode(header, bytes(body), 9))  # type: ignore[arg-type]


@given(contents(max_messages=3))
def test_an_entry_is_that_of_its_topic_and_flags(content: EntryContent):
    """The same bytes under another topic, with other flags or another count, are refused."""
    entry = sealed(encode(content, PREFIX), last_id(content))
    whole = framed(entry)[0]
    header = frame.read_header(whole, 0, len(whole))
    view: Any = unframed(whole)
    with pytest.raises(CryptoError, match="not what its producer encrypted"):
        EntryOpener("persistent://public/default/other", KeyRing()).open(view)
    body = b"".join(entry.parts)
    for changed in (
        header._replace(flags=header.flags ^ frame.FLAG_KEYS),
        header._replace(message_count=header.message_count + 1),
    ):
        other: Any = decode(changed, body, 9)
        with pytest.raises(CryptoError, match="not what its producer encrypted"):
            EntryOpener(TOPIC, KeyRing()).open(other)
