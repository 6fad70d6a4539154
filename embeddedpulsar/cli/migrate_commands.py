"""``embeddedpulsar migrate``: copies topics between stores, and between a store and a Pulsar cluster.

Each log, which is a topic or a partition, is copied by itself: by a reader of the origin and a producer of
the target, in the order of the log. A copy has the place of its origin among its properties, and a number. So
the last message of the target says where a copy that was killed goes on, and numbers without a gap say that
it is whole. Nothing else is kept anywhere.

An Exclusive consumer on the subscription `HOLD` of the target holds what is copied until subscriptions are
there, and keeps a second migration of the same log out.

The two ends of ``embeddedpulsar migrate``: what administers them. A store has its Admin, a cluster the
REST interface of its brokers.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.parse
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import click

from embeddedpulsar.admin.admin import Admin
from embeddedpulsar.admin.topic_stats import Cursor, Place
from embeddedpulsar.cli.base import (
    ArgumentFile,
    OpenedStore,
    as_json,
    cluster_client,
    pass_store,
    print_json,
    print_table,
    size,
)
from embeddedpulsar.cli.engine import Event, failpoints, late_imports, on_termination
from embeddedpulsar.cli.terminal import ProgressLine, line_text
from embeddedpulsar.client.client_config import is_cluster
from embeddedpulsar.enums import ConsumerCryptoFailureAction, ConsumerType, InitialPosition
from embeddedpulsar.error_text import counted
from embeddedpulsar.exceptions import ConsumerBusy, InvalidConfiguration, PulsarException, Timeout
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.results import Result
from embeddedpulsar.schema.schema import BYTES, Schema, SchemaInfo
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from embeddedpulsar.client.client import Client
    from embeddedpulsar.message import Message


def place_of(message_id: MessageId) -> Place:
    """The place of a message in its log."""
    return message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()


class StoreSide:
    """One end of a migration: a store, by its Admin. Topics have their full names."""

    def __init__(self, admin: Admin) -> None:
        self._admin: Final = admin
        self._topics: Final = admin.topics()

    def topics(self, namespaces: tuple[str, ...]) -> dict[str, int]:
        """The topics of namespaces, with the number of partitions; 0 for one that has none."""
        names = namespaces or tuple(
            namespace
            for tenant in self._admin.tenants().get_tenants()
            if tenant != "pulsar"
            for namespace in self._admin.namespaces().get_namespaces(tenant)
        )
        listed: dict[str, int] = {}
        for namespace in names:
            partitioned = {
                topic: self.partitions(topic) for topic in self._topics.get_partitioned_topic_list(namespace)
            }
            listed |= partitioned
            listed |= _without_partitions(self._topics.get_list(namespace), partitioned)
        return listed

    def partitions(self, topic: str) -> int:
        """The number of partitions; 0 also for a topic that is not there."""
        try:
            return self._topics.get_partitioned_topic_metadata(topic).partitions
        except PulsarException:
            return 0

    def create(self, topic: str, partitions: int) -> None:
        """Make a topic with partitions, and its namespace, unless it is there."""
        tenant, _, _ = (namespace := TopicName.parse(topic).namespace_name).partition("/")
        if (
            tenant not in self._admin.tenants().get_tenants()
            or namespace not in self._admin.namespaces().get_namespaces(tenant)
        ):
            self._admin.namespaces().create_namespace(namespace)
        if partitions and self.partitions(topic) == 0:
            self._topics.create_partitioned_topic(topic, partitions)

    def entries(self, log: str) -> int:
        """How many entries a log has; 0 if it is not there."""
        try:
            return self._topics.get_internal_stats(log).number_of_entries
        except PulsarException:
            return 0

    def cursors(self, log: str) -> dict[str, Cursor]:
        """The durable subscriptions of a log."""
        stats = self._topics.get_internal_stats(log).json()["cursors"]
        durable = set(self._topics.get_subscriptions(log))
        return {name: Cursor.of(cursor) for name, cursor in stats.items() if name in durable}

    def create_subscription(self, log: str, name: str) -> None:
        """Make a subscription that begins with the oldest message."""
        self._topics.create_subscription(log, name, MessageId.earliest)

    def reset(self, log: str, name: str, message_id: MessageId) -> None:
        """Move a subscription to the first message that it delivers."""
        self._topics.reset_cursor(log, name, message_id)

    def policies(self, topic: str) -> dict[str, Any]:
        """The policies that are set for a topic itself, as the REST interface has them."""
        rest = _requests()
        return dict(
            rest.set_among({name: rest.topic_policy(self._admin, topic, name) for name in rest.COPIED})
        )

    def set_policy(self, topic: str, name: str, value: Any) -> None:
        """Set one of them."""
        for method, path, body in _requests().requests_of(name, value):
            _requests().topic_policy(self._admin, topic, path, method, body)


class ClusterSide:
    """A cluster, by the REST interface of its brokers.

    Args:
        url: of a broker or proxy, such as ``http://localhost:8080``.
        token: for ``Authorization: Bearer``; None for no credentials.

    Raises (all methods):
        ClickException: the broker cannot be reached, or refuses.
    """

    def __init__(self, url: str, token: str | None) -> None:
        self._url: Final = url.rstrip("/") + "/admin/v2/"
        self._headers: Final = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"

    def _call(self, method: str, path: str, body: object = None, missing: Any = None) -> Any:
        # With TLS, the client of HTTP takes as long to import as the rest of a small command.
        with late_imports():
            import urllib.error
            import urllib.request
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, self._headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read()
        except urllib.error.HTTPError as e:
            # The error holds the connection.
            with e:
                if e.code == 404 and missing is not None:
                    return missing
                reason = e.read().decode("utf-8", "replace")[:200]
            raise click.ClickException(f"{method} {self._url}{path}: {e.code} {reason}") from e
        except OSError as e:
            raise click.ClickException(f"{self._url} does not answer: {e}") from e
        return json.loads(text) if text else None

    @staticmethod
    def _path(topic: str) -> str:
        name = TopicName.parse(topic)
        local = name.full.removeprefix(f"persistent://{name.namespace_name}/")
        return f"persistent/{name.namespace_name}/{urllib.parse.quote(local, safe='')}"

    def topics(self, namespaces: tuple[str, ...]) -> dict[str, int]:
        names = namespaces or tuple(
            namespace
            for tenant in self._call("GET", "tenants")
            if tenant != "pulsar"
            for namespace in self._call("GET", f"namespaces/{tenant}")
        )
        listed: dict[str, int] = {}
        for namespace in names:
            partitioned = {
                topic: self.partitions(topic)
                for topic in self._call("GET", f"persistent/{namespace}/partitioned")
            }
            listed |= partitioned
            listed |= _without_partitions(self._call("GET", f"persistent/{namespace}"), partitioned)
        return {topic: number for topic, number in listed.items() if "/__" not in topic}

    def partitions(self, topic: str) -> int:
        return int(self._call("GET", f"{self._path(topic)}/partitions", missing={}).get("partitions", 0))

    def create(self, topic: str, partitions: int) -> None:
        tenant, _, _ = (namespace := TopicName.parse(topic).namespace_name).partition("/")
        if namespace not in self._call("GET", f"namespaces/{tenant}"):
            self._call("PUT", f"namespaces/{namespace}")
        if partitions and self.partitions(topic) == 0:
            self._call("PUT", f"{self._path(topic)}/partitions", partitions)

    def entries(self, log: str) -> int:
        stats = self._call("GET", f"{self._path(log)}/internalStats", missing={})
        return int(stats.get("numberOfEntries", 0))

    def cursors(self, log: str) -> dict[str, Cursor]:
        stats = self._call("GET", f"{self._path(log)}/internalStats", missing={}).get("cursors", {})
        subscriptions = self._call("GET", f"{self._path(log)}/stats", missing={}).get("subscriptions", {})
        return {
            name: Cursor.of(stats[name])
            for name, subscription in subscriptions.items()
            # A cursor of compaction is no subscription, and readers have theirs for as long as they live.
            if name in stats and subscription.get("durable", True) and not name.startswith("__")
        }

    def create_subscription(self, log: str, name: str) -> None:
        path = f"{self._path(log)}/subscription/{urllib.parse.quote(name, safe='')}"
        self._call("PUT", path, {"ledgerId": -1, "entryId": -1, "partitionIndex": -1})

    def reset(self, log: str, name: str, message_id: MessageId) -> None:
        path = f"{self._path(log)}/subscription/{urllib.parse.quote(name, safe='')}/resetcursor"
        position = {
            "ledgerId": message_id.ledger_id(),
            "entryId": message_id.entry_id(),
            "partitionIndex": message_id.partition(),
            "batchIndex": message_id.batch_index(),
        }
        self._call("POST", path, position)

    def policies(self, topic: str) -> dict[str, Any]:
        """See `StoreSide`, as are all of these."""
        rest, path = _requests(), self._path(topic)
        # Where a broker has a policy not at all, its path is missing.
        answers = {name: self._call("GET", f"{path}/{rest.shown(name)}", missing={}) for name in rest.COPIED}
        return dict(rest.set_among(answers))

    def set_policy(self, topic: str, name: str, value: Any) -> None:
        for method, part, body in _requests().requests_of(name, value):
            self._call(method, f"{self._path(topic)}/{part}", body)


Side = StoreSide | ClusterSide


def _requests() -> Any:
    """The requests for policies, by their paths; few commands need them."""
    with late_imports():
        from embeddedpulsar.server import rest_policies
    return rest_policies


def _without_partitions(logs: list[str], partitioned: dict[str, int]) -> dict[str, int]:
    """The topics among logs: those that are no partition of one that is listed."""
    return {log: 0 for log in logs if log.rpartition("-partition-")[0] not in partitioned}


failpoints.declare("migrate:held", "migrate:sent", "migrate:stored", "migrate:copied", "migrate:moved")

ORIGIN_ID: Final = "ep.msgid"
ORIGIN_TOPIC: Final = "ep.topic"
ORIGIN_TIME: Final = "ep.publish_time"
ORIGIN_PRODUCER: Final = "ep.producer"
NUMBER: Final = "ep.number"
"""Properties of a copy: the id, topic, publish time and producer of its origin, and the number of the message
in its log, from 1 on."""
HOLD: Final = "ep-migrate"
"""The subscription of the target."""

_WINDOW: Final = 500  # messages that are sent and not stored yet
_TAIL: Final = 2 * _WINDOW  # entries at the end of the target that are looked at for a gap
_LARGE: Final = 1 << 20
_READ_MS: Final = 5000
_MOST_BOUNDARIES: Final = 10_000
_BATCH_BYTES: Final = 128 * 1024


class WrittenSchema(Schema[bytes]):
    """A schema for payloads that are encoded already: the target registers it, and they stay as they are.

    Args:
        info: its description.
    """

    def __init__(self, info: SchemaInfo) -> None:
        super().__init__(bytes, info.schema_type(), None, info.name())
        self._schema_info = info

    def encode(self, obj: bytes) -> bytes:
        return obj

    def decode(self, data: bytes) -> bytes:
        return data


class LogReport(NamedTuple):
    """What was done for a topic or a partition.

    Attributes:
        topic: its name at the origin.
        target: its name at the target.
        copied: messages.
        size: bytes of their payloads.
        present: messages that were there before, of an earlier run.
        subscriptions: those that were moved to where they are at the origin.
        notes: what a user has to know.
    """

    topic: str
    target: str
    copied: int
    size: int
    present: int
    subscriptions: tuple[str, ...]
    notes: tuple[str, ...]

    def json(self) -> dict[str, Any]:
        """With names in camel case, which these are."""
        return self._asdict()


class LogCopy:
    """Copies one log. Invariants: the target has the first messages of the origin, each once and in order,
    whenever the process ends. Callers: one thread.

    Args:
        origin: a client of the origin.
        target: a client of the target.
        log: the name of the topic or partition at the origin.
        target_log: the same at the target.
        stop: ends the copy between two messages when it is set.
        progress: shows how far it is.
    """

    def __init__(
        self, origin: Client, target: Client, log: str, target_log: str, stop: Event, progress: ProgressLine
    ) -> None:
        # `pulsar-client` does not tell when a message of a cluster is due.
        self._tells_delays: Final = not is_cluster(origin.get_service_info().service_url)
        self._origin: Final = origin
        self._target: Final = target
        self._log: Final = log
        self._target_log: Final = target_log
        self._stop: Final = stop
        self._progress: Final = progress
        self._failures: Final[list[str]] = []
        self._producers: Final[dict[tuple[Any, bool], Any]] = {}
        self._last_producer: Any = None
        self.copied = 0
        self.size = 0
        self.present = 0

    def hold(self) -> Any:
        """The consumer that holds what is copied; nothing else copies the log while it is attached."""
        try:
            return self._target.subscribe(
                self._target_log,
                HOLD,
                ConsumerType.Exclusive,
                receiver_queue_size=1,
                initial_position=InitialPosition.Earliest,
                start_message_id_inclusive=True,
            )
        except ConsumerBusy as e:
            raise click.ClickException(f"another migration copies to {self._target_log}") from e

    def run(self, limits: list[Place]) -> None:
        """Copy what the target does not have.

        Args:
            limits: behind these places an entry of the target begins, so that subscriptions begin there.

        Raises:
            ClickException: a message was not stored, the target has other messages, or is not whole.
        """
        last, self.present = self._last_copied()
        limits = sorted(place for place in set(limits) if last is None or place > last)[-_MOST_BOUNDARIES:]
        start = MessageId.earliest if last is None else MessageId(last[3], last[0], last[1], last[2])
        number = self.present
        with self._origin.create_reader(
            self._log, start, crypto_failure_action=ConsumerCryptoFailureAction.CONSUME
        ) as reader:
            while not self._stop.is_set() and reader.has_message_available():
                try:
                    message = reader.read_next(_READ_MS)
                except Timeout:  # what was there has been trimmed meanwhile
                    continue
                place = place_of(message.message_id())
                # An origin that answers with the message itself, or with its batch, is not copied twice.
                if last is not None and place <= last[:3]:
                    continue
                if limits and place > limits[0]:
                    self._flush()
                    while limits and place > limits[0]:
                        del limits[0]
                number += 1
                self._send(message, number)
                if self._progress.is_due:
                    self._progress.show(f"{self._log}: {counted(self.copied, 'message')} copied")
        self._flush()
        for producer in self._producers.values():
            producer.close()

    def _last_copied(self) -> tuple[tuple[int, int, int, int] | None, int]:
        """The ledger, entry, batch index and partition of the last origin, and the number of its copy."""
        with self._target.create_reader(
            self._target_log, MessageId.latest, start_message_id_inclusive=True
        ) as reader:
            newest = self._read_last(reader)
        start = MessageId.earliest
        if newest is not None:
            end = newest.message_id()
            start = MessageId(end.partition(), end.ledger_id(), max(-1, end.entry_id() - _TAIL), -1)
        # From some entries before the end: they show whether there is a gap. If the end is no whole message,
        # as after a kill within one of several chunks, all of the target is read.
        with self._target.create_reader(self._target_log, start) as reader:
            newest = self._read_last(reader)
        if newest is None:
            return None, 0
        properties = newest.properties()
        partition, ledger, entry, batch = map(int, properties[ORIGIN_ID].split(":"))
        return (ledger, entry, batch, partition), int(properties[NUMBER])

    def _read_last(self, reader: Any) -> Message[bytes] | None:
        newest: Message[bytes] | None = None
        number = 0
        while reader.has_message_available():
            try:
                message = reader.read_next(_READ_MS)
            except Timeout:
                return newest
            properties = message.properties()
            if properties.get(ORIGIN_TOPIC) != self._log or NUMBER not in properties:
                raise click.ClickException(
                    f"{self._target_log} has messages that are no copies of {self._log}; migrate to another "
                    "target or namespace (--to-namespace), or delete the topic"
                )
            if newest is not None and int(properties[NUMBER]) != number + 1:
                raise click.ClickException(
                    f"{self._target_log} is not whole: message {number} is followed by {properties[NUMBER]}; "
                    "delete the topic at the target and migrate it again"
                )
            newest, number = message, int(properties[NUMBER])
        return newest

    def _send(self, message: Message[bytes], number: int) -> None:
        if message.encryption_context() is not None:
            raise click.ClickException(
                f"{self._log}: {message.message_id()} is encrypted, and a copy would have no key; copy the "
                "topic with a program that has the keys"
            )
        payload = message.data()
        origin = message.message_id()
        options: dict[str, Any] = {
            "properties": {
                **message.properties(),
                ORIGIN_ID: ":".join(map(str, (origin.partition(), *place_of(origin)))),
                ORIGIN_TOPIC: self._log,
                ORIGIN_TIME: str(message.publish_timestamp()),
                ORIGIN_PRODUCER: message.producer_name(),
                NUMBER: str(number),
            },
            "partition_key": message.partition_key() or None,
            "ordering_key": message.ordering_key() or None,
            "event_timestamp": message.event_timestamp() or None,
            # A broker that removes duplicates does so when a connection was lost, too.
            "sequence_id": number,
        }
        if self._tells_delays and (due_ms := message.deliver_at()):
            options["deliver_at"] = due_ms
        producer = self._producer(message.writer_schema(), len(payload) > _LARGE)
        content = None if message.has_null_value() else payload
        if len(payload) > _LARGE:
            # What may be refused for its size is waited for, so nothing behind it is stored without it.
            self._flush()
            producer.send(content, **options)
        else:
            producer.send_async(content, self._on_stored, **options)
        if failpoints.ACTIVE:
            failpoints.hit("migrate:sent")
        self.copied += 1
        self.size += len(payload)
        if self._failures:
            self._flush()

    def _on_stored(self, result: Result, message_id: MessageId) -> None:
        if result is not Result.Ok:
            self._failures.append(result.name)

    def _producer(self, info: SchemaInfo | None, is_large: bool) -> Any:
        """A producer for messages of a schema. Messages of another one are stored before."""
        key = (None if info is None else (info.schema_type(), info.schema(), info.name()), is_large)
        producer = self._producers.get(key)
        if producer is None:
            options: dict[str, Any] = {
                "send_timeout_millis": 0,
                "max_pending_messages": _WINDOW,
                "block_if_queue_full": True,
            }
            options |= (
                {"chunking_enabled": True}
                if is_large
                else {"batching_enabled": True, "batching_max_allowed_size_in_bytes": _BATCH_BYTES}
            )
            schema: Schema[bytes] = BYTES if info is None else WrittenSchema(info)
            try:
                producer = self._target.create_producer(self._target_log, schema=schema, **options)
            except InvalidConfiguration:
                # A type that `pulsar-client` does not register: the bytes stay the same.
                producer = self._target.create_producer(self._target_log, **options)
            self._producers[key] = producer
        if producer is not self._last_producer:
            self._flush()
            self._last_producer = producer
        return producer

    def _flush(self) -> None:
        """Wait until all that was sent is stored."""
        if self._last_producer is not None:
            self._last_producer.flush()
        if self._failures:
            raise click.ClickException(
                f"{self._target_log}: a message was not stored: {self._failures[0]}; run it again to go on"
            )
        if failpoints.ACTIVE:
            failpoints.hit("migrate:stored")

    def copies(self) -> Iterator[tuple[Place, MessageId]]:
        """The messages of the target: the place of the origin, and the id of the copy."""
        with self._target.create_reader(self._target_log, MessageId.earliest) as reader:
            while reader.has_message_available():
                try:
                    message = reader.read_next(_READ_MS)
                except Timeout:
                    return
                _, ledger, entry, batch = map(int, message.properties()[ORIGIN_ID].split(":"))
                yield (ledger, entry, batch), message.message_id()


class Migration:
    """Copies topics with their subscriptions. Callers: one thread.

    Args:
        origin, target: clients.
        origin_side, target_side: what administers them; None for a cluster whose REST interface is not named.
        is_finished: take the subscription `HOLD` away at the end.
        stop, progress: as for `LogCopy`.
    """

    def __init__(
        self,
        origin: Client,
        target: Client,
        origin_side: Side | None,
        target_side: Side | None,
        *,
        is_finished: bool,
        stop: Event,
        progress: ProgressLine,
    ) -> None:
        self._origin: Final = origin
        self._target: Final = target
        self._origin_side: Final = origin_side
        self._target_side: Final = target_side
        self._is_finished: Final = is_finished
        self._stop: Final = stop
        self._progress: Final = progress

    def topic(self, topic: str, target_topic: str, partitions: int) -> Iterator[LogReport]:
        """Copy a topic, log by log; a report for each."""
        if self._target_side is not None:
            self._target_side.create(target_topic, partitions)
            present = self._target_side.partitions(target_topic)
            if present != partitions:
                raise click.ClickException(
                    f"{target_topic} has {present} partitions at the target, and {topic} has {partitions} at "
                    "the origin; messages keep their partitions, so the numbers have to be the same"
                )
        elif partitions and len(self._target.get_topic_partitions(target_topic)) != partitions:
            raise click.ClickException(
                f"{target_topic} needs {partitions} partitions at the target: create it, or name the REST "
                "interface (--to-admin)"
            )
        suffixes = [f"-partition-{number}" for number in range(partitions)] or [""]
        for suffix in suffixes:
            if not self._stop.is_set():
                report = self._log(topic, suffix, target_topic)
                if suffix == suffixes[-1] and not self._stop.is_set():
                    report = report._replace(notes=(*report.notes, *self._copy_policies(topic, target_topic)))
                yield report

    def _log(self, topic: str, suffix: str, target_topic: str) -> LogReport:
        log, target_log = topic + suffix, target_topic + suffix
        copy = LogCopy(self._origin, self._target, log, target_log, self._stop, self._progress)
        hold = copy.hold()
        try:
            if failpoints.ACTIVE:
                failpoints.hit("migrate:held")
            for note in self._copy_policies(topic, target_topic, is_before=True):
                raise click.ClickException(note)
            cursors = {} if self._origin_side is None else self._origin_side.cursors(log)
            copy.run([place for cursor in cursors.values() for place in cursor.limits])
            if failpoints.ACTIVE:
                failpoints.hit("migrate:copied")
            notes: list[str] = []
            moved: tuple[str, ...] = ()
            if not self._stop.is_set():
                moved = self._subscriptions(log, target_log, copy, notes)
                self._let_go(hold, target_log, target_topic, copy, bool(moved), notes)
        finally:
            hold.close()
        return LogReport(log, target_log, copy.copied, copy.size, copy.present, moved, tuple(notes))

    def _copy_policies(self, topic: str, target_topic: str, *, is_before: bool = False) -> Iterator[str]:
        """Give the target the policies of the topic that it has not: retention before the messages, others at
        the end, as they may limit the copy. What could not be set is said."""
        if self._origin_side is None or self._target_side is None:
            return  # as `_subscriptions` says
        policies = self._origin_side.policies(topic)
        present = self._target_side.policies(target_topic) if policies else {}
        for name, value in policies.items():
            if name not in present and (name == "retention") is is_before:
                try:
                    self._target_side.set_policy(target_topic, name, value)
                except (click.ClickException, PulsarException) as e:
                    yield f"the policy {name} is not copied: {e}"

    def _subscriptions(self, log: str, target_log: str, copy: LogCopy, notes: list[str]) -> tuple[str, ...]:
        """Move the subscriptions of the target to where those of the origin are, never back."""
        if self._origin_side is None or self._target_side is None:
            which = "origin" if self._origin_side is None else "target"
            notes.append(f"subscriptions and policies are not copied: name the REST interface of the {which}")
            return ()
        cursors = {name: cursor for name, cursor in self._origin_side.cursors(log).items() if name != HOLD}
        present = self._target_side.cursors(target_log)
        targets: dict[str, MessageId] = {}
        acknowledged: dict[str, list[MessageId]] = {name: [] for name in cursors}
        # One pass over the copies serves all subscriptions: each begins at the first copy behind its
        # mark-delete position, and of those behind, acknowledges what it had acknowledged out of order.
        if cursors:
            for place, copied_id in copy.copies():
                for name, cursor in cursors.items():
                    if name not in targets and place > cursor.mark:
                        targets[name] = copied_id
                    elif name in targets and cursor.ranges and cursor.is_acknowledged(place):
                        acknowledged[name].append(copied_id)
        moved = []
        for name in cursors:
            target = targets.get(name, MessageId.latest)
            if name not in present:
                self._target_side.create_subscription(target_log, name)
            elif _is_behind(present[name].mark, target):
                notes.append(f"{name} is further at the target than at the origin, and stays there")
                continue
            self._target_side.reset(target_log, name, target)
            if acknowledged[name]:
                self._acknowledge(target_log, name, acknowledged[name])
            moved.append(name)
            if failpoints.ACTIVE:
                failpoints.hit("migrate:moved")
        return tuple(moved)

    def _acknowledge(self, target_log: str, name: str, message_ids: list[MessageId]) -> None:
        """Acknowledge single messages, which the origin has acknowledged out of order."""
        with self._target.subscribe(
            target_log, name, ConsumerType.Shared, receiver_queue_size=1, batch_index_ack_enabled=True
        ) as consumer:
            for message_id in message_ids:
                consumer.acknowledge(message_id)

    def _let_go(
        self,
        hold: Any,
        target_log: str,
        target_topic: str,
        copy: LogCopy,
        has_subscriptions: bool,
        notes: list[str],
    ) -> None:
        """Have the target keep no more than the topic itself says."""
        if self._is_finished:
            hold.unsubscribe()
            return
        side = self._target_side
        if not (has_subscriptions or (side is not None and "retention" in side.policies(target_topic))):
            notes.append(
                f"the messages are kept for the subscription {HOLD} alone; --finish removes it when others "
                "are there"
            )
        elif copy.present + copy.copied:
            # The last message stays, which says where the next run goes on.
            hold.seek(hold.get_last_message_id())


def _is_behind(mark: Place, target: MessageId) -> bool:
    """Whether a subscription of the target is at the new place already, or behind it."""
    return target != MessageId.latest and mark[:2] >= (target.ledger_id(), target.entry_id())


def _chosen(
    origin: Client,
    side: Side | None,
    names: tuple[str, ...],
    namespaces: tuple[str, ...],
    pattern: str | None,
) -> dict[str, int]:
    """The topics to copy, with their partitions."""
    if names:
        chosen = {}
        for name in names:
            topic = TopicName.parse(name).full
            logs = origin.get_topic_partitions(topic) if side is None else []
            chosen[topic] = (
                side.partitions(topic) if side is not None else (0 if logs == [topic] else len(logs))
            )
        return chosen
    # A client lists no topics and no namespaces: that takes the REST interface.
    if side is None:
        raise click.UsageError(
            "name topics, or the REST interface of the cluster: --from-admin http://HOST:8080"
        )
    listed = side.topics(namespaces)
    if pattern is None:
        return listed
    try:
        matches = re.compile(pattern).fullmatch
    except re.error as e:
        raise click.UsageError(f"{pattern!r} is no regular expression: {e}") from e
    shorter = {topic: topic.removeprefix("persistent://") for topic in listed}
    return {
        topic: partitions
        for topic, partitions in listed.items()
        if matches(topic) or matches(shorter[topic]) or matches(shorter[topic].rpartition("/")[2])
    }


def _renamed(topic: str, namespace: str | None) -> str:
    name = TopicName.parse(topic)
    if namespace is None:
        return name.full
    return name.full.replace(f"://{name.namespace_name}/", f"://{namespace}/", 1)


@click.command()
@click.argument("origin")
@click.argument("target")
@click.option("-t", "--topic", "names", multiple=True, help="This topic alone; may be repeated.")
@click.option(
    "--topics", "pattern", metavar="REGEX", help="Topics whose whole name matches, or its last part."
)
@click.option("-n", "--namespace", "namespaces", multiple=True, help="Of this namespace; default: of all.")
@click.option(
    "--to-namespace", metavar="TENANT/NAMESPACE", help="Into this one; default: that of each topic."
)
@click.option("--from-admin", metavar="URL", help="The REST interface of a cluster that is the origin.")
@click.option("--to-admin", metavar="URL", help="The same of the target.")
@click.option("--token-file", type=ArgumentFile(encoding="utf-8"), help="Has the token for the cluster.")
@click.option("--finish", is_flag=True, help=f"Remove the subscriptions {HOLD}: no further run will follow.")
@click.option("--dry-run", is_flag=True, help="Say what would be copied, and do nothing.")
@as_json
@pass_store
def migrate(
    store: OpenedStore,
    origin: str,
    target: str,
    names: tuple[str, ...],
    pattern: str | None,
    namespaces: tuple[str, ...],
    to_namespace: str | None,
    from_admin: str | None,
    to_admin: str | None,
    token_file: Any,
    finish: bool,
    dry_run: bool,
    is_json: bool,
) -> None:
    """Copy topics from ORIGIN to TARGET: directories of stores, or pulsar://HOST:6650 for a cluster.

    Payloads, keys, ordering keys, properties, event times, delays and schemas stay; ids and publish times of
    the origin are properties of the copies. Subscriptions are moved to where they are at the origin, and
    topics get its policies. It may be killed and run again: what is there is not copied twice, and a later
    run copies what is new.
    """
    token = token_file.read().strip() if token_file is not None else None
    stop, progress = Event(), ProgressLine(sys.stderr)
    with ExitStack() as opened:
        source, source_side = _opened(store, opened, origin, from_admin, token, creates=False)
        chosen = _chosen(source, source_side, names, namespaces, pattern)
        if dry_run:
            _show_plan(chosen, source_side, to_namespace, is_json)
            return
        # The target is opened last, as opening makes a store of it, which a dry run or a wrong name must not.
        copy_to, target_side = _opened(store, opened, target, to_admin, token, creates=True)
        migration = Migration(
            source, copy_to, source_side, target_side, is_finished=finish, stop=stop, progress=progress
        )
        reports: list[LogReport] = []
        opened.enter_context(on_termination(stop.set))
        try:
            for topic, partitions in sorted(chosen.items()):
                reports += migration.topic(topic, _renamed(topic, to_namespace), partitions)
        finally:
            progress.end()
            _show(reports, is_json)
            if is_cluster(origin) and reports and not is_json:
                click.echo("delays are not copied: pulsar-client does not say when a message is due")
        if stop.is_set():
            raise click.ClickException("asked to end; run it again to go on")


def _opened(
    store: OpenedStore,
    opened: ExitStack,
    url: str,
    admin_url: str | None,
    token: str | None,
    *,
    creates: bool,
) -> tuple[Client, Side | None]:
    """A client of an end, and what administers it."""
    if not is_cluster(url):
        if admin_url is not None:
            raise click.UsageError(f"{url} is the directory of a store, which has no REST interface")
        place = store.at(url)
        client = opened.enter_context(place.client(creates=creates))
        return client, StoreSide(opened.enter_context(place.admin()))
    client = opened.enter_context(cluster_client(url, token))
    return client, None if admin_url is None else ClusterSide(admin_url, token)


def _show_plan(chosen: dict[str, int], side: Side | None, to_namespace: str | None, is_json: bool) -> None:
    rows = []
    for topic, partitions in sorted(chosen.items()):
        logs = [f"{topic}-partition-{number}" for number in range(partitions)] or [topic]
        entries = None if side is None else sum(side.entries(log) for log in logs)
        names = set() if side is None else {name for log in logs for name in side.cursors(log)} - {HOLD}
        rows.append((topic, partitions, entries, sorted(names), _renamed(topic, to_namespace)))
    if is_json:
        keys = ("topic", "partitions", "entries", "subscriptions", "target")
        print_json([dict(zip(keys, row, strict=True)) for row in rows])
        return
    print_table(
        ("topic", "partitions", "entries", "subscriptions", "target"),
        [
            (topic, partitions or "", "?" if entries is None else entries, ", ".join(names), target)
            for topic, partitions, entries, names, target in rows
        ],
    )
    click.echo("nothing was done")


def _show(reports: list[LogReport], is_json: bool) -> None:
    if is_json:
        print_json([report.json() for report in reports])
        return
    print_table(
        ("topic", "copied", "size", "there before", "subscriptions"),
        [
            (each.topic, each.copied, size(each.size), each.present, ", ".join(each.subscriptions))
            for each in reports
        ],
    )
    for each in reports:
        for text in each.notes:
            click.echo(f"{line_text(each.target)}: {line_text(text)}", err=True)
