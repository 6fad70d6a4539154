"""Whether what was written with one definition can be read with another: Avro's resolution of schemas."""

from __future__ import annotations

from typing import Final

from embeddedpulsar.schema.avro_definition import (
    ABSENT,
    NAMED,
    DefinitionField,
    DefinitionNode,
    is_alike,
)

_PROMOTIONS: Final[dict[str, frozenset[str]]] = {
    "int": frozenset(("long", "float", "double")),
    "long": frozenset(("float", "double")),
    "float": frozenset(("double",)),
    "string": frozenset(("bytes",)),
    "bytes": frozenset(("string",)),
}


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
    pending, seen = [(writer, reader, "")], set[tuple[int, int]]()
    while pending:
        w, r, path = pending.pop()
        if (id(w), id(r)) in seen:  # a record that contains itself
            continue
        seen.add((id(w), id(r)))
        text = _mismatch(w, r)
        if text:
            return f"{path}: {text}" if path else text
        pending += _parts(w, r, path)
    return ""


def _mismatch(w: DefinitionNode, r: DefinitionNode) -> str:
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
        return "" if _branch(w, r) is not None else f"no type of the reader's union takes {w}"
    return "" if r.kind in _PROMOTIONS.get(w.kind, ()) else f"{w} cannot be read as {r}"


def _parts(
    w: DefinitionNode, r: DefinitionNode, path: str
) -> list[tuple[DefinitionNode, DefinitionNode, str]]:
    if w.kind == "union":
        if is_alike(w, r, exactly=False):
            return [(a, b, path) for a, b in zip(w.branches, r.branches, strict=True)]
        return [(branch, r, path) for branch in w.branches]
    if r.kind == "union":
        branch = _branch(w, r)
        return [] if branch is None else [(w, branch, path)]
    if w.kind == "record":
        pairs = [(_written(w, field), field) for field in r.fields]
        return [
            (found.node, field.node, f"{path}.{field.name}" if path else field.name)
            for found, field in pairs
            if found is not None
        ]
    return [(a, b, path) for a, b in zip(w.branches, r.branches, strict=True)]


def _written(w: DefinitionNode, field: DefinitionField) -> DefinitionField | None:
    """The field of the writer that a field of the reader is read from."""
    by_name = {one.name: one for one in w.fields}
    for name in (field.name, *field.aliases):
        if name in by_name:
            return by_name[name]
    return None


def _has_name(w: DefinitionNode, r: DefinitionNode) -> bool:
    return w.short_name == r.short_name or w.name in r.aliases


def _branch(w: DefinitionNode, r: DefinitionNode) -> DefinitionNode | None:
    """The type of a reader's union that takes a type of the writer."""
    same = [branch for branch in r.branches if branch.kind == w.kind]
    if w.kind not in NAMED:
        promoted = (branch for branch in r.branches if branch.kind in _PROMOTIONS.get(w.kind, ()))
        return same[0] if same else next(promoted, None)
    for branch in same:
        if branch.name == w.name or w.name in branch.aliases:
            return branch
    if w.kind != "record":
        return None
    fitting = [branch for branch in same if not _mismatch(w, branch) and not _has_odd_field(w, branch)]
    named = [branch for branch in fitting if branch.short_name == w.short_name]
    return named[-1] if named else next(iter(fitting), None)


def _has_odd_field(w: DefinitionNode, r: DefinitionNode) -> bool:
    pairs = [(_written(w, field), field) for field in r.fields]
    return any(found is not None and _mismatch(found.node, field.node) for found, field in pairs)
