"""What the processes of a storm among operators do: `operations_storm`."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from typing import Final

from embeddedpulsar._engine.platform.timing import sleep
from embeddedpulsar.admin.admin import Admin
from embeddedpulsar.client.client import Client
from embeddedpulsar.enums import ConsumerType, InitialPosition
from embeddedpulsar.exceptions import (
    AlreadyClosed,
    BrokerMetadataError,
    ConsumerBusy,
    NotAllowedError,
    PulsarException,
    SubscriptionNotFound,
    Timeout,
    TopicNotFound,
    TopicTerminated,
)
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.testing.trial_store import check_store
from tests.storms import storm_archive
from tests.storms.client_workload import TOPIC, ClientWorkload
from tests.storms.storm_archive import StormArchive
from tests.storms.storm_pages import Page
from tests.storms.storm_payload import Mark, make_payload, read_payload
from tests.storms.storm_workload import Role, Stored, sizes

KEYS: Final = 40
"""Of each producer on the topic that stays."""
_SETTINGS: Final = f"""
managedLedgerMaxEntriesPerLedger=200
allowAutoTopicCreation=false
{storm_archive.SETTINGS}
"""
_BORN: Final = "born"
"""Property of a message to a topic that comes and goes: when its sender saw the topic made, in ms."""
_PAUSE_S: Final = 0.004
_MOST_LEDGERS_LEFT: Final = 40
_SOMEBODY_WAS_FASTER: Final = (
    BrokerMetadataError,
    AlreadyClosed,
    ConsumerBusy,
    NotAllowedError,
    SubscriptionNotFound,
    TopicNotFound,
    TopicTerminated,
)


class OperationsWorkload:
    """Producers and consumers of a topic that stays, and operators that change what is around them.

    Every consumer has an Exclusive subscription that no operator touches, and gets each message. An operator
    makes, moves, skips and deletes other subscriptions of the same topic, trims it, compacts it and changes
    its retention; and it has a topic of its own that it makes, terminates, truncates and deletes again and
    again while all operators send to it and read it.

    Args:
        root: of the store.
        consumers: the members that get every message.
        operators: the members that are operators; of the consumers, as the storm counts.
    """

    def __init__(self, root: str, consumers: range, operators: range) -> None:
        self._root = root
        self._consumers = consumers
        self._operators = operators
        self._archive = StormArchive(root, TOPIC)
        self._plain = ClientWorkload(root)

    def prepare(self) -> None:
        with open(f"{self._root}/broker.conf", "w", encoding="utf-8") as file:
            file.write(_SETTINGS)
        with Admin(self._root) as admin, Client(self._root) as client:
            admin.topics().create_non_partitioned_topic(TOPIC)
            self._archive.prepare(client)
            for member in self._consumers:  # before anything is trimmed
                name = f"subscription-{member}"
                client.subscribe(TOPIC, name, initial_position=InitialPosition.Earliest).close()
            admin.topics().compact(TOPIC)  # from now on nothing is trimmed that is not compacted

    # -- producers ---------------------------------------------------------------------------------

    def produce(self, role: Role) -> None:
        """Send numbered messages to the topic that stays, each with one of `KEYS` keys."""
        client = Client(self._root)
        producer = client.create_producer(TOPIC, f"producer-{role.member}")
        page, member, rng = role.page, role.member, role.random()
        sequence = page.stored(member)
        while not page.is_stopped:
            if not role.may_go_on():
                sleep(0.0002)
                continue
            payload = make_payload(Mark(member, role.life, sequence), sizes(rng) // 10)
            producer.send(payload, partition_key=key_of(member, sequence))
            sequence += 1
            page.set_stored(member, sequence)
            page.move(member)
        client.close()

    # -- consumers and operators -------------------------------------------------------------------

    def consume(self, role: Role) -> None:
        if role.member in self._operators:
            self._operate(role)
        else:
            self._plain.consume(role)

    def _operate(self, role: Role) -> None:
        rng = role.random()
        with Admin(self._root) as admin, Client(self._root) as client:
            around = _AroundTheTopic(admin, client, rng)
            coming = _ComingAndGoing(admin, client, rng, self._root, role.member, self._operators)
            while not role.page.is_stopped:
                for act in (rng.choice(around.acts), rng.choice(coming.acts)):
                    try:
                        act()
                    except _SOMEBODY_WAS_FASTER:
                        sleep(_PAUSE_S)
                role.page.move(role.member)

    # -- the end -----------------------------------------------------------------------------------

    def archive(self, page: Page) -> bool:
        self._archive.write(page)
        return True

    def read_log(self) -> Iterator[Stored]:
        return self._archive.read()

    def audit(self) -> list[str]:
        """What the store check finds, ledgers that nothing needs, and leftovers of topics that are gone."""
        problems = []
        with Admin(self._root) as admin, Client(self._root) as client:
            topics = admin.topics()
            for name in topics.get_subscriptions(TOPIC):
                if name.startswith("moved"):
                    topics.delete_subscription(TOPIC, name, force=True)
            topics.remove_retention(TOPIC)
            problems += self._judge_compacted(admin, client)
            while topics.trim_topic(TOPIC):
                sleep(_PAUSE_S)
            left = len(topics.get_internal_stats(TOPIC).ledgers)
            if left > _MOST_LEDGERS_LEFT:
                problems.append(f"{left} ledgers are left although everything is acknowledged")
            there = set(topics.get_list())
            for member in self._operators:
                name = f"persistent://public/default/{_own(member)}"
                if name in there:
                    topics.delete(name, force=True)
            client._core.store.peers.sweep()  # of those that were killed
        for member in self._operators:
            problems += [
                f"{path} is left of a deleted topic"
                for path, _, _ in os.walk(f"{self._root}/topics")
                if os.path.basename(path).endswith(f"-{_own(member)}")
            ]
        return problems + [str(problem) for problem in check_store(self._root).problems]

    def _judge_compacted(self, admin: Admin, client: Client) -> list[str]:
        """Compact once more: what is read compacted is the newest message of each key."""
        topics = admin.topics()
        while topics.compaction_status(TOPIC).status == "RUNNING":
            sleep(_PAUSE_S)
        topics.compact(TOPIC)
        while topics.compaction_status(TOPIC).status == "RUNNING":
            sleep(_PAUSE_S)
        newest = {}
        for stored in self._archive.read():
            mark = read_payload(stored.payload)
            if mark is not None:
                newest[key_of(mark.producer, mark.sequence)] = stored.payload
        found = {}
        problems = []
        with client.create_reader(TOPIC, MessageId.earliest, is_read_compacted=True) as reader:
            while reader.has_message_available():
                message = reader.read_next(timeout_millis=1000)
                if message.partition_key() in found:
                    problems.append(f"key {message.partition_key()} is there twice after the compaction")
                found[message.partition_key()] = message.data()
        if problems or found == newest:
            return problems
        missing = sorted(newest.keys() - found.keys())
        old = sorted(key for key in found if found[key] != newest.get(key))
        status = topics.compaction_status(TOPIC)
        return [
            f"compacted ({status}): keys {missing} are missing, keys {old} do not have the newest message"
        ]


def key_of(member: int, sequence: int) -> str:
    """The key of a message on the topic that stays."""
    return f"{member}-{sequence % KEYS}"


def _own(member: int) -> str:
    return f"fleeting-{member}"


class _AroundTheTopic:
    """What an operator does to the topic that stays; no message of it may be missed by the others."""

    def __init__(self, admin: Admin, client: Client, rng: random.Random) -> None:
        self._topics: Final = admin.topics()
        self._client: Final = client
        self._rng: Final = rng
        self.acts: Final[tuple[Callable[[], object], ...]] = (
            self._create,
            self._delete,
            self._reset,
            self._skip,
            self._read_some,
            self._retain,
            self._compact,
            self._read_compacted,
            lambda: self._topics.trim_topic(TOPIC),
            lambda: self._topics.get_stats(TOPIC).json(),
        )

    def _any(self) -> str:
        return f"moved-{self._rng.randrange(4)}"

    def _create(self) -> None:
        start = self._rng.choice((MessageId.earliest, MessageId.latest))
        self._topics.create_subscription(TOPIC, self._any(), start)

    def _delete(self) -> None:
        self._topics.delete_subscription(TOPIC, self._any(), force=self._rng.random() < 0.5)

    def _reset(self) -> None:
        back_ms = self._rng.randrange(3000)
        targets = (MessageId.earliest, MessageId.latest, int(time.time() * 1000) - back_ms)
        self._topics.reset_cursor(TOPIC, self._any(), self._rng.choice(targets))

    def _skip(self) -> None:
        if self._rng.random() < 0.5:
            self._topics.skip_messages(TOPIC, self._any(), self._rng.randrange(1, 300))
        else:
            self._topics.skip_all_messages(TOPIC, self._any())

    def _read_some(self) -> None:
        kind = self._rng.choice((ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.Failover))
        first = InitialPosition.Earliest
        with self._client.subscribe(TOPIC, self._any(), kind, initial_position=first) as consumer:
            for _ in range(self._rng.randrange(100)):
                message = consumer.receive_nowait()
                if message is None:
                    return
                _check_whole(message.data())
                consumer.acknowledge(message)
            if self._rng.random() < 0.3:
                consumer.seek(self._rng.choice((MessageId.earliest, MessageId.latest)))

    def _compact(self) -> None:
        if self._rng.random() < 0.2:
            self._topics.compact(TOPIC)

    def _read_compacted(self) -> None:
        """Each message is the newest of its key among those before the place that was compacted, and they
        come in order."""
        last = None
        with self._client.create_reader(TOPIC, MessageId.earliest, is_read_compacted=True) as reader:
            for _ in range(self._rng.randrange(3 * KEYS)):
                try:
                    message = reader.read_next(timeout_millis=1)
                except Timeout:
                    return
                _check_whole(message.data())
                place = message.message_id()
                if last is not None and not place > last:
                    raise AssertionError(f"read compacted, {place} comes after {last}")
                last = place

    def _retain(self) -> None:
        if self._rng.random() < 0.5:
            self._topics.set_retention(TOPIC, -1, 1)
        else:
            self._topics.remove_retention(TOPIC)


class _ComingAndGoing:
    """What an operator does with topics that come and go. It makes and deletes its own one only, so that it
    knows when that was made; nothing that was sent before may be in it."""

    def __init__(
        self, admin: Admin, client: Client, rng: random.Random, root: str, member: int, operators: range
    ) -> None:
        self._topics: Final = admin.topics()
        self._client: Final = client
        self._rng: Final = rng
        self._member: Final = member
        self._operators: Final = operators
        self._born: Final = f"{root}.{_BORN}"
        own = _own(member)
        self.acts: Final[tuple[Callable[[], object], ...]] = (
            self._make,
            self._make,
            lambda: self._topics.delete(own, force=True),
            lambda: self._topics.terminate_topic(own),
            lambda: self._topics.truncate(own),
            lambda: self._topics.unload(own),
            self._send,
            self._send,
            self._receive,
            self._receive,
        )

    def _make(self) -> None:
        now_ms = int(time.time() * 1000)
        if f"persistent://public/default/{_own(self._member)}" in self._topics.get_list():
            return
        with open(f"{self._born}-{self._member}.new", "w", encoding="ascii") as file:
            file.write(str(now_ms))
        os.replace(f"{self._born}-{self._member}.new", f"{self._born}-{self._member}")
        self._topics.create_non_partitioned_topic(_own(self._member))

    def _send(self) -> None:
        member = self._rng.choice(self._operators)
        with self._client.create_producer(
            _own(member), batching_enabled=self._rng.random() < 0.5
        ) as producer:
            for number in range(self._rng.randrange(50)):
                producer.send(make_payload(Mark(self._member, 0, number), 200))

    def _receive(self) -> None:
        """Read the own topic from its beginning: its life began before every message in it."""
        own = _own(self._member)
        try:
            with open(f"{self._born}-{self._member}", encoding="ascii") as file:
                born_ms = int(file.read())
        except FileNotFoundError:
            return
        with self._client.subscribe(own, "all", initial_position=InitialPosition.Earliest) as consumer:
            last = None
            for _ in range(self._rng.randrange(200)):
                try:
                    message = consumer.receive(timeout_millis=1)
                except Timeout:
                    return
                _check_whole(message.data())
                if message.publish_timestamp() < born_ms:
                    raise AssertionError(f"{message!r} is older than its topic, of {born_ms}")
                place = message.message_id()
                if last is not None and not place > last:
                    raise AssertionError(f"{place} comes after {last}")
                last = place
                consumer.acknowledge(message)


def _check_whole(payload: bytes) -> None:
    if read_payload(payload) is None:
        raise PulsarException(f"a payload of {len(payload)} bytes is not what was sent")
