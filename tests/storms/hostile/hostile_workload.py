"""What producers and consumers of the hostile storm do: `hostile_storm`.

Interrupts strike anywhere. A producer that was interrupted begins a new run with the first message that is
not known to be stored; a consumer gives back what it has not acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from embeddedpulsar._engine.platform.timing import perf_counter, sleep
from embeddedpulsar._engine.subscription.ack_ring import MOST_ENTRIES
from embeddedpulsar.client.client import Client
from embeddedpulsar.client.consumer.consumer import Consumer
from embeddedpulsar.client.producer.producer import Producer
from embeddedpulsar.enums import BatchingType, ConsumerType, InitialPosition
from embeddedpulsar.exceptions import ConsumerBusy, Interrupted, NotConnected, Timeout
from embeddedpulsar.message import Message
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.results import Result
from tests.storms import storm_diary
from tests.storms.hostile.hostile_roles import (
    FIRST_PROCESS,
    QUEUE,
    SUBSCRIPTION,
    TOPICS,
    HostileRole,
    diary_of,
    mark_of,
    stream_of,
)
from tests.storms.hostile.hostile_signals import SendingHandler, accept_signals, arm, disarm, patient
from tests.storms.storm_diary import Diary
from tests.storms.storm_payload import make_payload, read_payload

CLOSE_WITHIN_S: Final = 40.0
_POLL_MS: Final = 300
_LIFE_S: Final = 6.0
_DRAINED_AFTER_S: Final = 4.0
_PAUSE_S: Final = 0.004
_GIVE_BACK_SHARE: Final = 0.02
_LARGEST_BATCH: Final = 20
_SINGLY: Final = (ConsumerType.Shared, ConsumerType.KeyShared)


class HostileProducer:
    """One process that sends to all topics; even members one by one, odd ones in batches of one key."""

    def __init__(self, role: HostileRole) -> None:
        self._role = role
        self._number = role.member - FIRST_PROCESS
        self._random = role.random()
        self._is_batching = bool(role.member % 2)
        self._run = role.new_run()
        self._failures: list[Result] = []
        self._answered: set[tuple[int, int]] = set()

    def run(self) -> None:
        """Send until the page says stop."""
        accept_signals()
        client = patient(lambda: Client(self._role.root))
        producers = {topic: patient(partial(self._create, client, topic)) for topic in TOPICS}
        handler = SendingHandler(self._role, client)
        self._role.page.move(self._role.member)
        while True:
            try:
                arm()
                self._send_all(producers)
                disarm()
                break
            except KeyboardInterrupt:
                patient(lambda: self._settle(producers))
        close_in_time(self._role, client, handler)

    def _create(self, client: Client, topic: str) -> Producer[bytes]:
        return client.create_producer(
            topic,
            producer_name=f"producer-{self._number}",
            batching_enabled=self._is_batching,
            batching_type=BatchingType.KeyBased,
            batching_max_messages=_LARGEST_BATCH,
            batching_max_publish_delay_ms=5,
            block_if_queue_full=True,
        )

    def _settle(self, producers: dict[str, Producer[bytes]]) -> None:
        """After an interrupt: everything sent is answered, and what follows is another run."""
        for producer in producers.values():
            producer.flush()
        self._answered.clear()
        self._run = self._role.new_run()

    def _send_all(self, producers: dict[str, Producer[bytes]]) -> None:
        page, member = self._role.page, self._role.member
        while not page.is_stopped:
            topic = self._random.choice(list(producers))
            stream = stream_of(topic, self._number)
            self._send(producers[topic], stream, page.stored(stream))
            if self._failures:
                raise AssertionError(f"a send failed with {self._failures[0]}")
            page.move(member)
            sleep(_PAUSE_S)

    def _send(self, producer: Producer[bytes], stream: int, number: int) -> None:
        if not self._is_batching:
            mark = mark_of(stream, self._run, number)
            producer.send(make_payload(mark, 100), partition_key=f"key-{mark.producer}")
            self._role.page.set_stored(stream, number + 1)
            return
        count = self._random.randint(1, 2 * _LARGEST_BATCH)
        for following in range(number, number + count):
            mark = mark_of(stream, self._run, following)
            answer = self._answer_of(stream, following)
            producer.send_async(make_payload(mark, 100), answer, partition_key=f"key-{mark.producer}")
        if self._random.random() < 0.5:
            producer.flush()
        else:
            self._wait_for_timer(stream, number + count)

    def _wait_for_timer(self, stream: int, count: int) -> None:
        """The batch timer alone has to store what was sent."""
        deadline = perf_counter() + CLOSE_WITHIN_S
        while self._role.page.stored(stream) < count and not self._failures:
            if perf_counter() > deadline:
                raise AssertionError(
                    f"batches were not sent within {CLOSE_WITHIN_S:.0f} s: the timer is dead"
                )
            sleep(0.001)

    def _answer_of(self, stream: int, number: int) -> Callable[[Result, MessageId], None]:
        page, failures, above = self._role.page, self._failures, self._answered

        def answered(result: Result, _: MessageId) -> None:
            if result is not Result.Ok:
                failures.append(result)
                return
            # Batches are by key: a later message may be stored, and answered, before an earlier one.
            above.add((stream, number))
            while (stream, page.stored(stream)) in above:
                above.discard((stream, page.stored(stream)))
                page.set_stored(stream, page.stored(stream) + 1)

        return answered


class HostileConsumer:
    """One process with a consumer of one topic; even members acknowledge in groups of 100 ms, odd ones with
    receipts or at once."""

    def __init__(self, role: HostileRole, topic: str) -> None:
        self._role = role
        self._topic = topic
        self._type = TOPICS[topic]
        self._random = role.random()
        self._diary = Diary(diary_of(role.folder, topic), role.member, role.life)

    def run(self) -> None:
        """Consume until it is time to leave, or until nothing comes after the page said drain."""
        accept_signals()
        client = patient(lambda: Client(self._role.root))
        handler = SendingHandler(self._role, client)
        consumer = patient(lambda: self.subscribe(client))
        if consumer is not None:
            self._diary.write(storm_diary.ATTACHED)
            self._consume(consumer)
            self._diary.write(storm_diary.CLOSING)
        close_in_time(self._role, client, handler)
        self._diary.write(storm_diary.CLOSED)

    def subscribe(self, client: Client) -> Consumer[bytes] | None:
        """Attach; None when another has the subscription until the end of the storm."""
        has_receipts = self._role.member % 4 == 1
        while True:
            self._role.page.move(self._role.member)
            try:
                return client.subscribe(
                    self._topic,
                    SUBSCRIPTION,
                    self._type,
                    consumer_name=f"consumer-{self._role.member}",
                    initial_position=InitialPosition.Earliest,
                    batch_index_ack_enabled=True,
                    receiver_queue_size=QUEUE,
                    negative_ack_redelivery_delay_ms=100,
                    ack_receipt_enabled=has_receipts,
                    ack_group_time_ms=0 if self._role.member % 4 == 3 else 100,
                )
            except ConsumerBusy:
                if self._type != ConsumerType.Exclusive:
                    raise
                if self._role.page.is_draining:
                    return None
            sleep(0.02)

    def _consume(self, consumer: Consumer[bytes]) -> None:
        leave_at = perf_counter() + 1 + self._random.expovariate(1 / _LIFE_S)
        idle_since = perf_counter()
        while True:
            try:
                arm()
                is_draining = self._role.page.is_draining
                if perf_counter() > leave_at and not self._role.page.is_stopped:
                    disarm()
                    break
                if self.step(consumer, _POLL_MS):
                    idle_since = perf_counter()
                elif is_draining and perf_counter() - idle_since > _DRAINED_AFTER_S:
                    disarm()
                    break
            except KeyboardInterrupt:
                patient(lambda: self._give_back(consumer))

    def _give_back(self, consumer: Consumer[bytes]) -> None:
        """After an interrupt: the message that was at hand may be nowhere."""
        self._diary.write(storm_diary.INTERRUPTED)
        consumer.redeliver_unacknowledged_messages()

    def step(self, consumer: Consumer[bytes], timeout_ms: int) -> bool:
        """Receive one message and acknowledge it, or give it back.

        Returns:
            Whether there was one.
        """
        role, diary = self._role, self._diary
        role.page.move(role.member)
        try:
            message = consumer.receive(timeout_millis=timeout_ms)
        except Timeout:
            role.check_descriptors()
            return False
        place = place_of(message)
        diary.write(storm_diary.RECEIVED, *place)
        if read_payload(message.data()) is None:
            raise AssertionError(f"{message.message_id()} is torn")
        if self._type in _SINGLY and self._random.random() < _GIVE_BACK_SHARE:
            diary.write(storm_diary.GIVEN_BACK, *place)
            consumer.negative_acknowledge(message)
            return True
        diary.write(storm_diary.ACKNOWLEDGING, *place)
        try:
            consumer.acknowledge(message)
        except NotConnected:
            return True  # this process was taken for dead meanwhile: the message comes again, to another too
        if is_recorded(consumer):
            diary.write(storm_diary.ACKNOWLEDGED, *place)
        return True


def consume_one(consumer: Consumer[bytes], diary: Diary, timeout_ms: int) -> None:
    """Receive one message and acknowledge it.

    Raises:
        Timeout: there was none.
    """
    acknowledge_one(consumer, diary, consumer.receive(timeout_millis=timeout_ms))


def acknowledge_one(consumer: Consumer[bytes], diary: Diary, message: Message[bytes]) -> None:
    """Acknowledge a message that was received."""
    place = place_of(message)
    diary.write(storm_diary.RECEIVED, *place)
    if read_payload(message.data()) is None:
        raise AssertionError(f"{message.message_id()} is torn")
    diary.write(storm_diary.ACKNOWLEDGING, *place)
    try:
        consumer.acknowledge(message)
    except NotConnected:
        return  # as in `HostileConsumer.step`
    if is_recorded(consumer):
        diary.write(storm_diary.ACKNOWLEDGED, *place)


def is_recorded(consumer: Consumer[bytes]) -> bool:
    """Whether the last acknowledgement outlasts the process. More of them than the ring holds, while another
    process is stopped inside the lock, are known to this process alone."""
    return len(consumer._acks.done) <= MOST_ENTRIES


def place_of(message: Message[bytes]) -> tuple[int, int, int]:
    """Ledger, entry, batch index."""
    message_id = message.message_id()
    return message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()


def close_in_time(role: HostileRole, client: Client, handler: SendingHandler | None = None) -> None:
    """Close the client, whatever strikes, and fail if that takes longer than one operation timeout."""
    begun = perf_counter()
    frozen = role.board.frozen_ms
    for close in (client.close,) if handler is None else (handler.close, client.close):
        try:
            close()
        except Interrupted:  # a SIGINT that was under way: close again, as a program does
            close()
    took = perf_counter() - begun - (role.board.frozen_ms - frozen) / 1000
    if took > CLOSE_WITHIN_S:
        raise AssertionError(f"close() took {took:.1f} s")
