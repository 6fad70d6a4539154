"""Whether what was written with one definition can be read with another: Avro's resolution of schemas."""

from __future__ import annotations

from typing import Any, Final

from embeddedpulsar.schema.avro_definition import (
    ABSENT,
    NAMED,
    DefinitionField,
    DefinitionNode,
    Likeness,
    Pairs,
)

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

    >>> from embeddedpulsar.schema.avro_definition import parsed
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
        if w.kind == "union":
            if r.kind == "union" and self._unions.holds(w, r):
                return [(a, b, way) for a, b in zip(w.branches, r.branches, strict=True)]
            return [(branch, r, way) for branch in w.branches]
        if r.kind == "union":
            branch = self._branch(w, r)
            return [] if branch is None else [(w, branch, way)]
        if w.kind == "record":
            pairs = [(_written(w, field), field) for field in r.fields]
            return [
                (found.node, field.node, (field.name, way)) for found, field in pairs if found is not None
            ]
        return [(a, b, way) for a, b in zip(w.branches, r.branches, strict=True)]

    def _mismatch(self, w: DefinitionNode, r: DefinitionNode) -> str:
        """The error of two types themselves, without those of their parts."""
        if w.kind == "union":
            return ""
        if w.kind == r.kind:
            if w.kind in ("enum", "fixed") and not _has_name(w, r):
                return f"{w} is not {r}"
            if w.size != r.size:
                return f"{w} has {w.size} bytes, not {r.size}"
            for field in r.fields:
                if field.default is ABSENT and _written(w, field) is None:
                    return f"the field {field.name!r} of {r} has no default, and the writer does not have it"
            return ""
        if r.kind == "union":
            return "" if self._branch(w, r) is not None else f"no type of the reader's union takes {w}"
        return "" if r.kind in _PROMOTIONS.get(w.kind, ()) else f"{w} cannot be read as {r}"

    def _branch(self, w: DefinitionNode, r: DefinitionNode) -> DefinitionNode | None:
        """The type of a reader's union that takes a type of the writer."""
        if w.kind not in NAMED:
            promoted = _PROMOTIONS.get(w.kind, ())
            same = r.branch(w.kind)
            return same or next((branch for branch in r.branches if branch.kind in promoted), None)
        named = r.branch(w.kind, w.name)
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
        return of_name[-1] if of_name else next(iter(fitting), None)

    def _has_fields_of(self, w: DefinitionNode, r: DefinitionNode) -> bool:
        """Whether a record can be read as another one, by the types of their fields themselves."""
        if self._mismatch(w, r):
            return False
        pairs = [(_written(w, field), field) for field in r.fields]
        return not any(found is not None and self._mismatch(found.node, field.node) for found, field in pairs)


def _path(way: _Way) -> str:
    names = []
    while way is not None:
        name, way = way
        names.append(name)
    shown = names[::-1] if len(names) <= 8 else [*names[:-5:-1], "...", *names[3::-1]]
    return ".".join(shown)


def _written(w: DefinitionNode, field: DefinitionField) -> DefinitionField | None:
    """The field of the writer that a field of the reader is read from."""
    return w.field((field.name, *field.aliases))


def _has_name(w: DefinitionNode, r: DefinitionNode) -> bool:
    return w.short_name == r.short_name or w.name in r.aliases
