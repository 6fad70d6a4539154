"""Unit tests of embeddedpulsar.topic_name. Accepted and refused names were tried on pulsar-client itself."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddedpulsar.exceptions import InvalidTopicName
from embeddedpulsar.topic_name import (
    TopicName,
    directory_name,
    partition_index,
    subscription_directory_name,
)


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("t", "persistent://public/default/t"),
        ("t op!c", "persistent://public/default/t op!c"),
        ("köln", "persistent://public/default/köln"),
        ("a/b/c", "persistent://a/b/c"),
        ("persistent://a/b/c", "persistent://a/b/c"),
        ("non-persistent://a/b/c", "non-persistent://a/b/c"),
        ("persistent://p/c/ns/t", "persistent://p/c/ns/t"),
        ("persistent://a/b/c/d/e", "persistent://a/b/c/d/e"),
        ("persistent://a-b=c:d.e_f/n/t", "persistent://a-b=c:d.e_f/n/t"),
    ],
)
def test_accepted(text: str, full: str):
    """Short, three-part, full and legacy names are accepted and give one full name."""
    name = TopicName.parse(text)
    assert name.full == str(name) == full
    assert TopicName.parse(full) == name


@pytest.mark.parametrize(
    "text",
    [
        *("", "/a", "a/b", "a/b/c/d", "a//c", "/", "//"),
        *("persistent://a/b", "persistent://a//t", "persistent://a/b/", "persistent://a b/c/d", "://a/b/c"),
        *("http://a/b/c", "Persistent://a/b/c", "persistent://", "persistent://a/b c/t", "persistent:/a/b/c"),
        *("a\n", "a\x00b", "a\ud800", "e\u0301", "x" * 256, ".", "..", "../b/c", "persistent://../b/c"),
    ],
)
def test_refused(text: str):
    """What is no name raises InvalidTopicName, which names the text and says what is wrong."""
    with pytest.raises(InvalidTopicName) as caught:
        TopicName.parse(text)
    assert str(caught.value).startswith("Pulsar error: InvalidTopicName: ")


def test_a_name_must_be_text():
    """Bytes and None are no names."""
    with pytest.raises(InvalidTopicName, match="not bytes"):
        TopicName.parse(b"t")  # type: ignore[arg-type]


def test_parts():
    """Domain, tenant, namespace and local name can be read; slashes go to the local name of a long name."""
    name = TopicName.parse("non-persistent://acme/sales/orders-partition-3")
    assert name == ("non-persistent", "acme", "sales", "orders-partition-3", 3)
    assert not name.is_persistent
    assert name.namespace_name == "acme/sales"
    assert name.base == "non-persistent://acme/sales/orders"
    legacy = TopicName.parse("persistent://t/c/n/a/b")
    assert (legacy.namespace_name, legacy.local) == ("t/c/n", "a/b")


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("t-partition-0", 0),
        ("t-partition-12", 12),
        ("t-partition-00", -1),
        ("t-partition-01", -1),
        ("t-partition--1", -1),
        ("t-partition-x", -1),
        ("t-partition-", -1),
        ("t-partition-1-partition-2", 2),
        ("t", -1),
        ("-partition-1", -1),
        ("t-partition-\u0663", -1),
    ],
)
def test_partition_index(name: str, index: int):
    """Only a canonical number after the last `-partition-` makes a partition, as in Pulsar's Java code."""
    assert partition_index(name) == index
    assert TopicName.parse(name).partition == index


def test_of_partition():
    """A partition's name leads back to its topic."""
    name = TopicName.parse("t").of_partition(3)
    assert name.full == "persistent://public/default/t-partition-3"
    assert name == TopicName.parse(name.full)
    assert name.base == TopicName.parse("t").full


def test_directories_are_readable_and_stable():
    """The directory of a name is a promise to every store that exists: never change it."""
    assert directory_name("persistent://public/default/Orders EU") == "t-5pcpvgwarqibhgoqfc7qfm3g4u-orders-eu"
    assert subscription_directory_name("audit") == "s-xaptpicdu33wpz6jjuif6s6tci-audit"


def test_directories_differ_where_file_systems_would_not():
    """Names that differ in case only, or are too long for a file name, get directories of their own."""
    names = ["orders", "Orders", "ORDERS", "o/rders", "x" * 255, "..", "CON", "köln"]
    directories = {directory_name(f"persistent://public/default/{name}") for name in names}
    assert len({directory.lower() for directory in directories}) == len(names)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300))
def test_any_name_gives_a_safe_directory(name: str):
    """No name can leave its directory, hide, or become too long."""
    for directory in (directory_name(f"persistent://a/b/{name}"), subscription_directory_name(name)):
        assert re.fullmatch(r"[ts]-[a-z2-7]{26}(-[a-z0-9-]{1,40})?", directory)


@given(st.text(max_size=40))
def test_parse_accepts_or_raises(text: str):
    """Whatever the text, the answer is a name or InvalidTopicName; a name's full form parses to itself."""
    try:
        name = TopicName.parse(text)
    except InvalidTopicName:
        return
    assert TopicName.parse(name.full) == name


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_the_readable_part_of_a_directory_is_its_letters_and_digits(name: str):
    """Each run of anything else is one hyphen, as in the directories of all stores so far."""
    readable = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")[:40].rstrip("-")
    directory = subscription_directory_name(name)
    assert directory[len("s-") + 26 :] == (f"-{readable}" if readable else "")
