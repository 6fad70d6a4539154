"""Which names a pattern matches: fuzzed names and patterns."""

from __future__ import annotations

import random
import re
import unicodedata
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddedpulsar.client.consumer.topic_pattern import TopicPattern, alternatives
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
        ("orders{2}", "orderss"),
        ("orders+", "orders"),
        ("(orders|bills)", ""),
        ("(orders|order-.*)", "order"),
        ("o(rders|x)", "o"),
        ("o(rders)", "orders"),
        (r"orders\.eu", "orders.eu"),
        (".*-eu", ""),
        ("[ab]c", ""),
        ("(?=orders)o.*", "o"),
        ("orders$", "orders"),
        ("(?:orders)", "orders"),
        ("(?i:orders)", ""),
        ("(orders)?", ""),
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
    """Nor of patterns of namespaces; where spaces do not count, it has none."""
    assert TopicPattern(re.compile("acme/sales/orders", re.IGNORECASE)).beginning == "acme/sales/"
    assert TopicPattern(re.compile("(?i)acme/sales/orders")).beginning == "acme/sales/"
    assert TopicPattern(re.compile("acme/sales/or ders", re.VERBOSE)).beginning == "acme/sales/orders"
    assert TopicPattern(re.compile("acme/.*/orders")).beginning == "acme/"


EXPRESSIONS = st.recursive(
    st.sampled_from(
        ["a", "b", "ab", "-", ".", "[ab]", "[^a]", "[a|b]", r"\.", r"\w", "^", "$", "a|b", "|a", r"\|", "#"]
    ),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(st.sampled_from(["(", "(?:", "(?=", "(?!", "(?i:", "(?>"]), inner).map(
            lambda two: "".join(two) + ")"
        ),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["?", "*", "+", "{2}", "{1,2}", "*?"])).map(
            lambda two: f"(?:{two[0]}){two[1]}"
        ),
    ),
    max_leaves=6,
)
LOCALS = ["".join(letters) for size in (1, 2, 3) for letters in product("ab-|.", repeat=size)]
FLAGS = st.sampled_from([0, re.IGNORECASE, re.MULTILINE, re.DOTALL, re.VERBOSE])


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@given(EXPRESSIONS, FLAGS)
def test_a_short_pattern_matches_whole_names(expression: str, flags: int):
    """All topics of public/default, and no others, whose name the expression matches as a whole."""
    try:
        compiled = re.compile(expression, flags)
    except re.error:
        return
    pattern = TopicPattern(compiled)
    matched = [local for local in LOCALS if pattern.matches(f"persistent://public/default/{local}")]
    assert matched == [local for local in LOCALS if compiled.fullmatch(local)]
    assert all(f"public/default/{local}".startswith(pattern.beginning) for local in matched)
    assert not any(pattern.matches(f"persistent://acme/sales/{local}") for local in LOCALS[:30])
    assert not matched or len(pattern.never) < len(alternatives(expression, bool(flags & re.VERBOSE)))


OWNERS = st.sampled_from(["public/default", "acme/sales", "a.b/c"])
PARTS = st.tuples(
    st.sampled_from(["", "^", r"\A"]),
    st.sampled_from(["", "persistent://", "non-persistent://"]),
    OWNERS,
    EXPRESSIONS,
)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@given(st.lists(PARTS, min_size=1, max_size=3), FLAGS)
def test_each_alternative_has_its_namespace(parts: list[tuple[str, str, str, str]], flags: int):
    """With any of them, and domains and anchors before it, a topic matches if one alternative does."""
    flags &= ~re.VERBOSE
    compiled = []
    for _, _, owner, expression in parts:
        try:
            compiled.append((owner, re.compile(f"(?:{expression})", flags)))
        except re.error:
            return
    texts = [f"{anchor}{domain}{owner}/(?:{one})" for anchor, domain, owner, one in parts]
    # An anchor inside stands behind the namespace, where a name never begins.
    if any("^" in one or "(?!" in one or "(?=" in one for _, _, _, one in parts):
        return
    pattern = TopicPattern(re.compile("|".join(texts), flags))
    for owner in ("public/default", "acme/sales", "a.b/c", "axb/c"):
        for local in LOCALS[:40]:
            expected = any(of == owner and one.fullmatch(local) for of, one in compiled)
            assert pattern.matches(f"persistent://{owner}/{local}") == expected
            assert not expected or f"{owner}/{local}".startswith(pattern.beginning)


@pytest.mark.parametrize(
    ("expression", "never"),
    [
        ("orders", ()),
        ("orders|invoices", ()),
        ("^orders-.*$", ()),
        ("public/default/^orders", ("public/default/^orders",)),
        ("public/default/orders$x", ("public/default/orders$x",)),
        ("public/default/orders|invoices", ("invoices",)),
        ("public/default/orders|.*", ()),
        ("a|b^c", ("b^c",)),
        ("a|", ("",)),
        ("a\n", ("a\n",)),
        ("(?!)", ("(?!)",)),
        ("[ab]+/orders", None),
        ("^acme/sales/orders$|^persistent://public/default/bills$", ()),
        (".*/.*/orders", ()),
        ("(a)\\1", ()),
        ("a[|]b", ()),
        ("a(?#|)b", ()),
    ],
)
def test_alternatives_that_no_name_matches(expression: str, never: tuple[str, ...] | None):
    """They are named, so that the consumer can warn."""
    if never is None:
        with pytest.raises(InvalidTopicName, match="each alternative"):
            TopicPattern(re.compile(expression))
    else:
        assert TopicPattern(re.compile(expression)).never == never


def test_domains_and_anchors_of_each_alternative():
    """As in a list of full names."""
    pattern = TopicPattern(re.compile("^persistent://acme/sales/a$|persistent://acme/sales/b|t/n/c.*"))
    names = ["acme/sales/a", "acme/sales/b", "t/n/cd", "acme/sales/c", "t/n/a"]
    assert [pattern.matches(f"persistent://{name}") for name in names] == [True, True, True, False, False]
    assert (pattern.namespace, pattern.beginning) == (None, "")
