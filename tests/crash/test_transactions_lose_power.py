"""Power loss under transactions of clients: whole or absent at level "flush", told if torn below it."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from embeddedpulsar import Admin, Client, ConsumerType, InitialPosition, Timeout, damage
from embeddedpulsar._engine.log.log_check import Problem
from embeddedpulsar._engine.platform import disk, timing
from embeddedpulsar._engine.store.care.store_check import LEFTOVER, TORN
from embeddedpulsar._engine.store.store import Store
from embeddedpulsar.testing.trial_store import check_store
from tests.support.clients import present, stored
from tests.support.disks.crash_image import CrashState
from tests.support.disks.fake_disk import FakeDisk

OUTPUTS = ("left", "right")
TRANSFERS = 24
ALLOWED = {damage.JOURNAL, LEFTOVER}
"""What a power loss may leave at every level: files not finished, names of producers not flushed."""
EARLIEST = InitialPosition.Earliest


class Moment(NamedTuple):
    """A captured power loss, and which transactions were answered as committed and as aborted by then."""

    state: CrashState
    committed: frozenset[int]
    aborted: frozenset[int]
    prepared: frozenset[int]


class Script:
    """Moves messages of a topic to two others, each in one transaction; captures moments on the way."""

    def __init__(self, root: Path, durability: str, every: int) -> None:
        self.moments: list[Moment] = []
        self.committed, self.aborted, self.prepared = set[int](), set[int](), set[int]()
        self._fake = FakeDisk(root)
        self._every = every
        with disk.use(self._fake):
            with Client(root, durability="flush") as client:
                self._prepare(client)
            with Client(root, durability=durability) as client:
                self._run(client)

    def _capture(self, call: str, path: str) -> None:
        if self._fake.count % self._every == 0:
            self._capture_now()

    def _capture_now(self) -> None:
        answers = frozenset(self.committed), frozenset(self.aborted), frozenset(self.prepared)
        self.moments.append(Moment(self._fake.capture(), *answers))

    def _prepare(self, client: Client) -> None:
        """Topics, inputs and a first transaction, on the disk."""
        client.subscribe("input", "work", ConsumerType.Shared, initial_position=EARLIEST).close()
        with client.create_producer("input") as producer:
            producer.send_many([b"%d" % number for number in range(TRANSFERS)], batching_max_messages=5)
        with client.transaction() as txn:
            for topic in OUTPUTS:
                client.create_producer(topic).send(b"-2", txn=txn)

    def _run(self, client: Client) -> None:
        options: dict[str, Any] = {"initial_position": EARLIEST, "batch_index_ack_enabled": True}
        consumer = client.subscribe("input", "work", ConsumerType.Shared, **options)
        producers = [client.create_producer(topic) for topic in OUTPUTS]
        inputs = {int(message.data()): message for message in present(consumer)}
        self._fake.on_call = self._capture
        for number, message in inputs.items():
            txn = client.new_transaction()
            for producer in producers:
                producer.send(b"%d %5000d" % (number, 0), txn=txn)  # more than a page
            consumer.acknowledge(message, txn=txn)
            if number % 5 == 1:
                txn.abort()
                self.aborted.add(number)
                continue
            if number % 5 == 2:
                txn.prepare(str(number))
                self.prepared.add(number)
            txn.commit()
            self.committed.add(number)
            self._capture_now()
        self._fake.on_call = None


@contextlib.contextmanager
def after_reboot(
    moment: Moment, rng: random.Random, image: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """The store as it may be when the machine is on again."""
    image.mkdir()
    moment.state.write_image(rng, str(image))
    with monkeypatch.context() as patch:
        patch.setattr(timing, "_boot_id", b"C" * 16)
        shutil.rmtree(image / "clients", ignore_errors=True)
        yield image
    shutil.rmtree(image)


def expected(outputs: list[set[int]]) -> int:
    """How many inputs should be left."""
    return TRANSFERS - len(outputs[0] | outputs[1])


def visible(root: Path) -> tuple[list[set[int]], set[int]]:
    """What is in the outputs, and what is left in the input; prepared transactions are committed before."""
    with Client(root) as client:
        for one in client.prepared_transactions():
            client.resume_transaction(one).commit()
        outputs = [
            {int(message.data().split()[0]) for message in stored(client, topic)} - {-2} for topic in OUTPUTS
        ]
        with client.subscribe("input", "work", ConsumerType.Shared, initial_position=EARLIEST) as consumer:
            left = set[int]()
            with contextlib.suppress(Timeout):  # what the dead consumer had comes once that is noticed
                while len(left) < expected(outputs):
                    left.add(int(consumer.receive(timeout_millis=300).data()))
            left.update(int(message.data()) for message in present(consumer))
        for topic in OUTPUTS:  # it is written on
            with client.create_producer(topic) as producer, client.transaction() as txn:
                producer.send(b"-1", txn=txn)
            assert [message.data() for message in stored(client, topic)][-1] == b"-1"
    return outputs, left


def torn_after_recovery(root: Path) -> tuple[int, Sequence[Problem]]:
    """How many transactions the chores that follow a recovery count as torn, and what the check says before
    these also forget what was committed."""
    store = Store.open(root)
    store.transactions.log()
    problems = check_store(root).problems
    while store.transactions.do_chores([]):
        pass
    with Admin(root) as admin:
        counted = admin.transactions().get_coordinator_stats_by_id(0).torn_txn_count
    store.release()
    return counted, problems


def test_at_level_flush_a_transaction_is_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """And one that was answered as committed or prepared is there, with its acknowledgement."""
    (tmp_path / "root").mkdir()
    script = Script(tmp_path / "root", "flush", 29)
    assert len(script.moments) > 10
    rng = random.Random(5)
    partial = 0
    for moment in script.moments:
        with after_reboot(moment, rng, tmp_path / "image", monkeypatch) as root:
            assert torn_after_recovery(root)[0] == 0
            (left, right), waiting = visible(root)
            assert left == right
            assert waiting == set(range(TRANSFERS)) - left
            assert left >= moment.committed | moment.prepared
            assert not left & moment.aborted
            partial += 0 < len(left) < TRANSFERS * 4 // 5
            found = {problem.kind for problem in check_store(root).problems}
            assert found <= ALLOWED, found
    assert partial > 10


def test_below_it_a_torn_one_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What is in one output and not in the other, or acknowledged without it, is counted and listed."""
    (tmp_path / "root").mkdir()
    script = Script(tmp_path / "root", "process", 1_000_000)
    rng = random.Random(6)
    torn = told = 0
    for moment in script.moments:
        with after_reboot(moment, rng, tmp_path / "image", monkeypatch) as root:
            counted, problems = torn_after_recovery(root)
            assert counted == len({each.text.rpartition(" ")[2] for each in problems if each.kind == TORN})
            (left, right), waiting = visible(root)
            assert not (left | right) & moment.aborted
            if left != right or waiting & (left | right):
                torn += 1
                told += any("transaction" in str(problem) for problem in problems)
            assert counted >= (left != right)
    assert torn > 0
    assert told == torn
