"""Entries of Pulsar's clients, stored as they are: every byte is kept, and readers find the messages."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from embeddedpulsar._engine.format import frame
from embeddedpulsar._engine.format.entry import EncodedEntry, ProducerPrefix, decode, encode_pulsar
from embeddedpulsar._engine.format.entry_decoder import SealedView
from embeddedpulsar._engine.format.pulsar_batch import PulsarMetadata, read_metadata, split_entry
from embeddedpulsar._engine.format.sealed_entry import pulsar_bytes, raw_view
from embeddedpulsar.crypto import EntryOpener, wrap
from embeddedpulsar.exceptions import CorruptionError, CryptoError
from tests.frames import framed, unframed
from tests.support.key_files import KeyRing, key_pair
from tests.support.pulsar_entries import (
    PulsarEntry,
    PulsarMessage,
    data,
    number,
    pulsar_entries,
)
from tests.unit.format.test_entry import assert_same, read_everything

TOPIC = "persistent://public/default/t"
DATA_KEY = bytes(range(32))
IV = bytes(range(12))

# What official clients put behind the checksum of a SEND.
SINGLE = bytes.fromhex("0000000e 0a0170 1000 1880d095ffbc31 4802") + b"hi"
BATCH = bytes.fromhex(
    "00000014 0a0170 1005 1880d095ffbc31 32016b 5802 c00106"
    "00000007 12016b 1801 4005 61"
    "00000007 12016b 1802 4006 6262"
)


def frame_of(entry: EncodedEntry) -> tuple[frame.FrameHeader, bytes]:
    """Header and body of the frame of an entry."""
    whole, _ = framed(entry)
    return frame.read_header(whole, 0, len(whole)), whole[frame.HEADER_SIZE : -frame.TRAILER_SIZE]


def encrypted(entry: PulsarEntry) -> bytes:
    """As a client encrypts it: compressed first, and nothing authenticated beside it."""
    key = wrap(key_pair("rsa", 1)[0], DATA_KEY, "app")
    sealed = replace(entry, encryption_keys=[("app", key, {"version": "1"})], encryption_param=IV)
    return sealed.encoded(AESGCM(DATA_KEY).encrypt(IV, entry.packed(), None))


def test_entries_of_official_clients():
    """A message outside of a batch, and a batch whose metadata has the key of its first message."""
    view = unframed(framed(encode_pulsar(SINGLE))[0])
    assert (view.values(), view.batched, view.producer_name) == ([b"hi"], False, "p")
    assert view.entry_fields().publish_time == 1_700_000_000_000
    view = unframed(framed(encode_pulsar(BATCH))[0])
    assert (view.values(), view.keys(), list(view.sequence_ids())) == ([b"a", b"bb"], ["k", "k"], [5, 6])
    assert (view.highest_sequence_id(), view.codec) == (6, frame.CODEC_PULSAR)
    assert pulsar_bytes(*frame_of(encode_pulsar(BATCH))) == BATCH


@given(pulsar_entries(), st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)), st.booleans())
def test_any_entry_round_trips(entry: PulsarEntry, transaction: tuple[int, int] | None, as_view: bool):
    """With every codec of Pulsar; also what is in it that no column has."""
    encoded = encode_pulsar(entry.encoded(), transaction)
    assert encoded.size == sum(map(len, encoded.parts))
    assert not encoded.size & 7
    view = unframed(framed(encoded)[0], view=as_view)
    prefix = ProducerPrefix(entry.producer)
    assert_same(view, entry.content(transaction), prefix)
    header, body = frame_of(encoded)
    assert header.flags & frame.FLAG_REVISED
    assert pulsar_bytes(header, body) == entry.encoded()


@given(pulsar_entries(), st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)))
def test_any_encrypted_entry_round_trips(entry: PulsarEntry, transaction: tuple[int, int] | None):
    """What dispatch needs is in the clear; the rest is what its client encrypted."""
    stored = encrypted(entry)
    header, body = frame_of(encode_pulsar(stored, transaction))
    assert pulsar_bytes(header, body) == stored
    view: Any = decode(header, body, 9)
    assert isinstance(view, SealedView)
    assert (view.count, view.batched, view.producer_name) == (
        len(entry.messages),
        entry.batched,
        entry.producer,
    )
    assert (view.first_sequence_id, view.transaction()) == (entry.sequence_id, transaction)
    assert view.deliver_at() == ([5] * view.count if entry.deliver_at else None)
    assert view.entry_fields().publish_time == entry.publish_time
    assert view.highest_sequence_id() == max(entry.sequence_id, entry.highest_sequence_id)
    opened = EntryOpener(TOPIC, KeyRing("rsa")).open(view)
    content = entry.content(transaction)
    assert opened.values() == content.values
    assert [opened.key(i) for i in range(view.count)] == [
        key.encode() if isinstance(key, str) else key for key in content.keys or ()
    ]
    assert [opened.ordering_key(i) for i in range(view.count)] == content.ordering_keys
    assert [opened.properties(i) for i in range(view.count)] == content.properties
    assert list(opened.sequence_ids()) == content.sequence_ids
    assert [opened.null(i) for i in range(view.count)] == content.null_values
    assert [opened.is_key_null(i) for i in range(view.count)] == content.null_keys
    assert opened.transaction() == transaction
    assert opened.encryption.compression_type().value == entry.compression
    raw = raw_view(view, TOPIC)
    assert (raw.value(0), raw.count) == (view.payload, 1)


@given(pulsar_entries(codecs=[0]), st.data())
def test_an_entry_that_is_cut_short_is_refused(entry: PulsarEntry, draw: st.DataObject):
    """A batch at any place; a message outside of one in its metadata, behind which all is payload."""
    whole = entry.encoded()
    end = len(whole) if entry.batched else 4 + len(entry.metadata())
    with pytest.raises(ValueError, match="cannot be stored as it is"):
        encode_pulsar(whole[: draw.draw(st.integers(0, end - 1))] if end else b"")


@given(pulsar_entries(), st.booleans(), st.data())
def test_a_changed_body_is_corrupt_or_another_entry(entry: PulsarEntry, is_sealed: bool, draw: st.DataObject):
    """Of a writer whose checksums are right, and nothing else: CorruptionError only, or some messages."""
    header, body = frame_of(encode_pulsar(encrypted(entry) if is_sealed else entry.encoded()))
    changed = bytearray(body)
    at = draw.draw(st.integers(0, len(body) - 1))
    patch = draw.draw(st.binary(min_size=1, max_size=8))
    changed[at : at + len(patch)] = patch
    try:
        view: Any = decode(header, bytes(changed[: len(body)]), 9)
        if isinstance(view, SealedView):
            view = EntryOpener(TOPIC, KeyRing("rsa")).open(view)
        read_everything(view)
        assert view.count == header.message_count
    except (CorruptionError, CryptoError):
        return
    except KeyError:  # the version of the key is another: the reader of this test has none
        return


@given(pulsar_entries(), st.integers(0, 2**15 - 1), st.integers(0, 9))
def test_flags_that_are_not_its_own(entry: PulsarEntry, flags: int, count: int):
    """Columns are those that the flags announce, as far as the messages have no others."""
    header, body = frame_of(encode_pulsar(entry.encoded()))
    own = header.flags & frame.COLUMN_FLAGS
    changed = header._replace(flags=header.flags & ~frame.COLUMN_FLAGS | flags, message_count=count)
    try:
        view = decode(changed, body, 9)
    except CorruptionError:
        assert flags != own or count != header.message_count
        return
    assert (flags, count) == (own, header.message_count)
    assert view.values() == [message.payload for message in entry.messages]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (number(27, 3) + number(29, 1) + data(26, "u"), "chunked message"),
        (number(20, 21), "marker"),
        (number(31, 0), "a compaction removed messages"),
        (number(8, 9), "codec of Pulsar with the number 9"),
        (number(11, 0), "batch without a message"),
        (data(2, b"x"), "field 2 is no number"),
        (number(6, 5), "field 6 is a number"),
        (data(7, b"\xff"), "malformed metadata"),
        (b"\x0b", "malformed metadata"),
        (b"\xff", "malformed metadata"),
    ],
)
def test_what_cannot_be_kept(more: bytes, reason: str):
    """The text says why."""
    entry = PulsarEntry([PulsarMessage(b"a")], batched=False, more=more)
    with pytest.raises(ValueError, match=reason):
        encode_pulsar(entry.encoded())


def test_a_batch_thinned_out_by_a_compaction_is_refused():
    """Its messages have no place here: they would be delivered as empty ones."""
    message = number(3, 0) + number(4, 1)
    payload = len(message).to_bytes(4, "big") + message
    with pytest.raises(ValueError, match="compaction has removed"):
        encode_pulsar(PulsarEntry([PulsarMessage()]).encoded(payload))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"encryption_param": b"short"}, "initialization vector of 5 bytes"),
        ({"more": number(8, 7)}, "codec has the number 7"),
    ],
)
def test_what_cannot_be_kept_of_an_encrypted_entry(change: dict[str, Any], reason: str):
    """It would be accepted, and nobody could open it."""
    sealed = PulsarEntry([PulsarMessage()], encryption_keys=[("app", b"k", {})], encryption_param=IV)
    with pytest.raises(ValueError, match=reason):
        encode_pulsar(replace(sealed, **change).encoded(bytes(40)))


def test_an_encrypted_entry_that_was_changed_is_refused():
    """By the cipher, which has the payload under its tag."""
    stored = bytearray(encrypted(PulsarEntry([PulsarMessage(b"secret")])))
    stored[-1] ^= 1
    view: Any = unframed(framed(encode_pulsar(bytes(stored)))[0])
    with pytest.raises(CryptoError, match="not what its producer encrypted"):
        EntryOpener(TOPIC, KeyRing("rsa")).open(view)


def test_metadata_of_every_field():
    """Numbers, texts, and what is there several times."""
    entry = PulsarEntry(
        [PulsarMessage(b"", "k", b"o", {"a": "b"}, 5)],
        batched=False,
        sequence_id=-1,
        replicated_from="east",
        replicate_to=["west", "north"],
        schema_version=1 << 40,
        deliver_at=7,
        highest_sequence_id=9,
    )
    found = read_metadata(split_entry(entry.encoded())[0])
    assert isinstance(found, PulsarMetadata)
    assert (found.sequence_id, found.key, found.ordering_key) == (-1, "k", b"o")
    assert (found.replicated_from, found.replicate_to) == ("east", ("west", "north"))
    assert (found.schema_number, found.deliver_at, found.deduplication_id) == (-1, 7, 9)
    with pytest.raises(CorruptionError, match="producer, sequence id or publish time is missing"):
        read_metadata(b"")


def test_a_length_of_metadata_behind_the_end():
    """It is compared before anything is cut."""
    with pytest.raises(CorruptionError, match="metadata up to"):
        split_entry(struct.pack(">I", 1 << 31) + b"short")
