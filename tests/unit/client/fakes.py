"""Stand-ins for a topic, its ledger and the session of a producer, in memory and without threads."""

from __future__ import annotations

import itertools
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.format.entry import EncodedEntry, EncodedFields, EntryView, decode
from embeddedpulsar._engine.format.frame import METADATA_SIZE, FrameHeader
from embeddedpulsar._engine.log.waiter_slots import AppendHold
from embeddedpulsar.client.client_threads import ClientLog, MemoryLimit
from embeddedpulsar.client.producer.producer import Producer
from embeddedpulsar.client.producer.producer_session import ProducerConfig
from embeddedpulsar.client.producer.publisher import Publisher
from embeddedpulsar.exceptions import LockTimeout, ProducerFenced
from embeddedpulsar.message_id import Position
from embeddedpulsar.schema import BytesSchema
from embeddedpulsar.testing.manual_clock import ManualClock, ManualScheduler


def view_of(fields: EncodedFields, ledger: int, entry: int, publish_ms: int = 1) -> EntryView:
    """What a consumer would see of an encoded entry."""
    encoded = EncodedEntry(*fields)
    body = b"".join(encoded.parts)
    header = FrameHeader(
        len(body) + 56, 0, 0, encoded.body_crc, 0, 1, encoded.codec, encoded.flags, entry, publish_ms,
        encoded.count, encoded.metadata_length, 0,
    )  # fmt: skip
    return decode(header, body, ledger)


class FakeLock:
    """A lock that remembers how long its callers were ready to wait."""

    def __init__(self) -> None:
        self.is_free = True
        self.waits: list[float] = []
        self.released = 0

    def acquire(self, timeout_s: float) -> None:
        self.waits.append(timeout_s)
        if timeout_s < 0.01 or not self.is_free:
            raise LockTimeout("held by another")

    def try_acquire(self) -> bool:
        return self.is_free

    def keep_threads_out(self, timeout_s: float = 30.0) -> None:
        """The other holder is another process."""

    def release(self) -> None:
        self.released += 1


class FakeLedger:
    """A managed ledger that keeps what is appended, and fails on demand."""

    def __init__(self) -> None:
        self.views: list[EntryView] = []
        self.fail: BaseException | None = None
        self.fail_after_storing: BaseException | None = None
        self.synced = self.dirty = 0
        self.words = {TopicWord.JOURNAL: 0}
        self.lock = FakeLock()

    def check_in_place(self) -> None:
        """It is nowhere."""

    @property
    def tail(self) -> int:
        return len(self.views)

    def append(
        self, e: EncodedEntry, durability: str | None = None, guard: Any = None
    ) -> tuple[int, int, int]:
        if guard is not None and self.words[TopicWord.JOURNAL] != guard.checked:
            guard.check_connected()
        failure, self.fail = self.fail, None
        if failure is not None:
            raise failure
        self.views.append(view_of(e, 7, len(self.views), len(self.views) + 1000))
        failure, self.fail_after_storing = self.fail_after_storing, None
        if failure is not None:
            raise failure
        return 7, len(self.views) - 1, len(self.views) + 999

    def append_nowait(
        self, e: EncodedEntry, guard: Any = None, timeout_s: float | None = None, hold: Any = None
    ) -> tuple[int, int, int, int]:
        if hold is None:
            if timeout_s:
                self.lock.acquire(timeout_s)
            elif not self.lock.try_acquire():
                raise LockTimeout("held by another")
        return *self.append(e, "process", guard), self.tail

    def hold(self) -> AppendHold:
        return AppendHold(lambda uuid: True)

    def append_run(self, entries: Any, hold: Any, stored: list[tuple[int, int, int]]) -> None:
        for entry in entries:
            ledger, number, _, word = self.append_nowait(entry, None, None, hold)
            stored.append((ledger, number, word))

    def note_dirty(self) -> None:
        self.dirty += 1

    def wait_durable(self, end_word: int) -> None:
        failure, self.fail = self.fail, None
        if failure is not None:
            raise failure
        self.synced = max(self.synced, end_word)

    def last_position(self) -> Position | None:
        return Position(7, len(self.views) - 1) if self.views else None

    def values(self) -> list[list[bytes]]:
        """The payloads, entry by entry."""
        return [view.values() for view in self.views]


