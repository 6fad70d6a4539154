"""The two ends of a batch read: planning on the driver, record batches in the workers.

The columns that a read makes of payloads: by the schemas of topics, or by one that the user gives.

Keeps the garbage collections short that Spark makes in its Python workers.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import BinaryType, StructField, StructType

from embeddedpulsar.arrow import schema as names
from embeddedpulsar.arrow.schema import FAILFAST, SCHEMA_VERSION, check_mode
from embeddedpulsar.arrow.typed_columns import CORRUPT, Decoding, common_definition, decoding_of, typed_names
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.spark.log_plan import (
    DataLossPolicy,
    Pruning,
    Task,
    pin_plan,
    pinned,
    plan_tasks,
    prune,
    selected_logs,
)
from embeddedpulsar.spark.options import (
    ReadOptions,
    key_reader,
    known_options,
    named_columns,
    read_options,
    requested_columns,
    struct_type,
    switch,
)

if TYPE_CHECKING:
    import pyarrow as pa


class TypedSource:
    """What the options of a read say about typed columns.

    Args:
        given: the options, of a read that decodes payloads.

    Raises:
        InvalidConfiguration: an option that is wrong or unknown.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        self._options = known_options(given)
        # With None no start is refused: streams begin at the end by default, and this knows no kind of read.
        self._read = read_options(self._options, None)
        self._mode = check_mode(self._options.get("mode", FAILFAST))
        self._columns = named_columns(self._options)
        text = self._options.get("valueschema", "").strip()
        # A definition in Avro's notation is JSON; anything else is a schema in Spark's words.
        self._ddl = "" if text.startswith(("{", "[", '"')) else text
        self._definition = None if self._ddl else text or None

    def schema(self) -> StructType | str:
        """The columns of the DataFrame; a text with a schema that Spark itself has to parse.

        Raises:
            InvalidConfiguration: an unknown column, or no schema to decode by.
        """
        if self._ddl:
            # The user's own schema: its fields, and the columns of messages that are named.
            given = _fields_of(self._ddl)
            named = typed_names(tuple(given), self._columns, self._mode)
            # The option `columns` names columns of messages alone: the fields come in addition.
            if given.keys().isdisjoint(named):
                named = (*given, *named)
            return ", ".join(given[name] if name in given else _in_words(name) for name in named)
        # A definition: its fields become columns with their types in Spark.
        decoding, columns = decoding_of(self._read.path, self._defined(), self._columns, self._mode)
        own = {field.name: field for field in from_arrow_schema(decoding.fields).fields}
        return StructType([own[name] if name in own else _struct_of([name]).fields[0] for name in columns])

    def decoding(self, schema: StructType) -> Decoding:
        """How the columns of a schema, which the user may have given, are made.

        Raises:
            InvalidConfiguration: a column that does not exist, or has another type.
        """
        if self._ddl:
            own = [field for field in schema.fields if field.name not in (*names.KNOWN, CORRUPT)]
            # A field may be called `value`; with the type of payloads it is the column of payloads.
            own += [field for field in schema.fields if _is_own_value(field)]
            definition = None
        else:
            definition = self._defined()
            whole, _ = decoding_of(self._read.path, definition, None, self._mode)
            # The schema that Spark gives here may have been given by the user with `spark.read.schema`:
            # fields may be missing, their types may not differ.
            known = {field.name: field.dataType for field in from_arrow_schema(whole.fields).fields}
            own = [field for field in schema.fields if field.name in known]
            for field in own:
                if field.dataType != known[field.name]:
                    raise InvalidConfiguration(
                        f"column {field.name} is {known[field.name].simpleString()} by the schema of the "
                        f"topic, not {field.dataType.simpleString()}; read it so and cast it in the query"
                    )
            # Without a field among the columns, the payloads are still decoded: in mode DROPMALFORMED they
            # say which messages there are.
            own = own or from_arrow_schema(whole.fields).fields
        taken = {field.name for field in own}
        self._check(schema, taken)
        if not own:
            raise InvalidConfiguration("no column is made of payloads; leave decode and valueSchema out")
        # Arrow's own types from here on: workers decode without a session of Spark.
        fields = to_arrow_schema(StructType(own), timezone="UTC")
        return Decoding(self._read.path, definition, fields, self._mode)

    def _check(self, schema: StructType, taken: set[str]) -> None:
        # Raises for what is unknown or named twice.
        typed_names(tuple(taken), schema.names, self._mode)
        for field in schema.fields:
            if not field.nullable:
                raise InvalidConfiguration(f"column {field.name} is nullable, as all are; leave NOT NULL out")
            if field.name == CORRUPT and field.dataType != BinaryType():
                raise InvalidConfiguration(f"column {CORRUPT} is binary, not {field.dataType.simpleString()}")
        rest = [field for field in schema.fields if field.name not in taken and field.name != CORRUPT]
        if rest:
            requested_columns(StructType(rest))

    def _defined(self) -> str:
        if self._definition is None:
            read = self._read
            # A topic that appears later may have the schema; the topics named so far count too, whether they
            # exist or not.
            waits = read.pattern is not None or switch(
                "waitingForNonExistedTopic", self._options.get("waitingfornonexistedtopic", "false")
            )
            logs = [log.full for log in selected_logs(read, waits=waits)]
            self._definition = common_definition(read.path, list(dict.fromkeys((*logs, *read.topics))))
        return self._definition


