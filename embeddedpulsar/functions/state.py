"""The state of a function in its topic: reading it, and committing to it.

The state of a function as a table, and the records that change it: pure, without files.

How a function does: what its instances last said of themselves, and which of them live.

What an instance of a function counts, and says of itself in its state topic.
"""

from __future__ import annotations

import contextlib
import math
import traceback
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar.exceptions import CorruptionError, MessageTooBig, NotAllowedError
from embeddedpulsar.functions.engine import (
    COMPACTION_THRESHOLD,
    INACTIVE_TOPICS,
    FileLock,
    function_lock_path,
    pack_map,
    unpack_map,
)
from embeddedpulsar.message import Message
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.policy_values import InactiveTopicPolicies, json_form
from embeddedpulsar.records import NamedTuple

if TYPE_CHECKING:
    from embeddedpulsar.client.client import Client
    from embeddedpulsar.functions.engine import Store


# The keys of the state topic, which compaction keeps the newest record of: `s/<key>` has a value or counter,
# `p/<topic>` the position of an input topic or partition, `i/<instance>` the report of an instance, and `o`
# the outputs of the last commit until they are published.
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
        committed_ms: when they were committed, ms since the epoch, as the state topic says; 0 where they were
            committed just now.
    """

    producer: str
    outputs: list[Output]
    committed_ms: int = 0


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
        # A key is in one of the two at most. In `set`, a number is a counter whose sum is known without the
        # table: it was deleted in this run and counted again, or set by an administrator.
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
            # A deleted counter begins at 0. A key with text does not come here: `incr_counter` refuses it.
            value = self.set[key]
            assert value is None or isinstance(value, int)
            self.set[key] = (value or 0) + amount
        else:
            self.added[key] = self.added.get(key, 0) + amount

    def merge(self, later: Changes) -> None:
        """Take over the changes of a later message."""
        # Within one message a key is in one of the two, so the order of these loops does not matter.
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
                # A text in the table under a key that is counted was set by another instance since this run
                # began. The counter replaces it.
                committed = self._values.get(key, 0)
                return committed + amount if isinstance(committed, int) else amount
        return self._values.get(key)

    def keys(self) -> list[str]:
        """All keys with a value or counter, sorted."""
        return sorted(self._values)

    def apply(self, key: str, payload: bytes | None, time_ms: int = 0) -> None:
        """Follow one record.

        Args:
            key, payload: of it.
            time_ms: when it was committed, ms since the epoch.

        Raises:
            CorruptionError: it is none.
        """
        try:
            self._apply(key, payload or b"", time_ms)
        except (ValueError, KeyError, IndexError, TypeError) as e:
            raise CorruptionError(reason=f"the state of a function has a record that is none: {key!r}") from e

    def _apply(self, key: str, payload: bytes, time_ms: int) -> None:
        # An empty payload is a key that was removed: compaction drops the key, and a reader that comes
        # earlier sees it like this.
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
            self.pending = _pending(payload, time_ms) if payload else None
        # Other keys are those of a later release.

    # -- records -----------------------------------------------------------------------------------

    def records_of(self, changes: Changes) -> list[Record]:
        """The records of changes, on top of what the table has now."""
        # A key that the table does not have needs no record of its removal.
        values = {
            key: value for key, value in changes.set.items() if value is not None or key in self._values
        }
        for key, amount in changes.added.items():
            before = self._values.get(key, 0)
            values[key] = (before if isinstance(before, int) else 0) + amount
        return [Record(f"{_STATE}{key}", _payload(value)) for key, value in values.items()]


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
    fields = {"producer": pending.producer, "outputs": [list(output) for output in pending.outputs]}
    return Record(_PENDING, pack_map(fields))


def _pending(payload: bytes, time_ms: int) -> Pending:
    # The bound of `unpack_map` is for small documents. A commit is bounded by `maxMessageSize` when it is
    # written.
    fields = unpack_map(payload, 1 << 30)
    return Pending(fields["producer"], [Output(*output) for output in fields["outputs"]], time_ms)


def _payload(value: Value | None) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, int):
        # The first byte is the kind: a counter, text or bytes. So a value comes back as it was put.
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


NAMESPACE: Final = "public/functions"
"""Where the state topics are, and in whose document the definitions."""
SUPERVISOR: Final = "supervisor"
"""The name of the producer that a supervisor has on the state topic of a function as long as it runs it."""

# 16 MiB of new records: a reader that starts reads about this much besides the compacted ones.
_COMPACT_AT: Final = 16 << 20


def state_topic(full_name: str) -> str:
    """The topic with the state of a function.

    Example:
        >>> state_topic("public/default/count")
        'persistent://public/functions/public+default+count+state'
    """
    return f"persistent://{NAMESPACE}/{full_name.replace('/', '+')}+state"


def make_state_topic(store: Store, full_name: str) -> str:
    """Make the state topic of a function, unless it is there; return its name.

    The newest record of each key is kept by compaction, and nothing else removes it.
    """
    name = state_topic(full_name)
    if store.topics.has(name):
        return name
    store.topics.namespaces.create(NAMESPACE)
    try:
        store.topics.create_topic(name)
    # Another process made it between the look and the call.
    except NotAllowedError:
        if not store.topics.has(name):
            raise
    return name


def protect(store: Store, topic: str) -> None:
    """Have a state topic compacted, and never removed because it is not used."""
    # The threshold is set last, and says that both are. A process that dies in between leaves it to the next
    # one that attaches.
    if store.own_policy(topic, COMPACTION_THRESHOLD) is None:
        store.set_policy(topic, INACTIVE_TOPICS, InactiveTopicPolicies(delete_while_inactive=False))
        store.set_policy(topic, COMPACTION_THRESHOLD, _COMPACT_AT)


def read_state(client: Client, full_name: str) -> StateTable:
    """What the state of a function is now; empty if it has none. Makes nothing.

    Raises:
        CorruptionError: a record is none.
    """
    table = StateTable()
    name = state_topic(full_name)
    # A reader would make the topic, and a function that never ran has none.
    if client._core.store.topics.has(name):
        with client.create_reader(name, MessageId.earliest, is_read_compacted=True) as reader:
            for message in reader:
                table.apply(message.partition_key(), message.data())
    return table


class StateLog:
    """The state of a function, for one of its instances.

    Role: `catch_up` follows what all instances have committed; `commit` adds records as one entry, which is
    there as a whole or not at all, however the process dies.
    Invariants: `commit` is called within the lock (`acquire`, `release`), after `catch_up`, so the table has
    everything before the entry: no instance overwrites what it has not seen. An instance alone writes its
    report, so it commits that without the lock. The lock is a file lock: it ends with its holder.
    Callers: one thread.

    Args:
        client: of the store.
        full_name: of the function.
        producer_name: unique among all instances.

    Attributes:
        table: the state, as far as it was followed.
        max_commit_bytes: most bytes of a commit.
    """

    def __init__(self, client: Client, full_name: str, producer_name: str) -> None:
        self.table: Final = StateTable()
        store = client._core.store
        self.topic: Final = make_state_topic(store, full_name)
        protect(store, self.topic)
        self.max_commit_bytes: Final = store.settings.maxMessageSize
        # Only the directory is needed. It stays that of this topic as long as the producer below is attached.
        use = store.use_topic(self.topic)
        try:
            directory = use.topic.directory
        finally:
            use.release()
        with contextlib.ExitStack() as opened:
            self._lock: Final = FileLock(function_lock_path(directory))
            opened.callback(self._lock.close)
            # The method of the lock itself, which is one call into C: a wrapper could be interrupted before
            # its first line, and the lock would stay held.
            self.release: Final = self._lock.release
            self._producer: Final = client.create_producer(self.topic, producer_name, send_timeout_millis=0)
            opened.callback(self._producer.close)
            self._reader: Final = client.create_reader(self.topic, MessageId.earliest, is_read_compacted=True)
            opened.callback(self._reader.close)
            # Before it is used: a record that is damaged is found when the instance starts.
            self.catch_up()
            opened.pop_all()

    def acquire(self) -> None:
        """Enter the section in which one instance at a time commits. To be followed by `release` in a
        ``finally``.

        Raises:
            LockTimeout: another instance stays inside.
        """
        self._lock.acquire()

    def catch_up(self) -> None:
        """Follow all that is committed by now.

        Raises:
            CorruptionError: a record is none.
        """
        for message in self._reader:
            self.table.apply(message.partition_key(), message.data(), message.publish_timestamp())

    def commit(self, records: Sequence[Record]) -> None:
        """Add records, as one entry.

        Raises:
            MessageTooBig: they do not fit into one; nothing is added.
            PulsarException: nothing is added.
        """
        # `send_many` would store what is too large for an entry as several, and a commit has to be one.
        size = sum(len(record.key.encode()) + len(record.payload or b"") + _OVERHEAD for record in records)
        if size > self.max_commit_bytes:
            raise MessageTooBig(
                f"the changes and outputs of one message are {size:,} bytes; at most "
                f"{self.max_commit_bytes:,} (maxMessageSize) can be committed at once"
            )
        # Neither the number nor the size of the records ends the batch before its last one.
        sent = self._producer.send_many(
            [record.payload for record in records],
            partition_keys=[record.key for record in records],
            batching_max_messages=len(records) + 1,
            batching_max_allowed_size_in_bytes=self.max_commit_bytes,
        )
        assert len(sent) == len(records)
        # The reader will deliver these records, too. They have whole values and no amounts, so applying them
        # twice changes nothing.
        for key, payload in records:
            self.table.apply(key, payload)

    def close(self) -> None:
        """Detach from the topic. Idempotent."""
        self._lock.close()
        # A topic that was deleted meanwhile has detached both.
        for end in (self._reader, self._producer):
            if end.is_connected():
                end.close()


class ExceptionInformation(NamedTuple):
    """One failure.

    Attributes:
        exception_string: the traceback.
        timestamp_ms: when it was, ms since 1970.
    """

    exception_string: str
    timestamp_ms: int

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar."""
        return dict(json_form(self))


