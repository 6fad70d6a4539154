"""Power-loss storms: the real code on a disk that loses power, judged by what had been promised.

A scripted workload (appends of all kinds and levels, syncs, rolls, trims, writers that die at failpoints,
flushes that fail) runs on a `FakeDisk`. At many moments, inside of operations too, the disk is captured, and
from every capture images are drawn: any subset of what was not flushed. Each image is opened like a topic
after a power loss, or like a copied directory, read from end to end and compared with the model. Some are
then worked on and lose power again.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from embeddedpulsar import damage
from embeddedpulsar._engine.format.entry import ProducerPrefix, encode_single
from embeddedpulsar._engine.log.log_check import TRAILER, check_topic
from embeddedpulsar._engine.log.managed_ledger import ManagedLedger
from embeddedpulsar._engine.platform import disk
from embeddedpulsar.exceptions import PulsarException
from embeddedpulsar.testing.manual_clock import ManualClock, ManualScheduler
from tests.storms.log_model import LogModel, Seen
from tests.storms.log_workload import Moment, Workload, read_all
from tests.support.disks.fake_disk import FakeDisk
from tests.support.ledger_files import LedgerIds, open_ledger, pretend_reboot

_LOSSES: Final = {
    damage.HOLE,
    damage.LOST_TAIL,
    damage.MISSING_SEGMENT,
    damage.SEGMENT_HEADER,
}
"""What a check may still find in a recovered topic: unflushed entries that are gone."""
_PREFIX: Final = ProducerPrefix("storm")


class Summary(NamedTuple):
    """What a storm found. `violations` are lines to look at; each begins with the seed that repeats it."""

    images: int
    entries_judged: int
    entries_lost: int
    """Entries that were not flushed and are gone, as they may."""
    chains: int
    violations: list[str]


class Judge:
    """Opens images of one moment and compares them with its model."""

    def __init__(self, workspace: str, rng: random.Random, ids: LedgerIds) -> None:
        self._workspace = workspace
        self._rng = rng
        self._ids = ids
        self.reports: list[damage.Damage] = []
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
        clock = ManualClock(wall_ms=1_700_000_000_000)
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
            # End marks are renewed by recovery, unless a failed flush went unnoticed with a lost ctl.
            allowed = _LOSSES | {TRAILER} if moment.model.poisoned else _LOSSES
            found += [str(problem) for problem in audit.problems if problem.kind not in allowed]
        except (PulsarException, AssertionError) as e:
            found.append(f"{type(e).__name__}: {e}")
        except Exception as e:
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
    stops_at_violation: bool = False,
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
        stops_at_violation: whether a script with a violation is the last.
        progress: told of images judged and violations found, now and then.
    """
    violations: list[str] = []
    judged = entries = lost = chains = 0
    while judged < images and not (violations and stops_at_violation):
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
            workload = Workload(os.path.join(root, "topic"), fake, rng, ids, model)
            moments = workload.run(steps)
        judge = Judge(os.path.join(place, f"level-{level}"), rng, ids)
        violations = [f"seed {seed}, run {level + 1}: {line}" for line in workload.violations]
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