def _struct_of(columns: list[str]) -> StructType:
    return StructType(
        [
            StructField(name, BinaryType(), True) if name == CORRUPT else struct_type((name,)).fields[0]
            for name in columns
        ]
    )


def _in_words(column: str) -> str:
    field = _struct_of([column]).fields[0]
    return f"`{field.name}` {field.dataType.simpleString()}"


def _fields_of(ddl: str) -> dict[str, str]:
    """The fields of a schema in Spark's words by their names. Only Spark's JVM can parse types, and the
    planner of a source has none: what stands behind a name is passed on as it is.

    Raises:
        InvalidConfiguration: a field has no name, or two have the same.
    """
    whole = _STRUCT.fullmatch(ddl)
    fields: dict[str, str] = {}
    begin = depth = 0
    # The comma at the end closes the last field like all others.
    text = (whole[1] if whole else ddl) + ","
    for match in _MARKS.finditer(text):
        mark = match[0]
        # Within <...> and (...) a comma divides parts of a type: `map<string,int>`, `decimal(9,2)`.
        depth += (mark in "<(") - (mark in ">)")
        if mark != "," or depth:
            continue
        piece = text[begin : match.start()].strip()
        begin = match.end()
        name = _NAME.match(piece)
        quoted, plain = name.groups() if name else (None, None)
        # In Spark, two backticks within quotes stand for one.
        key = plain if quoted is None else quoted.replace("``", "`")
        if not key or key in fields:
            raise InvalidConfiguration(f"option valueSchema: {piece!r} is no field with a name of its own")
        fields[key] = piece
    return fields


_STRUCT: Final = re.compile(r"\s*struct\s*<(.*)>\s*", re.IGNORECASE | re.DOTALL)
_NAME: Final = re.compile(r"`((?:[^`]|``)+)`|([^\s:`]+)")
_MARKS: Final = re.compile(r"`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[<>(),]", re.DOTALL)
"""What divides a schema into fields; quoted texts are passed over."""


def _is_own_value(field: StructField) -> bool:
    return field.name == names.VALUE and field.dataType != BinaryType()


def spare_modules() -> None:
    """Exclude what a worker has loaded from its collections; does nothing in other processes.

    Spark's daemon collects garbage after each task of a worker that it keeps. Over the objects of the modules
    of PySpark, pyarrow and this package, which live as long as the process, that takes about 40 ms of
    processor time, more than reading a small batch; without them less than 1 ms.
    """
    # Once in a process, so that what becomes garbage later is collected as before.
    if TaskContext.get() is not None and not gc.get_freeze_count():
        gc.freeze()


ROWS: Final = 16_384
"""Small entries are gathered into batches of about this many rows; fewer cost Spark more."""
LARGE_ENTRY: Final = 4_096
"""Entries of this many messages are worth a batch of their own, which is not copied."""


class LogPartition(InputPartition):
    """What one task reads. `value` is None in the partition Spark makes up when there is nothing to read."""

    value: Task | None


def read_task(
    partition: InputPartition,
    options: ReadOptions,
    columns: tuple[str, ...],
    decoding: Decoding | None = None,
) -> Iterator[pa.RecordBatch]:
    """The record batches of one task, in a worker."""
    # Imported in the worker: the driver plans without the readers of columns.
    from embeddedpulsar.arrow.columns import record_batches
    from embeddedpulsar.arrow.mapped_segment import open_ahead

    typed = None
    if decoding is not None:
        from embeddedpulsar.arrow.typed_columns import TypedColumns

        typed = TypedColumns(decoding, columns)
    names = columns if typed is None else typed.needed
    # Errors of workers reach the driver as text, so their code is what programs can tell them by.
    policy = DataLossPolicy(options.fail_on_data_loss)
    opened = open_ahead(
        # A partition that Spark made up has no task: it gives no batches.
        partition.value or (),
        key_reader(options.private_keys),
        policy.gone,
        discards=options.discards,
        from_tables=SCHEMA_VERSION not in names,
    )
    spare_modules()
    # The pin lasts as long as the generator, so until the task has read its last row; a task that is killed
    # leaves it to the end of its process.
    with pinned(partition.value):
        batches = record_batches(
            opened, names, rows=ROWS, large=LARGE_ENTRY, on_damage=policy.damaged, mode=options.mode
        )
        yield from batches if typed is None else typed.batches(batches)


class BatchReader(DataSourceReader):
    """Reads the topics of `options`.

    Made on the driver, asked there for `partitions` once, then sent to every worker: it holds numbers and
    strings only. The plan freezes what was committed; a DataFrame that is used again reads the same again.
    """

    def __init__(
        self, options: ReadOptions, columns: tuple[str, ...], decoding: Decoding | None = None
    ) -> None:
        self._options = options
        self._columns = columns
        self._decoding = decoding
        self._pruning = Pruning()

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks, from index slots alone."""
        # The order against trimming: plan, pin, look again. What was there after pinning stays; if something
        # went between plan and pin, a second plan begins behind it. It is pinned as well as can be, and a
        # task reports what it still misses.
        tasks = plan_tasks(self._options, self._pruning)
        if not pin_plan(tasks):
            tasks = plan_tasks(self._options, self._pruning)
            pin_plan(tasks)
        return [LogPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The record batches of one task."""
        return read_task(partition, self._options, self._columns, self._decoding)


class PushdownBatchReader(BatchReader):
    """A `BatchReader` whose plan filters narrow; Spark refuses it unless its setting allows that."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Note what the filters say; all of them go back, so that Spark checks every row itself."""
        self._pruning = prune(filters)
        return filters
