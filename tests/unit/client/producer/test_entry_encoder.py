"""Messages become entries."""

from __future__ import annotations

import pytest

from embeddedpulsar._engine.format.entry import ProducerPrefix
from embeddedpulsar.client.arguments import NO_OPTIONS, keyed_row
from embeddedpulsar.client.producer.entry_encoder import EntryEncoder
from embeddedpulsar.client.producer.pending_entry import is_unbatchable, item_of
from embeddedpulsar.exceptions import MessageTooBig
from tests.unit.client.fakes import view_of


def encoder(codec=0, key_based=False, max_size=5 << 20) -> EntryEncoder:
    """An encoder for one producer."""
    return EntryEncoder(ProducerPrefix("p"), codec, key_based, max_size)


def item(value: bytes, callback=None, **options):
    """A message with options, as a producer queues it."""
    names = ("properties", "key", "ordering_key", "sequence_id", "event_time", "deliver_at", "null")
    row = [options.get(name, default) for name, default in zip(names, NO_OPTIONS, strict=True)]
    return (value, callback, *row)


def views(items, **options):
    """What consumers would see of a batch."""
    entries, _ = encoder(**options).encode(items, True, 10)
    return [view_of(out.encoded, 1, i) for i, out in enumerate(entries)]


def test_plain_messages_become_one_entry():
    """Payloads alone take consecutive sequence ids and batch indexes."""
    entries, following = encoder().encode([b"a", b"b", b"c"], False, 7)
    (out,) = entries
    assert (out.first, out.last, following, out.callbacks, out.batched) == (7, 9, 10, None, True)
    view = view_of(out.encoded, 1, 0)
    assert (view.values(), view.first_sequence_id, view.batched) == ([b"a", b"b", b"c"], 7, True)


def test_a_missed_hint_is_noticed():
    """A tuple among the items is found even when nobody said so."""
    entries, following = encoder().encode([b"a", (b"b", print)], False, 0)
    assert view_of(entries[0].encoded, 1, 0).values() == [b"a", b"b"]
    assert (entries[0].callbacks, following) == ([None, print], 2)


@pytest.mark.parametrize(
    "items", [[(b"a", print), b"b"], [(b"a", print), item(b"b")], [item(b"a", print), b"b"]]
)
def test_callbacks_stay_with_their_messages(items):
    """The list of callbacks is as long as the batch, in its order."""
    entries, _ = encoder().encode(items, True, 0)
    assert entries[0].callbacks == [print, None]


def test_options_become_columns():
    """Each message keeps its own options; a batch of plain messages among them has none."""
    (view,) = views([b"a", item(b"b", key="k", properties={"x": "y"}, event_time=5), item(b"", null=True)])
    assert view.keys() == [None, "k", None]
    assert [view.properties(i) for i in range(3)] == [{}, {"x": "y"}, {}]
    assert view.event_times() == [0, 5, 0]
    assert [view.null(i) for i in range(3)] == [False, False, True]


def full(row: tuple) -> tuple:
    """The same row with all options."""
    return (*row, *NO_OPTIONS[len(row) - 2 :])


KEYED = [
    keyed_row(b"a", None, {"x": "y", "z": ""}, "k"),
    keyed_row(b"b", print, None, None),
    keyed_row(b"", None, {}, "\u00e9"),
    keyed_row(b"d", None, {"x": "\u00e9"}, "k"),
]


