"""Key and properties of a message sent alone: the same bytes as the encoder for everything makes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddedpulsar._engine.format import document
from embeddedpulsar._engine.format import entry as message_extras
from embeddedpulsar._engine.format.entry import (
    EncodedEntry,
    EntryContent,
    ProducerPrefix,
    encode,
    fields_with_extras,
    pack_extras,
)
from embeddedpulsar._engine.format.entry_decoder import TRANSACTION
from embeddedpulsar._engine.format.frame import FLAG_BATCHED, FLAG_TRANSACTION, FLAG_TXN
from tests.frames import texts

PREFIX = ProducerPrefix("p", 3, 7)
PLENTY = 1 << 30


def _joined(entry: tuple[Any, ...]) -> tuple[object, ...]:
    """Everything of an entry, however its bytes are cut."""
    return (b"".join(entry[0]), *entry[1:])


@given(
    st.binary(max_size=70) | st.just(bytes(40_000)),
    st.lists(st.none() | texts | st.text("ab", min_size=60, max_size=70), min_size=2, max_size=2),
    st.none() | st.dictionaries(texts, texts, max_size=4),
    st.integers(0, 1 << 40),
    st.none() | st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    st.booleans(),
)
def test_the_bytes_are_those_of_the_encoder_for_everything(
    value: bytes,
    both: list[str | None],
    properties: dict[str, str] | None,
    sequence_id: int,
    event_time: int | None,
    deliver_at: int,
    is_null: bool,
):
    """Any options, empty ones included, which are none."""
    key, ordering_key = both
    extras = pack_extras(properties, key, PLENTY, ordering_key, event_time, deliver_at, is_null)
    assert extras is not None
    content = EntryContent(
        [value],
        sequence_id,
        False,
        keys=[key or None],
        ordering_keys=[ordering_key or None],
        properties=[properties],
        event_times=[event_time or 0],
        deliver_at=[deliver_at],
        null_values=[is_null],
    )
    made = EncodedEntry(*fields_with_extras(value, extras, sequence_id, PREFIX))
    assert _joined(made) == _joined(encode(content, PREFIX))
    # In a transaction, and of a batching producer.
    columns, flags, key_hash = extras
    content.batched = not deliver_at
    flags |= FLAG_TRANSACTION | FLAG_TXN | (FLAG_BATCHED if content.batched else 0)
    extras = columns + TRANSACTION.pack(0, 9), flags, key_hash
    made = EncodedEntry(*fields_with_extras(value, extras, sequence_id, PREFIX))
    expected = encode(content, ProducerPrefix("p", 3, 7, (0, 9)))
    assert _joined(made) == _joined(expected) == _joined(encode(content, PREFIX.in_transaction((0, 9))))


class _Text(str):  # noqa: SLOT000
    """A str that is more than one."""


@pytest.mark.parametrize(
    ("properties", "key"),
    [
        (None, b"k"),
        (None, 0),
        (None, _Text("k")),
        (None, "\ud800"),
        ({"n": 1}, None),
        ({b"n": "v"}, None),
        ({"n": _Text("v")}, "k"),
        ({"n": "\ud800"}, None),
        ({"\ud800": "v"}, None),
        ([], None),
        ([("n", "v")], None),
    ],
)
def test_what_has_to_be_looked_at_is_refused(properties: Any, key: Any):
    """The caller checks it, says what is wrong, or makes it what it must be; later ones are not harmed."""
    assert pack_extras(properties, key, PLENTY) is None
    if properties is None:
        assert pack_extras(None, None, PLENTY, key) is None
    fine = pack_extras({"n": "v"}, None, PLENTY)
    assert fine is not None
    assert fine[0].hex() == "000000000500000081a16ea176000000"


@pytest.mark.parametrize("event_time", [-1, 2**63, "", 1.0, True])
def test_an_event_time_that_has_to_be_looked_at_is_refused(event_time: Any):
    """Likewise."""
    assert pack_extras(None, None, PLENTY, None, event_time) is None


def test_room():
    """To the byte."""
    extras = pack_extras({"n": "v"}, "k", PLENTY)
    assert extras is not None
    assert pack_extras({"n": "v"}, "k", len(extras[0])) == extras
    assert pack_extras({"n": "v"}, "k", len(extras[0]) - 1) is None
    assert pack_extras(None, None, -1) is None


def test_few_keys_are_remembered_and_no_long_ones():
    """What a process remembers has a limit, however many keys there are, and however long they are."""
    message_extras._remembered.cache_clear()
    for number in range(9000):
        pack_extras(None, f"key {number}", PLENTY)
    assert message_extras._remembered.cache_info().currsize == 8192
    message_extras._remembered.cache_clear()
    assert pack_extras(None, "x" * 65, PLENTY) == pack_extras(None, "x" * 65, PLENTY)
    assert message_extras._remembered.cache_info().currsize == 0


@given(st.dictionaries(texts, texts, max_size=5))
def test_properties_packed_in_one_pass(properties: dict[str, str]):
    """The check and the packing of properties give the bytes of the packing alone."""
    assert document.pack_text_map(properties) == document.pack_map(properties)


class Shouted(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "properties", [{"a": 1}, {1: "a"}, {"a": "b", "c": b"d"}, {"a": Shouted("b")}, {Shouted("a"): "b"}]
)
def test_what_is_no_text_is_not_packed(properties: dict[Any, Any]):
    """Nor is a subclass of str, which may encode to something else."""
    assert document.pack_text_map(properties) is None
    with pytest.raises(UnicodeEncodeError):
        document.pack_text_map({"a": "\ud800"})


def test_packing_while_packing():
    """A finalizer or signal handler that packs while its thread packs has a packer of its own."""
    outer = document._PACKERS[:]
    document._PACKERS.clear()
    try:
        pack = document._new_packer()
        document._PACKERS.append(pack)
        taken = document._PACKERS.pop()  # as if `pack_map` were at it
        assert document.pack_map({"a": "b"}) == b"\x81\xa1a\xa1b"
        assert taken({"c": "d"}) == b"\x81\xa1c\xa1d"
        with pytest.raises(TypeError):
            document.pack_map({"a": object()})
        assert not document._PACKERS  # the one that failed is not used again
        assert document.pack_map({"a": "b"}) == b"\x81\xa1a\xa1b"
    finally:
        document._PACKERS[:] = outer
