"""Patterns of topic names: the topics of a consumer that subscribes to a regular expression."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Final

from embeddedpulsar.enums import RegexSubscriptionMode
from embeddedpulsar.exceptions import InvalidTopicName
from embeddedpulsar.topic_name import NON_PERSISTENT, PERSISTENT, is_system_topic

_DOMAINS: Final = {
    RegexSubscriptionMode.PersistentOnly: (PERSISTENT,),
    RegexSubscriptionMode.NonPersistentOnly: (NON_PERSISTENT,),
    RegexSubscriptionMode.AllTopics: (PERSISTENT, NON_PERSISTENT),
}
_LETTERS: Final = ("-DLQ", "-RETRY")
_leading_flags = re.compile(r"(?:\(\?[aiLmsux]+\))*").match
_literals = re.compile(r"[A-Za-z0-9_\-=:]*").match
_is_plain = re.compile(r"[A-Za-z0-9_\-=:.]+").fullmatch


class TopicPattern:
    """A regular expression for topic names. Immutable.

    A topic matches if the whole of ``tenant/namespace/topic`` does; a partitioned topic matches with its own
    name, not with those of its partitions. Pulsar's system topics match no pattern.

    Args:
        pattern: a compiled regular expression, or an object with one in ``pattern``. Its text has the form of
            a topic name. Tenant and namespace are taken literally, unless they have characters that no such
            name has. Without them they are ``public/default``. Flags are kept.
        mode: whether persistent topics match, or non-persistent ones.
        letters: names of the topics to which the consumer sends dead letters and retry letters.
        sends_letters: whether it sends any. Then no topic whose name ends in ``-DLQ`` or ``-RETRY`` matches:
            the consumer would receive its own dead letters, and make dead letters of these.

    Attributes:
        text: the pattern as a full name.
        namespace: ``tenant/namespace``; None if the pattern has not one namespace but a pattern of several.
        beginning: what every name that matches begins with, behind its domain: of these names alone the list
            of topics is read.

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
        # Flags within the text are allowed at its very beginning only, which it does not keep here.
        given = text[_leading_flags(text).end() :]  # type: ignore[union-attr]
        domain, separator, path = given.partition("://")
        if not separator:
            domain, path = PERSISTENT, given
        parts = path.split("/", 2)
        if len(parts) == 1 and not separator:
            parts = ["public", "default", path]
        if domain not in (PERSISTENT, NON_PERSISTENT) or len(parts) != 3 or not all(parts):
            raise InvalidTopicName(
                f"{text!r}: write the pattern as 'topic.*', 'tenant/namespace/topic.*' or "
                "'persistent://tenant/namespace/topic.*'"
            )
        self.text: Final = f"{domain}://{'/'.join(parts)}"
        is_literal = all(map(_is_plain, parts[:2]))
        self.namespace: Final = "/".join(parts[:2]) if is_literal else None
        self._prefix: Final = f"{self.namespace}/" if is_literal else ""
        whole = self._regular_expression(parts, is_literal)
        flags = pattern.flags & ~re.DEBUG if isinstance(pattern, re.Pattern) else 0
        is_exact = is_literal and not flags & (re.IGNORECASE | re.VERBOSE)
        self.beginning: Final = self._prefix + (_literal_beginning(parts[2]) if is_exact else "")
        try:
            self._is_match: Final = re.compile(whole, flags).fullmatch
        except re.error as error:
            raise InvalidTopicName(f"{text!r}: {error}") from error
        self._domains: Final = _DOMAINS[mode]
        self._letters: Final = frozenset(letters)
        self._sends_letters: Final = sends_letters

    @staticmethod
    def _regular_expression(parts: list[str], is_literal: bool) -> str:
        owners = map(re.escape, parts[:2]) if is_literal else parts[:2]
        return "/".join((*owners, parts[2]))

    def matches(self, name: str) -> bool:
        """Return whether the topic with this full name matches."""
        domain, _, path = name.partition("://")
        if not path.startswith(self._prefix) or not self._is_match(path) or domain not in self._domains:
            return False
        if name in self._letters or (self._sends_letters and path.endswith(_LETTERS)):
            return False
        return not is_system_topic(name)


def _literal_beginning(expression: str) -> str:
    """What every text begins with that matches a regular expression, as far as that is seen at once."""
    found = _literals(expression)
    if "|" in expression or found is None:
        return ""
    is_repeated = expression[found.end() : found.end() + 1] in ("*", "?", "{")
    return found.group()[:-1] if is_repeated else found.group()
