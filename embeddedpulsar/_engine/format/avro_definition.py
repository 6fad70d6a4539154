"""Definitions in Avro's notation as trees: names resolved, and two of them compared.

Whether what was written with one definition can be read with another: Avro's resolution of schemas.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.records import NamedTuple

ABSENT: Final = object()
PRIMITIVES: Final = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
NAMED: Final = frozenset(("record", "enum", "fixed"))
_OF_NODES: Final = frozenset(
    ("type", "name", "namespace", "aliases", "doc", "fields", "symbols", "size", "items", "values")
)
_OF_FIELDS: Final = frozenset(("name", "type", "aliases", "doc", "default", "order"))
MAX_LEVELS: Final = 300
"""So many levels of brackets a new definition may have; a record inside a record takes three."""


class DefinitionField(NamedTuple):
    """A field of a record."""

    name: str
    node: DefinitionNode
    aliases: tuple[str, ...]
    default: Any
    others: dict[str, Any]


class DefinitionNode:
    """One type of a definition. A record may contain itself, so it is complete only after `parsed` returns.

    Attributes:
        kind: ``record``, ``enum``, ``fixed``, ``array``, ``map``, ``union``, or the name of a primitive type.
        name: full name of a record, an enumeration or a fixed.
        aliases: further full names of it.
        fields: of a record.
        symbols: of an enumeration.
        size: of a fixed.
        branches: of a union; of an array or a map, the type of its items alone.
        others: attributes without a meaning of their own, such as a logical type.
    """

    __slots__ = (
        *("_branches_by_name", "_fields_by_name", "aliases", "branches", "fields", "kind", "name", "others"),
        *("size", "symbols"),
    )

    def __init__(self, kind: str, name: str = "", others: dict[str, Any] | None = None) -> None:
        self.kind: Final = kind
        self.name: Final = name
        self.others: Final = others or {}
        self.aliases: tuple[str, ...] = ()
        self.fields: list[DefinitionField] = []
        self.symbols: tuple[str, ...] = ()
        self.size = 0
        self.branches: list[DefinitionNode] = []
        self._fields_by_name: dict[str, DefinitionField] | None = None
        self._branches_by_name: dict[str, DefinitionNode] | None = None

    def field(self, names: Iterable[str]) -> DefinitionField | None:
        """The field of a record that has the first of these names that one has."""
        # Built when it is first asked for: most nodes are never searched, and a record of thousands of fields
        # would be searched field by field otherwise.
        by_name = self._fields_by_name
        if by_name is None:
            by_name = self._fields_by_name = {field.name: field for field in self.fields}
        return next((by_name[name] for name in names if name in by_name), None)

    def branch(self, kind: str, name: str = "") -> DefinitionNode | None:
        """The first type of a union that is of a kind, and has a full name or alias if the kind is a named
        one."""
        by_name = self._branches_by_name
        if by_name is None:
            by_name = self._branches_by_name = {}
            for branch in self.branches:
                # A union has one branch of each kind, but several named ones; an alias is as good as the
                # name, and the first that has it counts.
                for key in (branch.name, *branch.aliases):
                    by_name.setdefault(f"{branch.kind} {key}", branch)
        return by_name.get(f"{kind} {name}")

    @property
    def short_name(self) -> str:
        """The name without its namespace."""
        return self.name.rpartition(".")[2]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.name else self.kind


_PRIMITIVE_NODES: Final = {name: DefinitionNode(name) for name in PRIMITIVES}


def parsed(text: str, *, strict: bool) -> DefinitionNode:
    """The tree of a definition.

    Args:
        text: the definition, JSON.
        strict: refuse names that are not defined. Otherwise they are types that equal themselves alone:
            `pulsar-client` writes such definitions for JSON.

    Raises:
        ValueError: the text is no definition.
    """
    return _Parser(strict=strict).tree(json_of(text))


def json_of(text: str) -> Any:
    """The value of the JSON text of a definition.

    Raises:
        ValueError: it is no JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


_TOO_DEEP: Final = (
    f"it is nested too deeply, and the limit is {MAX_LEVELS} levels of brackets; define types inside by "
    "name, and refer to the names"
)


