"""The columns of a topic as a table: names, types and order, the same for Arrow and Spark.

| column | Arrow type | meaning |
|---|---|---|
| `value` | binary | payload; null where a null value was published |
| `__key` | binary | partition key (UTF-8); null without one |
| `__topic` | string | full name of the topic, or of its partition |
| `__messageId` | binary | `MessageId.serialize()` of the message |
| `__publishTime` | timestamp[us, UTC] | when the entry was appended |
| `__eventTime` | timestamp[us, UTC] | event time of the application; null without one |
| `__messageProperties` | map<string, string> | properties; empty without any |
| `__partition` | int32 | index of the partition; -1 for a topic that is not partitioned |
| `__orderingKey` | binary | ordering key (UTF-8); null without one |
| `__sequenceId` | int64 | sequence id |
| `__producerName` | string | name of the producer |

Only if they are named: where the message stands, which also orders the messages of a log; and its schema.

| column | Arrow type | meaning |
|---|---|---|
| `__ledgerId` | int64 | ledger |
| `__entryId` | int64 | entry in the ledger |
| `__batchIndex` | int32 | message in the entry; -1 for an entry that is no batch |
| `__schemaVersion` | int32 | version of the schema that the message was written with; -1 for none |
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from embeddedpulsar.exceptions import InvalidConfiguration

VALUE: Final = "value"
KEY: Final = "__key"
TOPIC: Final = "__topic"
MESSAGE_ID: Final = "__messageId"
PUBLISH_TIME: Final = "__publishTime"
EVENT_TIME: Final = "__eventTime"
PROPERTIES: Final = "__messageProperties"
PARTITION: Final = "__partition"
ORDERING_KEY: Final = "__orderingKey"
SEQUENCE_ID: Final = "__sequenceId"
PRODUCER_NAME: Final = "__producerName"
LEDGER_ID: Final = "__ledgerId"
ENTRY_ID: Final = "__entryId"
BATCH_INDEX: Final = "__batchIndex"
SCHEMA_VERSION: Final = "__schemaVersion"

ALL_COLUMNS: Final = (
    VALUE,
    KEY,
    TOPIC,
    MESSAGE_ID,
    PUBLISH_TIME,
    EVENT_TIME,
    PROPERTIES,
    PARTITION,
    ORDERING_KEY,
    SEQUENCE_ID,
    PRODUCER_NAME,
)

PLACE_COLUMNS: Final = (LEDGER_ID, ENTRY_ID, BATCH_INDEX)
KNOWN: Final = (*ALL_COLUMNS, *PLACE_COLUMNS, SCHEMA_VERSION)


def require_pyarrow() -> Any:
    """The pyarrow module.

    Raises:
        ImportError: it is not installed; the text has the command that installs it.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError(
            'reading topics as Arrow needs pyarrow: pip install "embeddedpulsar[arrow]"'
        ) from error
    return pyarrow


def check_columns(columns: Sequence[str] | None) -> tuple[str, ...]:
    """The columns asked for, all of them for None.

    Raises:
        InvalidConfiguration: an unknown name, or one that is named twice, or none at all.

    Example:
        >>> check_columns(["value", "__key"])
        ('value', '__key')
    """
    # The order of the result is the order asked for, so nothing is sorted here.
    if columns is None:
        return ALL_COLUMNS
    # A string is a sequence of characters, and would be refused by its first letter.
    if isinstance(columns, str):
        raise InvalidConfiguration(f"columns must be a list of names, not the string {columns!r}")
    names = tuple(columns)
    for name in names:
        if name not in KNOWN:
            raise InvalidConfiguration(f"there is no column {name!r}; there are {', '.join(KNOWN)}")
    if not names or len(set(names)) != len(names):
        raise InvalidConfiguration(f"columns {list(names)}: name at least one, and none twice")
    return names


FAILFAST, PERMISSIVE, DROPMALFORMED = MODES = ("FAILFAST", "PERMISSIVE", "DROPMALFORMED")
"""What becomes of messages with a payload that cannot be decoded, or a time that a column cannot hold."""


class UnreadableMessage(ValueError):
    """A message that cannot be a row, in mode FAILFAST."""


def check_mode(text: str) -> str:
    """The mode of that name.

    Raises:
        InvalidConfiguration: there is none.
    """
    # Spark has the modes in any case of letters.
    if text.upper() not in MODES:
        raise InvalidConfiguration(f"mode is {', '.join(MODES)}, not {text!r}")
    return text.upper()


READ_COMMITTED: Final = "read_committed"
READ_UNCOMMITTED: Final = "read_uncommitted"


def reads_uncommitted(isolation: str) -> bool:
    """Whether messages of open and of aborted transactions are read.

    Raises:
        InvalidConfiguration: there is no such isolation.
    """
    if isolation not in (READ_COMMITTED, READ_UNCOMMITTED):
        raise InvalidConfiguration(f"isolation is {READ_COMMITTED} or {READ_UNCOMMITTED}, not {isolation!r}")
    return isolation == READ_UNCOMMITTED


def arrow_schema(columns: Sequence[str] | None = None) -> Any:
    """The Arrow schema of these columns (all of them for None); every field is nullable.

    Example:
        >>> arrow_schema(["value", "__partition"]).names
        ['value', '__partition']
    """
    return _schema(check_columns(columns))


@cache
def _schema(columns: tuple[str, ...]) -> Any:
    # Imported here: the names above are used where pyarrow need not be installed.
    pa = require_pyarrow()
    # Microseconds, since Spark has no other timestamps; they hold the milliseconds of messages exactly.
    time = pa.timestamp("us", "UTC")
    types = {
        VALUE: pa.binary(),
        KEY: pa.binary(),
        TOPIC: pa.string(),
        MESSAGE_ID: pa.binary(),
        PUBLISH_TIME: time,
        EVENT_TIME: time,
        PROPERTIES: pa.map_(pa.string(), pa.string()),
        PARTITION: pa.int32(),
        ORDERING_KEY: pa.binary(),
        SEQUENCE_ID: pa.int64(),
        PRODUCER_NAME: pa.string(),
        LEDGER_ID: pa.int64(),
        ENTRY_ID: pa.int64(),
        BATCH_INDEX: pa.int32(),
        SCHEMA_VERSION: pa.int32(),
    }
    return pa.schema([(name, types[name]) for name in columns])
