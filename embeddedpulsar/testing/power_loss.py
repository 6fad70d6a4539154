"""Power-loss storms: the real code on a disk that loses power, judged by what had been promised.

A scripted workload (appends of all kinds and levels, syncs, rolls, trims, writers that die at failpoints,
flushes that fail) runs on a `FakeDisk`. At many moments, inside of operations too, the disk is captured, and
from every capture images are drawn: any subset of what was not flushed. Each image is opened like a topic
after a power loss, or like a copied directory, read from end to end and compared with the model. Some are
then worked on and lose power again.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from embeddedpulsar.exceptions import PoisonedSegment, PulsarException
from embeddedpulsar.format.entry import (
    EncodedEntry,
    EntryContent,
    ProducerPrefix,
    encode,
    encode_plain,
    encode_single,
)
from embeddedpulsar.managed_ledger.managed_ledger import ManagedLedger
from embeddedpulsar.managed_ledger.position import Position
from embeddedpulsar.platform import disk, failpoints
from embeddedpulsar.platform.clock import ManualClock
from embeddedpulsar.platform.crash_image import CrashState
from embeddedpulsar.platform.failpoints import InjectedFailure
from embeddedpulsar.platform.fake_disk import FakeDisk
from embeddedpulsar.platform.scheduler import ManualScheduler
from embeddedpulsar.storage import damage
from embeddedpulsar.storage.check import check_topic
from embeddedpulsar.storage.topic_control import POISON_TO, TopicControl
from embeddedpulsar.testing.ledger_files import LedgerIds, open_ledger, pretend_reboot
from embeddedpulsar.testing.log_model import LogModel, Payloads, Seen

POINTS: Final = tuple(
    name
    for name in failpoints.names()
    if name.partition(":")[0] in ("append", "roll", "sync", "trim", "recover")
)
_LOSSES: Final = {
    damage.HOLE,
    damage.LOST_TAIL,
    damage.MISSING_SEGMENT,
    damage.SEGMENT_HEADER,
}
"""What a check may still find in a recovered topic: unflushed entries that are gone."""
_PREFIX: Final = ProducerPrefix("storm")
_READ: Final = (1000, 100_000, 1 << 30)


class Moment(NamedTuple):
    """The disk at one moment, and what had been promised by then."""

    disk: CrashState
    model: LogModel
    where: str


class Summary(NamedTuple):
    """What a storm found. `violations` are lines to look at; each begins with the seed that repeats it."""

    images: int
    entries_judged: int
    entries_lost: int
    """Entries that were not flushed and are gone, as they may."""
    chains: int
    violations: list[str]


def read_all(ledger: ManagedLedger) -> list[Seen]:
    """Every entry from the first retained one on."""
    cursor = ledger.cursor(Position(0, 0), inclusive=True)
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
        self.reports: list[damage.DamageReport] = []
        self.clock = ManualClock()
        self.scheduler = ManualScheduler(self.clock)
        self._number = 0
        self._unsettled = False
        self._poisoned = 0
        self._flushes = rng.random() < 0.5  # the other half of the scripts leaves nearly all to the kernel
        self._ledgers: list[ManagedLedger] = []

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
        self.clock.advance(rng.choice((0.0, 0.001, 0.2, 5.0)))
        ledger = rng.choice(self._ledgers)
        action = rng.random()
        trouble = rng.random()
        if trouble < 0.12:
            failpoints.set(rng.choice(POINTS), "raise", nth=rng.randrange(1, 3))
        elif trouble < 0.2:
            point = rng.choice(POINTS)
            failpoints.set(point, lambda: self._capture(f"inside, at {point}"), nth=rng.randrange(1, 3))
        elif trouble < 0.23:
            self.fake.fail(rng.choice(("fdatasync", "fsync", "fsync_dir")), nth=1)
        try:
            if action < 0.78:
                self._append(ledger)
            elif action < (0.84 if self._flushes else 0.79):
                ledger.sync()
                self.model.sync()
            elif action < 0.87:
                ledger.roll()
            elif action < 0.90:
                self._trim(ledger)
            elif action < 0.93:
                self.scheduler.run_due()
            elif action < 0.97:
                self._capture("between operations")
            else:
                self._restart(ledger)
        except InjectedFailure:
            self._unsettled = True
            if rng.random() < 0.5:  # the process died: its maps and descriptors go
                self._restart(ledger)
        except PoisonedSegment:
            self.model.poison()
        except OSError:
            self._unsettled = True
        finally:
            failpoints.clear()
            self.fake.heal()
            self._look_for_poison()

    def _look_for_poison(self) -> None:
        """A flush that failed behind the scenes tells through the control words alone."""
        with contextlib.closing(TopicControl.open(self.directory)) as control:
            poisoned = control.words[POISON_TO]
        if poisoned > self._poisoned:
            self._poisoned = poisoned
            self.model.poison()

    def _append(self, ledger: ManagedLedger) -> None:
        entry, payloads = self._entry()
        self.model.pending.append(payloads)
        level = self.rng.choice((None, None, "process", "flush")) if self._flushes else None
        try:
            ledger_id, entry_id, *_ = ledger.append_nowait(entry)
        except BaseException:
            self._unsettled = True
            raise
        self.model.pending.remove(payloads)
        if self._unsettled:
            # What became of those that raised? Whatever is not in the log by now must never be.
            place = (ledger_id, entry_id)
            before = Position(*self.model.highest)
            entries = ledger.cursor(before, inclusive=False).read(*_READ)
            self.model.settle(
                Seen((e.ledger_id, e.entry_id), tuple(e.values()), e.publish_time)
                for e in entries
                if (e.ledger_id, e.entry_id) < place
            )
            self._unsettled = False
        self.model.commit((ledger_id, entry_id), payloads)
        if level == "flush" or (level is None and ledger.options.durability == "flush"):
            ledger.wait_durable(ledger.tail)
            self.model.sync()
        elif ledger.options.durability == "interval":
            ledger.note_dirty()

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


class Judge:
    """Opens images of one moment and compares them with its model."""

    def __init__(self, workspace: str, rng: random.Random, ids: LedgerIds) -> None:
        self._workspace = workspace
        self._rng = rng
        self._ids = ids
        self.reports: list[damage.DamageReport] = []
        self.images = self.entries = self.lost = 0

    def judge(self, moment: Moment) -> tuple[list[str], list[Seen], str]:
        """Draw one image and open it; (what is wrong, what was read, the topic directory of the image)."""
        self.images += 1
        root = os.path.join(self._workspace, f"image-{self.images}")
        moment.disk.write_image(self._rng, root)
        directory = os.path.join(root, "topic")
        os.makedirs(directory, exist_ok=True)
        if self._rng.random() < 0.6:
            pretend_reboot(directory)
        return (*self._open_and_compare(moment, directory), directory)

    def _open_and_compare(self, moment: Moment, directory: str) -> tuple[list[str], list[Seen]]:
        clock = ManualClock()
        scheduler = ManualScheduler(clock)
        found: list[str] = []
        seen: list[Seen] = []
        try:
            ledger = open_ledger(directory, self._ids, clock, scheduler, damage=self.reports.append)
            try:
                seen = read_all(ledger)
                found += moment.model.violations(seen)
                self.entries += len(seen)
                more, seen = self._write_on(ledger, moment, seen)
                found += more
            finally:
                ledger.close()
            audit = check_topic(directory)
            found += [str(problem) for problem in audit.problems if problem.kind not in _LOSSES]
        except (PulsarException, AssertionError) as e:
            found.append(f"{type(e).__name__}: {e}")
        except Exception as e:  # noqa: BLE001 - the storm reports whatever came out
            found.append(f"{type(e).__name__} is not ours: {e}")
        places = {entry.place for entry in seen}
        self.lost += sum(
            place not in places for place in moment.model.committed if place[0] >= moment.model.trimmed_below
        )
        return found, seen

    def _write_on(
        self, ledger: ManagedLedger, moment: Moment, seen: list[Seen]
    ) -> tuple[list[str], list[Seen]]:
        """A recovered log takes entries, at places never given out before, and still holds the old ones."""
        payload = b"after the recovery"
        ledger_id, entry_id, _ = ledger.append(encode_single(payload, 0, _PREFIX))
        found = []
        highest = max([moment.model.highest, *(entry.place for entry in seen)])
        if (ledger_id, entry_id) <= highest or entry_id != 0:
            found.append(f"entry {(ledger_id, entry_id)} was given out after {highest}")
        again = read_all(ledger)
        if [entry[:2] for entry in again] != [*(e[:2] for e in seen), ((ledger_id, entry_id), (payload,))]:
            found.append("reading again gave something else")
        return found, again


def storm(
    images: int,
    seed: int,
    workspace: str,
    *,
    steps: int = 50,
    per_moment: int = 6,
    depth: int = 3,
    progress: Callable[[int, int], None] | None = None,
) -> Summary:
    """Draw and judge `images` images.

    Args:
        images: how many.
        seed: the first seed; each script takes the next one.
        workspace: an empty directory for topics and images; cleared after use.
        steps: operations per script.
        per_moment: images drawn from each captured moment.
        depth: crashes in a chain, at most.
        progress: told of images judged and violations found, now and then.
    """
    violations: list[str] = []
    judged = entries = lost = chains = 0
    while judged < images:
        place = os.path.join(workspace, f"seed-{seed}")
        for found in _chain(place, seed, steps, per_moment, depth):
            judged += found.images
            entries += found.entries_judged
            lost += found.entries_lost
            chains += found.chains
            violations += found.violations
        shutil.rmtree(place, ignore_errors=True)
        seed += 1
        if progress is not None:
            progress(judged, len(violations))
    return Summary(judged, entries, lost, chains, violations)


def _chain(place: str, seed: int, steps: int, per_moment: int, depth: int) -> Iterator[Summary]:
    """One script, its images, and from one of them on the next script, `depth` times."""
    rng = random.Random(seed)
    ids = LedgerIds()
    model = LogModel()
    root = os.path.join(place, "disk")
    os.makedirs(os.path.join(root, "topic"))
    for level in range(depth):
        with disk.use(FakeDisk(root)) as fake:
            assert isinstance(fake, FakeDisk)
            moments = Workload(os.path.join(root, "topic"), fake, rng, ids, model).run(steps)
        judge = Judge(os.path.join(place, f"level-{level}"), rng, ids)
        violations: list[str] = []
        following: tuple[str, LogModel] | None = None
        for moment in moments:
            for _ in range(per_moment):
                found, seen, directory = judge.judge(moment)
                violations += [f"seed {seed}, crash {level + 1}, {moment.where}: {line}" for line in found]
                if not found and rng.random() < 0.1:
                    following = _kept(following, directory, place, level, moment.model.after_recovery(seen))
                shutil.rmtree(os.path.dirname(directory))
        yield Summary(judge.images, judge.entries, judge.lost, int(level > 0), violations)
        if following is None:
            return
        root, model = following


def _kept(
    before: tuple[str, LogModel] | None, directory: str, place: str, level: int, model: LogModel
) -> tuple[str, LogModel]:
    """Keep a judged image as the disk the chain goes on from."""
    root = os.path.join(place, f"disk-{level + 1}")
    if before is not None:
        shutil.rmtree(root)
    os.makedirs(root)
    os.rename(directory, os.path.join(root, "topic"))
    return root, model