class InstanceStatus(NamedTuple):
    """One instance of a function. Counters are those of its worker since that was started.

    Attributes:
        instance_id: its number.
        running: whether its worker lives and has subscribed: it takes what is sent from then on.
        error: the last line of its last failure; empty without one.
        num_restarts: how often its supervisor started it again.
        num_received: messages that it took.
        num_successfully_processed: those for which the function returned.
        num_user_exceptions: how often the function raised.
        latest_user_exceptions: the last of these.
        num_system_exceptions: how often something else failed.
        latest_system_exceptions: the last of these.
        average_latency: of the function, in ms.
        last_invocation_time: ms since 1970; 0 for never.
        worker_id: the id of its process.
        call_since: when the call began that it has been in for longer than a second, ms since 1970; 0 without
            one. Not in Pulsar.
        call_message_id: the id of the message of that call. Not in Pulsar.
    """

    instance_id: int
    running: bool
    error: str = ""
    num_restarts: int = 0
    num_received: int = 0
    num_successfully_processed: int = 0
    num_user_exceptions: int = 0
    latest_user_exceptions: tuple[ExceptionInformation, ...] = ()
    num_system_exceptions: int = 0
    latest_system_exceptions: tuple[ExceptionInformation, ...] = ()
    average_latency: float = 0.0
    last_invocation_time: int = 0
    worker_id: str = ""
    call_since: int = 0
    call_message_id: str = ""

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar."""
        return dict(json_form(self))


class FunctionStatus(NamedTuple):
    """What `Functions.get_function_status` returns.

    Attributes:
        num_instances: how many there are to be.
        num_running: how many run: they live, and have subscribed.
        is_started: whether it is to be run: False after `Functions.stop_function`. Not in Pulsar.
        supervisor_attached: whether a process runs it: `Supervisor`, or ``embeddedpulsar functions run``. Not
            in Pulsar.
        instances: by number.
    """

    num_instances: int
    num_running: int
    is_started: bool
    supervisor_attached: bool
    instances: tuple[InstanceStatus, ...]

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar."""
        return dict(json_form(self))