class InlineCallbacks:
    """A callback thread that runs jobs when asked: by `run`, or by whoever waits for them."""

    is_current = False
    is_open = True

    def __init__(self) -> None:
        self.jobs: list[Any] = []

    def put(self, job: Any) -> None:
        self.jobs.append(job)

    @property
    def is_idle(self) -> bool:
        return not self.jobs

    def run(self) -> None:
        while self.jobs:
            self.jobs.pop(0)()

    def wait_done(self, timeout_s: float | None = None) -> bool:
        self.run()
        return True


class InlineFlusher:
    """A flusher that tries when asked."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []

    def kick(self, publisher: Any) -> None:
        if publisher not in self.waiting:
            self.waiting.append(publisher)

    def run(self) -> None:
        self.waiting = [publisher for publisher in self.waiting if not publisher.retry()]


class FakeSession:
    """A producer session on a `FakeLedger`."""

    topic_name = "persistent://public/default/t"
    is_held = False

    def __init__(
        self, schema: Any = None, durability: str = "process", max_message_size: int = 5 << 20
    ) -> None:
        self.config: Any = None
        self.schema = schema or BytesSchema()
        self.takes_bytes = type(self.schema) is BytesSchema
        self.durability = durability
        self.max_message_size = max_message_size + METADATA_SIZE
        self.ledger = FakeLedger()
        self.clock = ManualClock()
        self.scheduler = ManualScheduler(self.clock)
        self.monotonic = self.clock.monotonic
        self.wall_ms = self.clock.wall_ms
        self.call_later = self.scheduler.call_later
        self.callbacks = InlineCallbacks()
        self.flusher = InlineFlusher()
        self.memory: MemoryLimit | None = None
        self.log = ClientLog()
        self.partition = -1
        self.names: list[str | None] = []
        self.stats_interval_s = 0
        self.detached = 0
        self.is_attached = False
        self.fenced = False
        self.revived = 0
        self.limiter = None
        self.abandoned: list[Publisher] = []

    def attach(self, name: str | None) -> Any:
        self.names.append(name)
        self.is_attached = True
        made = name or f"standalone-0-{len(self.names)}"
        return SimpleNamespace(name=made, epoch=0, last_sequence_id=-1, deduplicates=False)

    def check_connected(self) -> None:
        if self.fenced:
            raise ProducerFenced("another has the topic")

    def detach(self, highest: int | None = None) -> None:
        self.detached += 1
        self.is_attached = False

    def revive(self) -> None:
        self.revived += 1
        self.ledger = FakeLedger()

    def find_entry(self, after: Position | None, name: str, first: int) -> Position | None:
        for view in self.ledger.views:
            position = Position(view.ledger_id, view.entry_id)
            if (after is None or position > after) and view.first_sequence_id == first:
                return position
        return None

    def end(self, publisher: Publisher, close: Any, name: str) -> None:
        close()

    def abandon(self, publisher: Publisher) -> None:
        self.abandoned.append(publisher)


def make_producer(
    session: FakeSession | None = None, **options: Any
) -> tuple[Producer[Any], FakeSession, FakeLedger]:
    """A producer on fakes; ``options`` are fields of `ProducerConfig`."""
    session = session or FakeSession()
    config = ProducerConfig("t", session.schema, **options)
    session.config = config
    producer: Producer[Any] = Producer(Publisher(session, config))  # type: ignore[arg-type]
    return producer, session, session.ledger


class MemoryRing:
    """An `AckRing` that no other process sees."""

    consumer_id = 1

    def __init__(self) -> None:
        self.words: dict[int, int] = {}
        self.slots = itertools.count()
        self.firsts: dict[int, int] = defaultdict(int)

    def store(self, *position: int) -> None:
        """An entry is acknowledged."""

    def note_part(self, *part: int) -> bool:
        """A message is."""
        return True

    note_cumulative = store

    def begin(self, epoch: int) -> None:
        """What was acknowledged is void."""

    def begin_writing(self) -> None:
        """It is about to be written."""

    end_writing = remove = begin_writing
