"""The relay of an outbox: it publishes what transactions of the application have committed, each row once and
those of a topic in the order of their ids.

The producers of an outbox have one name, and the sequence id of a message is the id of its row. The topic
drops duplicates, so it knows the last id that is stored under the name: that is the position of the relay. A
row at or before it is in the topic.

One relay at a time serves an outbox, by a lock of the store that ends with its process. A batch takes four
steps, each of which may be the last one of a process; the fourth and the second step of the next batch are
one transaction:

1. Read the first rows, and open their topics.
2. Note in the database up to which row each topic may now be published (the claim), and commit.
3. Publish. A row is in its topic if its id is not higher than the last one stored there under the name of the
   outbox.
4. Remove the rows, and commit.

A relay that begins finds rows that are claimed, and looks for each whether it is in its topic. Rows that are
not claimed were never published. If a topic has a higher id than the claim, the database has forgotten
commits: a power loss with ``synchronous = NORMAL``, or a backup put back. Then ids are given a second time,
and the rows that are not claimed get new ones, so that none is taken for a duplicate.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Self

from embeddedpulsar.client.producer.producer_session import BULK_MESSAGES
from embeddedpulsar.enums import HashingScheme, SchemaType
from embeddedpulsar.exceptions import (
    CorruptionError,
    InvalidConfiguration,
    NotAllowedError,
    PulsarException,
)
from embeddedpulsar.outbox.databases import (
    Connect,
    Session,
    checked_table,
    has_table,
    opener_of,
    own_session,
    transaction_of,
)
from embeddedpulsar.outbox.engine import (
    OUTBOX,
    SYSTEM_CLOCK,
    ChangeWatch,
    FileLock,
    Store,
    failpoints,
    outbox_lock_path,
    partition_hash,
    threads,
)
from embeddedpulsar.outbox.tables import (
    RUNNING,
    Claim,
    OutboxRow,
    OutboxTables,
    channel_of,
    create_tables,
)
from embeddedpulsar.schema import Schema, SchemaInfo
from embeddedpulsar.schema.schema import BYTES, EncodedSchema
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from embeddedpulsar.client.client import Client
    from embeddedpulsar.client.producer.producer import Producer

failpoints.declare(
    "outbox:read", "outbox:claimed", "outbox:published", "outbox:all_published", "outbox:removed"
)

_LOG: Final = logging.getLogger("embeddedpulsar.outbox")
_NAME: Final = re.compile(re.escape(OUTBOX) + "[0-9a-f]{1,32}")
POLL_S: Final = 1.0
"""How often a relay looks without being told of a commit."""
MOST_ROWS: Final = 1000
_TAKEOVER_S: Final = 0.2
"""How often a relay that waits for its turn tries the lock."""
_FIRST_LOOK_S: Final = 0.0005
_LOOKS: Final = 9
"""A file changes before the commit is visible: after each change a relay looks again, this often, with pauses
that double; 0.25 s in all."""
_FIRST_RETRY_S: Final = 0.1
_LONGEST_RETRY_S: Final = 30.0
_PARTITIONS_S: Final = 60.0
"""How often the number of partitions of a topic is asked for."""


def is_served(root: str, producer_name: str) -> bool:
    """Whether a relay of any process serves the outbox of a name, in the store at ``root``.

    Raises:
        AccessDeniedError: the lock of the relay belongs to another user.
    """
    path = outbox_lock_path(root, producer_name)
    if not os.path.exists(path):
        return False
    lock = FileLock(path)
    try:
        try:
            return not lock.try_acquire()
        finally:
            lock.release()
    finally:
        lock.close()


class RowRefused(Exception):
    """A row cannot be published now; those before it are.

    Attributes:
        row_id: which.
    """

    def __init__(self, row_id: int, cause: BaseException) -> None:
        super().__init__(f"row {row_id}: {type(cause).__name__}: {cause}")
        self.row_id = row_id


class _Log:
    """The producer of one partition, and the last id that is stored there."""

    def __init__(self, producer: Producer[Any], schema: str | None) -> None:
        self.producer: Final = producer
        self.schema: Final = schema
        # Before the first message it is what the topic knows of the name.
        self.last = producer.last_sequence_id()


class TopicPublisher:
    """Publishes the rows of one topic.

    Role: used by the one relay that holds the lock of the outbox. Invariants: rows of a partition are
    published in the order of their ids, and `last` of the partition is the highest one that is stored.

    Args:
        client: of the store.
        topic: full name.
        name: of the producers.
        durability: of what is published.

    Raises:
        PulsarException: the topic cannot be used.
    """

    def __init__(self, client: Client, topic: str, name: str, durability: str | None) -> None:
        store: Store = client._core.store
        self.topic: Final = topic
        self._client: Final = client
        self._name: Final = name
        self._durability: Final = durability
        self._hash: Final = partition_hash(HashingScheme.JavaStringHash)
        self._logs: Final[dict[int, _Log]] = {}
        self.partitions: int = store.topics.resolve(topic)
        store.drop_duplicates(topic)

    def places(self, rows: Sequence[OutboxRow], partitions: int) -> list[tuple[int, OutboxRow]]:
        """The partition of each row, -1 in a topic without partitions: the one that a producer chooses for a
        key, and without a key one that follows from the id, so that it is the same at every attempt."""
        if not partitions:
            return [(-1, row) for row in rows]
        return [((self._hash(row.key) if row.key is not None else row.id) % partitions, row) for row in rows]

    def last_in(self, places: Sequence[tuple[int, OutboxRow]]) -> int:
        """The highest id that is stored in the partitions of some rows."""
        schemas = {index: row.schema for index, row in reversed(places)}
        return max(self._log(index, schema).last for index, schema in schemas.items())

    def publish(self, places: Sequence[tuple[int, OutboxRow]], published: list[int]) -> None:
        """Publish rows, given in the order of their ids; those that are in the topic are passed over.

        Args:
            places: the rows with their partitions.
            published: gets the ids of rows that are in the topic, in any order.

        Raises:
            RowRefused: a row could not be published. Its partition has none behind it.
        """
        by_partition: dict[int, list[OutboxRow]] = {}
        for index, row in places:
            by_partition.setdefault(index, []).append(row)
        for index, rows in by_partition.items():
            for schema, same in groupby(rows, key=lambda row: row.schema):
                for is_delayed, run in groupby(same, key=lambda row: row.deliver_at is not None):
                    self._publish_run(index, schema, list(run), is_delayed, published)

    def _publish_run(
        self, index: int, schema: str | None, rows: list[OutboxRow], is_delayed: bool, published: list[int]
    ) -> None:
        log = self._log(index, schema)
        # At once; and if that fails, one by one, so that what can be published is.
        try:
            unpublished = _behind(log.last, rows, published)
            if unpublished:
                (_send_delayed if is_delayed else _send)(log.producer, unpublished)
                log.last = unpublished[-1].id
            if failpoints.ACTIVE:
                failpoints.hit("outbox:published")
        # Whatever a value makes of it: the row stays, with the reason.
        except Exception as error:
            self._drop(index)
            if len(unpublished) == 1:
                raise RowRefused(unpublished[0].id, error) from error
        else:
            published.extend(row.id for row in unpublished)
            return
        for row in unpublished:
            self._publish_run(index, schema, [row], is_delayed, published)

    def _log(self, index: int, schema: str | None) -> _Log:
        """The producer of a partition with a schema. Another one under its name is closed before."""
        log = self._logs.get(index)
        if log is not None and log.schema == schema:
            return log
        self._drop(index)
        topic = self.topic if index < 0 else TopicName.parse(self.topic).of_partition(index).full
        producer = self._client.create_producer(
            topic, self._name, _schema_of(schema), durability=self._durability
        )
        self._logs[index] = log = _Log(producer, schema)
        return log

    def _drop(self, index: int) -> None:
        log = self._logs.pop(index, None)
        if log is not None:
            with contextlib.suppress(PulsarException):  # its topic may be gone
                log.producer.close()

    def close(self) -> None:
        """Close the producers. Idempotent."""
        for index in list(self._logs):
            self._drop(index)


def _behind(last: int, rows: list[OutboxRow], published: list[int]) -> list[OutboxRow]:
    """The rows that are not in the topic; the ids of the others are added to ``published``."""
    if rows[0].id > last:
        return rows
    published.extend(row.id for row in rows if row.id <= last)
    return [row for row in rows if row.id > last]


def _send(producer: Producer[Any], rows: list[OutboxRow]) -> None:
    # With keys each message is an entry of its own, as those of single sends are: Key_Shared subscriptions
    # deliver an entry of several keys to the consumer of its first key.
    has_keys = any(row.key is not None or row.ordering_key is not None for row in rows)
    producer.send_many(
        [row.value for row in rows],
        partition_keys=_column(row.key for row in rows),
        ordering_keys=_column(row.ordering_key for row in rows),
        properties=_column(json.loads(row.properties) if row.properties else None for row in rows),
        event_timestamps=_column(row.event_timestamp for row in rows),
        sequence_ids=[row.id for row in rows],
        batching_max_messages=1 if has_keys else BULK_MESSAGES,
    )


def _send_delayed(producer: Producer[Any], rows: list[OutboxRow]) -> None:
    for row in rows:
        producer.send(
            row.value,
            json.loads(row.properties) if row.properties else None,
            row.key,
            row.ordering_key,
            row.id,
            event_timestamp=row.event_timestamp,
            deliver_at=row.deliver_at,
        )


def _column(values: Iterator[Any]) -> list[Any] | None:
    column = list(values)
    return None if all(value is None for value in column) else column


def _schema_of(text: str | None) -> Schema[Any]:
    if text is None:
        return BYTES
    kind, name, definition, properties = json.loads(text)
    return EncodedSchema(SchemaInfo(SchemaType(kind), name, definition, properties=properties))


def partitions_of(claim: Claim, present: int) -> int:
    """Among how many partitions the rows up to `Claim.claimed` are distributed: as many as the relay noted
    that chose them. A topic that has fewer by now was deleted and made again, without these rows."""
    return claim.partitions if claim.partitions <= present else present


class _Held:
    """A topic whose rows wait until the relay tries again."""

    def __init__(self) -> None:
        self.pause_s = _FIRST_RETRY_S
        self.until = 0.0

    def again(self) -> None:
        self.until = SYSTEM_CLOCK.monotonic() + self.pause_s
        self.pause_s = min(2 * self.pause_s, _LONGEST_RETRY_S)


class Relay:
    """Publishes the messages of an outbox, each once, and removes them.

    Any number of processes may have a relay for an outbox: one works, the others wait, and one of them takes
    over within 0.2 s when that one is stopped or its process dies. What was published and not removed by then
    is recognized.

    It is woken by commits: in SQLite by those of any process on the machine (the kernel tells of changes of
    the file), in PostgreSQL by ``NOTIFY``, which the table's trigger sends. It also looks every
    ``poll_interval_s``, for databases on network file systems.

    A row that its topic refuses stays, and those behind it in its topic; the relay logs the reason, shows it
    in `status` and tries again after 0.1 s, up to every 30 s. Other topics go on. If the database cannot be
    reached, it tries that again, too.

    Topics of an outbox drop duplicates from their first message on (`Topics.set_deduplication_status`),
    whatever their namespace says; the store never forgets the last sequence id of a relay.

    Thread-safe. After a fork the child has no relay; it may start one of its own.

    Args:
        client: of the store. The relay uses its connection to the store, and ends when it is closed.
        connect: ``sqlite:///app.db``, ``sqlite:////srv/app.db``, ``postgresql://user@host/name``, the path of
            a file of SQLite as a path object, an Engine of SQLAlchemy, or a function that returns a new
            connection of ``sqlite3`` or ``psycopg``. The relay has one connection, in its own thread.
        table: of `create`.
        max_rows: most rows that it publishes at a time.
        poll_interval_s: how often it looks without being told of a commit, in seconds.
        durability: of what it publishes, see `Client`. With the default it is on the disk before its row is
            removed, so a power loss loses nothing that the database has kept.

    Raises:
        InvalidConfiguration: ``connect`` or ``table`` cannot be used.
        ValueError: a number out of its range.

    Example:
        >>> import sqlite3
        >>> from embeddedpulsar import Client, outbox
        >>> connection = sqlite3.connect("app.db")
        >>> with connection:
        ...     outbox.send(connection, "orders", b"tea")
        >>> with Client("./data") as client, client.subscribe("orders", "kitchen") as consumer:
        ...     with outbox.Relay(client, "sqlite:///app.db"):
        ...         consumer.receive(10_000).data()
        b'tea'
    """

    def __init__(
        self,
        client: Client,
        connect: Connect,
        *,
        table: str = "outbox",
        max_rows: int = MOST_ROWS,
        poll_interval_s: float = POLL_S,
        durability: str | None = "flush",
    ) -> None:
        # Checked here and not by the thread, which could only log it.
        if not 1 <= max_rows <= 100_000:
            raise ValueError(f"max_rows is from 1 to 100,000, not {max_rows}")
        if not 0 < poll_interval_s <= 3600:
            raise ValueError(
                f"poll_interval_s is more than 0 and at most 3,600 seconds, not {poll_interval_s}"
            )
        self._client: Final = client
        self._open: Final = opener_of(connect)
        self._table: Final = checked_table(table)
        self._max_rows: Final = max_rows
        self._poll_s: Final = poll_interval_s
        self._durability: Final = durability
        self._is_stopping = False
        self._is_active = False
        self._published = 0
        self._error = ""
        self._on_progress: Callable[[int], object] | None = None
        self._watch: ChangeWatch | None = None
        self._thread: threads.Daemon | None = None
        self._rung = False
        self._pid = 0

    # -- running -------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Run in a daemon thread, until `stop`. Does nothing if it runs."""
        if self._thread is None or self._thread.is_over or self._pid != os.getpid():
            self._begin()
            self._thread = threads.start_daemon(self._work, "outbox")
        return self

    def run(self, on_progress: Callable[[int], object] | None = None) -> None:
        """Run in the calling thread, until another thread or a signal handler calls `stop`.

        Args:
            on_progress: called after each batch with the number of messages published so far.
        """
        self._on_progress = on_progress
        self._begin()
        self._work()

    def drain(self, on_progress: Callable[[int], object] | None = None) -> int:
        """Publish what is committed now, in the calling thread, and return how many messages that were.

        Rows that their topic refuses stay; `last_error` says why.

        Args:
            on_progress: called after each batch with the number of messages published so far.

        Raises:
            NotAllowedError: this relay runs, or another one serves the outbox.
            PulsarException: the store cannot be used.
            Exception: what the database raises.

        Example:
            >>> import sqlite3
            >>> from embeddedpulsar import Client, outbox
            >>> connection = sqlite3.connect("app.db")
            >>> with connection:
            ...     outbox.send(connection, "orders", b"tea")
            >>> with Client("./data") as client:
            ...     outbox.Relay(client, "sqlite:///app.db").drain()
            1
        """
        if self._watch is not None and self._watch in RUNNING:
            raise NotAllowedError("the relay runs, and publishes what is committed by itself")
        before, self._error, self._on_progress = self._published, "", on_progress
        watch = ChangeWatch()  # of no use but for its place in `_serve`
        try:
            self._serve(watch, _Service.drain, waits=False)
        finally:
            watch.close()
        return self._published - before

    def stop(self, timeout_s: float = 30.0) -> None:
        """Finish the batch that is under way, and end. May be called by a signal handler.

        Args:
            timeout_s: how long to wait for the thread.
        """
        self._is_stopping = True
        if self._watch is not None:
            self._watch.wake()
        thread = self._thread
        if thread is not None and not thread.is_current and self._pid == os.getpid():
            thread.join(timeout_s)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def is_active(self) -> bool:
        """Whether it holds the lock and publishes. Another relay may, or the database may be away."""
        return self._is_active

    @property
    def published(self) -> int:
        """How many messages it has published."""
        return self._published

    @property
    def last_error(self) -> str:
        """Why it cannot go on, as long as that is so: of the database or of a topic; else ``""``."""
        return self._error

    def wake(self) -> None:
        """Have it look at once. Needed only where nothing tells it of commits: see the class."""
        if self._watch is not None:
            self._watch.wake()

    def _begin(self) -> None:
        self._is_stopping, self._pid = False, os.getpid()
        self._watch = ChangeWatch()
        RUNNING.add(self._watch)

    def _work(self) -> None:
        watch, at_close = self._watch, self._client._core.at_close
        assert watch is not None
        pause_s = _FIRST_RETRY_S
        at_close[id(watch)] = watch.wake  # the next look finds the client closed
        try:
            while not self._is_stopping:
                begun = self._published
                try:
                    self._serve(watch, _Service.run)
                except Exception as error:  # noqa: BLE001 - a driver may raise anything
                    if self._client._core.is_closed:
                        return
                    self._note_error(str(error) or type(error).__name__)
                    if self._published > begun:
                        pause_s = _FIRST_RETRY_S
                    watch.wait(pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_RETRY_S)
        finally:
            self._is_active = False
            at_close.pop(id(watch), None)
            RUNNING.discard(watch)
            watch.close()

    def _note_error(self, text: str) -> None:
        if text != self._error:
            self._error = text
            _LOG.warning("the relay of the outbox %s cannot go on and tries again: %s", self._table, text)

    # -- one connection ------------------------------------------------------------------------------------

    def _serve(self, watch: ChangeWatch, work: Callable[[_Service], None], *, waits: bool = True) -> None:
        """Do the work of the relay by one connection, when it has its turn."""
        connection = self._open()
        with contextlib.closing(connection):
            session = own_session(connection)
            self._prepare(session)
            tables = OutboxTables(session, self._table)
            name = tables.producer_name()
            if not _NAME.fullmatch(name):
                raise CorruptionError(
                    reason=f"{self._table}_relay has {name!r} as the producer of the outbox"
                )
            try:
                if waits:
                    self._listen(watch, connection, session)
                with self._exclusive_access(watch, name, waits) as is_ours:
                    if is_ours:
                        work(_Service(self, watch, tables, name))
            finally:
                self._is_active = False
                watch.unwatch()

    def _prepare(self, session: Session) -> None:
        if has_table(session, f"{self._table}_relay") and has_table(session, self._table):
            return
        if session.dialect == "postgresql":
            raise InvalidConfiguration(
                f"there is no table {self._table} in the database; call outbox.create(connection) and commit"
            )
        with transaction_of(session):
            create_tables(session, self._table)

    def _listen(self, watch: ChangeWatch, connection: Any, session: Session) -> None:
        if session.dialect == "postgresql":
            # A notification may come with the answer to a statement, and then leaves nothing in the socket.
            connection.add_notify_handler(self._note_rung)
            session.execute(f"LISTEN {channel_of(self._table)}")
            watch.watch_socket(connection.fileno())
            return
        schema = self._table.rpartition(".")[0] or "main"
        for _, name, path in session.execute("PRAGMA database_list"):
            if name == schema and path:
                watch.watch_files(path)

    def _note_rung(self, _: object) -> None:
        self._rung = True

    @contextlib.contextmanager
    def _exclusive_access(self, watch: ChangeWatch, name: str, waits: bool) -> Iterator[bool]:
        """Hold the lock of the outbox; False if the relay was stopped before it got it."""
        lock = FileLock(outbox_lock_path(self._client._core.store.root, name))
        try:
            try:
                while not lock.try_acquire():
                    if not waits:
                        raise NotAllowedError(
                            f"another relay serves the outbox {self._table}; stop that one first"
                        )
                    watch.wait(_TAKEOVER_S)
                    if self._is_stopping:
                        yield False
                        return
                    self._client._core.check_open()
                yield True
            finally:
                lock.release()
        finally:
            lock.close()


