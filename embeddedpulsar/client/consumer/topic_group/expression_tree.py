"""What can be said of a regular expression by its form: how its matches begin, and whether there are any.

The tree is that of Python's own parser. What is not known of a form is answered in the safe way: no
beginning, and matches are possible.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any, Final

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
    found, begin, depth, at = [], 0, 0, 0
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
            found.append(expression[begin:at])
            begin = at + 1
        at += 1
    return [*found, expression[begin:]]


def _end_of_class(expression: str, at: int) -> int:
    """The place of the bracket that ends a class of characters; a first one in it is a character."""
    at += 2 if expression.startswith("[^", at) else 1
    at += expression.startswith("]", at)
    while at < len(expression) and expression[at] != "]":
        at += 2 if expression[at] == "\\" else 1
    return at


def beginning(expression: str, flags: int = 0) -> str:
    """The text that each match of an expression begins with.

    Example:
        >>> [beginning(one) for one in ("orders-.*", "^or(ders|dinary)", "a{2}b?", "x|y", "(?i:a)b")]
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
        found = [_beginning(one) for one in value[1]]
        texts = [part for part, _ in found]
        shortest, longest = min(texts), max(texts)
        size = next((i for i, one in enumerate(shortest) if one != longest[i : i + 1]), len(shortest))
        is_same = shortest == longest and all(is_whole for _, is_whole in found)
        return shortest[:size], is_same
    return "", False


def matches_no_name(expression: str, flags: int = 0, *, least_slashes: int = 0) -> bool:
    """Whether no name of a topic can match the whole of an expression, as far as its form shows that.

    Args:
        expression: the expression.
        flags: of it.
        least_slashes: so many slashes each name has.

    Example:
        >>> [matches_no_name(one) for one in ("a^b", "a$b", "a\\n", "(?!)", "a", "a|b$c", ".*")]
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
        return all(_never(one, at_start=starts, at_end=ends) for one in value[1])
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
    if kind == "IN" and all(str(one) in ("LITERAL", "CATEGORY") for one, _ in value):
        return int(any(str(one) == "CATEGORY" or what == _SLASH for one, what in value))
    return 1 if kind in ("IN", "ANY", "NOT_LITERAL", "CATEGORY") else _MANY