class InstanceFigures(NamedTuple):
    """The statistics of one instance.

    Attributes:
        instance_id: its number.
        received_total: messages that it took.
        processed_successfully_total: those for which the function returned.
        system_exceptions_total: how often something else than the function failed.
        user_exceptions_total: how often the function raised.
        avg_process_latency: in ms.
        last_invocation: ms since 1970; 0 for never.
        user_metrics: of `Context.record_metric`: count, sum, min and max of each, by name.
        call_since, call_message_id: of a call that takes long: see `InstanceStatus`.
    """

    instance_id: int
    received_total: int
    processed_successfully_total: int
    system_exceptions_total: int
    user_exceptions_total: int
    avg_process_latency: float
    last_invocation: int
    user_metrics: dict[str, dict[str, float]]
    call_since: int = 0
    call_message_id: str = ""

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar."""
        return dict(json_form(self))


class FunctionStats(NamedTuple):
    """What `Functions.get_function_stats` returns: the sums of all instances, and each of them.

    Attributes:
        received_total, processed_successfully_total: see `InstanceFigures`.
        system_exceptions_total, user_exceptions_total: likewise.
        avg_process_latency: in ms, of all calls.
        last_invocation: the latest.
        instances: by number.
    """

    received_total: int
    processed_successfully_total: int
    system_exceptions_total: int
    user_exceptions_total: int
    avg_process_latency: float
    last_invocation: int
    instances: tuple[InstanceFigures, ...]

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar."""
        return dict(json_form(self))


