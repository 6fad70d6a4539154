"""Options of Spark reads: names, values, and what excludes what."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")

from embeddedpulsar import Client, InvalidTopicName, MessageId, NotAllowedError
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.spark.options import Limits, ReadOptions, parse_options, topics_matching

FULL = "persistent://public/default/"


def parse(**options: str) -> ReadOptions:
    """Options of a read of topic t, with these added."""
    return parse_options({"path": "/data", "topic": "t"} | options)


def test_defaults():
    """A path and a topic are enough: everything, 64 MiB to a partition, losses are errors."""
    assert parse() == ReadOptions("/data", (FULL + "t",), None, Limits(), Limits(), None, 0, 64 << 20, True)


def test_names_are_not_case_sensitive_and_have_aliases():
    """Spark's own habit, and the names that the connector for clusters has."""
    given = {"SERVICE.URL": "/data", "TopicS": "a, b ,a", "STARTINGTIMESTAMP": "7", "FailOnDataLoss": "FALSE"}
    options = parse_options(given)
    assert (options.path, options.topics) == ("/data", (FULL + "a", FULL + "b"))
    assert options.start == Limits(7)
    assert not options.fail_on_data_loss


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"topic": "t"}, "option path is missing"),
        ({"path": "/data"}, "exactly one of the options topic, topics and topicsPattern"),
        ({"path": "/data", "topic": "t", "topics": "u"}, "exactly one"),
        ({"path": "/data", "service.url": "/data", "topic": "t"}, "given twice"),
        (
            {"path": "/data", "topic": "t", "startingOffset": "earliest"},
            "unknown option startingOffset; there are",
        ),
        (
            {"path": "/data", "topic": "t", "maxBytesPerTrigger": "1"},
            "maxBytesPerTrigger is for streaming reads",
        ),
        ({"path": "/data", "topicsPattern": "("}, "topicsPattern"),
    ],
)
def test_what_is_refused(given, text):
    """Missing, doubled, unknown and misplaced options are errors that say so."""
    with pytest.raises(InvalidConfiguration, match=text):
        parse_options(given)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"startingOffsets": "latest"}, "latest leaves nothing"),
        ({"endingOffsets": "earliest"}, "earliest leaves nothing"),
        ({"startingOffsets": "7:1", "startingTime": "5"}, "not both"),
        ({"startingOffsets": "7"}, "is no place"),
        ({"startingOffsets": f"{1 << 63}:0"}, "is no place"),
        ({"startingOffsets": "{not json"}, "is no JSON"),
        ({"startingOffsets": '{"t": [300]}'}, "is no place"),
        ({"startingOffsets": '{"t": [8]}'}, "message id"),
        ({"startingTime": "yesterday"}, "is no time"),
        ({"columns": "value,valu"}, "no column 'valu'"),
        ({"minPartitions": "-1"}, "is no number"),
        ({"maxPartitionBytes": "0"}, "is no size"),
        ({"maxPartitionBytes": "many"}, "is no size"),
        ({"failOnDataLoss": "yes"}, "neither true nor false"),
    ],
)
def test_values_are_checked(options, text):
    """A value that does not parse names the option."""
    with pytest.raises(InvalidConfiguration, match=text):
        parse(**options)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", MessageId.earliest),
        ("7:3", MessageId(-1, 7, 3)),
        ("7:3:2", MessageId(-1, 7, 3, 2)),
        ("7:3:-1", MessageId(-1, 7, 3)),
    ],
)
def test_one_place_for_all_topics(text, place):
    """A keyword or an id without a topic counts for every topic."""
    assert parse(startingOffsets=text).start == Limits(place)


def test_places_by_topic():
    """JSON names topics; a place may be text, a keyword or the bytes of a serialized id (signed or not)."""
    serialized = MessageId(-1, 300, 1).serialize()
    signed = [byte - 256 if byte > 127 else byte for byte in serialized]
    text = json.dumps({"t": "7:3", "u": "latest", "v": list(serialized), "w": signed})
    assert parse(endingOffsets=text).end == Limits(
        None,
        (
            (FULL + "t", MessageId(-1, 7, 3)),
            (FULL + "u", MessageId.latest),
            (FULL + "v", MessageId(-1, 300, 1)),
            (FULL + "w", MessageId(-1, 300, 1)),
        ),
    )


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1700000000000", 1_700_000_000_000),
        ("-5", -5),
        ("2026-01-31T12:00:00Z", 1_769_860_800_000),
        ("2026-01-31T13:00:00+01:00", 1_769_860_800_000),
        ("2026-01-31 12:00:00", 1_769_860_800_000),
    ],
)
def test_times(text, ms):
    """Milliseconds or ISO 8601; without a zone it is UTC."""
    assert parse(startingTime=text).start == Limits(ms)
    assert parse(endingTime=json.dumps({"t": ms})).end == Limits(None, ((FULL + "t", ms),))


