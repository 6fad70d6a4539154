"""Patterns of topic names: the topics of a consumer that subscribes to a regular expression.

The topics of a store that match a pattern, followed as they come and go.

What can be said of a regular expression by its form: how its matches begin, and whether there are any.

The tree is that of Python's own parser. What is not known of a form is answered in the safe way: no
beginning, and matches are possible.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from importlib import import_module

from embeddedpulsar._engine.platform import timing
from embeddedpulsar._engine.store.topic_list import partition_names
from embeddedpulsar.enums import RegexSubscriptionMode
from embeddedpulsar.exceptions import AlreadyClosed, InvalidTopicName, TopicNotFound
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple
from embeddedpulsar.topic_name import NON_PERSISTENT, PERSISTENT, is_system_topic

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Final

    from embeddedpulsar._engine.format.catalog_record import TopicEntry
    from embeddedpulsar.client.client_context import ClientContext


_JOIN_S: Final = 1.0
"""How long the locks of a topic are waited for in all, because the other topics wait meanwhile."""


class MatchingTopics:
    """Lets the topics that match a pattern join a group, and those that were deleted leave it.

    Role: every name is matched once, when the store lists it: at first all of them, afterwards those of
    topics that were made, grew or were deleted. A topic that was deleted and made again is another topic.

    Invariants: a topic that cannot be joined, for example because an Exclusive consumer has its subscription,
    is tried again at the next `update`; the reason is logged once. No topic is created. One thread at a time
    may call the methods.

    Args:
        client: the client.
        pattern: the pattern.
        join: opens logs of a topic that are not open yet: ``join(entry, names, was_known)``.
        leave: closes logs, by their names.

    Attributes:
        is_current: ``is_current(entry)`` is False if the topic was deleted, or made again, since then.
    """

    def __init__(
        self,
        client: ClientContext,
        pattern: TopicPattern,
        join: Callable[[TopicEntry, list[str], bool], object],
        leave: Callable[[list[str]], object],
    ) -> None:
        self._client: Final = client
        self._pattern: Final = pattern
        self._join: Final = join
        self._leave: Final = leave
        self._joined: dict[str, TopicEntry] = {}
        self._reasons: dict[str, str] = {}  # why topics could not be joined
        self._changes: Final = client.store.topics.changes_of(pattern.matches)
        self._waiting: dict[str, TopicEntry | None] = {**self._changes.all(pattern.beginning)}
        self.is_current: Final = self._changes.is_current

    @property
    def count(self) -> int:
        """The number of logs of the topics that are about to join."""
        return sum(len(_logs(entry)) for entry in self._waiting.values() if entry is not None)

    def begin(self) -> None:
        """Let the topics join that were there at the beginning.

        Raises:
            PulsarException: one of them cannot be joined.
        """
        for name in list(self._waiting):
            self._change(name)

    def update(self) -> bool:
        """Let topics join and leave. Returns False if one of them is to be tried again."""
        self._waiting.update(self._changes.take_changes())
        for name in list(self._waiting):
            try:
                timing.within(_JOIN_S, self._change, name)
            except Exception as error:  # noqa: BLE001 - the other topics have their turn
                self._warn_once(name, str(error))
        return not self._waiting

    def renew(self, topic: str) -> None:
        """Have a topic join again that has left, if it still exists."""
        if topic in self._joined:
            self._waiting.setdefault(topic, self._joined[topic])

    def _change(self, name: str) -> None:
        entry, known = self._waiting[name], self._joined.get(name)
        if known is not None and (entry is None or entry.incarnation != known.incarnation):
            self._leave(_logs(known))
            known = self._joined.pop(name)
        if entry is not None:
            self._joined[name] = entry
            try:
                self._join(entry, _logs(entry), known is not None and known.incarnation == entry.incarnation)
            except Exception as error:
                self._client.check_open()
                self._waiting.update(self._changes.take_changes())
                is_going = isinstance(error, AlreadyClosed | FileNotFoundError | TopicNotFound)
                if self._waiting[name] == entry and not is_going:
                    raise
                return  # it is being deleted, or was: the next `update` finds what it is then
        self._waiting.pop(name, None)
        self._reasons.pop(name, None)

    def _warn_once(self, name: str, reason: str) -> None:
        if self._reasons.get(name) != reason:
            self._reasons[name] = reason
            self._client.log.warning(
                "%s matches %s and cannot be joined now; it is tried again every second: %s",
                name,
                self._pattern.text,
                reason,
                topic=name,
            )

    def close(self) -> None:
        """Follow no more. Idempotent."""
        self._changes.close()


def _logs(entry: TopicEntry) -> list[str]:
    """The names of the partitions of a topic, or of the topic itself."""
    return partition_names(entry.name, entry.partitions) or [entry.name]


parser: Any
try:
    parser = import_module("re._parser")
except ImportError:  # pragma: no cover - a Python with another parser: nothing is known of any expression
    parser = None

_STARTS: Final = ("AT_BEGINNING", "AT_BEGINNING_STRING")
_ENDS: Final = ("AT_END", "AT_END_STRING")
_ZERO_WIDTH: Final = ("AT", "ASSERT", "ASSERT_NOT")
_SLASH: Final = ord("/")
_MANY: Final = 1 << 16


def alternatives(expression: str, is_verbose: bool = False) -> list[str]:
    """The alternatives that an expression consists of at its outermost level.

    Example:
        >>> alternatives("a|(b|c)[|]|d\\\\|e")
        ['a', '(b|c)[|]', 'd\\\\|e']
    """
    parts, begin, depth, at = [], 0, 0, 0
    while at < len(expression):
        mark = expression[at]
        if mark == "\\":
            at += 1
        elif mark == "[":
            at = _end_of_class(expression, at)
        elif expression.startswith("(?#", at):
            at = (expression + ")").index(")", at)
        elif mark in "()":
            depth += 1 if mark == "(" else -1
        elif mark == "#" and is_verbose:
            at = (expression + "\n").index("\n", at)
        elif mark == "|" and not depth:
            parts.append(expression[begin:at])
            begin = at + 1
        at += 1
    return [*parts, expression[begin:]]


def _end_of_class(expression: str, at: int) -> int:
    """The place of the bracket that ends a class of characters; a first one in it is a character."""
    at += 2 if expression.startswith("[^", at) else 1
    at += expression.startswith("]", at)
    while at < len(expression) and expression[at] != "]":
        at += 2 if expression[at] == "\\" else 1
    return at


def fixed_beginning(expression: str, flags: int = 0) -> str:
    """The text that each match of an expression begins with.

    Example:
        >>> [fixed_beginning(text) for text in ("orders-.*", "^or(ders|dinary)", "a{2}b?", "x|y", "(?i:a)b")]
        ['orders-', 'ord', 'aa', '', '']
    """
    tree = _tree(expression, flags)
    return "" if tree is None or tree.state.flags & re.IGNORECASE else _beginning(tree)[0]


def _tree(expression: str, flags: int) -> Any:
    try:
        return parser.parse(expression, flags)
    except Exception:  # noqa: BLE001 - part of an expression, or another parser: nothing is known
        return None


def _beginning(tree: Any) -> tuple[str, bool]:
    """The text that each match begins with, and whether it is all of each match."""
    text = ""
    for kind, value in tree:
        part, is_whole = _beginning_of(str(kind), value)
        text += part
        if not is_whole:
            return text, False
    return text, True


def _beginning_of(kind: str, value: Any) -> tuple[str, bool]:
    if kind == "LITERAL":
        return chr(value), True
    if kind in _ZERO_WIDTH:
        return "", True  # it says what else must hold
    if kind == "SUBPATTERN":
        _, added, removed, inner = value
        return ("", False) if added or removed else _beginning(inner)
    if kind == "ATOMIC_GROUP":
        return _beginning(value)
    if kind in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        least, most, inner = value
        if not least or least > _MANY:
            return "", False
        part, is_whole = _beginning(inner)
        return (part * least, least == most) if is_whole else (part, False)
    if kind == "BRANCH":
        beginnings = [_beginning(branch) for branch in value[1]]
        texts = [part for part, _ in beginnings]
        shortest, longest = min(texts), max(texts)
        size = next((i for i, code in enumerate(shortest) if code != longest[i : i + 1]), len(shortest))
        is_same = shortest == longest and all(is_whole for _, is_whole in beginnings)
        return shortest[:size], is_same
    return "", False


def matches_no_name(expression: str, flags: int = 0, *, least_slashes: int = 0) -> bool:
    """Whether no name of a topic can match the whole of an expression, as far as its form shows that.

    Args:
        expression: the expression.
        flags: of it.
        least_slashes: so many slashes each name has.

    Example:
        >>> [matches_no_name(text) for text in ("a^b", "a$b", "a\\n", "(?!)", "a", "a|b$c", ".*")]
        [True, True, True, True, False, False, False]
        >>> matches_no_name("orders", least_slashes=2), matches_no_name(".*", least_slashes=2)
        (True, False)
    """
    tree = _tree(expression, flags)
    if tree is None:
        return False
    is_empty = not tree.getwidth()[1]  # a name has one character at least
    return is_empty or _never(tree, at_start=True, at_end=True) or _most_slashes(tree) < least_slashes


def _never(tree: Any, *, at_start: bool, at_end: bool) -> bool:
    """Whether nothing matches a sequence that stands at the start, and at the end, of a name or not."""
    items = list(tree)
    widths = [_least_width(tree.state, kind, value) for kind, value in items]
    for place, (kind, value) in enumerate(items):
        starts = at_start and not any(widths[:place])
        ends = at_end and not any(widths[place + 1 :])
        if _never_one(str(kind), value, starts, ends):
            return True
    return False


def _never_one(kind: str, value: Any, starts: bool, ends: bool) -> bool:
    # A group is ruled out by its parts, a choice by all of its branches. A kind that is not known here is
    # taken for possible: a pattern that matches must not be refused.
    if kind == "LITERAL":
        return not chr(value).isprintable() and _is_control(chr(value))
    if kind == "AT":
        return (str(value) in _STARTS and not starts) or (str(value) in _ENDS and not ends)
    if kind == "SUBPATTERN":
        return _never(value[3], at_start=starts, at_end=ends)
    if kind == "ATOMIC_GROUP":
        return _never(value, at_start=starts, at_end=ends)
    if kind in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        return bool(value[0]) and _never(value[2], at_start=starts, at_end=ends)
    if kind == "BRANCH":
        return all(_never(branch, at_start=starts, at_end=ends) for branch in value[1])
    if kind == "ASSERT_NOT":
        return not list(value[1])
    return kind == "FAILURE"


def _is_control(character: str) -> bool:
    from unicodedata import category

    return category(character) in ("Cc", "Cs")


def _least_width(state: Any, kind: Any, value: Any) -> int:
    """The least number of characters that an item takes."""
    if str(kind) in (*_ZERO_WIDTH, "GROUPREF", "FAILURE"):
        return 0
    width: int = parser.SubPattern(state, [(kind, value)]).getwidth()[0]
    return width


def _most_slashes(tree: Any) -> int:
    return min(_MANY, sum(_most_slashes_of(str(kind), value) for kind, value in tree))


def _most_slashes_of(kind: str, value: Any) -> int:
    """The most slashes that the match of an item has; a class of characters may have one."""
    # Never too few: `_MANY` stands for no bound, and for every kind that is not known here. A pattern whose
    # matches have enough slashes must not be refused.
    if kind == "LITERAL":
        return int(value == _SLASH)
    if kind in _ZERO_WIDTH or kind == "FAILURE":
        return 0
    if kind == "SUBPATTERN":
        return _most_slashes(value[3])
    if kind == "ATOMIC_GROUP":
        return _most_slashes(value)
    if kind in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        return min(_MANY, min(int(value[1]), _MANY) * _most_slashes(value[2]))
    if kind == "BRANCH":
        return max(map(_most_slashes, value[1]))
    if kind == "IN" and all(str(item) in ("LITERAL", "CATEGORY") for item, _ in value):
        return int(any(str(item) == "CATEGORY" or what == _SLASH for item, what in value))
    return 1 if kind in ("IN", "ANY", "NOT_LITERAL", "CATEGORY") else _MANY


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
            parts = [_Alternative("", prefix, alternative) for alternative in alternatives(given, is_verbose)]
        else:
            parts = [_parsed(alternative, text) for alternative in alternatives(given, is_verbose)]
            owners = {part.owner for part in parts}
            prefix = owners.pop() if len(owners) == 1 else ""
            whole = "|".join(f"{part.anchors}{_literally(part.owner, flags)}{part.rest}" for part in parts)
            self.text = (
                f"{PERSISTENT}://{'|'.join(f'{part.anchors}{part.owner}{part.rest}' for part in parts)}"
            )
        try:
            compiled = re.compile(whole, flags)
        except re.error as error:
            raise InvalidTopicName(f"{text!r}: {error}") from error
        self._is_match: Final = compiled.fullmatch
        self.namespace: Final = prefix[:-1] or None
        self._prefix: Final = prefix
        is_exact = not flags & re.IGNORECASE
        beginning = fixed_beginning(whole, flags) if is_exact else ""
        self.beginning: Final = prefix + beginning if self.is_local else max(prefix, beginning, key=len)
        self.never: Final = tuple(
            part.rest if self.is_local else f"{part.anchors}{part.owner}{part.rest}"
            for part in parts
            if matches_no_name(
                part.rest if self.is_local else f"{part.anchors}{re.escape(part.owner)}{part.rest}",
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
