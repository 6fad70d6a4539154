"""Corruption storms: every file of a topic damaged in every way, and what must survive it.

A topic of some ledgers is built once. Every case copies it, damages one file, and opens the copy, either as a
topic whose control words are believed or as one that has to be recovered. Then everything is read, searched,
counted and written to. Whatever the damage: no error but the library's own, no payload but those written, no
entry but those published, and every entry whose bytes were not hit is still there.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from typing import Final, NamedTuple

from embeddedpulsar._engine.filenames import control_path, index_path, ledgers_of, log_path
from embeddedpulsar._engine.format.control import (
    CONTROL_HEADER_SIZE,
    KIND_TOPIC,
    pack_control_header,
    parse_control_header,
)
from embeddedpulsar._engine.format.entry import (
    EntryContent,
    ProducerPrefix,
    encode,
    encode_plain,
    encode_single,
)
from embeddedpulsar._engine.format.frame import (
    FIRST_FRAME_OFFSET,
    HEADER_SIZE,
    KIND_ENTRY,
    SLOTS_OFFSET,
    TRAILER_SIZE,
    frames,
    pack_trailer,
    seal,
)
from embeddedpulsar._engine.log.log_check import check_topic
from embeddedpulsar._engine.log.managed_ledger import ManagedLedger
from embeddedpulsar._engine.platform import timing as clocks
from embeddedpulsar.damage import Damage as Report
from embeddedpulsar.exceptions import PulsarException, StorageError
from embeddedpulsar.message_id import Position
from embeddedpulsar.testing.manual_clock import ManualClock, ManualScheduler
from tests.storms.damages import Damage, damage_file
from tests.storms.log_model import Payloads, Place, Seen
from tests.storms.log_workload import read_all
from tests.support.ledger_files import LedgerIds, open_ledger, pretend_reboot

ALONE: Final = "segment whose index is gone"
KINDS: Final = ("segment", "index", "control", ALONE)
_SMALL: Final = 60
_PREFIX: Final = ProducerPrefix("storm")
_AFTER: Final = (b"after the damage",)


class Frame(NamedTuple):
    """Where an entry lies in its segment."""

    start: int
    end: int


class Original:
    """The topic that every case starts from, and all that is known of it."""

    def __init__(self, directory: str, rng: random.Random) -> None:
        self.directory = directory
        self.ids = LedgerIds()
        self.entries: dict[Place, Payloads] = {}
        self.frames: dict[Place, Frame] = {}
        self.ends: dict[int, int] = {}
        os.makedirs(directory)
        self._fill(rng)
        self.ledgers = ledgers_of(os.listdir(directory))
        for ledger in self.ledgers:
            self._locate(ledger)

    def _fill(self, rng: random.Random) -> None:
        clock = ManualClock(wall_ms=1_700_000_000_000)
        ledger = open_ledger(self.directory, self.ids, clock, ManualScheduler(clock))
        for number in range(150):
            clock.advance(0.01)
            values = [
                b"%d:%d:" % (number, i) + rng.randbytes(rng.choice((5, 80)))
                for i in range(rng.choice((1, 1, 9)))
            ]
            if number % 29 == 7:
                values = [rng.randbytes(9000)]
            elif number % 29 == 15:
                values = [self._planted(number, ledger.segments()[-1].end_offset)]
            keys: list[str | None] = [f"k{i}" for i in range(len(values))]
            if len(values) == 1:
                entry = encode_single(values[0], number, _PREFIX)
            elif number % 2:
                entry = encode_plain(values, number, _PREFIX)
            else:
                entry = encode(EntryContent(values, number, keys=keys), _PREFIX, number % 3)
            ledger_id, entry_id, _ = ledger.append(entry)
            self.entries[ledger_id, entry_id] = tuple(values)
        ledger.close()

    def _planted(self, number: int, end: int) -> bytes:
        """A payload that looks like the log: what it ends with, and entries that might follow."""
        ledger_id, entry_id = max(self.entries)
        with open(log_path(self.directory, ledger_id), "rb") as file:
            data = file.read()
        *_, (at, header) = frames(data, FIRST_FRAME_OFFSET, end)
        copied = data[max(FIRST_FRAME_OFFSET, at - 3000 & -8) : at + header.length]
        crc = header.crc
        for later in range(entry_id + 2, entry_id + 12):
            entry = encode_single(b"never published %d" % number, 0, _PREFIX)
            length = HEADER_SIZE + entry.size + TRAILER_SIZE
            front, crc = seal(
                length,
                crc,
                entry.body_crc,
                KIND_ENTRY,
                entry.codec,
                entry.flags,
                later,
                header.publish_time + 10,
                entry.count,
                entry.metadata_length,
            )
            copied += front + b"".join(entry.parts) + pack_trailer(length)
        return copied

    def _locate(self, ledger: int) -> None:
        with open(log_path(self.directory, ledger), "rb") as file:
            data = file.read()
        wanted = [place for place in self.entries if place[0] == ledger]
        found = frames(data, FIRST_FRAME_OFFSET, len(data))
        for place, (at, header) in zip(wanted, found, strict=False):
            self.frames[place] = Frame(at, at + header.length)
        self.ends[ledger] = max(frame.end for place, frame in self.frames.items() if place[0] == ledger)


class Case(NamedTuple):
    """One damaged copy."""

    directory: str
    kind: str
    ledger: int
    is_believed: bool
    damage: Damage

    def __str__(self) -> str:
        how = "believed" if self.is_believed else "to be recovered"
        return f"{self.kind} of ledger {self.ledger}, {how}, {self.damage}"


class Summary(NamedTuple):
    """What a storm found: cases, entries read, entries lost because their bytes were hit."""

    cases: int
    entries: int
    lost: int
    violations: list[str]


def storm(
    cases: int, seed: int, workspace: str, *, progress: Callable[[int, int], None] | None = None
) -> Summary:
    """Run `cases` cases of every kind of file; `workspace` is an empty directory."""
    original = Original(os.path.join(workspace, "original"), random.Random(seed))
    total = entries = lost = 0
    violations: list[str] = []
    for kind in KINDS:
        for number in range(cases):
            rng = random.Random(f"{seed}/{kind}/{number}")
            case = make_case(original, kind, os.path.join(workspace, f"{kind}-{number}"), rng)
            found, seen = judge(original, case)
            violations += [f"seed {seed}, case {number}: {case}: {line}" for line in found]
            total += 1
            entries += len(seen)
            lost += len(original.entries) - len(seen)
            shutil.rmtree(case.directory)
            if progress is not None and not number % 200:
                progress(total, len(violations))
    return Summary(total, entries, lost, violations)


def make_case(original: Original, kind: str, directory: str, rng: random.Random) -> Case:
    """Copy the original and damage one file of the copy."""
    shutil.copytree(original.directory, directory)
    ledger = rng.choice(original.ledgers)
    is_believed = rng.random() < 0.5
    if is_believed:
        pretend_same_boot(directory)
    else:
        pretend_reboot(directory)
    if kind in ("segment", ALONE):
        damage = damage_file(log_path(directory, ledger), rng, original.ends[ledger] + 200)
    elif kind == "index":
        entries = sum(place[0] == ledger for place in original.entries)
        damage = damage_file(index_path(directory, ledger), rng, SLOTS_OFFSET + 24 * entries + 100)
    else:
        damage = damage_file(control_path(directory), rng)
    if kind == ALONE:
        os.unlink(index_path(directory, ledger))
    return Case(directory, kind, ledger, is_believed, damage)


def pretend_same_boot(directory: str) -> None:
    """Make the words of a copied topic believed: as if it had been damaged in place, in this boot."""
    path = control_path(directory)
    with open(path, "r+b") as file:
        header = parse_control_header(file.read(CONTROL_HEADER_SIZE), KIND_TOPIC)
        status = os.fstat(file.fileno())
        file.seek(0)
        file.write(
            pack_control_header(
                header._replace(boot_id=clocks.boot_id(), device=status.st_dev, inode=status.st_ino)
            )
        )


def judge(original: Original, case: Case) -> tuple[list[str], list[Seen]]:
    """Open the damaged copy, use it in every way, and say what is wrong."""
    found: list[str] = []
    seen: list[Seen] = []
    reports: list[Report] = []
    clock = ManualClock(wall_ms=1_700_000_000_000)
    may_fail = case.kind == "control" and case.is_believed
    try:
        check_topic(case.directory)
        ids = LedgerIds(original.ids.last)
        ledger = open_ledger(case.directory, ids, clock, ManualScheduler(clock), damage=reports.append)
        try:
            seen = read_all(ledger)
            _use(ledger, original)
            found += _wrong(original, read_all(ledger))
        finally:
            ledger.close()
        check_topic(case.directory)
    except PulsarException as e:
        if not may_fail:
            found.append(f"{type(e).__name__}: {e}")
    except Exception as e:
        found.append(f"{type(e).__name__} is not ours: {e}")
    found += _wrong(original, seen)
    if not may_fail:
        places = {entry.place for entry in seen}
        missing = [place for place in original.entries if place not in places]
        gone = [place for place in missing if not may_be_lost(original, case, place)]
        if gone:
            found.append(f"{len(gone)} entries are gone that were not hit, {gone[0]} to {gone[-1]}")
    return found, seen


def _use(ledger: ManagedLedger, original: Original) -> None:
    """Look at indexes and headers in every way, and append. Numbers may be off; errors are ours only."""
    first = Position(min(original.ledgers), -1)
    for position in (first, Position(*max(original.entries)), Position(*sorted(original.entries)[70])):
        for ask in (
            lambda: ledger.messages_after(position),  # noqa: B023 - called at once
            lambda: ledger.entries_between(first, position),  # noqa: B023
            lambda: ledger.cursor(position, inclusive=True).read(5, 5, 1 << 20),  # noqa: B023
        ):
            try:
                ask()
            except StorageError:
                continue
    questions: tuple[Callable[[], object], ...] = (
        lambda: ledger.find_by_publish_time(0),
        lambda: ledger.find_by_publish_time(1_700_000_000_500),
        lambda: ledger.find_by_publish_time(1 << 60),
        ledger.segments,
        ledger.statistics,
        ledger.first_position,
        ledger.last_position,
    )
    for question in questions:
        try:
            question()
        except StorageError:
            continue
    ledger.append(encode_single(_AFTER[0], 0, _PREFIX))


def _wrong(original: Original, seen: list[Seen]) -> list[str]:
    found = []
    last: Place = (0, -1)
    for place, payloads, _ in seen:
        if place <= last:
            found.append(f"entry {place} after {last}")
        last = place
        if payloads == _AFTER:
            continue
        if original.entries.get(place) != payloads:
            found.append(f"entry {place} holds {payloads!r:.60}")
    return found


def may_be_lost(original: Original, case: Case, place: Place) -> bool:
    """Whether damage of this kind may cost this entry.

    Without an index, frames that nothing speaks for are lost with those that were hit.
    """
    if place[0] != case.ledger or case.kind not in ("segment", ALONE):
        return False
    damage = case.damage
    if case.kind == ALONE and any(stop - start > _SMALL for start, stop in damage.ranges):
        return True
    frame = original.frames[place]
    return damage.touches(frame.start, frame.end)
