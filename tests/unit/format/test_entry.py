"""Entries: what goes in comes out, whatever columns it has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddedpulsar._engine.format import frame
from embeddedpulsar._engine.format.columns import NO_FIELDS, EntryFields, column_slices
from embeddedpulsar._engine.format.entry import (
    EntryContent,
    EntryView,
    ProducerPrefix,
    decode,
    encode,
    encode_plain,
    encode_single,
    sticky_key_hash,
)
from embeddedpulsar.exceptions import CorruptionError
from tests.frames import (
    contents,
    framed,
    i64,
    raw_key,
    read_var,
    shown_key,
    shown_ordering_key,
    texts,
    unframed,
)

PREFIX = ProducerPrefix("producer-1", 7, 3)


def assert_same(view: EntryView, content: EntryContent, prefix: ProducerPrefix) -> None:
    """Every column of a decoded entry is that of the content it was made from."""
    count = len(content.values)
    assert view.values() == content.values
    assert [view.value(i) for i in range(count)] == content.values
    assert (view.count, view.batched, view.number) == (count, content.batched, 0)
    keys, ordering_keys = content.keys or [None] * count, content.ordering_keys or [None] * count
    assert view.keys() == only_if_any(list(map(shown_key, keys)), lambda key: key is not None)
    assert view.ordering_keys() == only_if_any(
        list(map(shown_ordering_key, ordering_keys)), lambda key: key is not None
    )
    assert [view.key(i) for i in range(count)] == list(map(raw_key, keys))
    assert [view.ordering_key(i) for i in range(count)] == list(map(raw_key, ordering_keys))
    assert [view.is_key_bytes(i) for i in range(count)] == [isinstance(key, bytes) for key in keys]
    assert [view.is_key_null(i) for i in range(count)] == (content.null_keys or [False] * count)
    assert view.entry_fields() == (content.fields or NO_FIELDS)
    given = view.entry_fields().deduplication_id
    assert view.highest_sequence_id() == (max(view.sequence_ids()) if given is None else given)
    assert [view.properties(i) for i in range(count)] == [p or {} for p in content.properties or [{}] * count]
    assert [view.chunk(i) for i in range(count)] == [c or {} for c in content.chunks or [{}] * count]
    assert view.event_times() == only_if_any(content.event_times, bool)
    assert view.deliver_at() == only_if_any(content.deliver_at, bool)
    assert [view.null(i) for i in range(count)] == (content.null_values or [False] * count)
    first = content.first_sequence_id
    assert list(view.sequence_ids()) == (content.sequence_ids or list(range(first, first + count)))
    assert view.transaction() == content.transaction
    assert view.producer_name == prefix.name
    assert view.producer_epoch == prefix.epoch
    expected = content.schema_version if content.schema_version != -1 else prefix.schema_version
    assert view.schema_version == expected
    sticky = next((k[0] for k in (content.ordering_keys, content.keys) if k and k[0] is not None), None)
    assert view.key_hash == (0 if sticky is None else sticky_key_hash(sticky))
    revised = any(isinstance(key, bytes) for key in keys) or any(content.null_keys or ())
    revised = revised or (content.fields or NO_FIELDS) != NO_FIELDS or view.codec == 5
    revised = revised or list(map(shown_ordering_key, ordering_keys)) != [
        key.decode() if isinstance(key, bytes) and is_text(key) else key for key in ordering_keys
    ]
    assert bool(view.flags & frame.FLAG_REVISED) == revised


def is_text(key: bytes) -> bool:
    """Whether bytes are UTF-8."""
    try:
        return key.decode() is not None
    except UnicodeDecodeError:
        return False


def only_if_any(values, is_something):
    """A column that holds nothing for any message is absent."""
    return values if values is not None and any(map(is_something, values)) else None


@given(contents(), st.integers(0, 5), st.booleans())
def test_any_content_round_trips(content: EntryContent, codec: int, as_view: bool):
    """Every combination of columns, with every codec, from bytes and from a view."""
    entry = encode(content, PREFIX, codec)
    data, _ = framed(entry)
    assert entry.size == sum(map(len, entry.parts))
    assert not entry.size & 7
    assert_same(unframed(data, view=as_view), content, PREFIX)


@given(st.binary(max_size=60), i64, texts, st.booleans())
def test_single_is_the_same_as_the_general_way(value: bytes, sequence_id: int, name: str, as_view: bool):
    """The fast path for one message writes the bytes that `encode` writes."""
    prefix = ProducerPrefix(name)
    entry = encode_single(value, sequence_id, prefix)
    data, _ = framed(entry)
    assert data == framed(encode(EntryContent([value], sequence_id, False), prefix))[0]
    view = unframed(data, view=as_view)
    assert (view.value(0), view.first_sequence_id, view.batched) == (value, sequence_id, False)


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=40), st.integers(-100, 2**62), st.booleans())
def test_plain_is_the_same_as_the_general_way(values: list[bytes], first: int, as_view: bool):
    """The fast path for payloads writes the bytes that `encode` writes."""
    data, _ = framed(encode_plain(values, first, PREFIX))
    assert data == framed(encode(EntryContent(values, first), PREFIX))[0]
    assert_same(unframed(data, view=as_view), EntryContent(values, first), PREFIX)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 32 << 10, (32 << 10) + 1, 1 << 20])
@pytest.mark.parametrize("as_view", [False, True])
def test_sizes_around_the_limits(size: int, as_view: bool):
    """Large values stay parts of their own, views of large bodies are copied once; the bytes are the same."""
    value = bytes(range(256)) * (size // 256 + 1)
    value = value[:size]
    for entry in (encode_single(value, 1, PREFIX), encode_plain([value, value], 1, PREFIX)):
        view = unframed(framed(entry)[0], view=as_view)
        assert set(view.values()) == {value}
        assert type(view.payload) is bytes
        assert view.producer_name == "producer-1"


def test_compression_that_does_not_help_is_not_used():
    """A codec is dropped when its output is no smaller than its input."""
    assert encode(EntryContent([b"x"], 0, False), PREFIX, frame.CODEC_ZLIB).codec == frame.CODEC_NONE
    assert encode(EntryContent([b"x" * 500], 0, False), PREFIX, frame.CODEC_ZLIB).codec == frame.CODEC_ZLIB


def test_bad_content_is_refused():
    """No message, a batch that says it is none, columns of another length, names that do not fit."""
    with pytest.raises(ValueError, match="0 messages"):
        encode(EntryContent([]), PREFIX)
    with pytest.raises(ValueError, match="2 messages in an entry that is not a batch"):
        encode(EntryContent([b"", b""], 0, False), PREFIX)
    with pytest.raises(ValueError, match="1 values in a column of 2 messages"):
        encode(EntryContent([b"", b""], 0, keys=["a"]), PREFIX)
    with pytest.raises(ValueError, match="1 values in a column of 2 messages"):
        encode(EntryContent([b"", b""], 0, null_keys=[True]), PREFIX)
    with pytest.raises(ValueError, match="the key 'a' cannot be null, too"):
        encode(EntryContent([b""], 0, keys=["a"], null_keys=[True]), PREFIX)
    with pytest.raises(TypeError, match="a key is int, not str or bytes"):
        encode(EntryContent([b""], 0, keys=[5]), PREFIX)  # type: ignore[list-item]
    with pytest.raises(ValueError, match="another type"):
        encode(EntryContent([b""], 0, fields=EntryFields(publish_time=1 << 64)), PREFIX)
    with pytest.raises(ValueError, match="at most 1024 bytes"):
        ProducerPrefix("n" * 1025)


@given(contents())
def test_columns_can_be_wrapped_without_copying(content: EntryContent):
    """`column_slices` says where the columns of an uncompressed body lie, aligned for numpy and Arrow."""
    data, _ = framed(encode(content, PREFIX))
    header = frame.read_header(data, 0, len(data))
    body = data[frame.HEADER_SIZE : -frame.TRAILER_SIZE]
    at = column_slices(header, body)
    assert at.count == len(content.values)
    assert read_var(body, at.value_offsets, at.value_data) == content.values
    if at.key_offsets is not None and at.key_data is not None:
        assert read_var(body, at.key_offsets, at.key_data) == [
            (shown_key(key) or "").encode() for key in content.keys or []
        ]
    for part in at[1:]:
        assert part is None or part[0] % 8 == 0


def test_columns_of_a_compressed_body_have_no_place():
    """Asking for them is a mistake of the caller, not damage."""
    data, _ = framed(encode(EntryContent([b"x" * 500], 0, False), PREFIX, frame.CODEC_LZ4))
    header = frame.read_header(data, 0, len(data))
    with pytest.raises(ValueError, match="compressed"):
        column_slices(header, data[48:-8])


@given(
    st.binary(max_size=400),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 400),
    st.integers(0, 6) | st.sampled_from([128, 129]),
)
def test_any_body_decodes_or_is_corrupt(body: bytes, flags: int, count: int, metadata: int, codec: int):
    """Bodies of a hostile writer (checksums in order, everything else random) raise CorruptionError only."""
    header = frame.FrameHeader(
        0, 0, 0, 0, frame.MAGIC, frame.KIND_ENTRY, codec, flags, 0, 0, count % 50, metadata, 0
    )
    for given_body in (body, memoryview(body)):
        try:
            view = decode(header, given_body, 1)
            read_everything(view)
        except CorruptionError:
            continue


@given(contents(max_messages=3), st.data())
def test_any_damaged_body_decodes_or_is_corrupt(content: EntryContent, data: st.DataObject):
    """A real body with some bytes replaced, its checksum not looked at, raises CorruptionError only."""
    encoded = encode(content, PREFIX, data.draw(st.sampled_from([0, 0, 1, 2, 3, 4, 5])))
    frame_bytes, _ = framed(encoded)
    header = frame.read_header(frame_bytes, 0, len(frame_bytes))
    body = bytearray(frame_bytes[48:-8])
    at = data.draw(st.integers(0, len(body) - 1))
    patch = data.draw(st.binary(min_size=1, max_size=8))
    body[at : at + len(patch)] = patch
    try:
        read_everything(decode(header, bytes(body[: len(frame_bytes) - 56]), 1))
    except CorruptionError:
        return


def read_everything(view: EntryView) -> None:
    """Ask a view for all it has."""
    assert view.values() is not None
    view.keys(), view.ordering_keys(), view.event_times(), view.deliver_at(), view.sequence_ids()
    view.transaction(), view.first_sequence_id, view.schema_version, view.key_hash, view.producer_epoch
    view.entry_fields(), view.highest_sequence_id()
    for i in range(view.count):
        view.properties(i), view.chunk(i), view.null(i)
        view.key(i), view.ordering_key(i), view.is_key_null(i), view.is_key_bytes(i)
    assert isinstance(view.producer_name, str)
    assert "messages" in repr(view)


def test_a_count_nobody_wrote_allocates_nothing():
    """Four billion messages in a body of 100 bytes are refused before anything is allocated for them."""
    import tracemalloc

    header = frame.FrameHeader(0, 0, 0, 0, frame.MAGIC, 1, 0, 0, 0, 0, 2**32 - 1, 40, 0)
    tracemalloc.start()
    with pytest.raises(CorruptionError):
        decode(header, bytes(100), 1)
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


def test_message_indexes_are_checked():
    """A message the entry does not have is an IndexError, not bytes of its neighbour."""
    view = unframed(framed(encode(EntryContent([b"a"], 0, properties=[{"k": "v"}]), PREFIX))[0])
    with pytest.raises(IndexError):
        view.properties(1)
