"""What the processes of a storm over one subscription do: `type_storm`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final

from embeddedpulsar._engine.platform.timing import SYSTEM_CLOCK, perf_counter, sleep
from embeddedpulsar.client.client import Client
from embeddedpulsar.client.consumer.consumer import Consumer
from embeddedpulsar.client.producer.producer import Producer
from embeddedpulsar.enums import BatchingType, ConsumerType, InitialPosition
from embeddedpulsar.exceptions import ConsumerBusy, NotConnected, Timeout
from embeddedpulsar.message import Message
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.results import Result
from embeddedpulsar.testing.trial_store import check_store
from tests.storms import storm_archive, storm_diary
from tests.storms.storm_archive import StormArchive
from tests.storms.storm_diary import Diary
from tests.storms.storm_pages import Page
from tests.storms.storm_payload import Mark, make_payload, read_payload
from tests.storms.storm_workload import Role, Stored

TOPIC: Final = "storm"
SUBSCRIPTION: Final = "work"
KEYS: Final = 16
"""Keys of each producer. Each counts its messages of a key as if that were a producer of its own."""
QUEUE: Final = 60
LARGEST_BATCH: Final = 40
KEEP_ALIVE_S: Final = 2
_SETTINGS: Final = (
    f"managedLedgerMaxEntriesPerLedger=300\nkeepAliveIntervalSeconds={KEEP_ALIVE_S}\n{storm_archive.SETTINGS}"
)
_POLL_MS: Final = 300
_LIFE_S: Final = 1.5
_DRAINED_AFTER_S: Final = 1.0
_GIVE_BACK_SHARE: Final = 0.03
_GIVE_ALL_BACK_SHARE: Final = 0.0005
_DELAYED_SHARE: Final = 0.02
_GROUP_MS: Final = 20


class TypeWorkload:
    """Two kinds of producers: even ones send one by one, odd ones in batches of one key each. Three kinds of
    consumers: with receipts, with acknowledgements in groups, and with each written at once.

    Everybody uses one subscription of the topic; consumers come and go. The topic is trimmed all the time;
    the whole log is in the archive.
    """

    def __init__(self, root: str, consumer_type: ConsumerType) -> None:
        self._root = root
        self._archive = StormArchive(root, TOPIC)
        self._type = consumer_type
        self._comes_singly = consumer_type in (ConsumerType.Shared, ConsumerType.KeyShared)

    def prepare(self) -> None:
        with open(f"{self._root}/broker.conf", "w", encoding="utf-8") as file:
            file.write(_SETTINGS)
        client = Client(self._root)
        self._archive.prepare(client)
        client.subscribe(TOPIC, SUBSCRIPTION, self._type, initial_position=InitialPosition.Earliest).close()
        client.close()

    # -- producers ---------------------------------------------------------------------------------

    def produce(self, role: Role) -> None:
        client = Client(self._root)
        is_batching = bool(role.member % 2)
        producer: Producer[bytes] = client.create_producer(
            TOPIC,
            producer_name=f"producer-{role.member}",
            batching_enabled=is_batching,
            batching_type=BatchingType.KeyBased,
            batching_max_messages=LARGEST_BATCH,
            block_if_queue_full=True,
        )
        page, member, rng = role.page, role.member, role.random()
        number = page.stored(member)
        failures: list[Result] = []
        while not page.is_stopped:
            if not role.may_go_on():
                sleep(0.0005)
                continue
            if is_batching:
                for _ in range(rng.randint(1, 4 * LARGEST_BATCH)):
                    self._send_soon(role, producer, number, failures)
                    number += 1
                producer.flush()
            else:
                self._send(role, producer, number, rng)
                number += 1
            if failures:
                raise AssertionError(f"a send failed with {failures[0]}")
            page.set_stored(member, number)
            page.move(member)
        producer.close()
        client.close()

    def _send(self, role: Role, producer: Producer[bytes], number: int, rng: random.Random) -> None:
        mark = mark_of(role, number)
        if self._type == ConsumerType.Shared and rng.random() < _DELAYED_SHARE:
            due_ms = SYSTEM_CLOCK.wall_ms() + rng.randrange(200)
            producer.send(make_payload(mark, 100), {"due": str(due_ms)}, deliver_at=due_ms)
        else:
            producer.send(make_payload(mark, 100), partition_key=f"key-{mark.producer}")

    @staticmethod
    def _send_soon(role: Role, producer: Producer[bytes], number: int, failures: list[Result]) -> None:
        def answered(result: Result, _: MessageId) -> None:
            if result is not Result.Ok:
                failures.append(result)

        mark = mark_of(role, number)
        producer.send_async(make_payload(mark, 100), answered, partition_key=f"key-{mark.producer}")

    # -- consumers ---------------------------------------------------------------------------------

    def consume(self, role: Role) -> None:
        client = Client(self._root)
        consumer = self._subscribe(client, role)
        if consumer is not None:
            diary = Diary(role.diary, role.member, role.life)
            diary.write(storm_diary.ATTACHED)
            self._work(role, consumer, diary)
            diary.write(storm_diary.CLOSING)
            consumer.close()
            diary.write(storm_diary.CLOSED)
        client.close()

    def _subscribe(self, client: Client, role: Role) -> Consumer[bytes] | None:
        """Attach; None when another has the subscription until the end of the storm."""
        kind = role.member % 3
        while True:
            try:
                return client.subscribe(
                    TOPIC,
                    SUBSCRIPTION,
                    self._type,
                    consumer_name=f"consumer-{role.member}",
                    initial_position=InitialPosition.Earliest,
                    batch_index_ack_enabled=True,
                    receiver_queue_size=QUEUE,
                    negative_ack_redelivery_delay_ms=100,
                    ack_receipt_enabled=kind == 0,
                    ack_group_time_ms=_GROUP_MS if kind < 2 else 0,
                )
            except ConsumerBusy:
                if self._type != ConsumerType.Exclusive:
                    raise
                if role.page.is_draining:
                    return None
            role.page.move(role.member)
            sleep(0.005)

    def _work(self, role: Role, consumer: Consumer[bytes], diary: Diary) -> None:
        """Receive and acknowledge until it is time to leave, or nothing is left to do.

        Nobody leaves once the producers are told to end: nobody would come for those who did.
        """
        rng = role.random()
        leave_at = perf_counter() + rng.expovariate(1 / _LIFE_S)
        idle_since = perf_counter()
        while True:
            is_draining = role.page.is_draining
            if perf_counter() > leave_at and not role.page.is_stopped:
                return
            try:
                message = consumer.receive(timeout_millis=_POLL_MS)
            except Timeout:
                role.page.move(role.member)
                # What a consumer had that was killed comes when that is noticed, on a busy machine late.
                if is_draining and perf_counter() - idle_since > _DRAINED_AFTER_S:
                    return
                continue
            idle_since = perf_counter()
            place = place_of(message)
            diary.write(storm_diary.RECEIVED, *place)
            self._note(role, message)
            if self._comes_singly and rng.random() < _GIVE_BACK_SHARE:
                diary.write(storm_diary.GIVEN_BACK, *place)
                consumer.negative_acknowledge(message)
                continue
            diary.write(storm_diary.ACKNOWLEDGING, *place)
            try:
                consumer.acknowledge(message)
            except NotConnected:
                continue  # taken for dead meanwhile: it comes again, to whomever
            if role.member % 3 != 1:
                diary.write(storm_diary.ACKNOWLEDGED, *place)
            if self._comes_singly and rng.random() < _GIVE_ALL_BACK_SHARE:
                consumer.redeliver_unacknowledged_messages()

    @staticmethod
    def _note(role: Role, message: Message[bytes]) -> None:
        due_ms = message.properties().get("due")
        now_ms = SYSTEM_CLOCK.wall_ms()
        if due_ms is not None and now_ms < int(due_ms):
            raise AssertionError(f"{message.message_id()} came {int(due_ms) - now_ms} ms early")
        mark = read_payload(message.data())
        if mark is None:
            raise AssertionError(f"{message.message_id()} is torn")
        role.page.reach(role.member, *number_of(mark))
        role.page.move(role.member)

    # -- the end -----------------------------------------------------------------------------------

    def archive(self, page: Page) -> bool:
        self._archive.write(page)
        return True

    def read_log(self) -> Iterator[Stored]:
        return self._archive.read()

    def audit(self) -> list[str]:
        """What the auditor finds, and what is left in the subscription: nothing should be."""
        client = Client(self._root)
        consumer: Consumer[Any] = client.subscribe(TOPIC, SUBSCRIPTION, self._type)
        core: Any = consumer._core
        problems = self._archive.judge()[1]
        backlog = core.session.attachment.backlog()
        if backlog:
            problems.append(f"{self._type.name}: {backlog} messages are left in the subscription")
        divergences = core.session.subscription.statistics().divergences
        if divergences:
            problems.append(f"{self._type.name}: {divergences} replicas disagreed")
        client._core.store.peers.sweep()  # of those that were killed
        client.close()
        return problems + [str(problem) for problem in check_store(self._root).problems]


def mark_of(role: Role, number: int) -> Mark:
    """How the ``number``-th message of a producer is marked: by key, and how many of that key came before."""
    return Mark(role.member * KEYS + number % KEYS, role.life, number // KEYS)


def number_of(mark: Mark) -> tuple[int, int]:
    """The producer, and which of its messages it is."""
    return mark.producer // KEYS, mark.sequence * KEYS + mark.producer % KEYS


def place_of(message: Message[bytes]) -> tuple[int, int, int]:
    """Ledger, entry, batch index."""
    message_id = message.message_id()
    return message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()