def check_levels(form: Any) -> None:
    """Refuse a definition that is nested too deeply, or that contains itself other than by a name.

    Libraries that read, write and apply definitions call themselves once or more for each level.

    Raises:
        ValueError: it is.
    """
    deepest: dict[int, int] = {}  # by the identity of a list or dict: the level at which its parts were noted
    pending = [(form, 1)]
    while pending:
        part, level = pending.pop()
        # A part that was met at this level or a deeper one cannot lead deeper now. Definitions that contain
        # themselves as objects grow one level with each round, and are refused by the limit.
        if not isinstance(part, dict | list) or deepest.get(id(part), 0) >= level:
            continue
        if level > MAX_LEVELS:
            raise ValueError(_TOO_DEEP)
        deepest[id(part)] = level
        parts = part.values() if isinstance(part, dict) else part
        pending += [(inner, level + 1) for inner in parts]


def definition_text(form: Any) -> str:
    """The JSON text of a definition, as `pulsar-client` writes it.

    Raises:
        InvalidConfiguration: it has none, or is nested too deeply.
    """
    try:
        # Before `json.dumps`, which fails on a deep value in C, and with a text that says nothing of
        # definitions.
        check_levels(form)
        return json.dumps(form, indent=True)
    except (ValueError, TypeError, RecursionError) as error:
        reason = _TOO_DEEP if isinstance(error, RecursionError) else error
        raise InvalidConfiguration(f"not the definition of a schema: {reason}") from None


class _Task(NamedTuple):
    """A type that is to be read.

    Attributes:
        form: what the definition has for it.
        namespace: in which it stands.
        into: the list that takes its node.
        place: where in the list.
        field: its field without the type; None for all else.
    """

    form: Any
    namespace: str
    into: list[Any]
    place: int
    field: tuple[str, tuple[str, ...], Any, dict[str, Any]] | None = None


class _Parser:
    """Reads a definition from its beginning to its end, since a name stands for what was defined before it.
    Does not call itself: the stack of the caller does not limit how deeply types are nested."""

    def __init__(self, *, strict: bool) -> None:
        self._strict: Final = strict
        self._named: Final[dict[str, DefinitionNode]] = {}

    def tree(self, form: Any) -> DefinitionNode:
        # The place at the top is filled like that of any other type.
        top: list[Any] = [None]
        pending = [_Task(form, "", top, 0)]
        while pending:
            task = pending.pop()
            parts: list[_Task] = []
            node = self._node(task.form, task.namespace, parts)
            # A field is made when its type is known; both stand in the same list.
            if task.field is None:
                task.into[task.place] = node
            else:
                name, *others = task.field
                task.into[task.place] = DefinitionField(name, node, *others)
            # The stack gives the last one first, and a name may stand only behind its definition: the parts
            # are pushed in reverse.
            pending += reversed(parts)
        root: DefinitionNode = top[0]
        return root

    def _node(self, form: Any, namespace: str, parts: list[_Task]) -> DefinitionNode:
        """The node of a type, still without its parts, which are added to ``parts`` in their order."""
        # {"type": {"type": ...}}: attributes around a definition mean nothing.
        while isinstance(form, dict) and isinstance(form.get("type"), dict | list):
            form = form["type"]
        if isinstance(form, str):
            return self._by_name(form, namespace)
        if isinstance(form, list):
            return _with_branches(DefinitionNode("union"), form, namespace, parts)
        if isinstance(form, dict) and "type" in form:
            return self._described(form, namespace, parts)
        # `pulsar-client` writes forms that Avro does not know; for JSON they need not mean anything, but must
        # equal themselves.
        if self._strict:
            raise ValueError(f"{_shown(form)} is no type of Avro")
        return DefinitionNode(json.dumps(form, sort_keys=True))

    def _by_name(self, name: str, namespace: str) -> DefinitionNode:
        primitive = _PRIMITIVE_NODES.get(name)
        if primitive is not None:
            return primitive
        # A name may be meant within the namespace in which it stands, or be a full one.
        for full in (_full(name, namespace), name):
            if full in self._named:
                return self._named[full]
        if self._strict:
            raise ValueError(f"the type {name!r} is not defined")
        return DefinitionNode(name)

    def _described(self, form: dict[str, Any], namespace: str, parts: list[_Task]) -> DefinitionNode:
        kind = form["type"]
        # Avro's protocols have errors, which are records.
        if kind == "error":
            kind = "record"
        others = {key: value for key, value in form.items() if key not in _OF_NODES}
        if kind in ("array", "map"):
            items = form.get("items" if kind == "array" else "values")
            return _with_branches(DefinitionNode(kind, others=others), [items], namespace, parts)
        # A primitive type as an object may have attributes, a logical type for example; a name in it refers
        # to a type.
        if isinstance(kind, str) and kind in NAMED:
            return self._defined(kind, form, namespace, others, parts)
        if isinstance(kind, str) and kind in PRIMITIVES:
            return DefinitionNode(kind, others=others)
        return self._node(kind, namespace, parts)

    def _defined(
        self, kind: str, form: dict[str, Any], namespace: str, others: dict[str, Any], parts: list[_Task]
    ) -> DefinitionNode:
        name, given = form.get("name"), form.get("namespace", namespace)
        if not isinstance(name, str) or not name:
            raise ValueError(f"a {kind} without a name")
        if not isinstance(given, str | None):
            raise ValueError(f"the namespace {_shown(given)} of {name} is no text")
        # Known by its name before its parts are read, so that a record may contain itself.
        full = _full(name, given)
        space = full.rpartition(".")[0]
        node = self._named[full] = DefinitionNode(kind, full, others)
        node.aliases = tuple(_full(alias, space) for alias in _texts(form, "aliases"))
        if kind == "enum":
            node.symbols = tuple(map(str, _list(form, "symbols")))
        elif kind == "fixed":
            size = form.get("size") or 0
            if not isinstance(size, int):
                raise ValueError(f"the size {_shown(size)} of {name} is no number")
            node.size = size
        else:
            fields = _list(form, "fields")
            # Each is there when the tree is read.
            node.fields = [None] * len(fields)  # type: ignore[list-item]
            parts += [_field_task(field, space, node.fields, place) for place, field in enumerate(fields)]
        return node


