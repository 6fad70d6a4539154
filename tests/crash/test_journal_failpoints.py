"""A process is killed at every step of the journal; whatever it was told is done stays done."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from embeddedpulsar._engine.format.subscription_record import ABORTED, COMMITTED
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.message_id import BEFORE_FIRST, Position
from tests.subscription_site import SubscriptionSite, positions, read_all

POINTS = [name for name in failpoints.names() if name.split(":")[0] in ("journal", "compact", "subscription")]
OF_REMOVAL = ("journal:end_stored", "journal:word_cleared", "journal:older_unlinked", "journal:unlinked")
OF_SUMMARIES = [name for name in failpoints.names() if name.startswith("summary:")]
OF_CREATION = ("journal:file_created", "journal:created")
ENTRIES = 60

Report = Callable[[str], object]


def small_site(root: Path) -> SubscriptionSite:
    """Ten entries to a ledger, and small files, which are copied often here."""
    return SubscriptionSite(root, max_entries=10, segment_size=16 << 10)


def consume(root: Path, report: Report) -> None:
    """What the victim does: attach, acknowledge in random order with compactions, come back, unsubscribe."""
    with small_site(root) as site:
        report("try create")
        subscription = site.subscription(compact_bytes=500)
        report("create")
        consumer = subscription.attach("c", ConsumerType.Failover)
        sent = positions(read_all(consumer))
        order = random.Random(5).sample(range(ENTRIES), ENTRIES)
        for number in range(0, ENTRIES, 3):
            if number % 15 == 0:
                assert consumer.request_wakeup(
                    consumer.version
                )  # the active one waits, and is woken by a newcomer
                standby = subscription.attach("d", ConsumerType.Failover)
                consumer.detach()
                standby.detach()
                consumer = subscription.attach("c", ConsumerType.Failover)
            group = order[number : number + 3]
            report(f"try {' '.join(map(str, group))}")
            assert consumer.acknowledge([sent[n] for n in group])
            report(f"ack {' '.join(map(str, group))}")
        report("try remove")
        subscription.unsubscribe(consumer)
        report("remove")
        subscription.create(BEFORE_FIRST)


def share(root: Path, report: Report) -> None:
    """The same with twenty consumers on Shared: the journal gets summaries."""
    with small_site(root) as site:
        report("try create")
        subscription = site.subscription(compact_bytes=16 << 10)
        report("create")
        consumers = [subscription.attach(f"c{number}", ConsumerType.Shared) for number in range(20)]
        for number in range(ENTRIES):
            consumer = consumers[number % 20]
            views = consumer.read(1, 1 << 20)
            report(f"try {number}")
            assert consumer.acknowledge([(view.ledger_id, view.entry_id) for view in views])
            report(f"ack {number}")


class Outcomes:
    """The outcomes of transactions, in a file with a byte for each: a stand-in for their log."""

    def __init__(self, root: Path) -> None:
        self._path = root / "outcomes"
        self._path.touch()

    def decide(self, transaction: tuple[int, int], outcome: int) -> None:
        with self._path.open("r+b") as file:
            file.seek(transaction[1])
            file.write(bytes([outcome]))

    def decided(self) -> dict[int, int]:
        return {number: outcome for number, outcome in enumerate(self._path.read_bytes()) if outcome}

    def __call__(self, transactions: Sequence[tuple[int, int]]) -> list[int]:
        decided = self.decided()
        return [decided.get(one[1], 0) for one in transactions]


def groups_of_transactions() -> dict[int, list[int]]:
    order = random.Random(7).sample(range(ENTRIES), ENTRIES)
    return {number: order[number * 3 : number * 3 + 3] for number in range(ENTRIES // 3)}


def transact(root: Path, report: Report) -> None:
    """Acknowledge in transactions: every third aborts, some stay open, and others follow half of the ends."""
    outcomes = Outcomes(root)
    with small_site(root) as site:
        subscription = site.subscription(compact_bytes=500, outcomes=outcomes)
        consumer = subscription.attach("c", ConsumerType.Failover)
        sent = positions(read_all(consumer))
        for number, group in groups_of_transactions().items():
            assert consumer.acknowledge([sent[n] for n in group], transaction=(0, number))
            if number % 5 == 4:
                continue
            outcome = ABORTED if number % 3 == 2 else COMMITTED
            outcomes.decide((0, number), outcome)
            report(f"end {number}")
            if number % 2:
                assert consumer.end_transaction((0, number), outcome) in (True, False)
            if number % 6 == 5:
                assert consumer.request_wakeup(consumer.version)
                subscription.attach("d", ConsumerType.Failover).detach()


def die_at(
    root: Path, point: str, nth: int, work: Callable[[Path, Report], None] = consume
) -> list[str] | None:
    """Run the victim in a child that is killed at the nth hit of a failpoint; None if it gets through."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(reader)
            failpoints.set(point, "kill", nth=nth)
            work(root, lambda line: os.write(writer, line.encode() + b"\n"))
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as lines:
        told = lines.read().splitlines()
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return told
    assert status == 0, told
    return None


