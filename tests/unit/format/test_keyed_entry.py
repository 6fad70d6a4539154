"""Entries of one key: the same bytes as the encoder for everything makes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddedpulsar._engine.format.entry import (
    EncodedEntry,
    EntryContent,
    ProducerPrefix,
    encode,
    encode_keyed,
)

PREFIX = ProducerPrefix("p", 3, 7)


def joined(entry: EncodedEntry) -> tuple[object, ...]:
    """Everything of an entry, however its bytes are cut."""
    return (b"".join(entry.parts), *entry[1:])


@given(
    st.lists(st.tuples(st.binary(max_size=70), st.integers(0, 1 << 40)), min_size=1, max_size=12),
    st.text(min_size=1, max_size=12),
    st.booleans(),
)
def test_the_bytes_are_those_of_the_encoder_for_everything(rows, key: str, follow: bool):
    """Any payloads, key and sequence ids, in a batch and alone."""
    values = [value for value, _ in rows]
    ids = list(range(5, 5 + len(rows))) if follow else [number for _, number in rows]
    for batched in {True, len(rows) > 1}:
        content = EntryContent(values, ids[0], batched, keys=[key] * len(rows), sequence_ids=ids)
        assert joined(encode_keyed(values, key, ids, PREFIX, batched)) == joined(encode(content, PREFIX))


@pytest.mark.parametrize("size", [0, 1, 32 << 10, 300_000])
@pytest.mark.parametrize("count", [1, 3])
def test_large_payloads_are_not_copied_and_make_the_same_entry(size: int, count: int):
    """The parts may differ, the entry does not."""
    values, ids = [bytes(size)] * count, list(range(count))
    content = EntryContent(values, 0, count > 1, keys=["k"] * count, sequence_ids=ids)
    made = encode_keyed(values, "k", ids, PREFIX, count > 1)
    assert joined(made) == joined(encode(content, PREFIX))
    assert size < 100_000 or any(part is values[0] for part in made.parts)
