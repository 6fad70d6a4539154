"""A process that nothing is done to, amid the hostile storm.

It sends to a topic of its own, receives what it sent under an Exclusive subscription, and helps with the
Shared topic, whose other consumers are killed and stopped inside its locks. What happens there must not reach
its own topic: nothing comes again, nothing comes late.
"""

from __future__ import annotations

from typing import Final

from embeddedpulsar._engine.platform.timing import perf_counter, sleep
from embeddedpulsar.client.client import Client
from embeddedpulsar.client.consumer.consumer import Consumer
from embeddedpulsar.client.producer.producer import Producer
from embeddedpulsar.enums import ConsumerType, InitialPosition
from embeddedpulsar.exceptions import Timeout
from tests.storms import storm_diary
from tests.storms.hostile.hostile_roles import OWN, SUBSCRIPTION, HostileRole
from tests.storms.hostile.hostile_workload import HostileConsumer, close_in_time
from tests.storms.storm_diary import Diary

SHARED_TOPIC: Final = "work-shared"
_PAUSE_S: Final = 0.01
_DRAINED_AFTER_S: Final = 4.0


class Bystander:
    """The process. Its worst gap, in the page, is the longest time between two of its own messages."""

    def __init__(self, role: HostileRole, diary: str) -> None:
        self._role = role
        self._diary = Diary(diary, role.member, role.life)
        self._helper = HostileConsumer(role, SHARED_TOPIC)
        self._sent = 0
        self._received = 0
        self._heard_at = 0.0
        self._frozen_ms = 0

    def run(self) -> None:
        """Work until nothing comes on the Shared topic after the page said drain."""
        client = Client(self._role.root)
        producer: Producer[bytes] = client.create_producer(
            OWN, batching_enabled=True, batching_max_publish_delay_ms=10
        )
        own: Consumer[bytes] = client.subscribe(
            OWN, SUBSCRIPTION, ConsumerType.Exclusive, initial_position=InitialPosition.Earliest
        )
        shared = self._helper.subscribe(client)
        assert shared is not None
        self._diary.write(storm_diary.ATTACHED)
        self._begin()
        idle_since = perf_counter()
        while True:
            is_draining = self._role.page.is_draining
            producer.send_async(b"%d" % self._sent, None)
            self._sent += 1
            self._receive(own)
            if self._helper.step(shared, 1):
                idle_since = perf_counter()
            elif is_draining and perf_counter() - idle_since > _DRAINED_AFTER_S:
                break
            sleep(_PAUSE_S)
        self._diary.write(storm_diary.CLOSING)
        close_in_time(self._role, client)
        self._diary.write(storm_diary.CLOSED)

    def _begin(self) -> None:
        self._heard_at = perf_counter()
        self._frozen_ms = self._role.board.frozen_ms

    def _receive(self, own: Consumer[bytes]) -> None:
        """Take what is there, each message once and in order, and note how long nothing came."""
        while True:
            try:
                message = own.receive(timeout_millis=1)
            except Timeout:
                break
            if message.data() != b"%d" % self._received:
                raise AssertionError(f"{message.data()!r} came instead of {self._received}")
            self._received += 1
            own.acknowledge(message)
            self._note_gap()
        self._note_gap(is_over=False)

    def _note_gap(self, is_over: bool = True) -> None:
        gap = perf_counter() - self._heard_at - (self._role.board.frozen_ms - self._frozen_ms) / 1000
        self._role.board.note_gap(max(0, int(gap * 1000)))
        if is_over:
            self._begin()