def numbers(told: list[str], word: str) -> set[int]:
    groups = [line.split()[1:] for line in told if line.startswith(f"{word} ")]
    return {int(number) for group in groups for number in group if number.isdecimal()}


def check_what_is_left(root: Path, told: list[str]) -> None:
    """The survivor finds everything that was reported, nothing that was not tried, and can go on."""
    with small_site(root) as site:
        subscription = site.subscription(initial=None, compact_bytes=500)
        if "create" in told and "try remove" not in told:
            assert subscription.exists()
        subscription.create(BEFORE_FIRST)
        consumer = subscription.attach("survivor")
        sent = site_positions(site)
        left = positions(read_all(consumer))
        acknowledged = {n for n, position in enumerate(sent) if position not in left}
        assert acknowledged <= numbers(told, "try")
        if "remove" in told:
            assert not acknowledged
        elif "try remove" not in told:
            assert acknowledged >= numbers(told, "ack")
        assert left == sorted(left)
        for start in range(0, len(left), 4):
            assert consumer.acknowledge(left[start : start + 4])
        assert subscription.mark_delete >= sent[-1]
        assert consumer.backlog() == 0
        assert subscription.statistics().divergences == 0
        assert site.damage == []


def site_positions(site: SubscriptionSite) -> list[Position]:
    cursor = site.log.cursor(BEFORE_FIRST, inclusive=False)
    found: list[Position] = []
    while views := cursor.read(1000, 1000, 1 << 30):
        found += positions(views)
    return found


@pytest.mark.parametrize("point", POINTS)
def test_killed_at(tmp_path: Path, point: str) -> None:
    """The survivor in the same boot, and one that has only a copy of the files, as after a reboot."""
    source = tmp_path / "source"
    source.mkdir()
    with small_site(source) as site:
        site.publish(ENTRIES)
    deaths = 0
    for nth in (1, 2, 3, 5, 8):
        root = tmp_path / str(nth)
        shutil.copytree(source, root)
        told = die_at(root, point, nth)
        if told is None:
            break
        deaths += 1
        copy = tmp_path / f"{nth}-copy"
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns("clients"))
        check_what_is_left(copy, told)
        check_what_is_left(root, told)
    assert deaths >= (1 if point in OF_REMOVAL else 2)


@pytest.mark.parametrize(
    "point", sorted({*POINTS, "transactions:settled"}.difference(OF_REMOVAL, OF_CREATION))
)
def test_killed_in_transactions(tmp_path: Path, point: str) -> None:
    """What was committed is acknowledged, and nothing else: not what aborted, nor what the death left open.
    In the same boot, and where there is only a copy of the files."""
    source = tmp_path / "source"
    source.mkdir()
    with small_site(source) as site:
        site.publish(ENTRIES)
    deaths = 0
    for nth in (1, 3, 6, 11):
        root = tmp_path / str(nth)
        shutil.copytree(source, root)
        if die_at(root, point, nth, transact) is None:
            break
        deaths += 1
        copy = tmp_path / f"{nth}-copy"
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns("clients"))
        for files in (copy, root):
            check_transactions(files)
    assert deaths >= 1


def check_transactions(root: Path) -> None:
    """Only with the outcomes that were decided; the open ones abort, as their process is dead."""
    outcomes, groups = Outcomes(root), groups_of_transactions()
    decided = outcomes.decided()
    for number in groups:
        if number not in decided:
            outcomes.decide((0, number), ABORTED)
    committed = {n for number, one in decided.items() if one == COMMITTED for n in groups[number]}
    with small_site(root) as site:
        subscription = site.subscription(compact_bytes=500, outcomes=outcomes)
        consumer = subscription.attach("survivor")
        sent = site_positions(site)
        left = positions(read_all(consumer))
        assert {n for n, position in enumerate(sent) if position not in left} == committed
        assert left == sorted(left)
        statistics = subscription.statistics()
        assert (statistics.transactions, statistics.divergences, site.damage) == ((), 0, [])


@pytest.mark.parametrize("point", [*OF_SUMMARIES, "journal:word_stored", "compact:word_stored"])
def test_killed_among_summaries(tmp_path: Path, point: str) -> None:
    """The same for a process that writes summaries."""
    deaths = 0
    for nth in (1, 2, 5):
        root = tmp_path / str(nth)
        root.mkdir()
        with small_site(root) as site:
            site.publish(ENTRIES)
        told = die_at(root, point, nth, share)
        if told is not None:
            deaths += 1
            check_what_is_left(root, told)
    assert deaths >= 1


def test_every_point_is_known() -> None:
    """Whoever adds a step to the journal adds its death here: points are taken from the registry."""
    assert len(POINTS) == 19
    assert {*OF_REMOVAL, *OF_CREATION} < set(POINTS)