class _Service:
    """The relay that has its turn, from the moment on in which it got the lock.

    Invariants: `claims` is what the database has; a row is published only if it is claimed.
    """

    def __init__(self, relay: Relay, watch: ChangeWatch, tables: OutboxTables, name: str) -> None:
        self._relay: Final = relay
        self._watch: Final = watch
        self._tables: Final = tables
        self._name: Final = name
        self._claims: Final = tables.claims()
        self._topics: Final[dict[str, TopicPublisher]] = {}
        self._held: Final[dict[str, _Held]] = {}
        self._done: list[int] = []
        """The ids of rows that are published and not removed."""
        self._asked = SYSTEM_CLOCK.monotonic()

    def drain(self) -> None:
        """Publish what is there now."""
        try:
            while self._publish_batch():
                pass
        finally:
            self._close()

    def _close(self) -> None:
        for topic in self._topics.values():
            topic.close()

    def run(self) -> None:
        """Publish until the relay is stopped."""
        relay = self._relay
        relay._is_active, relay._error = True, ""
        looks = 0
        try:
            while not relay._is_stopping:
                relay._client._core.check_open()
                if self._publish_batch():
                    looks = 0
                elif self._sleep(looks):
                    looks = 0
                else:
                    looks += 1
            self._remove_done()
        finally:
            self._close()

    def _sleep(self, looks: int) -> bool:
        """Wait for a commit, the next look, or the next try of a topic. Returns whether it was woken."""
        relay = self._relay
        if relay._rung:
            self._take_notifications()
            return True
        timeout_s = _FIRST_LOOK_S * 2**looks if looks < _LOOKS else relay._poll_s
        if self._held:
            due = min(held.until for held in self._held.values())
            timeout_s = max(0.0, min(timeout_s, due - SYSTEM_CLOCK.monotonic()))
        if not self._watch.wait(timeout_s):
            return False
        self._take_notifications()
        return True

    def _take_notifications(self) -> None:
        """Read what PostgreSQL has sent: any statement does, with its own answer."""
        if self._tables.session.dialect == "postgresql":
            self._tables.session.execute("SELECT 1")
            self._relay._rung = False

    # -- one batch -----------------------------------------------------------------------------------------

    def _publish_batch(self) -> bool:
        """Publish the first rows. Returns whether anything changed, so that there may be more."""
        now = SYSTEM_CLOCK.monotonic()
        waiting = [topic for topic, held in self._held.items() if held.until > now]
        # What is published is removed with the next claim: a transaction less, for which the writers wait.
        rows = self._tables.rows(self._relay._max_rows + len(self._done), waiting)
        if self._done:
            done = set(self._done)
            rows = [row for row in rows if row.id not in done]
        if not rows:
            return self._remove_done()
        if failpoints.ACTIVE:
            failpoints.hit("outbox:read")
        self._forget_partitions(now)
        by_topic: dict[str, list[OutboxRow]] = {}
        for row in rows:
            by_topic.setdefault(row.topic, []).append(row)
        errors: dict[str, str] = {}
        places, claims = self._chosen(by_topic, errors)
        self._note_claims(claims)
        if failpoints.ACTIVE:
            failpoints.hit("outbox:claimed")
        published: list[int] = []
        for topic, chosen in places.items():
            try:
                self._topics[topic].publish(chosen, published)
            except Exception as error:  # noqa: BLE001 - the topic waits, the others go on
                self._client_must_be_open()
                errors[topic] = str(error)
        if failpoints.ACTIVE:
            failpoints.hit("outbox:all_published")
        self._finish(sorted(published), by_topic.keys(), errors)
        return True

    def _chosen(
        self, by_topic: dict[str, list[OutboxRow]], errors: dict[str, str]
    ) -> tuple[dict[str, list[tuple[int, OutboxRow]]], dict[str, Claim]]:
        """The rows to be published, with their partitions, and the claims to be noted before."""
        places: dict[str, list[tuple[int, OutboxRow]]] = {}
        claims: dict[str, Claim] = {}
        for topic, rows in by_topic.items():
            try:
                publisher = self._publisher(topic)
                claim = self._claims.get(topic, Claim())
                # Rows that a relay has claimed before come first, alone: they may be in the topic, in
                # the partitions that were chosen then.
                if rows[0].id <= claim.claimed:
                    old = [row for row in rows if row.id <= claim.claimed]
                    places[topic] = publisher.places(old, partitions_of(claim, publisher.partitions))
                    continue
                chosen = publisher.places(rows, publisher.partitions)
                last = publisher.last_in(chosen)
            except Exception as error:  # noqa: BLE001 - the topic waits, the others go on
                self._client_must_be_open()
                errors[topic] = f"{type(error).__name__}: {error}"
                continue
            if last > claim.claimed:
                self._move_behind(topic, claim, last)
                continue
            places[topic] = chosen
            claims[topic] = Claim(rows[-1].id, publisher.partitions, claim.note)
        return places, claims

    def _client_must_be_open(self) -> None:
        self._relay._client._core.check_open()

    def _publisher(self, topic: str) -> TopicPublisher:
        publisher = self._topics.get(topic)
        if publisher is None:
            relay = self._relay
            publisher = TopicPublisher(relay._client, topic, self._name, relay._durability)
            self._topics[topic] = publisher
        return publisher

    def _forget_partitions(self, now: float) -> None:
        """Now and then, open topics anew: they may have more partitions."""
        if now - self._asked > _PARTITIONS_S:
            self._asked = now
            for topic in list(self._topics):
                self._topics.pop(topic).close()

    def _move_behind(self, topic: str, claim: Claim, last: int) -> None:
        _LOG.warning(
            "the database of the outbox %s has gone back: %s has the message %d, and rows up to %d are "
            "noted; rows behind get new ids",
            self._relay._table,
            topic,
            last,
            claim.claimed,
        )
        with transaction_of(self._tables.session):
            self._tables.move_behind(topic, claim.claimed, last)
            self._tables.note_claim(topic, Claim(last, claim.partitions, claim.note))
        self._claims[topic] = Claim(last, claim.partitions, claim.note)

    def _note_claims(self, claims: dict[str, Claim]) -> None:
        if not claims and not self._done:
            return
        with transaction_of(self._tables.session):
            self._tables.remove(self._done)
            for topic, claim in claims.items():
                self._tables.note_claim(topic, claim)
        self._claims.update(claims)
        self._note_removed()

    def _remove_done(self) -> bool:
        """Remove what is published. Returns whether there was something."""
        if not self._done:
            return False
        with transaction_of(self._tables.session):
            self._tables.remove(self._done)
        self._note_removed()
        return True

    def _note_removed(self) -> None:
        if self._done:
            self._done = []
            if failpoints.ACTIVE:
                failpoints.hit("outbox:removed")

    def _finish(self, published: list[int], topics: Any, errors: dict[str, str]) -> None:
        """Note what is to be removed, and of the other topics why they wait."""
        notes = {
            topic: claim._replace(note=errors.get(topic))
            for topic in topics
            if (claim := self._claims.get(topic, Claim())).note != errors.get(topic)
        }
        self._done = published
        if notes:
            self._note_claims(notes)
        relay = self._relay
        relay._published += len(published)
        if relay._on_progress is not None:
            relay._on_progress(relay._published)
        for topic in topics:
            if topic not in errors:
                self._held.pop(topic, None)
                continue
            self._held.setdefault(topic, _Held()).again()
            if topic in self._topics:
                self._topics.pop(topic).close()
            self._relay._note_error(f"{topic}: {errors[topic]}")
        if not self._held:
            self._relay._error = ""
