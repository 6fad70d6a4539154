"""Frames and entries for tests of the formats and of what reads them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

from embeddedpulsar._engine.format import frame
from embeddedpulsar._engine.format.columns import EntryFields, Slice, read_offsets, text_of_key
from embeddedpulsar._engine.format.entry import EncodedEntry, EntryContent, EntryView, decode

i64 = st.integers(-(2**63), 2**63 - 1)
positive = st.integers(0, 2**63 - 1)
texts = st.text(st.characters(codec="utf-8"), max_size=12)


def framed(
    entry: EncodedEntry, *, entry_id: int = 0, prev_crc: int = 0, publish_ms: int = 1_000, kind: int = 1
) -> tuple[bytes, int]:
    """A whole frame around an encoded entry, and its crc."""
    length = frame.HEADER_SIZE + entry.size + frame.TRAILER_SIZE
    header, crc = frame.seal(
        length,
        prev_crc,
        entry.body_crc,
        kind,
        entry.codec,
        entry.flags,
        entry_id,
        publish_ms,
        entry.count,
        entry.metadata_length,
    )
    return header + b"".join(entry.parts) + frame.pack_trailer(length), crc


def unframed(data: bytes, *, view: bool = False) -> EntryView:
    """Check and decode the one frame in `data`."""
    header = frame.read_header(data, 0, len(data))
    frame.verify_body(data, 0, header)
    frame.verify_trailer(data, 0, header)
    body = data[frame.HEADER_SIZE : -frame.TRAILER_SIZE]
    return decode(header, memoryview(body) if view else body, 9)


entry_fields = st.builds(
    EntryFields,
    publish_time=st.none() | i64,
    replicated_from=st.none() | texts,
    replicate_to=st.none() | st.lists(texts, max_size=3).map(tuple),
    deduplication_id=st.none() | i64,
)


def shown_key(key: str | bytes | None) -> str | None:
    """A partition key as readers of text see it."""
    return text_of_key(key) if isinstance(key, bytes) else key


def shown_ordering_key(key: str | bytes | None) -> str | None:
    """An ordering key as readers of text see it: Base64 only where the bytes are no text."""
    if not isinstance(key, bytes):
        return key
    try:
        return key.decode()
    except UnicodeDecodeError:
        return text_of_key(key)


def raw_key(key: str | bytes | None) -> bytes | None:
    """The bytes of a key."""
    return key.encode() if isinstance(key, str) else key


@st.composite
def contents(draw: st.DrawFn, max_messages: int = 12) -> EntryContent:
    """Any entry: every combination of columns."""
    count = draw(st.integers(1, max_messages))

    def column(each: st.SearchStrategy[object]) -> object:
        return draw(st.none() | st.lists(each, min_size=count, max_size=count))

    properties = st.none() | st.dictionaries(texts, texts, max_size=3)
    fields = st.none() | st.dictionaries(texts, i64 | texts | st.booleans(), max_size=3)
    keys = column(st.none() | texts) or column(st.none() | texts | st.binary(max_size=12))
    nulls = column(st.booleans())
    if isinstance(nulls, list) and isinstance(keys, list):  # a key that is there is not null
        nulls = [is_null and key is None for is_null, key in zip(nulls, keys, strict=True)]
    return EntryContent(
        draw(st.lists(st.binary(max_size=40), min_size=count, max_size=count)),
        draw(st.integers(-(2**62), 2**62)),
        count > 1 or draw(st.booleans()),
        keys=keys,  # type: ignore[arg-type]
        null_keys=nulls,  # type: ignore[arg-type]
        fields=draw(st.none() | entry_fields),
        ordering_keys=column(st.none() | texts | st.binary(max_size=12)),  # type: ignore[arg-type]
        properties=column(properties),  # type: ignore[arg-type]
        event_times=column(positive),  # type: ignore[arg-type]
        sequence_ids=column(i64),  # type: ignore[arg-type]
        deliver_at=column(positive),  # type: ignore[arg-type]
        null_values=column(st.booleans()),  # type: ignore[arg-type]
        schema_version=draw(st.integers(-1, 2**31 - 1)),
        chunks=column(fields),  # type: ignore[arg-type]
        transaction=draw(st.none() | st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))),
    )


def read_var(data: bytes, offsets: Slice, part: Slice) -> list[bytes]:
    """A variable column as a list of bytes."""
    ends = read_offsets(data, offsets)
    content = bytes(data[part[0] : part[0] + part[1]])
    return [content[a:b] for a, b in pairwise(ends)]