def has_subscribed(instance: int, report: dict[str, Any], living: Iterable[str]) -> bool:
    """Whether an instance runs: the one that made the report, once it had subscribed, lives.

    Args:
        instance: its number.
        report: of the instance; empty if it never ran.
        living: names of the producers on the state topic.
    """
    # A report outlives its instance in the topic. It is that of a living one if the producer that it names is
    # attached. The empty name of an instance that never ran is the name of no producer.
    name = report.get("name") if report else ""
    if name is None:  # of a release whose reports have no name
        # Any instance of that number: two can live for a moment, while one that was stopped is replaced.
        return any(producer_name.startswith(f"{instance}-") for producer_name in living)
    return name in living


def _call_of(instance: int, report: dict[str, Any], living: Iterable[str]) -> tuple[int, str]:
    """When the call began that an instance is in, and the id of its message."""
    # The report of a dead instance still has the call in which it died. That call is over.
    call = report.get("call") if has_subscribed(instance, report, living) else None
    return (0, "") if call is None else (call[1], call[0])


def status_of(instance: int, report: dict[str, Any], living: Iterable[str]) -> InstanceStatus:
    """The status of an instance by its report; an empty report if it never ran."""
    running = has_subscribed(instance, report, living)
    if not report:
        return InstanceStatus(instance, running)
    user, system = (
        tuple(ExceptionInformation(*exception) for exception in report[f"latest{kind}Exceptions"])
        for kind in ("User", "System")
    )
    # The error is the newest of both kinds: the last line of a traceback has its type and text.
    latest = max([*user, *system], key=lambda exception: exception.timestamp_ms, default=None)
    return InstanceStatus(
        instance,
        running,
        "" if latest is None else latest.exception_string.strip().rpartition("\n")[2],
        report["restarts"],
        report["received"],
        report["processed"],
        report["userExceptions"],
        user,
        report["systemExceptions"],
        system,
        _average(report["latencySum"], report["processed"]),
        report["lastInvocation"],
        report["worker"],
        *_call_of(instance, report, living),
    )


def stats_of(reports: dict[int, dict[str, Any]], living: Iterable[str] = ()) -> FunctionStats:
    """The statistics of a function by the reports of its instances.

    Example:
        >>> stats_of({}).received_total
        0
    """
    # A report may be empty: the key of an instance was removed, or it never reported.
    figures = tuple(
        InstanceFigures(
            instance,
            report["received"],
            report["processed"],
            report["systemExceptions"],
            report["userExceptions"],
            _average(report["latencySum"], report["processed"]),
            report["lastInvocation"],
            report["metrics"],
            *_call_of(instance, report, living),
        )
        for instance, report in sorted(reports.items())
        if report
    )
    # The average of all calls is the sum of their times by their number. The mean of the averages would weigh
    # an instance that did nothing as much as one that did all.
    processed = sum(figure.processed_successfully_total for figure in figures)
    latency = sum(report["latencySum"] for report in reports.values() if report)
    return FunctionStats(
        sum(figure.received_total for figure in figures),
        processed,
        sum(figure.system_exceptions_total for figure in figures),
        sum(figure.user_exceptions_total for figure in figures),
        _average(latency, processed),
        max((figure.last_invocation for figure in figures), default=0),
        figures,
    )