@pytest.mark.parametrize(
    "items",
    [
        KEYED,
        [*KEYED, b"plain", (b"c", print)],
        [*KEYED, item(b"e", event_time=5, ordering_key="o")],
        [KEYED[1], KEYED[1]],
        [*KEYED, item(b"f", key="k", sequence_id=99)],
    ],
    ids=["alone", "beside plain ones", "beside longer ones", "without options", "beside an id"],
)
@pytest.mark.parametrize(
    "options", [{}, {"key_based": True}, {"codec": 2}], ids=["plain", "key-based", "codec"]
)
def test_a_short_row_is_one_without_the_other_options(items, options):
    """Whatever stands beside it in the batch, the entries are those of rows with all options."""
    long = [full(row) if row.__class__ is tuple and len(row) > 2 else row for row in items]
    short, expected = (encoder(**options).encode(rows, True, 10) for rows in (items, long))
    assert short[1] == expected[1]
    for out, other in zip(short[0], expected[0], strict=True):
        assert out.encoded == other.encoded
        assert (out.first, out.last, out.highest, out.callbacks) == (
            other.first,
            other.last,
            other.highest,
            other.callbacks,
        )


def test_a_short_row_as_an_entry_of_its_own():
    """The options that it does not have are none."""
    row = KEYED[0]
    (out, following), (other, _) = (encoder().encode_single_item(each, 7) for each in (row, full(row)))
    assert (out.encoded, out.last, following) == (other.encoded, 7, 8)
    assert not is_unbatchable(row)


@pytest.mark.parametrize(
    "late", [{"ordering_key": "o"}, {"sequence_id": 1}, {"event_time": 5}, {"null": True}]
)
def test_an_item_is_as_short_as_its_options_allow(late):
    """A batch has as many columns as its longest item, and no option is lost."""
    assert item_of(b"a", None, None) == b"a"
    assert item_of(b"a", print, None) == (b"a", print)
    options = item(b"a", key="k", properties={"x": "y"})[2:]
    assert item_of(b"a", None, options) == (b"a", None, {"x": "y"}, "k")
    options = item(b"a", key="k", **late)[2:]
    assert item_of(b"a", None, options) == (b"a", None, *options)


def test_explicit_sequence_ids_do_not_advance_the_automatic_ones():
    """The automatic ids go on as if the message with an id of its own was not there."""
    (view,) = views([b"a", item(b"b", sequence_id=99), b"c"])
    assert list(view.sequence_ids()) == [10, 99, 11]


def test_key_based_batches_hold_one_key():
    """One entry per key, the ordering key before the partition key, in the order of first appearance."""
    items = [
        item(b"1", key="a"),
        item(b"2", key="b"),
        item(b"3", key="x", ordering_key="a"),
        b"4",
        item(b"5", key="b"),
    ]
    found = views(items, key_based=True)
    assert [view.values() for view in found] == [[b"1", b"3"], [b"2", b"5"], [b"4"]]
    assert [list(view.sequence_ids()) for view in found] == [[10, 11], [12, 13], [14]]


def test_key_based_batches_keep_the_order_of_explicit_ids():
    """What comes behind a higher id is a duplicate: where ids are given, only neighbours share an entry."""
    items = [item(b"%d" % at, key=key, sequence_id=at) for at, key in enumerate("abba", 20)]
    found = views([*items, item(b"last", key="a")], key_based=True)
    assert [list(view.sequence_ids()) for view in found] == [[20], [21, 22], [23, 10]]


@pytest.mark.parametrize("codec", [1, 2])
def test_a_codec_covers_the_batch(codec):
    """Compressed or not, consumers see the same messages."""
    (view,) = views([b"x" * 500, item(b"y" * 500, key="k")], codec=codec)
    assert view.codec == codec
    assert (view.values(), view.keys()) == ([b"x" * 500, b"y" * 500], [None, "k"])
    (view,) = views([b"x" * 500], codec=codec)
    assert view.values() == [b"x" * 500]


@pytest.mark.parametrize("items", [[b"x" * 1000], [(b"x" * 1000, print)], [item(b"x" * 1000, key="k")]])
def test_a_batch_beyond_the_limit_fails_whole(items):
    """Beyond maxMessageSize the entry carries the error for all its messages."""
    entries, following = encoder(max_size=500).encode(items, True, 0)
    assert isinstance(entries[0].error, MessageTooBig)
    assert following == 1