def _with_branches(
    node: DefinitionNode, forms: list[Any], namespace: str, parts: list[_Task]
) -> DefinitionNode:
    node.branches = [node] * len(forms)  # each is replaced by its own when the tree is read
    parts += [_Task(form, namespace, node.branches, place) for place, form in enumerate(forms)]
    return node


def _field_task(form: Any, namespace: str, into: list[Any], place: int) -> _Task:
    if not isinstance(form, dict) or not isinstance(form.get("name"), str) or "type" not in form:
        raise ValueError(f"{_shown(form)} is no field of a record")
    others = {key: value for key, value in form.items() if key not in _OF_FIELDS}
    # The order of a field is not compared by Avro unless it is unusual.
    if form.get("order", "ascending") != "ascending":
        others["order"] = form["order"]
    field = (form["name"], tuple(_texts(form, "aliases")), form.get("default", ABSENT), others)
    return _Task(form["type"], namespace, into, place, field)


def _list(form: dict[str, Any], key: str) -> list[Any]:
    value = form.get(key) or []
    if not isinstance(value, list):
        raise ValueError(f"the {key} of {_shown(form.get('name'))} are no list: {_shown(value)}")
    return value


def _texts(form: dict[str, Any], key: str) -> list[str]:
    values = _list(form, key)
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"the {key} of {_shown(form.get('name'))} are no texts: {_shown(values)}")
    return values


def _shown(form: object) -> str:
    """A part of a definition, for the text of an error: its beginning, if it is long."""
    return repr(form) if not isinstance(form, dict | list) else shortened(form)