def _average(total: float, count: int) -> float:
    return total / count if count else 0.0


# As many failures as Pulsar's workers keep.
_LATEST: Final = 10
# Characters of a traceback: its end, which has the error. A report is one record with up to twenty of them,
# and has to fit into an entry beside what is committed.
_MOST_TEXT: Final = 4000


class Metric:
    """The numbers of one metric.

    Example:
        >>> metric = Metric()
        >>> metric.record(2.5), metric.record(-1)
        (None, None)
        >>> metric.form()
        {'count': 2, 'sum': 1.5, 'min': -1, 'max': 2.5}
    """

    def __init__(self) -> None:
        # Only these four numbers are kept: a list of values would grow with the messages.
        self.count = 0
        self.sum: float = 0
        # Infinities are the neutral elements of min and max. They are never stored: a metric is made when its
        # first number comes.
        self.min: float = math.inf
        self.max: float = -math.inf

    def record(self, value: float) -> None:
        """Add a number."""
        self.count += 1
        self.sum += value
        self.min = min(self.min, value)
        self.max = max(self.max, value)

    def form(self) -> dict[str, float]:
        """The numbers by their names."""
        return {"count": self.count, "sum": self.sum, "min": self.min, "max": self.max}


class InstanceReport:
    """Counters of one instance since its worker was started. One thread.

    Attributes:
        received: messages that were taken.
        processed: those for which the function returned.
        last_invocation_ms: when it was called last, ms since 1970; 0 for never.
        call: the id of the message of the call that is under way, and when that began, ms since 1970; None
            between calls.

    Args:
        worker: the id of its process.
        restarts: how often it was started again.
        name: of the producer by which the instance is known to live.
    """

    def __init__(self, worker: str, restarts: int, name: str = "") -> None:
        self.received = 0
        self.processed = 0
        self.last_invocation_ms = 0
        self.call: tuple[str, int] | None = None
        self._name: Final = name
        self._worker: Final = worker
        self._restarts: Final = restarts
        self._latency_s = 0.0
        self._user = 0
        self._system = 0
        # The newest ten of each kind, so that many failures of the function do not hide the one of the store.
        self._latest: Final = {"user": deque[list[Any]]((), _LATEST), "system": deque[list[Any]]((), _LATEST)}
        self._metrics: Final[dict[str, Metric]] = {}

    def note_processed(self, latency_s: float) -> None:
        """The function returned after so much time."""
        self.processed += 1
        self._latency_s += latency_s

    def note_user_exception(self, error: BaseException, now_ms: int) -> None:
        """The function raised."""
        self._user += 1
        self._latest["user"].append([_text(error), now_ms])

    def note_system_exception(self, error: BaseException, now_ms: int) -> None:
        """Something else failed."""
        self._system += 1
        self._latest["system"].append([_text(error), now_ms])

    def record_metric(self, name: str, value: float) -> None:
        """Add a number to a metric of the function."""
        self._metrics.setdefault(name, Metric()).record(value)

    def form(self) -> dict[str, Any]:
        """The report as it is stored; `function_status` reads it."""
        return {
            # The names are those of the stored document. A key that is added later has to be optional for
            # readers of older reports, as `name` and `call` are.
            "worker": self._worker,
            "name": self._name,
            "call": None if self.call is None else list(self.call),
            "restarts": self._restarts,
            "received": self.received,
            "processed": self.processed,
            "userExceptions": self._user,
            "systemExceptions": self._system,
            "latestUserExceptions": list(self._latest["user"]),
            "latestSystemExceptions": list(self._latest["system"]),
            "latencySum": self._latency_s * 1000,
            "lastInvocation": self.last_invocation_ms,
            "metrics": {name: metric.form() for name, metric in self._metrics.items()},
        }


def _text(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))[-_MOST_TEXT:]
