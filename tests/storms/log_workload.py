"""A random script of everything that happens to a topic's log, on a disk that will lose power."""

from __future__ import annotations

import contextlib
import random
from typing import Final, NamedTuple

from embeddedpulsar import damage
from embeddedpulsar._engine.filenames import control_path
from embeddedpulsar._engine.format.control import CONTROL_HEADER_SIZE
from embeddedpulsar._engine.format.entry import (
    EncodedEntry,
    EntryContent,
    ProducerPrefix,
    encode,
    encode_plain,
    encode_single,
)
from embeddedpulsar._engine.log import recovery  # noqa: F401 - declares its failpoints
from embeddedpulsar._engine.log.managed_ledger import ManagedLedger
from embeddedpulsar._engine.log.topic_control import POISON_TO, TopicControl
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.platform.failpoints import InjectedFailure
from embeddedpulsar.exceptions import PoisonedSegment
from embeddedpulsar.message_id import Position
from embeddedpulsar.testing.manual_clock import ManualClock, ManualScheduler
from tests.storms.log_model import LogModel, Payloads, Seen
from tests.support.disks.crash_image import CrashState
from tests.support.disks.fake_disk import FakeDisk
from tests.support.ledger_files import LedgerIds, open_ledger

_SUBJECTS: Final = ("append", "roll", "sync", "trim", "recover")
POINTS: Final = tuple(name for name in failpoints.names() if name.partition(":")[0] in _SUBJECTS)
_WORST: Final = ("append:body_done", "append:index_done", "roll:header_written", "roll:synced")
"""Where a death leaves something that looks fine."""
_WHERE: Final = {"append": 0.0, "roll": 0.85, "sync": 0.77, "trim": 0.89}
"""What to do to get to a failpoint (see `Workload._act`)."""
_RECOVERY: Final = tuple(name for name in POINTS if name.startswith("recover:"))
_PREFIX: Final = ProducerPrefix("storm")
_READ: Final = (1000, 100_000, 1 << 30)


class Moment(NamedTuple):
    """The disk at one moment, and what had been promised by then."""

    disk: CrashState
    model: LogModel
    where: str


def read_all(ledger: ManagedLedger, after: Position | None = None) -> list[Seen]:
    """Every entry behind a position; by default from the first retained one on. A read ends with a ledger."""
    cursor = ledger.cursor(after or Position(0, 0), inclusive=after is None)
    seen: list[Seen] = []
    while entries := cursor.read(*_READ):
        seen += [Seen((e.ledger_id, e.entry_id), tuple(e.values()), e.publish_time) for e in entries]
    return seen