def shortened(form: object) -> str:
    """The JSON text of a part of a definition, cut off after some 80 characters."""
    text = json.dumps(form, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _full(name: str, namespace: str | None) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


Pairs = set[tuple[int, int]]
"""Nodes that were compared, by their identities."""


class Likeness:
    """Which types of two definitions describe the same; comments and aliases do not count. What was found out
    for two types is kept, so that comparing all unions inside of two definitions reads each type a few times.

    Args:
        exactly: with the same full names, defaults and other attributes. Otherwise they have the same bytes.
    """

    def __init__(self, *, exactly: bool) -> None:
        self._exactly: Final = exactly
        self._alike: Final[Pairs] = set()
        self._apart: Final[Pairs] = set()

    def holds(self, first: DefinitionNode, other: DefinitionNode) -> bool:
        """Whether two types, whose nodes live as long as this object, describe the same."""
        # By pair: the pair in which it was met, to go back from a difference to all that contain it.
        met: dict[tuple[int, int], tuple[int, int] | None] = {}
        pending: list[tuple[DefinitionNode, DefinitionNode, tuple[int, int] | None]] = [(first, other, None)]
        while pending:
            a, b, outer = pending.pop()
            # By identity: two nodes of one definition may have one name and differ.
            pair = (id(a), id(b))
            # A pair that is met again is taken for alike: if it is not, the comparison ends when the
            # difference is found.
            if pair in met or pair in self._alike:
                continue
            met[pair] = outer
            if pair in self._apart or not self._are_themselves(a, b):
                # Whatever contains a difference differs as well. The pairs on the way to it are known to be
                # apart; of the others nothing is known, since the comparison was not finished.
                around: tuple[int, int] | None = pair
                while around is not None:
                    self._apart.add(around)
                    around = met[around]
                return False
            pending += [(left.node, right.node, pair) for left, right in zip(a.fields, b.fields, strict=True)]
            pending += [(left, right, pair) for left, right in zip(a.branches, b.branches, strict=True)]
        # No difference within any of them, so all pairs that were met are alike.
        self._alike.update(met)
        return True

    def _are_themselves(self, a: DefinitionNode, b: DefinitionNode) -> bool:
        """Whether two types are the same, apart from the types inside of them."""
        # In the same order of costs: names and kinds, then what needs a loop.
        exactly = self._exactly
        name = (a.name, b.name) if exactly else (a.short_name, b.short_name)
        if a.kind != b.kind or name[0] != name[1] or (exactly and a.others != b.others):
            return False
        # Symbols count in their order: Avro writes their numbers.
        if a.symbols != b.symbols or a.size != b.size:
            return False
        if len(a.branches) != len(b.branches) or len(a.fields) != len(b.fields):
            return False
        for left, right in zip(a.fields, b.fields, strict=True):
            if left.name != right.name:
                return False
            # A default and a logical type do not change the bytes, so they count only for the very same
            # schema.
            if exactly and not (_is_same(left.default, right.default) and left.others == right.others):
                return False
        return True


def is_alike(first: DefinitionNode, other: DefinitionNode, *, exactly: bool = True) -> bool:
    """Whether two definitions describe the same; see `Likeness`."""
    return Likeness(exactly=exactly).holds(first, other)


def _is_same(first: Any, other: Any) -> bool:
    """Whether two defaults are the same; 1 and True, which Python takes for equal, are not."""
    # ABSENT is no value of JSON, and must not reach `json.dumps`.
    if first is other:
        return True
    if first is ABSENT or other is ABSENT:
        return False
    if type(first) is type(other) and isinstance(first, str | int | bool | None):
        return bool(first == other)
    # Dicts and lists by their text, in which 1 and True differ.
    return json.dumps(first, sort_keys=True) == json.dumps(other, sort_keys=True)


_PROMOTIONS: Final[dict[str, frozenset[str]]] = {
    "int": frozenset(("long", "float", "double")),
    "long": frozenset(("float", "double")),
    "float": frozenset(("double",)),
    "string": frozenset(("bytes",)),
    "bytes": frozenset(("string",)),
}

_Way = tuple[str, Any] | None


def why_unreadable(writer: DefinitionNode, reader: DefinitionNode) -> str:
    """What of the writer's definition the reader cannot read; empty if it can read everything.

    The rules are those of Avro's Java library, by which Pulsar compares schemas: a symbol that an enumeration
    of the reader does not have, and the names of records outside of unions, do not count.

    >>> from embeddedpulsar._engine.format.avro_definition import parsed
    >>> why_unreadable(parsed('"int"', strict=True), parsed('"long"', strict=True))
    ''
    >>> why_unreadable(parsed('"long"', strict=True), parsed('"int"', strict=True))
    'long cannot be read as int'
    """
    try:
        return _Resolution().why_unreadable(writer, reader)
    except RecursionError:  # of records that have other names at every level
        return "records of different names are nested too deeply in unions to be compared"


class _Resolution:
    """One comparison of a writer's definition with a reader's. Each pair of types is looked at once, whatever
    contains it, so its time grows with the size of the definitions."""

    def __init__(self) -> None:
        self._unions: Final = Likeness(exactly=False)
        self._branches: Final[dict[tuple[int, int], DefinitionNode | None]] = {}

    def why_unreadable(self, writer: DefinitionNode, reader: DefinitionNode) -> str:
        # The names on the way to a type, the last one first: a path is made of them for an error only.
        pending: list[tuple[DefinitionNode, DefinitionNode, _Way]] = [(writer, reader, None)]
        seen: Pairs = set()
        while pending:
            w, r, way = pending.pop()
            if (id(w), id(r)) in seen:  # a record that contains itself, or a type that is used again
                continue
            seen.add((id(w), id(r)))
            text = self._mismatch(w, r)
            if text:
                return f"{_path(way)}: {text}" if way else text
            pending += self._parts(w, r, way)
        return ""

    def _parts(
        self, w: DefinitionNode, r: DefinitionNode, way: _Way
    ) -> list[tuple[DefinitionNode, DefinitionNode, _Way]]:
        """The types inside of two that fit, apart from these."""
        # What is left is what the reader has: of a record its fields, of a union its branches.
        if w.kind == "union":
            # Two equal unions are read branch by branch; otherwise every type that may have been written must
            # be readable.
            if r.kind == "union" and self._unions.holds(w, r):
                return [(a, b, way) for a, b in zip(w.branches, r.branches, strict=True)]
            return [(branch, r, way) for branch in w.branches]
        if r.kind == "union":
            branch = self._branch(w, r)
            return [] if branch is None else [(w, branch, way)]
        if w.kind == "record":
            # A field of the reader that the writer lacks has its default: `_mismatch` has seen to that.
            pairs = [(_written(w, field), field) for field in r.fields]
            return [
                (written.node, field.node, (field.name, way))
                for written, field in pairs
                if written is not None
            ]
        # Items of arrays and maps are the only branch.
        return [(a, b, way) for a, b in zip(w.branches, r.branches, strict=True)]

    def _mismatch(self, w: DefinitionNode, r: DefinitionNode) -> str:
        """The error of two types themselves, without those of their parts."""
        # A union fits if its branches do, and `_parts` compares them.
        if w.kind == "union":
            return ""
        if w.kind == r.kind:
            # Records need no equal names here: those of Java's library count in unions alone.
            if w.kind in ("enum", "fixed") and not _has_name(w, r):
                return f"{w} is not {r}"
            if w.size != r.size:
                return f"{w} has {w.size} bytes, not {r.size}"
            for field in r.fields:
                if field.default is ABSENT and _written(w, field) is None:
                    return f"the field {field.name!r} of {r} has no default, and the writer does not have it"
            return ""
        # The rule of Avro for a reader's union: the first type that takes what was written.
        if r.kind == "union":
            return "" if self._branch(w, r) is not None else f"no type of the reader's union takes {w}"
        return "" if r.kind in _PROMOTIONS.get(w.kind, ()) else f"{w} cannot be read as {r}"

    def _branch(self, w: DefinitionNode, r: DefinitionNode) -> DefinitionNode | None:
        """The type of a reader's union that takes a type of the writer."""
        if w.kind not in NAMED:
            # The same type first, then one to which it is promoted, as Avro's resolution orders them.
            promoted = _PROMOTIONS.get(w.kind, ())
            same = r.branch(w.kind)
            return same or next((branch for branch in r.branches if branch.kind in promoted), None)
        named = r.branch(w.kind, w.name)
        # An enumeration or a fixed type must have the name; a record may have another one.
        if named is not None or w.kind != "record":
            return named
        pair = (id(w), id(r))
        if pair not in self._branches:
            # While it is being found, a record that contains itself takes the first of the union.
            self._branches[pair] = next((branch for branch in r.branches if branch.kind == "record"), None)
            self._branches[pair] = self._fitting(w, r)
        return self._branches[pair]

    def _fitting(self, w: DefinitionNode, r: DefinitionNode) -> DefinitionNode | None:
        """The record of a reader's union that takes a record of another name, by their fields."""
        fitting = [
            branch for branch in r.branches if branch.kind == "record" and self._has_fields_of(w, branch)
        ]
        of_name = [branch for branch in fitting if branch.short_name == w.short_name]
        # Of those that fit, the last one with the short name, as in Avro's Java library, or the first of all.
        return of_name[-1] if of_name else next(iter(fitting), None)

    def _has_fields_of(self, w: DefinitionNode, r: DefinitionNode) -> bool:
        """Whether a record can be read as another one, by the types of their fields themselves."""
        # Only the fields themselves: their parts are compared later, or a record that contains itself would
        # have no end.
        if self._mismatch(w, r):
            return False
        pairs = [(_written(w, field), field) for field in r.fields]
        return not any(
            written is not None and self._mismatch(written.node, field.node) for written, field in pairs
        )


def _path(way: _Way) -> str:
    names = []
    while way is not None:
        name, way = way
        names.append(name)
    # The path of an error shows the ends of a long way.
    shown = names[::-1] if len(names) <= 8 else [*names[:-5:-1], "...", *names[3::-1]]
    return ".".join(shown)


def _written(w: DefinitionNode, field: DefinitionField) -> DefinitionField | None:
    """The field of the writer that a field of the reader is read from."""
    return w.field((field.name, *field.aliases))


def _has_name(w: DefinitionNode, r: DefinitionNode) -> bool:
    return w.short_name == r.short_name or w.name in r.aliases
