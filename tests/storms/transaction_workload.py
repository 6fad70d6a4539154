"""Transfers between accounts, each in one transaction: what the processes of `transaction_storm` do.

Orders are messages of one topic. A clerk receives some, and in one transaction books each of them on topics
of accounts, takes a note in a second subscription, and acknowledges them. The amounts of an order add up to
0. So at every moment an order is acknowledged if and only if its bookings are visible, all of them, and
those of one attempt.

Everybody writes down what they were told: clerks the ends of transactions, readers what they saw.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import random
import shutil
import struct
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

from embeddedpulsar import Admin, Client, Consumer, ConsumerType, Message, MessageId
from embeddedpulsar._engine.platform.timing import perf_counter, sleep
from embeddedpulsar.exceptions import (
    AlreadyClosed,
    ConsumerBusy,
    InvalidTxnStatusError,
    NotConnected,
    PulsarException,
    Timeout,
    TransactionConflict,
    TransactionNotFound,
)
from tests.storms.storm_workload import Role

ORDERS: Final = "orders"
ACCOUNTS: Final = tuple(f"accounts-{number}" for number in range(3))
WORK: Final = "clerks"
NOTES: Final = "notes"
TIMEOUT_MS: Final = 1_500
KEEP_ALIVE_S: Final = 2
_KEYS: Final = 50
_SETTINGS: Final = (
    "managedLedgerMaxEntriesPerLedger=2000\nretentionCheckIntervalInSeconds=1\n"
    f"keepAliveIntervalSeconds={KEEP_ALIVE_S}\n"
    "defaultRetentionTimeInMinutes=-1\ndefaultRetentionSizeInMB=-1\n"
)
_POLL_MS: Final = 200
_GIVE_BACK_MS: Final = 100
_MOST_ORDERS: Final = 8
_REST_SHARE: Final = 2.0
"""So many times as long as it worked the keeper rests: what it reads grows, and clerks are to get on."""
_LEFT_AFTER_S: Final = 6.0
_SEEN: Final = struct.Struct("<IIQ")
_EVERYONE: Final = 0xFFFFFFFF

COMMITTED: Final = "committed"
ABORTED: Final = "aborted"
PREPARED: Final = "prepared"


class Booking(NamedTuple):
    """One message on the topic of an account.

    Attributes:
        order: its number.
        attempt: a random number of the transaction and the order.
        part: which of its bookings, from 0.
        parts: how many there are.
        amount: those of an order add up to 0.
    """

    order: int
    attempt: int
    part: int
    parts: int
    amount: int

    def encode(self) -> bytes:
        """As the content of a message."""
        return b"%d %d %d %d %d" % self

    @classmethod
    def decode(cls, data: bytes) -> Booking:
        """Of the content of a message."""
        return cls(*map(int, data.split()))


class Seen:
    """What one process saw in the topics of the accounts, in a file of its own, in the order of each topic.

    Every life begins a record with the topic `_EVERYONE`.
    """

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.begin()

    def begin(self) -> None:
        """What follows begins anew in each topic."""
        os.write(self._fd, _SEEN.pack(_EVERYONE, 0, 0))

    def write(self, topic: int, bookings: Sequence[Booking]) -> None:
        """Append those of a topic."""
        os.write(self._fd, b"".join(_SEEN.pack(topic, one.part, one.attempt) for one in bookings))

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def read_seen(path: str) -> Iterator[list[list[tuple[int, int]]]]:
    """Attempt and part of what was seen between two beginnings, by topic. A record may be torn by a kill."""
    if not os.path.exists(path):
        return
    found: list[list[tuple[int, int]]] = []
    with open(path, "rb") as file:
        data = file.read()
    for topic, part, attempt in _SEEN.iter_unpack(data[: len(data) - len(data) % _SEEN.size]):
        if topic == _EVERYONE:
            if found:
                yield found
            found = [[] for _ in ACCOUNTS]
        else:
            found[topic].append((attempt, part))
    if found:
        yield found


def digests_at(bookings: Iterable[tuple[int, int]], counts: Iterable[int]) -> dict[int, str]:
    """Digests of the first bookings of a topic, given attempt and part of all, by how many they are."""
    wanted = set(counts)
    found, digest, at = {}, hashlib.blake2b(digest_size=16), 0
    if at in wanted:
        found[at] = digest.hexdigest()
    for at, (attempt, part) in enumerate(bookings, 1):
        digest.update(_SEEN.pack(0, part, attempt))
        if at in wanted:
            found[at] = digest.hexdigest()
    return found


class TransactionWorkload:
    """The processes of the storm.

    Args:
        folder: of the storm; the store is in it.
        orders: how many there are.
        durability: of the store's clients.
    """

    def __init__(self, folder: str, orders: int, durability: str) -> None:
        self.folder: Final = folder
        self.root: Final = f"{folder}/store"
        self.orders: Final = orders
        self._durability: Final = durability

    def prepare(self) -> None:
        """Make the store and send the orders."""
        with open(f"{self.root}/broker.conf", "w", encoding="utf-8") as file:
            file.write(_SETTINGS)
        with self.client() as client:
            for name in (WORK, NOTES):
                client.subscribe(ORDERS, name, ConsumerType.Shared).close()
            with client.create_producer(ORDERS) as producer:
                numbers = range(self.orders)
                for first in range(0, self.orders, 1000):
                    some = numbers[first : first + 1000]
                    producer.send_many(
                        [b"%d" % number for number in some], batching_max_messages=1 + first // 1000 % 3 * 4
                    )

    def client(self) -> Client:
        """A client of the store."""
        return Client(self.root, durability=self._durability)

    # -- clerks ------------------------------------------------------------------------------------

    def clerk(self, role: Role) -> None:
        """Book orders until the page says stop and none came for a while."""
        clerk = Clerk(self, role)
        idle_since = perf_counter()
        while not (role.page.is_stopped and perf_counter() - idle_since > _LEFT_AFTER_S):
            try:
                if clerk.work():  # for an order: notes may be left
                    idle_since = perf_counter()
            except (NotConnected, AlreadyClosed, ConsumerBusy):  # taken for dead while it was stopped
                clerk.leave()
                clerk = Clerk(self, role)
            role.page.move(role.member)
        clerk.leave()

    # -- those that look ---------------------------------------------------------------------------

    def notary(self, role: Role) -> None:
        """End what is prepared, as its label says; leave some of it for others."""
        rng = role.random()
        with self.client() as client:
            while not role.page.is_draining:
                prepared = client.prepared_transactions()
                for one in prepared:
                    if rng.random() < 0.9 or role.page.is_stopped:
                        _end_prepared(client, one)
                role.page.move(role.member)
                sleep(0.02)

    def reader(self, role: Role) -> None:
        """Follow the topics of the accounts, one after the other."""
        seen = Seen(role.diary)
        with self.client() as client:
            readers = [client.create_reader(topic, MessageId.earliest) for topic in ACCOUNTS]
            halves: dict[int, list[Booking]] = {}
            while True:
                is_last = role.page.is_draining
                for number, reader in enumerate(readers):
                    found = [Booking.decode(one.data()) for one in _present(reader)]
                    if found:
                        seen.write(number, found)
                    for one in found:
                        halves.setdefault(one.attempt, []).append(one)
                _drop_whole(halves)
                role.page.move(role.member)
                if is_last:
                    break
                sleep(role.random().uniform(0, 0.02))
            if halves:
                raise AssertionError(f"halves of {len(halves)} attempts: {list(halves.values())[:3]}")
        seen.close()

    def keeper(self, role: Role) -> None:
        """Compact, look at tables and views, back up and look at the copy."""
        rng = role.random()
        work = [self._compact, self._look_at_view, self._look_at_columns, self._back_up]
        if find_spec("pyspark"):
            work.append(self._look_at_snapshot)
        while not role.page.is_draining:
            begun = perf_counter()
            rng.choice(work)(role, rng)
            role.page.move(role.member)
            rested = perf_counter() + rng.uniform(0, 0.05) + _REST_SHARE * (perf_counter() - begun)
            while perf_counter() < rested and not role.page.is_draining:
                sleep(0.02)  # another process says when it is over

    def _compact(self, role: Role, rng: random.Random) -> None:
        topic = rng.choice(ACCOUNTS)
        with Admin(self.root) as admin, self.client() as client:
            with contextlib.suppress(PulsarException):  # another compaction of a keeper that died
                admin.topics().compact(topic)
            with client.create_reader(topic, MessageId.earliest, is_read_compacted=True) as reader:
                self._note_some(role, topic, [Booking.decode(one.data()) for one in _present(reader)])

    def _look_at_view(self, role: Role, rng: random.Random) -> None:
        topic = rng.choice(ACCOUNTS)
        with self.client() as client:
            view = client.create_table_view(topic)
            self._note_some(role, topic, [Booking.decode(bytes(value)) for _, value in view.items()])
            view.close()

    def _look_at_columns(self, role: Role, rng: random.Random) -> None:
        """One topic after the other: of each the first of what is visible in the end."""
        from embeddedpulsar.arrow import read_topic

        for topic in ACCOUNTS:
            values = read_topic(self.root, topic, columns=["value"])["value"].to_pylist()
            seen = [(one.attempt, one.part) for one in map(Booking.decode, values)]
            with open(f"{role.diary}-prefixes", "a", encoding="ascii") as file:
                file.write(f"{topic} {len(seen)} {digests_at(seen, [len(seen)])[len(seen)]}\n")

    def _look_at_snapshot(self, role: Role, rng: random.Random) -> None:
        """All topics at once, by the reader that Spark uses."""
        from embeddedpulsar.spark.batch_reader import BatchReader
        from embeddedpulsar.spark.options import parse_options

        options = {"path": self.root, "topics": ",".join(ACCOUNTS)}
        reader = BatchReader(parse_options(options), ("value",))
        bookings = [
            Booking.decode(value)
            for partition in reader.partitions()
            for batch in reader.read(partition)
            for value in batch.column(0).to_pylist()
        ]
        if problems := judge_snapshot(bookings):
            raise AssertionError(f"a snapshot of {len(bookings)} bookings: {problems[:3]}")
        with open(f"{role.diary}-snapshots", "a", encoding="ascii") as file:
            file.write(f"{len(bookings)}\n")

    def _note_some(self, role: Role, topic: str, bookings: Sequence[Booking]) -> None:
        """What is visible, and not all of it."""
        with open(f"{role.diary}-some", "a", encoding="ascii") as file:
            file.write("".join(f"{topic} {one.attempt} {one.part}\n" for one in bookings))

    def _back_up(self, role: Role, rng: random.Random) -> None:
        """A copy has whole transactions, and what is visible in it is acknowledged in it."""
        for left in glob.glob(f"{self.folder}/copy-{role.member}-*"):  # by one that was killed
            shutil.rmtree(left)
        copy = f"{self.folder}/copy-{role.member}-{role.life}"
        target = f"{self.folder}/backup-{role.member}"
        with Admin(self.root) as admin:
            admin.backup(target)
        Admin.restore(target, copy)
        with Client(copy) as client:
            judgement = judge_store(client)
        if judgement.problems:
            raise AssertionError(f"the copy {copy}: {judgement.problems[:5]}")
        shutil.rmtree(copy)


class Clerk:
    """One clerk in one life, with its client, consumers and producers."""

    def __init__(self, workload: TransactionWorkload, role: Role) -> None:
        self._role: Final = role
        self._rng: Final = random.Random(os.urandom(8))
        self._client: Final = workload.client()
        options: dict[str, Any] = {
            "batch_index_ack_enabled": True,
            "receiver_queue_size": 50,
            "negative_ack_redelivery_delay_ms": _GIVE_BACK_MS,
        }
        self._work: Final[Consumer[bytes]] = self._client.subscribe(
            ORDERS, WORK, ConsumerType.Shared, **options
        )
        self._notes: Final[Consumer[bytes]] = self._client.subscribe(
            ORDERS, NOTES, ConsumerType.Shared, **options
        )
        self._producers: Final = [
            self._client.create_producer(topic, batching_enabled=bool((role.member + number) % 2))
            for number, topic in enumerate(ACCOUNTS)
        ]
        self._fd: Final = os.open(role.diary, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def leave(self) -> None:
        """Close everything."""
        with contextlib.suppress(PulsarException):
            self._client.close()
        os.close(self._fd)

    def work(self) -> bool:
        """One transaction, if there is anything to do; whether there was an order."""
        orders = self._receive(self._work, self._rng.choice((1, 1, 2, _MOST_ORDERS)))
        notes = self._receive(self._notes, self._rng.choice((0, 1, 4, _MOST_ORDERS)), wait=not orders)
        if not orders and not notes:
            return False
        attempts = {int(one.data()): self._rng.getrandbits(63) for one in orders}
        label = ",".join(map(str, attempts.values()))
        transaction = self._client.new_transaction(timeout_ms=TIMEOUT_MS)
        try:
            for number, attempt in attempts.items():
                self._book(number, attempt, transaction)
            for message in orders:
                self._work.acknowledge(message, txn=transaction)
            for message in notes:
                self._notes.acknowledge(message, txn=transaction)
            self._end(transaction, attempts, label)
        except (InvalidTxnStatusError, TransactionConflict, TransactionNotFound) as error:
            # Stopped beyond the timeout, so others have the orders; or an acknowledgement was refused.
            with contextlib.suppress(InvalidTxnStatusError, TransactionNotFound):
                transaction.abort()
            if transaction.state.name not in ("ABORTED", "TIME_OUT"):
                raise AssertionError(f"{transaction.state} after {error!r}") from error
            self._write(ABORTED, attempts)
            # The abort gives back what was acknowledged in it, and only that.
            for consumer, messages in ((self._work, orders), (self._notes, notes)):
                for message in messages:
                    consumer.negative_acknowledge(message)
        return bool(orders)

    def _receive(self, consumer: Consumer[bytes], count: int, wait: bool = True) -> list[Message[bytes]]:
        found: list[Message[bytes]] = []
        with contextlib.suppress(Timeout):
            while len(found) < count:
                found.append(consumer.receive(timeout_millis=0 if found or not wait else _POLL_MS))
        return found

    def _book(self, order: int, attempt: int, transaction: Any) -> None:
        amounts = [self._rng.randint(-100, 100) for _ in range(self._rng.choice((1, 1, 2, 5)))]
        amounts.append(-sum(amounts))
        for part, amount in enumerate(amounts):
            booking = Booking(order, attempt, part, len(amounts), amount)
            producer = self._rng.choice(self._producers)
            options = {"partition_key": f"key-{order % _KEYS}", "txn": transaction}
            if self._rng.random() < 0.5:
                producer.send_async(booking.encode(), _ignore, **options)
            else:
                producer.send(booking.encode(), **options)

    def _end(self, transaction: Any, attempts: dict[int, int], label: str) -> None:
        chance = self._rng.random()
        if chance < 0.85:
            transaction.commit()
            self._write(COMMITTED, attempts)
            self._role.page.set_stored(
                self._role.member, self._role.page.stored(self._role.member) + len(attempts)
            )
        elif chance < 0.95:
            transaction.abort()
            self._write(ABORTED, attempts)
        elif chance < 0.98:
            transaction.prepare(label=label)
            self._write(PREPARED, attempts)
        # else: it is left open, until its timeout

    def _write(self, kind: str, attempts: dict[int, int]) -> None:
        os.write(self._fd, f"{kind} {' '.join(map(str, attempts.values()))}\n".encode())


def _ignore(*_: object) -> None:
    """A message that is not stored makes the commit fail."""


def is_committed_when_prepared(attempts: Iterable[int]) -> bool:
    """How what is prepared ends, whoever ends it."""
    return sum(attempts) % 3 != 0


def _end_prepared(client: Client, prepared: Any) -> None:
    """Commit or abort by the label, so that everybody who tries does the same."""
    with contextlib.suppress(TransactionNotFound, InvalidTxnStatusError):
        transaction = client.resume_transaction(prepared)
        if is_committed_when_prepared(map(int, filter(None, prepared.label.split(",")))):
            transaction.commit()
        else:
            transaction.abort()


def _present(reader: Any) -> Iterator[Message[bytes]]:
    while reader.has_message_available():
        yield reader.read_next(timeout_millis=5000)


def _drop_whole(halves: dict[int, list[Booking]]) -> None:
    for attempt, bookings in list(halves.items()):
        if len(bookings) == bookings[0].parts:
            if sum(one.amount for one in bookings):
                raise AssertionError(f"the sum of {bookings} is not 0")
            del halves[attempt]


def judge_snapshot(bookings: Sequence[Booking]) -> list[str]:
    """Whether bookings of all topics are whole transactions: of each order one attempt, all of it, whose sum
    is 0."""
    by_order: dict[int, list[Booking]] = {}
    for one in bookings:
        by_order.setdefault(one.order, []).append(one)
    problems = []
    for order, own in by_order.items():
        parts = sorted(one.part for one in own)
        if len({one.attempt for one in own}) > 1 or parts != list(range(own[0].parts)):
            problems.append(f"order {order} is booked as {own}")
        elif sum(one.amount for one in own):
            problems.append(f"order {order}: the sum is not 0")
    return problems


class Judgement(NamedTuple):
    """What is in a store at rest.

    Attributes:
        problems: what is wrong.
        visible: attempt and part of all bookings, by topic.
        orders: the orders that are booked.
    """

    problems: list[str]
    visible: list[list[tuple[int, int]]]
    orders: set[int]


def judge_store(client: Client) -> Judgement:
    """Whether bookings are whole and of one attempt, and those orders are acknowledged that are booked.

    Nobody else may use the store. Open transactions of the dead are aborted, prepared ones are ended.
    """
    for prepared in client.prepared_transactions():
        _end_prepared(client, prepared)
    visible: list[list[tuple[int, int]]] = []
    all_bookings: list[Booking] = []
    for topic in ACCOUNTS:
        with client.create_reader(topic, MessageId.earliest) as reader:
            bookings = [Booking.decode(one.data()) for one in _present(reader)]
        visible.append([(one.attempt, one.part) for one in bookings])
        all_bookings += bookings
    problems = judge_snapshot(all_bookings)
    orders = {one.order for one in all_bookings}
    left = set()
    with client.subscribe(ORDERS, WORK, ConsumerType.Shared, receiver_queue_size=5000) as consumer:
        with contextlib.suppress(Timeout):
            while True:
                left.add(int(consumer.receive(timeout_millis=_POLL_MS).data()))
        consumer.redeliver_unacknowledged_messages()
    both = left & orders
    if both:
        problems.append(f"{len(both)} orders are booked and not acknowledged: {sorted(both)[:5]}")
    return Judgement(problems, visible, orders)
