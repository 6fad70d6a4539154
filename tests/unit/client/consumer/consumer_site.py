"""A consumer on fakes: a clock that stands still, and an attachment that delivers singly."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from embeddedpulsar._engine.format.entry import EntryView, ProducerPrefix, encode_plain, encode_single
from embeddedpulsar._engine.subscription.subscription_files import Freshness
from embeddedpulsar.client.client_threads import ClientLog
from embeddedpulsar.client.consumer.consumer import Consumer
from embeddedpulsar.client.consumer.consumer_config import ConsumerConfig
from embeddedpulsar.client.consumer.consumer_core import ConsumerCore
from embeddedpulsar.client.consumer.consumer_session import Decryption
from embeddedpulsar.enums import ConsumerCryptoFailureAction, ConsumerType, InitialPosition
from embeddedpulsar.message import MessageOrigin
from embeddedpulsar.policies import BatchReceivePolicy
from embeddedpulsar.schema import BytesSchema
from embeddedpulsar.settings import BrokerSettings
from embeddedpulsar.testing.manual_clock import ManualClock, ManualScheduler
from tests.unit.client.fakes import MemoryRing, view_of

PREFIX = ProducerPrefix("p")
FAIL = ConsumerCryptoFailureAction.FAIL
Position = tuple[int, int]


class SharedAttachment:
    """What one consumer of a Shared subscription has, if it is the only one; remembers what it is asked."""

    delivers_singly = True
    read_before = (-1, -1)
    version = 0
    version_word = (memoryview(bytes(8)).cast("Q"), 0)

    def __init__(self) -> None:
        self.chunks = SimpleNamespace(on_left=None, delivered={})
        self.epoch = 1
        self.words = [0] * 512
        self.fresh = Freshness.for_ever()
        self.consumer_id = 1
        self.on_rewound: Any = None
        self.ready: list[Position] = []
        self.held: list[Position] = []
        self.counts: dict[Position, int] = {}
        self.bits: dict[Position, int] = {}
        self.acknowledged: set[Position] = set()
        self.handed_out: list[Position] = []
        self.asked: list[list[Position]] = []
        self.commits = 0
        self.active = True
        self._encoded: dict[Position, Any] = {}

    def progress(self) -> int:
        return self.commits

    def make_ring(self, epoch: int) -> MemoryRing:
        return MemoryRing()

    def is_plain(self, ledger: int, entry: int, is_cumulative: bool = False) -> bool:
        return True

    def publish(self, *values: bytes) -> None:
        """Store one entry."""
        position = (7, len(self._encoded))
        single = len(values) == 1
        self._encoded[position] = (
            encode_single(values[0], 0, PREFIX) if single else encode_plain(list(values), 0, PREFIX)
        )
        self.ready.append(position)

    def read(self, max_messages: int, max_bytes: int) -> list[EntryView]:
        views: list[EntryView] = []
        while self.ready and sum(view.count for view in views) < max_messages:
            position = self.ready.pop(0)
            view = view_of(self._encoded[position], *position)
            view.redelivery_count = self.counts.get(position, 0)
            view.skip = self.bits.get(position)
            self.held.append(position)
            views.append(view)
        return views

    def is_fresh(self) -> bool:
        return True

    def handed(self, view: EntryView) -> bool:
        self.handed_out.append((view.ledger_id, view.entry_id))
        return True

    def acknowledge(self, entries: Any, partial: Any, *, epoch: int | None = None) -> bool:
        self.commits += 1
        self.acknowledged.update(entries)
        for position, (bits, _) in partial.items():
            self.bits[position] = self.bits.get(position, 0) | bits
        self.held = [position for position in self.held if position not in self.acknowledged]
        return True

    def redeliver_entries(self, entries: list[Position]) -> bool:
        self.asked.append(list(entries))
        for position in entries:
            if position in self.held:
                self.held.remove(position)
                self.counts[position] = self.counts.get(position, 0) + 1
                self.ready.append(position)
        self.ready.sort()
        return False

    def redeliver(self) -> None:
        for position in self.held:
            if position in self.handed_out:
                self.counts[position] = self.counts.get(position, 0) + 1
        self.ready = sorted(self.ready + self.held)
        self.held = []

    key = 0
    shares_rings = False
    awaits_appends = True

    def has_news(self, has_tail_moved: bool, seen_version: int) -> bool:
        return has_tail_moved or self.version != seen_version

    def back_stop(self, seconds: float) -> float:
        return seconds

    def request_wakeup(self, seen_version: int) -> bool:
        return True

    def due_ms(self) -> int:
        return 0

    def is_active(self) -> bool:
        return self.active

    def detach(self) -> None:
        return None


class ConsumerSite:
    """A consumer, and the world around it."""

    def __init__(self, *, settings: BrokerSettings | None = None, stats_interval_s: int = 0, **options: Any):
        self.clock = ManualClock()
        self.scheduler = ManualScheduler(self.clock)
        self.attachment = SharedAttachment()
        values: dict[str, Any] = {
            "topic": "t",
            "subscription_name": "s",
            "consumer_type": ConsumerType.Shared,
            "schema": BytesSchema(),
            "listener": None,
            "receiver_queue_size": 1000,
            "name": "c",
            "ack_timeout_ms": 0,
            "nack_delay_ms": 1000,
            "initial_position": InitialPosition.Earliest,
            "start_inclusive": False,
            "batch_receive": BatchReceivePolicy(),
            "batch_index_ack": False,
            "ack_group_time_ms": 100,
            "properties": {},
        }
        self.config = ConsumerConfig(**(values | options))
        self.woken = 0
        client: Any = SimpleNamespace(
            is_closed=False,
            config=SimpleNamespace(stats_interval_s=stats_interval_s, operation_timeout_s=30),
            workers=SimpleNamespace(start=lambda job: job()),
            store=SimpleNamespace(settings=settings or BrokerSettings()),
            log=ClientLog(),
            listeners=SimpleNamespace(add=lambda target: None, remove=lambda target: None),
            wake=self._wake,
            forget_consumer=lambda consumer: None,
        )
        session = SimpleNamespace(
            attachment=self.attachment,
            decryption=Decryption(client, "t", None, FAIL, "c", self.attachment.read),
            client=client,
            config=self.config,
            consumer_name="c",
            topic_name="persistent://public/default/t",
            log_names=lambda: {
                "consumer": "c",
                "subscription": "s",
                "topic": "persistent://public/default/t",
            },
            origin=MessageOrigin("persistent://public/default/t", BytesSchema()),
            ledger=SimpleNamespace(
                check_in_place=int,
                tail=0,
                words=[0] * 512,
                waits=SimpleNamespace(
                    must_poll=False,
                    wait=lambda tail, timeout_s, key, waiter: False,
                    end_wait=lambda key, waiter, tail, is_served: None,
                ),
            ),
            mailbox=SimpleNamespace(
                generation=0,
                wait=lambda seen, timeout_s: self.pass_time(timeout_s),
                glance=lambda: None,
                ring_self=self._wake,
            ),
            clock=self.clock,
            monotonic=self.clock.monotonic,
            call_later=self.scheduler.call_later,
            call_to_write=self.scheduler.call_later,
            keep_rates=lambda queue, delivery: None,
            release=lambda: None,
            detach=lambda: self.attachment.detach(),
        )
        self.core = ConsumerCore(session)  # type: ignore[arg-type]
        self.consumer: Consumer[Any] = Consumer(self.core)
        self.consumer._start()

    def _wake(self) -> None:
        self.woken += 1

    def publish(self, *counts: int) -> None:
        """Store entries of so many messages each, with values ``entry.index``."""
        for count in counts:
            entry = len(self.attachment._encoded)
            self.attachment.publish(*(b"%d.%d" % (entry, index) for index in range(count)))

    def receive(self, count: int = 1000) -> list[Any]:
        """What is there, up to so many messages."""
        messages: list[Any] = []
        while len(messages) < count and (message := self.consumer.receive_nowait()) is not None:
            messages.append(message)
        return messages

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.scheduler.run_due()


def texts(messages: list[Any]) -> list[str]:
    """The payloads."""
    return [message.data().decode() for message in messages]
