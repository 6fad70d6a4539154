"""Patterns of topic names: the topics of a consumer that subscribes to a regular expression."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Final

from embeddedpulsar.client.consumer.topic_group import expression_tree
from embeddedpulsar.enums import RegexSubscriptionMode
from embeddedpulsar.exceptions import InvalidTopicName
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.topic_name import NON_PERSISTENT, PERSISTENT, is_system_topic

_DOMAINS: Final = {
    RegexSubscriptionMode.PersistentOnly: (PERSISTENT,),
    RegexSubscriptionMode.NonPersistentOnly: (NON_PERSISTENT,),
    RegexSubscriptionMode.AllTopics: (PERSISTENT, NON_PERSISTENT),
}
_LETTERS: Final = ("-DLQ", "-RETRY")
_DEFAULT: Final = "public/default"
_leading_flags = re.compile(r"(?:\(\?[aiLmsux]+\))*").match
_leading_anchors = re.compile(r"(?:\^|\\A)*").match
_is_plain = re.compile(r"[A-Za-z0-9_\-=:.]+").fullmatch


class _Alternative(NamedTuple):
    """One of the alternatives of a pattern of full names.

    Attributes:
        anchors: what stands before the name: ``^`` and ``\\A``.
        owner: tenant and namespace as they are, with a slash behind each; empty if they are expressions.
        rest: the expression behind these.
    """

    anchors: str
    owner: str
    rest: str


class TopicPattern:
    """A regular expression for topic names. Immutable.

    An expression without a slash is one for the names of topics in ``public/default``, the whole of which has
    to match. Any other is one for ``tenant/namespace/topic``; of each of its alternatives the domain is left
    out, and tenant and namespace are taken literally, unless they have characters that no such name has. A
    partitioned topic matches with its own name, not with those of its partitions. Pulsar's system topics
    match no pattern.

    Args:
        pattern: a compiled regular expression, or an object with one in ``pattern``. Flags are kept.
        mode: whether persistent topics match, or non-persistent ones.
        letters: names of the topics to which the consumer sends dead letters and retry letters.
        sends_letters: whether it sends any. Then no topic whose name ends in ``-DLQ`` or ``-RETRY`` matches:
            the consumer would receive its own dead letters, and make dead letters of these.

    Attributes:
        text: the pattern as a full name.
        namespace: ``tenant/namespace``; None if the pattern has not one namespace but a pattern of several.
        beginning: what every name that matches begins with, behind its domain: of these names alone the list
            of topics is read.
        never: the alternatives that no topic can match, whatever its name, as far as that can be seen.
        is_local: whether the expression is one for names in ``public/default``.

    Raises:
        InvalidTopicName: the text does not have the form of a topic name.
        ValueError: the pattern is not one of text.

    >>> orders = TopicPattern(re.compile("orders-.*"))
    >>> orders.text, orders.namespace
    ('persistent://public/default/orders-.*', 'public/default')
    >>> orders.beginning
    'public/default/orders-'
    >>> [orders.matches(f"persistent://public/{name}") for name in ("default/orders-eu", "other/orders-eu")]
    [True, False]
    """

    def __init__(
        self,
        pattern: Any,
        mode: RegexSubscriptionMode = RegexSubscriptionMode.PersistentOnly,
        letters: Collection[str] = (),
        sends_letters: bool = False,
    ) -> None:
        text = pattern.pattern
        if not isinstance(text, str):
            raise ValueError(f"Argument topic is a pattern of {type(text).__name__}; compile one of str")
        flags = pattern.flags & ~re.DEBUG if isinstance(pattern, re.Pattern) else 0
        # Flags within the text are allowed at its very beginning only, which it does not keep here.
        given = text[_leading_flags(text).end() :]  # type: ignore[union-attr]
        is_verbose = bool(flags & re.VERBOSE)
        self.is_local: Final = bool(given) and "/" not in given
        if self.is_local:
            # The whole expression is for the names of public/default: an alternative or an anchor in it means
            # what it means in a pattern of nothing else.
            prefix, whole = f"{_DEFAULT}/", given
            self.text = f"{PERSISTENT}://{_DEFAULT}/{f'(?:{given})' if '|' in given else given}"
            parts = [_Alternative("", prefix, one) for one in expression_tree.alternatives(given, is_verbose)]
        else:
            parts = [_parsed(one, text) for one in expression_tree.alternatives(given, is_verbose)]
            owners = {one.owner for one in parts}
            prefix = owners.pop() if len(owners) == 1 else ""
            whole = "|".join(f"{one.anchors}{_literally(one.owner, flags)}{one.rest}" for one in parts)
            self.text = f"{PERSISTENT}://{'|'.join(f'{one.anchors}{one.owner}{one.rest}' for one in parts)}"
        try:
            compiled = re.compile(whole, flags)
        except re.error as error:
            raise InvalidTopicName(f"{text!r}: {error}") from error
        self._is_match: Final = compiled.fullmatch
        self.namespace: Final = prefix[:-1] or None
        self._prefix: Final = prefix
        is_exact = not flags & re.IGNORECASE
        beginning = expression_tree.beginning(whole, flags) if is_exact else ""
        self.beginning: Final = prefix + beginning if self.is_local else max(prefix, beginning, key=len)
        self.never: Final = tuple(
            one.rest if self.is_local else f"{one.anchors}{one.owner}{one.rest}"
            for one in parts
            if expression_tree.matches_no_name(
                one.rest if self.is_local else f"{one.anchors}{re.escape(one.owner)}{one.rest}",
                flags,
                least_slashes=0 if self.is_local else 2,
            )
        )
        self._domains: Final = _DOMAINS[mode]
        self._letters: Final = frozenset(letters)
        self._sends_letters: Final = sends_letters

    def matches(self, name: str) -> bool:
        """Return whether the topic with this full name matches."""
        domain, _, path = name.partition("://")
        if not path.startswith(self._prefix) or domain not in self._domains:
            return False
        if not self._is_match(path[len(self._prefix) :] if self.is_local else path):
            return False
        if name in self._letters or (self._sends_letters and path.endswith(_LETTERS)):
            return False
        return not is_system_topic(name)


def _parsed(alternative: str, text: str) -> _Alternative:
    """The parts of one alternative of a pattern of full names.

    Raises:
        InvalidTopicName: it does not have the form of a topic name.
    """
    anchors = _leading_anchors(alternative).group()  # type: ignore[union-attr]
    path = alternative[len(anchors) :]
    domain, separator, rest = path.partition("://")
    if separator and domain in (PERSISTENT, NON_PERSISTENT):
        path = rest
    parts = path.split("/", 2)
    is_short = len(parts) == 2 or (bool(separator) and len(parts) == 1)
    if (separator and domain not in (PERSISTENT, NON_PERSISTENT)) or is_short or not all(parts):
        raise InvalidTopicName(
            f"{text!r}: write the pattern as 'topic.*', 'tenant/namespace/topic.*' or "
            "'persistent://tenant/namespace/topic.*', each alternative of it, too"
        )
    if len(parts) == 3 and all(map(_is_plain, parts[:2])):
        return _Alternative(anchors, "/".join(parts[:2]) + "/", parts[2])
    return _Alternative(anchors, "", path)


def _literally(owner: str, flags: int) -> str:
    escaped = re.escape(owner)
    return f"(?-i:{escaped})" if owner and flags & re.IGNORECASE else escaped