@pytest.mark.parametrize(
    ("text", "size"), [("1048576", 1 << 20), ("8m", 8 << 20), ("1 GiB", 1 << 30), ("2kb", 2048)]
)
def test_sizes(text, size):
    """Bytes, or a unit of powers of 1024."""
    assert parse(maxPartitionBytes=text).max_partition_bytes == size


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("orders-.*", ["persistent://public/default/orders-a"], ["persistent://acme/sales/orders-a"]),
        ("^orders-.*$", ["persistent://public/default/orders-a"], ["persistent://public/default/orders"]),
        ("a|b", ["persistent://public/default/a", "persistent://public/default/b"], ["persistent://a/b/b"]),
        ("acme/sales/.*", ["persistent://acme/sales/a"], ["persistent://public/default/a"]),
        ("acme/sales/a|t/n/b", ["persistent://acme/sales/a", "persistent://t/n/b"], ["persistent://t/n/a"]),
        ("non-persistent://a/b/c", ["non-persistent://a/b/c"], ["persistent://a/b/c"]),
        ("persistent://.*", ["persistent://a/b/c"], ["non-persistent://a/b/c"]),
    ],
)
def test_patterns_match_as_those_of_consumers(pattern, matching, others):
    """Those with a domain are for full names."""
    found = parse_options({"path": "/data", "topicsPattern": pattern}).pattern
    matches = topics_matching(found)
    assert [bool(matches(name)) for name in (*matching, *others)] == [True] * len(matching) + [False] * len(
        others
    )


def test_a_pattern_that_matches_nothing_warns(caplog):
    """With the alternative that no topic can match."""
    parse_options({"path": "/data", "topicsPattern": "acme/sales/a|b"})
    parse_options({"path": "/data", "topicsPattern": "persistent://a$b/c/d"})
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == [
        "'b'",
        "'persistent://a$b/c/d'",
    ]


def test_a_bad_topic_name_is_its_own_error():
    """The rules for topic names are those of the clients."""
    with pytest.raises(InvalidTopicName):
        parse(topic="a/b")


def test_options_of_clusters_are_ignored_with_a_warning(caplog):
    """A job written for a cluster keeps its admin.url; the log says that it means nothing here."""
    parse(**{"admin.url": "http://x", "pollTimeoutMs": "5"})
    assert "admin.url has no meaning" in caplog.text


def test_private_keys_are_paths():
    """They are read where the rows are made, so paths travel and never a key; one for all, or by name."""
    assert parse().private_keys == ()
    assert parse(cryptoPrivateKeyPath="/keys/private.pem").private_keys == (("", "/keys/private.pem"),)
    by_name = parse(cryptoPrivateKeyPath='{"app": "/keys/app.pem", "": "/keys/others.pem"}').private_keys
    assert by_name == (("app", "/keys/app.pem"), ("", "/keys/others.pem"))


def test_what_becomes_of_messages_without_a_key():
    """An error by default; they may be left out. Ciphertext is not for columns, and the error says so."""
    assert not parse().discards
    assert not parse(cryptoFailureAction="fail").discards
    assert parse(cryptoFailureAction="DISCARD").discards
    with pytest.raises(InvalidConfiguration, match="use FAIL or DISCARD"):
        parse(cryptoFailureAction="CONSUME")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"cryptoPrivateKeyPath": ""}, "is no path; give the path of a PEM file"),
        ({"cryptoPrivateKeyPath": "{app: x"}, "cryptoPrivateKeyPath is no JSON"),
        ({"cryptoPrivateKeyPath": '{"app": 7}'}, "7 is no path for the key 'app'"),
        ({"cryptoFailureAction": "skip"}, "'skip' is neither FAIL nor DISCARD"),
        ({"minPartitions": "\u00b2"}, "option minPartitions: '\u00b2' is no number"),
        ({"minPartitions": "-1"}, "option minPartitions: '-1' is no number"),
        ({"failOnDataLoss": "yes"}, "option failOnDataLoss: 'yes' is neither"),
        ({"topic": ""}, "option topic names no topic"),
        ({"topic": None, "topics": " , "}, "option topics names no topic"),
        (
            {"startingOffsets": '{"t": "1:1", "persistent://public/default/t": "1:2"}'},
            "startingOffsets names a topic twice",
        ),
    ],
)
def test_values_that_cannot_be_meant(options, text):
    """What is wrong, under the name of the option as the page on Spark spells it."""
    given = {"path": "/data", "topic": "t"} | options
    with pytest.raises(InvalidConfiguration, match=re.escape(text)):
        parse_options({name: value for name, value in given.items() if value is not None})


def test_a_store_in_memory_is_read_by_its_directory():
    """If a process has it open that started this one, or this one."""
    options = {"path": "memory://orders", "topicsPattern": ".*"}
    with pytest.raises(NotAllowedError, match="neither this process nor one that started it"):
        parse_options(options)
    with Client("memory://orders") as client:
        assert parse_options(options).path == client._core.store.root