class Workload:
    """One topic under a random script.

    Args:
        directory: of the topic, below the root of `fake`.
        fake: the disk, in use.
        rng: decides everything.
        ids: ledger ids; shared by all crashes of a chain.
        model: what is expected of what is there already.
    """

    def __init__(
        self, directory: str, fake: FakeDisk, rng: random.Random, ids: LedgerIds, model: LogModel
    ) -> None:
        self.directory = directory
        self.fake = fake
        self.rng = rng
        self.ids = ids
        self.model = model
        self.moments: list[Moment] = []
        self.reports: list[damage.Damage] = []
        self.clock = ManualClock(wall_ms=1_700_000_000_000)
        self.scheduler = ManualScheduler(self.clock)
        self._number = 0
        self._unsettled = False
        self._poisoned = 0
        self._flushes = rng.random() < 0.5  # the other half of the scripts leaves nearly all to the kernel
        self._ledgers: list[ManagedLedger] = []
        self.violations: list[str] = []

    def run(self, steps: int) -> list[Moment]:
        """Do `steps` operations and return the moments captured on the way."""
        try:
            self._open()
            for _ in range(steps):
                self._step()
            self._capture("at the end")
        finally:
            failpoints.clear()
            self.fake.heal()
            for ledger in self._ledgers:
                ledger.close()
            self._ledgers.clear()
            self.scheduler.close()
        return self.moments

    def _open(self) -> None:
        level = self.rng.choice(("process", "process", "interval", "flush")) if self._flushes else "process"
        reports = self.reports.append
        self._ledgers.append(
            open_ledger(
                self.directory, self.ids, self.clock, self.scheduler, durability=level, damage=reports
            )
        )

    def _capture(self, where: str) -> None:
        self.moments.append(Moment(self.fake.capture(), self.model.copy(), where))

    def _step(self) -> None:
        rng = self.rng
        self.clock.advance(rng.choice((0.0, 0.001, 0.2, 1.0)))
        ledger = rng.choice(self._ledgers)
        action = rng.random()
        trouble = rng.random()
        if trouble < 0.12:
            point = rng.choice(POINTS) if rng.random() < 0.4 else rng.choice(_WORST)
            failpoints.set(point, "raise", nth=rng.choice((1, 1, 2)))
            if rng.random() < 0.5:
                action = _WHERE.get(point.partition(":")[0], action)
        elif trouble < 0.2:
            point = rng.choice(POINTS)
            failpoints.set(point, lambda: self._capture(f"inside, at {point}"), nth=rng.randrange(1, 3))
        elif trouble < 0.23:
            self.fake.fail(rng.choice(("fdatasync", "fsync", "fsync_dir")), nth=1)
        try:
            self._act(ledger, action)
        except InjectedFailure:
            self._unsettled = True
            failpoints.clear()
            if rng.random() < 0.4:  # what a dead writer left may well reach the disk
                self._sync(ledger)
            if rng.random() < 0.5:  # the process died: its maps and descriptors go
                self._restart(ledger)
        except PoisonedSegment:
            self._expect_poison(ledger)
        except OSError:
            self._unsettled = True
        finally:
            failpoints.clear()
            self.fake.heal()
            self._look_for_poison()

    def _act(self, ledger: ManagedLedger, action: float) -> None:
        if action < 0.76:
            self._append(ledger)
        elif action < (0.84 if self._flushes else 0.775):
            self._sync(ledger)
        elif action < 0.88:
            ledger.roll()
        elif action < 0.90:
            self._trim(ledger)
        elif action < 0.93:
            self.scheduler.run_due()
        elif action < 0.965:
            self._capture("between operations")
        elif action < 0.985:
            self._restart(ledger)
        else:
            self._lose_control()

    def _sync(self, ledger: ManagedLedger) -> None:
        ledger.sync()
        self._note_flushed()

    def _note_flushed(self) -> None:
        """A flush succeeded. An append before it may have met a failed one, and begun a new ledger behind it:
        what that one was to cover is not flushed by this."""
        self._look_for_poison()
        self.model.sync()

    def _expect_poison(self, ledger: ManagedLedger) -> None:
        """A flush failed: from now on nobody may be told that those entries are durable."""
        self.model.poison()
        failpoints.clear()
        self.fake.heal()
        try:
            ledger.wait_durable(ledger.tail)
        except PoisonedSegment:
            return
        self.violations.append("entries whose flush failed were called durable")

    def _lose_control(self) -> None:
        """The ctl is destroyed while the machine runs. What its recovery shows is durable by then."""
        failpoints.clear()
        self.fake.heal()
        for ledger in self._ledgers:
            ledger.close()
        self._ledgers.clear()
        with open(control_path(self.directory), "r+b") as file:
            file.write(bytes(CONTROL_HEADER_SIZE))
        point = self.rng.choice(_RECOVERY)
        failpoints.set(point, lambda: self._capture(f"inside, at {point}"))
        self._open()
        failpoints.clear()
        seen = read_all(self._ledgers[-1])
        self.model.settle(seen)
        self._unsettled = False
        self.violations += self.model.violations(seen)
        self.model.sync()

    def _look_for_poison(self) -> None:
        """A flush that failed behind the scenes tells through the control words alone."""
        with contextlib.closing(TopicControl.open(self.directory)) as control:
            poisoned = control.words[POISON_TO]
        if poisoned > self._poisoned:
            self._poisoned = poisoned
            self.model.poison(poisoned >> 32)

    def _append(self, ledger: ManagedLedger) -> None:
        made = [self._entry() for _ in range(self.rng.choice((1, 1, 1, 2, 8)))]
        for _, payloads in made:
            self.model.pending.append(payloads)
        level = self.rng.choice((None, None, "process", "flush")) if self._flushes else None
        try:
            places = self._places(ledger, [entry for entry, _ in made])
        except BaseException:
            self._unsettled = True
            raise
        for _, payloads in made:
            self.model.pending.remove(payloads)
        if self._unsettled:
            # What became of those that raised? Whatever is not in the log by now must never be.
            entries = read_all(ledger, Position(*self.model.highest))
            self.model.settle(entry for entry in entries if entry.place < places[0])
            self._unsettled = False
        for place, (_, payloads) in zip(places, made, strict=True):
            self.model.commit(place, payloads)
        if level == "flush" or (level is None and ledger.options.durability == "flush"):
            ledger.wait_durable(ledger.tail)
            self._note_flushed()
        elif ledger.options.durability == "interval":
            ledger.note_dirty()

    def _places(self, ledger: ManagedLedger, entries: list[EncodedEntry]) -> list[tuple[int, int]]:
        """Append entries, several in one hold of the lock; return where they are."""
        if len(entries) == 1:
            return [ledger.append_nowait(entries[0])[:2]]
        stored: list[tuple[int, int, int]] = []
        hold = ledger.hold()
        try:
            ledger.lock.acquire(1.0)
            ledger.append_run(entries, hold, stored)
        finally:
            ledger.lock.release()
            hold.ring_all()
        return [place[:2] for place in stored]

    def _trim(self, ledger: ManagedLedger) -> None:
        segments = ledger.segments()
        if segments:
            point = self.rng.choice(segments).ledger_id
            self.model.trimmed_below = max(self.model.trimmed_below, point)
            ledger.trim_before(point)

    def _restart(self, ledger: ManagedLedger) -> None:
        failpoints.clear()
        self.fake.heal()
        if len(self._ledgers) < 2 or self.rng.random() < 0.3:
            self._open()
        if len(self._ledgers) > 2:
            self._ledgers.remove(ledger)
            ledger.close()

    def _entry(self) -> tuple[EncodedEntry, Payloads]:
        """Something new: single or batch, plain or with columns, small or larger than a segment."""
        rng = self.rng
        self._number += 1
        mark = b"%d/%d/" % (rng.randrange(1 << 48), self._number)
        kind = rng.random()
        if kind < 0.5:
            payload = mark + rng.randbytes(rng.choice((0, 10, 300, 3000)))
            return encode_single(payload, self._number, _PREFIX), (payload,)
        count = rng.randrange(1, 30)
        values = [mark + b"%d" % i + bytes(rng.choice((0, 50))) for i in range(count)]
        if kind < 0.75:
            return encode_plain(values, self._number, _PREFIX), tuple(values)
        if kind < 0.95:
            keys: list[str | None] = [f"key {i % 3}" for i in range(count)]
            content = EntryContent(values, self._number, keys=keys)
            return encode(content, _PREFIX, rng.choice((0, 1, 2))), tuple(values)
        payload = mark + bytes(rng.choice((40_000, 70_000, 150_000)))
        return encode_single(payload, self._number, _PREFIX), (payload,)
