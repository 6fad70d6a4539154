"""A topic as a source of Polars: a query reads its columns, and what can have rows that its filters leave."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from embeddedpulsar.arrow import schema as names

if TYPE_CHECKING:
    from embeddedpulsar.arrow.lazy_dataset import TopicDataset

_ROWS: Final = 1 << 16
_COMPARED: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "Eq": pc.equal,
    "Lt": pc.less,
    "LtEq": pc.less_equal,
    "Gt": pc.greater,
    "GtEq": pc.greater_equal,
}
_MIRRORED: Final = {"Eq": "Eq", "Lt": "Gt", "LtEq": "GtEq", "Gt": "Lt", "GtEq": "LtEq"}
_PRUNED: Final = (
    *(names.PUBLISH_TIME, names.EVENT_TIME, names.TOPIC, names.PARTITION, names.KEY),
    *(names.LEDGER_ID, names.ENTRY_ID),
)


def require_polars() -> Any:
    """The module of Polars.

    Raises:
        ImportError: it is not installed; the text has the command that installs it.
    """
    try:
        import polars
        import polars.io.plugins
    except ImportError as error:
        raise ImportError("a lazy frame needs Polars: pip install polars") from error
    return polars


def lazy_frame(made: TopicDataset) -> Any:
    """See `TopicDataset.lazy_frame`."""
    pl = require_polars()

    def read(
        columns: list[str] | None, predicate: Any, n_rows: int | None, batch_size: int | None
    ) -> Iterator[Any]:
        wanted = made.schema.names if columns is None else columns
        filter = None
        if predicate is not None:
            wanted = list(dict.fromkeys([*wanted, *predicate.meta.root_names()]))
            filter = pruning_filter(pl, predicate)
        left = n_rows
        for batch in made.batches(wanted, filter):
            frame = pl.from_arrow(batch)
            if predicate is not None:
                frame = frame.filter(predicate)
            if left is not None:
                frame = frame.head(left)
                left -= frame.height
            if columns is not None:
                frame = frame.select(columns)
            yield from frame.iter_slices(batch_size or _ROWS)
            if left == 0:
                return

    schema = pl.from_arrow(made.schema.empty_table()).schema
    return pl.io.plugins.register_io_source(read, schema=schema)


def pruning_filter(pl: Any, predicate: Any) -> Any:
    """What a predicate of Polars demands of columns by which entries are pruned, as an expression of Arrow.

    It holds for all rows for which the predicate holds. None if it demands nothing.
    """
    try:
        tree = json.loads(predicate.meta.serialize(format="json"))
        return _demanded(pl, tree)
    except (
        AttributeError,
        KeyError,
        IndexError,
        TypeError,
        ValueError,
        pa.ArrowException,
        pl.exceptions.PolarsError,
    ):
        return None  # a release of Polars that writes expressions in another way, or a function of the user


def _demanded(pl: Any, node: Any) -> Any:
    if "Function" in node:
        return _of_function(pl, node["Function"])
    parts = node.get("BinaryExpr") if isinstance(node, dict) else None
    if parts is None:
        return None
    left, right, act = parts["left"], parts["right"], parts["op"]
    if act in ("And", "Or"):
        one, other = _demanded(pl, left), _demanded(pl, right)
        if one is None or other is None:
            return (other if one is None else one) if act == "And" else None
        return one & other if act == "And" else one | other
    if act not in _COMPARED:
        return None
    if "Column" in right:
        left, right, act = right, left, _MIRRORED[act]
    return _compared(left.get("Column"), act, _value(pl, right))


def _of_function(pl: Any, node: Any) -> Any:
    kind = node["function"].get("Boolean")
    column, *others = node["input"]
    name = column.get("Column")
    if "IsIn" in kind and not kind["IsIn"]["nulls_equal"]:
        found = [_compared(name, "Eq", one) for one in _value(pl, others[0]) if one is not None]
        return (
            None if not found or any(one is None for one in found) else functools.reduce(pc.or_kleene, found)
        )
    if "IsBetween" in kind:
        bounds = zip(("GtEq", "LtEq"), others, strict=True)
        low, high = (_compared(name, act, _value(pl, one)) for act, one in bounds)
        return None if low is None or high is None else low & high
    return None


def _compared(name: Any, act: str, value: Any) -> Any:
    if name not in _PRUNED or not isinstance(value, int | str | bytes | datetime):
        return None  # numbers of other kinds would be rounded
    return _COMPARED[act](pc.field(name), pa.scalar(value, names.arrow_schema([name]).field(0).type))


def _value(pl: Any, node: Any) -> Any:
    """The value of a literal; None if it is none, or null."""
    if "Literal" not in node:
        return None
    values = pl.select(pl.Expr.deserialize(io.StringIO(json.dumps(node)), format="json")).to_series()
    if getattr(values.dtype, "time_unit", None) == "ns":
        return None  # what becomes of it in Python is less exact
    found = values[0]
    return found.to_list() if isinstance(found, pl.Series) else found
