"""Unit tests of embeddedpulsar.message_id."""

from __future__ import annotations

import _pulsar
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddedpulsar import MessageId
from embeddedpulsar.message_id import make

LATEST = 2**63 - 1
VECTORS = [
    (MessageId.earliest, "08ffffffffffffffffff0110ffffffffffffffffff01"),
    (MessageId.latest, "08ffffffffffffffff7f10ffffffffffffffff7f"),
    (MessageId(0, 1, 2, 3), "0801100218002003"),
    (MessageId(-1, 5, 6), "08051006"),
]

small = st.integers(-1, 3)
ids = st.builds(
    MessageId,
    st.integers(-1, 2**31 - 1),
    st.integers(-1, LATEST),
    st.integers(-1, LATEST),
    st.integers(-1, 2**31 - 1),
)


@pytest.mark.parametrize(("message_id", "binary"), VECTORS)
def test_serialized_form(message_id: MessageId, binary: str):
    """The binary form is Pulsar's, byte for byte, both ways."""
    assert message_id.serialize().hex() == binary
    assert MessageId.deserialize(bytes.fromhex(binary)) == message_id


@given(ids)
def test_pulsar_client_reads_what_we_write(message_id: MessageId):
    """Any id crosses to pulsar-client and back unchanged."""
    theirs = _pulsar.MessageId.deserialize(message_id.serialize())
    assert str(theirs) == str(message_id)
    assert MessageId.deserialize(_pulsar.MessageId.serialize(theirs)) == message_id


@pytest.mark.parametrize(
    "data",
    [
        *("", "0801", "1001", "08", "0801100218", "08011002ff", "080110023a05"),
        *("0a0110", "00011002", "08ffffffffffffffffffffff011002", "0b01", "text"),
    ],
)
def test_bad_bytes_are_refused(data: object):
    """What is no message id raises ValueError with pulsar-client's text."""
    if isinstance(data, str) and data != "text":
        data = bytes.fromhex(data)
    with pytest.raises(ValueError, match=r"^Failed to parse serialized message id$"):
        MessageId.deserialize(data)  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [None, 5, ["x"]])
def test_what_is_no_bytes_is_a_type_error(data: object):
    """As in pulsar-client."""
    for deserialize in (MessageId.deserialize, _pulsar.MessageId.deserialize):
        with pytest.raises(TypeError):
            deserialize(data)


@given(st.binary(max_size=60))
def test_any_bytes_parse_or_raise_value_error(data: bytes):
    """The parser never fails in another way, and what it accepts it can write again."""
    try:
        message_id = MessageId.deserialize(data)
    except ValueError:
        return
    assert MessageId.deserialize(message_id.serialize()) == message_id


def test_batch_size_and_first_chunk_survive():
    """Batch size and the id of the first chunk are kept, and show where pulsar-client shows them."""
    batched = MessageId.deserialize(make(7, 1, 0, -1, 10).serialize())
    assert batched._batch_size == 10
    chunked = MessageId.deserialize(bytes.fromhex("080110053a0408011002"))
    assert str(chunked) == "(1,2,-1,-1);(1,5,-1,-1)"
    assert chunked.serialize().hex() == "080110053a0408011002"


def test_deserialize_keeps_the_topic():
    """The topic passed in is kept for consumers of several topics."""
    assert MessageId.deserialize(b"\x08\x05\x10\x06", "t")._topic == "t"


def test_text():
    """The text form is (ledger,entry,partition,batch), for str and repr."""
    assert str(MessageId(0, 1, 2, 3)) == repr(MessageId(0, 1, 2, 3)) == "(1,2,0,3)"
    assert str(MessageId.earliest) == "(-1,-1,-1,-1)"
    assert str(MessageId.latest) == f"({LATEST},{LATEST},-1,-1)"


def test_accessors():
    """Each part can be read."""
    message_id = MessageId(partition=4, ledger_id=3, entry_id=2, batch_index=1)
    parts = message_id.partition(), message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()
    assert parts == (4, 3, 2, 1)
    assert MessageId.wrap(message_id) is message_id


@given(st.tuples(small, small, small, small), st.tuples(small, small, small, small))
def test_order_is_pulsars(one: tuple, other: tuple):
    """Every comparison gives what pulsar-client gives, also where ids differ in the partition only."""
    ours, ours_other = MessageId(*one), MessageId(*other)
    theirs, theirs_other = _pulsar.MessageId(*one), _pulsar.MessageId(*other)
    assert (ours == ours_other) == (theirs == theirs_other)
    assert (ours != ours_other) == (theirs != theirs_other)
    assert (ours < ours_other) == (theirs < theirs_other)
    assert (ours <= ours_other) == (theirs <= theirs_other)
    assert (ours > ours_other) == (theirs > theirs_other)
    assert (ours >= ours_other) == (theirs >= theirs_other)
    if ours == ours_other:
        assert hash(ours) == hash(ours_other)


def test_other_types_are_unequal_and_unordered():
    """Comparing with something else is False or a TypeError, never a crash."""
    assert MessageId.earliest != (-1, -1, -1, -1)
    with pytest.raises(TypeError):
        assert MessageId.earliest < 5


@pytest.mark.parametrize("bad", ["1", 1.5, None])
def test_parts_must_be_ints(bad: object):
    """A part that is no int is a TypeError, as in pulsar-client."""
    with pytest.raises(TypeError, match="made of ints"):
        MessageId(ledger_id=bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "parts", [(2**31, 0, 0, 0), (0, 2**63, 0, 0), (0, 0, -(2**63) - 1, 0), (0, 0, 0, 2**31)]
)
def test_parts_have_so_much_room(parts: tuple):
    """What does not fit into the binary form is refused, as by pulsar-client, and not cut off."""
    with pytest.raises(TypeError, match="no room"):
        MessageId(*parts)
    with pytest.raises(TypeError):
        _pulsar.MessageId(*parts)


def test_other_whole_numbers_are_ints():
    """As those of NumPy are, out of a data frame."""

    class Whole:
        def __init__(self, value: int) -> None:
            self._value = value

        def __index__(self) -> int:
            return self._value

    made = MessageId(Whole(0), Whole(5), Whole(6), Whole(-1))  # type: ignore[arg-type]
    assert str(made) == "(5,6,0,-1)"
    assert type(made.ledger_id()) is int


def test_a_bool_is_an_int():
    """As in pulsar-client, True passes for 1."""
    assert str(MessageId(True, True, True, True)) == "(1,1,1,1)"
    assert MessageId(True, 1, 1, 1) == MessageId(1, 1, 1, 1)
