"""The options of one message."""

from __future__ import annotations

from datetime import timedelta

import pytest

from embeddedpulsar._engine.format.document import unpack_map
from embeddedpulsar.client.arguments import (
    DELIVER_AT,
    NO_OPTIONS,
    check_few,
    check_options,
    keyed_row,
    make_content,
    transposed,
)

NAMES = (
    "properties",
    "partition_key",
    "ordering_key",
    "sequence_id",
    "replication_clusters",
    "disable_replication",
    "event_timestamp",
    "deliver_at",
    "deliver_after",
)


def check(null=False, now=1000, **options):
    """The options after the check."""
    given = [options.get(name, False if name == "disable_replication" else None) for name in NAMES]
    return check_options(null, *given, lambda: now)


def test_nothing_set():
    """Without options, and with empty ones, nothing is set: as in pulsar-client, 0 and '' count as absent."""
    assert check() == NO_OPTIONS
    empty = {"properties": {}, "partition_key": "", "ordering_key": "", "sequence_id": 0}
    assert check(**empty, event_timestamp=0, deliver_at=0, deliver_after=timedelta(0)) == NO_OPTIONS
    assert check(replication_clusters=[], disable_replication=True) == NO_OPTIONS


def test_everything_set():
    """Each option has its place."""
    options = check(
        null=True,
        properties={"a": "b"},
        partition_key="k",
        ordering_key="o",
        sequence_id=5,
        event_timestamp=6,
        deliver_at=7,
    )
    assert options == ({"a": "b"}, "k", "o", 5, 6, 7, True)


def test_properties_are_copied():
    """The caller may change its dict after the call."""
    properties = {"a": "b"}
    options = check(properties=properties)
    properties["a"] = "c"
    assert options[0] == {"a": "b"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"properties": [1]}, "Argument properties is expected to be either None or of type 'dict'"),
        ({"partition_key": b"k"}, "Argument partition_key is expected to be either None or of type 'str'"),
        ({"ordering_key": 5}, "Argument ordering_key is expected to be either None or of type 'str'"),
        ({"sequence_id": "1"}, "Argument sequence_id is expected to be either None or of type 'int'"),
        ({"sequence_id": -1}, "sequenceId needs to be >= 0"),
        (
            {"replication_clusters": "a"},
            "Argument replication_clusters is expected to be either None or of type 'list'",
        ),
        (
            {"disable_replication": 1},
            "Argument disable_replication is expected to be of type 'bool' and not 'int'",
        ),
        ({"event_timestamp": "1"}, "Argument event_timestamp is expected to be either None or of type 'int'"),
        ({"deliver_at": 1.5}, "Argument deliver_at is expected to be either None or of type 'int'"),
        ({"deliver_after": 5}, "Argument deliver_after is expected to be either None or of type 'timedelta'"),
    ],
)
def test_wrong_options(options, text):
    """Types have the texts of pulsar-client."""
    with pytest.raises(ValueError) as caught:
        check(**options)
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"event_timestamp": -1}, "Argument event_timestamp must be between 0 and"),
        ({"deliver_at": -1}, "Argument deliver_at must be between 0 and"),
        ({"deliver_at": 2**63}, "Argument deliver_at must be between 0 and"),
        ({"sequence_id": 2**63}, "Argument sequence_id must be between"),
        ({"replication_clusters": [1]}, "Argument replication_clusters is expected to be a list of str"),
        ({"properties": {"a": 1}}, "Argument properties is expected to be a dict of str to str"),
        ({"properties": {None: "a"}}, "Argument properties is expected to be a dict of str to str"),
        ({"properties": {"a": b"\xff"}}, "Argument properties has b'.xff', which is no UTF-8"),
    ],
)
def test_what_the_protocol_has_no_room_for(options, text):
    """Numbers that do not fit, and properties that are no text, are a TypeError, as in pulsar-client."""
    with pytest.raises(TypeError, match=text):
        check(**options)


def test_bytes_are_properties():
    """Bytes stand for the text whose UTF-8 they are, as in pulsar-client; the first of equal names counts."""
    assert check(properties={"a": b"x", b"b": bytearray("ж".encode()), b"a": "y"})[0] == {"a": "x", "b": "ж"}


@pytest.mark.parametrize("option", ["partition_key", "ordering_key"])
def test_text_without_utf8_is_refused_when_sent(option):
    """A lone surrogate cannot be stored; the sender is told, not the batch."""
    with pytest.raises(TypeError, match=f"{option} has no UTF-8"):
        check(**{option: "\ud800"})
    with pytest.raises(TypeError, match="properties has no UTF-8"):
        check(properties={"a": "\ud800"})
    assert check(**{option: "ключ"}) != NO_OPTIONS


def test_replication_is_not_built():
    """Asking for clusters names the feature."""
    with pytest.raises(NotImplementedError, match="replication"):
        check(replication_clusters=["east"])


def test_deliver_after_counts_from_now():
    """A delay becomes a time, to the millisecond."""
    assert check(now=5000, deliver_after=timedelta(seconds=1.5))[DELIVER_AT] == 6500


def test_content_leaves_out_what_nobody_uses():
    """A column exists only if a message of the batch uses it."""
    content = make_content([b"a", b"b"], transposed([NO_OPTIONS, NO_OPTIONS]), [0, 1], True)
    for column in ("keys", "ordering_keys", "properties", "event_times", "deliver_at", "null_values"):
        assert getattr(content, column) is None
    rows = [NO_OPTIONS, ({"a": "b"}, "k", "o", 0, 5, 6, True)]
    content = make_content([b"", b""], transposed(rows), [0, 1], True)
    assert (content.keys, content.ordering_keys) == ([None, "k"], [None, "o"])
    assert (content.properties, content.event_times) == ([None, {"a": "b"}], [0, 5])
    assert (content.deliver_at, content.null_values) == ([0, 6], [False, True])


GOOD = [
    ({"a": "b"}, "k"),
    ({"a": "b", "ж": "щ"}, None),
    ({}, "ключ"),
    ({}, ""),
    (None, "k"),
    ({"a": b"x", b"b": bytearray("ж".encode()), b"a": "y"}, "k"),
]


@pytest.mark.parametrize(("properties", "key"), GOOD)
def test_a_row_has_the_options_that_are_checked_otherwise(properties, key):
    """With its properties packed; what is no option is left out."""
    value, callback, packed, *rest = keyed_row(b"v", print, properties, key)
    expected = check(properties=properties, partition_key=key)
    assert (value, callback) == (b"v", print)
    assert (None if packed is None else unpack_map(packed), *rest, *NO_OPTIONS[2:]) == expected
    assert check_few(False, properties, key) == expected


@pytest.mark.parametrize(
    ("properties", "key", "kind"),
    [
        ([1], None, ValueError),
        (b"packed", None, ValueError),
        ({"a": 1}, None, TypeError),
        ({None: "a"}, "k", TypeError),
        ({"a": b"\xff"}, None, TypeError),
        ({"a": "\ud800"}, None, TypeError),
        ({"\ud800": "a", "b": b"x"}, None, TypeError),
        ({"a": "b"}, b"k", ValueError),
        (None, "\ud800", TypeError),
    ],
)
def test_a_row_is_refused_with_the_text_of_the_check(properties, key, kind):
    """Whatever way a message takes, a wrong option has one error."""
    texts = set()
    for way in (
        lambda: keyed_row(b"v", None, properties, key),
        lambda: check_few(False, properties, key),
        lambda: check(properties=properties, partition_key=key),
    ):
        with pytest.raises(kind) as caught:
            way()
        texts.add(str(caught.value))
    assert len(texts) == 1, texts
