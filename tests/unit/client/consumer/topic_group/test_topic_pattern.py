"""Which names a pattern matches: fuzzed names and patterns."""

from __future__ import annotations

import random
import re
import unicodedata

import pytest

from embeddedpulsar.client.consumer.topic_group.topic_pattern import TopicPattern
from embeddedpulsar.enums import RegexSubscriptionMode
from embeddedpulsar.exceptions import InvalidTopicName
from embeddedpulsar.topic_name import TopicName

ALPHABET = "ab-_.:=/\\^$*+?{}[]()|#%&~ \t\n\u00e9\u0301\u202e\u4e2d\U0001f600\ud800-DLQ-partition-0://"


def fuzzed(rng: random.Random) -> str:
    """A text of hostile pieces, in the normal form of topic names."""
    return unicodedata.normalize("NFC", "".join(rng.choices(ALPHABET, k=rng.randint(1, 30))))


def test_ten_thousand_hostile_names():
    """A name that is allowed matches what it says literally, and whatever matches everything; none raises."""
    rng = random.Random(13)
    everything = TopicPattern(re.compile(".*", re.DOTALL))
    allowed = 0
    for _ in range(10_000):
        text = fuzzed(rng)
        try:
            name = TopicName.parse(f"persistent://public/default/{text}").full
        except InvalidTopicName:
            continue
        allowed += 1
        assert everything.matches(name)
        literal = TopicPattern(re.compile(f"persistent://public/default/{re.escape(text)}"))
        assert literal.matches(name)
        assert not literal.matches(f"{name}x")
    assert allowed > 1000


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_ten_thousand_hostile_patterns():
    """A pattern is refused by an error that says so, or matches names without one."""
    rng = random.Random(31)
    accepted = 0
    for _ in range(10_000):
        text = fuzzed(rng)
        try:
            compiled = re.compile(text)
        except (re.error, OverflowError):
            continue
        try:
            pattern = TopicPattern(compiled)
        except InvalidTopicName:
            continue
        accepted += 1
        pattern.matches("persistent://public/default/a")
    assert accepted > 1000


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("t/n.s/a.b", "t/n.s/axb", "t/nxs/a.b"),
        ("t/ns/a|t/ns/b", "t/ns/b", "t/ns/ab"),
        ("t/ns/(a)\\1", "t/ns/aa", "t/ns/a1"),
        ("persistent://t/ns/a/b.*", "t/ns/a/bc", "t/ns/ab"),
        ("t/ns/.*", "t/ns/x-DLQ", "t/ns2/x"),
        ("non-persistent://t/ns/a", "t/ns/a", "t/ns/b"),
    ],
)
def test_whole_names_match(pattern, matching, other):
    """As in Pulsar, the expression stands for the whole name without its domain."""
    found = TopicPattern(re.compile(pattern))
    assert found.matches(f"persistent://{matching}")
    assert not found.matches(f"persistent://{other}")
    assert not found.matches(f"persistent://{matching}x") or pattern.endswith(".*")


@pytest.mark.parametrize(
    ("mode", "domains"),
    [
        (RegexSubscriptionMode.PersistentOnly, ["persistent"]),
        (RegexSubscriptionMode.NonPersistentOnly, ["non-persistent"]),
        (RegexSubscriptionMode.AllTopics, ["persistent", "non-persistent"]),
    ],
)
def test_the_mode_chooses_the_domain(mode, domains):
    """The domain in the pattern does not."""
    found = TopicPattern(re.compile("persistent://t/ns/.*"), mode)
    every = ["persistent", "non-persistent"]
    assert [domain for domain in every if found.matches(f"{domain}://t/ns/a")] == domains


def test_letters():
    """A consumer that sends letters matches none, and one that sends none may match them."""
    named = TopicPattern(re.compile(".*"), letters=["persistent://public/default/failed"], sends_letters=True)
    names = [f"persistent://public/default/{name}" for name in ("a", "failed", "a-s-DLQ", "a-s-RETRY")]
    assert [named.matches(name) for name in names] == [True, False, False, False]
    assert all(TopicPattern(re.compile(".*")).matches(name) for name in names)


@pytest.mark.parametrize(
    ("expression", "beginning"),
    [
        ("orders-.*", "orders-"),
        ("orders-eu", "orders-eu"),
        ("orders?-.*", "order"),
        ("orders*", "order"),
        ("orders{2}", "order"),
        ("orders+", "orders"),
        ("orders|bills", ""),
        ("o(rders|x)", ""),
        ("o(rders)", "o"),
        (r"orders\.eu", "orders"),
        (".*-eu", ""),
        ("[ab]c", ""),
        ("^orders", ""),
        ("orders$", "orders"),
        ("(?:orders)", ""),
    ],
)
def test_the_beginning_of_all_names_that_match(expression: str, beginning: str):
    """Only names with it are looked at, so it must be that of each of them."""
    pattern = TopicPattern(re.compile(f"acme/sales/{expression}"))
    assert pattern.beginning == f"acme/sales/{beginning}"
    for name in ("orders", "orders-eu", "orders.eu", "order", "bills", "orderss", "ox", "ac", "order-1"):
        if pattern.matches(f"persistent://acme/sales/{name}"):
            assert name.startswith(beginning)


def test_no_beginning_where_case_does_not_count():
    """Nor where spaces do not, nor of patterns of namespaces."""
    assert TopicPattern(re.compile("acme/sales/orders", re.IGNORECASE)).beginning == "acme/sales/"
    assert TopicPattern(re.compile("(?i)acme/sales/orders")).beginning == "acme/sales/"
    assert TopicPattern(re.compile("acme/sales/or ders", re.VERBOSE)).beginning == "acme/sales/"
    assert TopicPattern(re.compile("acme/.*/orders")).beginning == ""
