"""Definitions in Avro's notation as trees: names resolved, and two of them compared."""

from __future__ import annotations

import json
from typing import Any, Final

from embeddedpulsar.records import NamedTuple

ABSENT: Final = object()
PRIMITIVES: Final = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
NAMED: Final = frozenset(("record", "enum", "fixed"))
_OF_NODES: Final = frozenset(
    ("type", "name", "namespace", "aliases", "doc", "fields", "symbols", "size", "items", "values")
)
_OF_FIELDS: Final = frozenset(("name", "type", "aliases", "doc", "default", "order"))


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

    __slots__ = ("aliases", "branches", "fields", "kind", "name", "others", "size", "symbols")

    def __init__(self, kind: str, name: str = "", others: dict[str, Any] | None = None) -> None:
        self.kind: Final = kind
        self.name: Final = name
        self.others: Final = others or {}
        self.aliases: tuple[str, ...] = ()
        self.fields: list[DefinitionField] = []
        self.symbols: tuple[str, ...] = ()
        self.size = 0
        self.branches: list[DefinitionNode] = []

    @property
    def short_name(self) -> str:
        """The name without its namespace."""
        return self.name.rpartition(".")[2]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.name else self.kind


def parsed(text: str, *, strict: bool) -> DefinitionNode:
    """The tree of a definition.

    Args:
        text: the definition, JSON.
        strict: refuse names that are not defined. Otherwise they are types that equal themselves alone:
            `pulsar-client` writes such definitions for JSON.

    Raises:
        ValueError: the text is no definition.
    """
    return _Parser(strict=strict).node(json.loads(text), "")


class _Parser:
    def __init__(self, *, strict: bool) -> None:
        self._strict: Final = strict
        self._named: Final[dict[str, DefinitionNode]] = {}

    def node(self, form: Any, namespace: str) -> DefinitionNode:
        if isinstance(form, str):
            return self._by_name(form, namespace)
        if isinstance(form, list):
            union = DefinitionNode("union")
            union.branches = [self.node(branch, namespace) for branch in form]
            return union
        if isinstance(form, dict) and "type" in form:
            return self._described(form, namespace)
        if self._strict:
            raise ValueError(f"{form!r} is no type of Avro")
        return DefinitionNode(json.dumps(form, sort_keys=True))

    def _by_name(self, name: str, namespace: str) -> DefinitionNode:
        if name in PRIMITIVES:
            return DefinitionNode(name)
        for full in (_full(name, namespace), name):
            if full in self._named:
                return self._named[full]
        if self._strict:
            raise ValueError(f"the type {name!r} is not defined")
        return DefinitionNode(name)

    def _described(self, form: dict[str, Any], namespace: str) -> DefinitionNode:
        kind = form["type"]
        if kind == "error":
            kind = "record"
        others = {key: value for key, value in form.items() if key not in _OF_NODES}
        if kind in ("array", "map"):
            node = DefinitionNode(kind, others=others)
            node.branches = [self.node(form.get("items" if kind == "array" else "values"), namespace)]
            return node
        if kind in NAMED:
            return self._defined(kind, form, namespace, others)
        if isinstance(kind, str) and kind in PRIMITIVES:
            return DefinitionNode(kind, others=others)
        return self.node(kind, namespace)

    def _defined(
        self, kind: str, form: dict[str, Any], namespace: str, others: dict[str, Any]
    ) -> DefinitionNode:
        name = form.get("name")
        if not isinstance(name, str) or not name:
            raise ValueError(f"a {kind} without a name")
        full = _full(name, form.get("namespace", namespace))
        space = full.rpartition(".")[0]
        node = self._named[full] = DefinitionNode(kind, full, others)
        node.aliases = tuple(_full(alias, space) for alias in form.get("aliases") or ())
        if kind == "enum":
            node.symbols = tuple(map(str, form.get("symbols") or ()))
        elif kind == "fixed":
            node.size = int(form.get("size") or 0)
        else:
            node.fields = [self._field(field, space) for field in form.get("fields") or ()]
        return node

    def _field(self, form: Any, namespace: str) -> DefinitionField:
        if not isinstance(form, dict) or not isinstance(form.get("name"), str) or "type" not in form:
            raise ValueError(f"{form!r} is no field of a record")
        others = {key: value for key, value in form.items() if key not in _OF_FIELDS}
        if form.get("order", "ascending") != "ascending":
            others["order"] = form["order"]
        return DefinitionField(
            form["name"],
            self.node(form["type"], namespace),
            tuple(form.get("aliases") or ()),
            form.get("default", ABSENT),
            others,
        )


def _full(name: str, namespace: str | None) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def is_alike(one: DefinitionNode, other: DefinitionNode, *, exactly: bool = True) -> bool:
    """Whether two definitions describe the same; comments and aliases do not count.

    Args:
        one, other: the definitions.
        exactly: with the same full names, defaults and other attributes. Otherwise they have the same bytes.
    """
    pending, seen = [(one, other)], set[tuple[int, int]]()
    while pending:
        a, b = pending.pop()
        if (id(a), id(b)) in seen:
            continue
        seen.add((id(a), id(b)))
        name = (a.name, b.name) if exactly else (a.short_name, b.short_name)
        if a.kind != b.kind or name[0] != name[1] or (exactly and a.others != b.others):
            return False
        if a.symbols != b.symbols or a.size != b.size:
            return False
        if len(a.branches) != len(b.branches) or len(a.fields) != len(b.fields):
            return False
        for left, right in zip(a.fields, b.fields, strict=True):
            if left.name != right.name:
                return False
            if exactly and (not _is_same(left.default, right.default) or left.others != right.others):
                return False
            pending.append((left.node, right.node))
        pending += zip(a.branches, b.branches, strict=True)
    return True


def _is_same(one: Any, other: Any) -> bool:
    """Whether two defaults are the same; 1 and True, which Python takes for equal, are not."""
    if ABSENT in (one, other):
        return one is other
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
