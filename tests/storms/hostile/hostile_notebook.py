"""A notebook amid the hostile storm: its calls are interrupted, and it keeps the exceptions.

An interrupt strikes `subscribe`, `create_producer`, `create_reader` or `receive` at a random moment. The
traceback, with all its frames, stays alive, as the last one does in a notebook. The next call in the same
process must find nothing attached: it takes the same Exclusive subscription, or the same name of a producer.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

from embeddedpulsar import Admin
from embeddedpulsar._engine.platform.timing import perf_counter, sleep
from embeddedpulsar.client.client import Client
from embeddedpulsar.client.consumer.consumer import Consumer
from embeddedpulsar.client.consumer.reader import Reader
from embeddedpulsar.client.producer.producer import Producer
from embeddedpulsar.enums import ConsumerType, InitialPosition
from embeddedpulsar.exceptions import ConsumerBusy, ProducerBusy, Timeout
from embeddedpulsar.message import Message
from embeddedpulsar.message_id import MessageId
from tests.storms import storm_diary
from tests.storms.hostile.hostile_roles import (
    NOTEBOOK,
    NOTEBOOK_STREAM,
    SUBSCRIPTION,
    HostileRole,
    diary_of,
)
from tests.storms.hostile.hostile_signals import accept_signals, arm, disarm
from tests.storms.hostile.hostile_workload import acknowledge_one, close_in_time, consume_one
from tests.storms.storm_diary import Diary
from tests.storms.storm_payload import Mark, make_payload

T = TypeVar("T")

_KEPT: Final = 30
_MOST_SENT: Final = 5
_PAUSE_S: Final = 0.02
_RECEIVE_MS: Final = 30
_DRAINED_AFTER_MS: Final = 2000
_PRODUCER: Final = "notebook"


class Notebook:
    """The process."""

    def __init__(self, role: HostileRole) -> None:
        self._role = role
        self._random = role.random()
        self._kept: deque[BaseException] = deque(maxlen=_KEPT)
        self._took_s: dict[str, float] = {}
        self._lives = 0

    def run(self) -> None:
        """Interrupt calls until the page says stop, each kind once at least; then receive what is left."""
        accept_signals(signal.SIGALRM)
        cells = (self._produce, self._consume, self._read, self._receive)
        rounds = 0
        with Admin(self._role.root) as admin:
            client = Client(self._role.root)
            while rounds < len(cells) or not self._role.page.is_stopped:
                cell = cells[rounds] if rounds < len(cells) else self._random.choice(cells)
                cell(client)
                self._check_nothing_stays(admin)
                rounds += 1
                self._role.page.move(self._role.member)
                sleep(self._random.uniform(0, _PAUSE_S))
            self._acknowledge(self._subscribe(client), None)
            close_in_time(self._role, client)

    # -- the calls ---------------------------------------------------------------------------------

    def _subscribe(self, client: Client) -> Consumer[bytes]:
        return client.subscribe(
            NOTEBOOK, SUBSCRIPTION, ConsumerType.Exclusive, initial_position=InitialPosition.Earliest
        )

    def _create_producer(self, client: Client) -> Producer[bytes]:
        return client.create_producer(NOTEBOOK, producer_name=_PRODUCER)

    def _create_reader(self, client: Client) -> Reader[bytes]:
        return client.create_reader(NOTEBOOK, MessageId.earliest)

    def _interrupted(self, kind: str, call: Callable[[], T]) -> T | None:
        """Interrupt ``call()`` about anywhere.

        Returns:
            None when the interrupt struck, else what the call returned, which may also be after the interrupt
            was too late for it.
        """
        result: T | None = None
        longest_s = self._took_s.get(kind, 0.02)
        begun = perf_counter()
        try:
            arm()
            signal.setitimer(signal.ITIMER_REAL, self._random.uniform(1e-5, 1.1 * longest_s))
            result = call()
            disarm()
        except KeyboardInterrupt as error:
            if result is None:
                self._kept.append(error)
                self._role.board.count(f"interrupted {kind}")
        finally:
            disarm()
            signal.setitimer(signal.ITIMER_REAL, 0)
        if result is not None:
            self._took_s[kind] = 0.7 * longest_s + 0.3 * (perf_counter() - begun)
        else:  # interrupted all the time, it could seem ever shorter than it is
            self._took_s[kind] = 1.02 * longest_s
        return result

    # -- the cells ---------------------------------------------------------------------------------

    def _produce(self, client: Client) -> None:
        producer = self._interrupted("create_producer", lambda: self._create_producer(client))
        if producer is None:
            try:
                producer = self._create_producer(client)
            except ProducerBusy as error:
                raise AssertionError("an interrupted create_producer stays attached") from error
        page, run = self._role.page, self._role.new_run()
        for _ in range(self._random.randint(1, _MOST_SENT)):
            number = page.stored(NOTEBOOK_STREAM)
            producer.send(make_payload(Mark(NOTEBOOK_STREAM, run, number), 100))
            page.set_stored(NOTEBOOK_STREAM, number + 1)
        producer.close()

    def _consume(self, client: Client) -> None:
        consumer = self._interrupted("subscribe", lambda: self._subscribe(client))
        if consumer is None:
            consumer = self._another(client, "subscribe")
        self._acknowledge(consumer, self._random.randint(0, _MOST_SENT))

    def _read(self, client: Client) -> None:
        reader = self._interrupted("create_reader", lambda: self._create_reader(client))
        if reader is not None:
            reader.close()

    def _receive(self, client: Client) -> None:
        """A consumer whose `receive` was interrupted is closed; another one gets the message."""
        consumer = self._subscribe(client)
        diary = self._begin()

        def receive() -> list[Message[bytes]]:
            try:
                return [consumer.receive(timeout_millis=_RECEIVE_MS)]
            except Timeout:
                return []

        messages = self._interrupted("receive", receive)
        for message in messages or ():
            acknowledge_one(consumer, diary, message)
        if messages is None:
            diary.write(storm_diary.INTERRUPTED)
            consumer.redeliver_unacknowledged_messages()
        self._end(consumer, diary)
        self._acknowledge(self._another(client, "receive"), self._random.randint(0, _MOST_SENT))

    def _another(self, client: Client, interrupted: str) -> Consumer[bytes]:
        try:
            return self._subscribe(client)
        except ConsumerBusy as error:
            raise AssertionError(f"the consumer of an interrupted {interrupted} stays attached") from error

    def _acknowledge(self, consumer: Consumer[bytes], most: int | None) -> None:
        """Acknowledge ``most`` messages, or all that come; close the consumer."""
        diary = self._begin()
        taken = 0
        while most is None or taken < most:
            try:
                consume_one(consumer, diary, _RECEIVE_MS if most is not None else _DRAINED_AFTER_MS)
            except Timeout:
                break
            taken += 1
        self._end(consumer, diary)

    def _begin(self) -> Diary:
        self._lives += 1
        diary = Diary(diary_of(self._role.folder, NOTEBOOK), self._role.member, self._lives)
        diary.write(storm_diary.ATTACHED)
        return diary

    def _end(self, consumer: Consumer[bytes], diary: Diary) -> None:
        diary.write(storm_diary.CLOSING)
        consumer.close()
        diary.write(storm_diary.CLOSED)
        diary.close()

    def _check_nothing_stays(self, admin: Admin) -> None:
        """Between two cells the topic has no producer, no consumer and no reader."""
        stats = admin.topics().get_stats(NOTEBOOK)
        names = [name for name in stats.subscriptions if name != SUBSCRIPTION]
        consumers = sum(len(one.consumers) for one in stats.subscriptions.values())
        if stats.publishers or names or consumers:
            raise AssertionError(
                f"attached between two cells: {len(stats.publishers)} producers, {consumers} consumers,"
                f" other subscriptions {names}"
            )
