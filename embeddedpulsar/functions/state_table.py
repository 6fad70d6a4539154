"""The state of a function as a table, and the records that change it: pure, without files."""

from __future__ import annotations

from typing import Any, Final

from embeddedpulsar._engine.format.document import pack_map, unpack_map
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.message import Message
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.records import NamedTuple

_STATE: Final = "s/"
_POSITION: Final = "p/"
_REPORT: Final = "i/"
_PENDING: Final = "o"
_OVERHEAD: Final = 64
"""Bytes of a record besides its texts; more than there are."""

Value = int | str | bytes
Place = tuple[int, int, int]
"""Where a message is: ledger, entry, index in its batch."""


class Output(NamedTuple):
    """One message to be published.

    Attributes:
        topic: full name of the topic, or partition.
        sequence_id: unique for the producer and topic, and rising.
        payload: as it is stored.
        options: properties, partition_key, ordering_key and event_timestamp, as far as they are given.
        compression: name of the compression.
    """

    topic: str
    sequence_id: int
    payload: bytes
    options: dict[str, Any]
    compression: str = "NONE"


class Pending(NamedTuple):
    """Outputs of a commit that may not all be published.

    Attributes:
        producer: the name under which they are published.
        outputs: in order.
    """

    producer: str
    outputs: list[Output]


class Record(NamedTuple):
    """One keyed message of the state topic; None for a key that is removed."""

    key: str
    payload: bytes | None


def place_of(message_id: MessageId) -> Place:
    """The place of a message in its topic or partition; places compare as the messages follow each other."""
    return message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()


def place_of_message(message: Message[Any]) -> Place:
    """`place_of`, of a message."""
    return place_of(message.message_id())


class Changes:
    """What a function did to its state since the last commit.

    Counters are amounts to be added to what the table has at the commit, so that instances which count the
    same key do not overwrite each other.
    """

    def __init__(self) -> None:
        self.set: dict[str, Value | None] = {}
        self.added: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self.set or self.added)

    def size(self) -> int:
        """Bytes of the records, about."""
        texts = [value for value in self.set.values() if isinstance(value, str | bytes)]
        keys = (*self.set, *self.added)
        return _OVERHEAD * len(keys) + sum(map(len, keys)) + sum(map(len, texts))

    def put(self, key: str, value: Value | None) -> None:
        """Set a value; None removes it."""
        self.added.pop(key, None)
        self.set[key] = value

    def add(self, key: str, amount: int) -> None:
        """Add to a counter."""
        if key in self.set:
            found = self.set[key]
            assert found is None or isinstance(found, int)
            self.set[key] = (found or 0) + amount
        else:
            self.added[key] = self.added.get(key, 0) + amount

    def merge(self, later: Changes) -> None:
        """Take over the changes of a later message."""
        for key, value in later.set.items():
            self.put(key, value)
        for key, amount in later.added.items():
            self.add(key, amount)


class StateTable:
    """The state of one function: values and counters, the positions of inputs, reports of instances, and
    outputs that may not be published yet.

    Invariants: the same records in the same order give the same table. One thread.

    Attributes:
        positions: by the full name of an input topic or partition, the place of its last message that is
            counted as processed.
        reports: by the number of an instance, what it last said of itself.
        pending: what may have to be published again; None for nothing.
    """

    def __init__(self) -> None:
        self.positions: dict[str, Place] = {}
        self.reports: dict[int, dict[str, Any]] = {}
        self.pending: Pending | None = None
        self._values: dict[str, Value] = {}

    def value(self, key: str, changes: Changes | None = None) -> Value | None:
        """A value or counter, with changes that are not committed; None for none."""
        if changes is not None:
            if key in changes.set:
                return changes.set[key]
            amount = changes.added.get(key)
            if amount is not None:
                found = self._values.get(key, 0)
                return found + amount if isinstance(found, int) else amount
        return self._values.get(key)

    def keys(self) -> list[str]:
        """All keys with a value or counter, sorted."""
        return sorted(self._values)

    def apply(self, key: str, payload: bytes | None) -> None:
        """Follow one record.

        Raises:
            CorruptionError: it is none.
        """
        try:
            self._apply(key, payload or b"")
        except (ValueError, KeyError, IndexError, TypeError) as e:
            raise CorruptionError(reason=f"the state of a function has a record that is none: {key!r}") from e

    def _apply(self, key: str, payload: bytes) -> None:
        kind, rest = key[:2], key[2:]
        if kind == _STATE:
            if payload:
                self._values[rest] = _value(payload)
            else:
                self._values.pop(rest, None)
        elif kind == _POSITION:
            ledger, entry, index = map(int, payload.split())
            self.positions[rest] = ledger, entry, index
        elif kind == _REPORT:
            self.reports[int(rest)] = unpack_map(payload) if payload else {}
        elif key == _PENDING:
            self.pending = _pending(payload) if payload else None
        # Other keys are those of a later release.

    # -- records -----------------------------------------------------------------------------------

    def records_of(self, changes: Changes) -> list[Record]:
        """The records of changes, on top of what the table has now."""
        found = {key: value for key, value in changes.set.items() if value is not None or key in self._values}
        for key, amount in changes.added.items():
            before = self._values.get(key, 0)
            found[key] = (before if isinstance(before, int) else 0) + amount
        return [Record(f"{_STATE}{key}", _payload(value)) for key, value in found.items()]


def position_record(topic: str, place: Place) -> Record:
    """The record that says up to where a topic is processed."""
    return Record(f"{_POSITION}{topic}", b"%d %d %d" % place)


def report_record(instance: int, report: dict[str, Any]) -> Record:
    """The record with what an instance says of itself."""
    return Record(f"{_REPORT}{instance}", pack_map(report))


def pending_record(pending: Pending | None) -> Record:
    """The record of outputs that are about to be published; None: they are."""
    if pending is None:
        return Record(_PENDING, None)
    fields = {"producer": pending.producer, "outputs": [list(one) for one in pending.outputs]}
    return Record(_PENDING, pack_map(fields))


def _pending(payload: bytes) -> Pending:
    fields = unpack_map(payload, 1 << 30)
    return Pending(fields["producer"], [Output(*one) for one in fields["outputs"]])


def _payload(value: Value | None) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, int):
        return b"n%d" % value
    return b"s" + value.encode() if isinstance(value, str) else b"b" + value


def _value(payload: bytes) -> Value:
    kind, rest = payload[:1], payload[1:]
    if kind == b"n":
        return int(rest)
    if kind == b"s":
        return rest.decode()
    if kind == b"b":
        return rest
    raise ValueError(f"a value of kind {kind!r}")
