"""A managed ledger against a list, with tiny segments so that everything rolls all the time."""

from __future__ import annotations

import shutil
import tempfile
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.log.log_check import check_topic
from embeddedpulsar._engine.log.managed_ledger import ManagedLedger
from embeddedpulsar._engine.log.segment_reader import EntryCursor
from embeddedpulsar._engine.log.topic_control import TopicControl
from embeddedpulsar._engine.platform import disk, failpoints
from embeddedpulsar.damage import HOLE, LOST_TAIL, MISSING_SEGMENT, Damage
from embeddedpulsar.message_id import Position
from embeddedpulsar.testing.manual_clock import ManualClock
from tests.ledger_site import START, LedgerSite, send_batch, values

STEPS = [name for name in failpoints.names() if name.split(":")[0] in ("append", "roll")]
BEFORE_COMMIT = ("append:owner_set", "append:body_part", "append:body_done", "append:index_done")


class ForgetfulDisk(disk.Disk):
    """A disk that does not flush: what a process does is compared here, not what a power loss leaves."""

    def fsync(self, fd: int, path: str) -> None:
        """Nothing."""

    def fdatasync(self, fd: int, path: str) -> None:
        """Nothing."""

    def fsync_dir(self, path: str) -> None:
        """Nothing."""


class Entry:
    """What the model knows of one entry."""

    def __init__(self, position: Position, published: int, payloads: list[bytes]) -> None:
        self.position = position
        self.published = published
        self.payloads = payloads


class LedgerMachine(RuleBasedStateMachine):
    """Two openings of one topic and some cursors, beside the list of what was appended."""

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.mkdtemp(prefix="ledger-model-")
        self.disk = disk.use(ForgetfulDisk())
        self.disk.__enter__()
        self.clock = ManualClock(wall_ms=1_000_000)
        self.site = LedgerSite(self.root, clock=self.clock)
        self.entries: list[Entry] = []
        self.trimmed = 0
        self.ledgers: list[ManagedLedger] = []
        self.cursors: list[tuple[EntryCursor, int]] = []
        self.options: dict[str, Any] = {}
        self.number = 0
        self.unknown: list[bytes] = []
        self.reports: list[Damage] = []

    @initialize(
        max_entries=st.integers(1, 9),
        segment_size=st.sampled_from([8 << 10, 16 << 10, 1 << 20]),
        max_age_ms=st.sampled_from([50, 10**9]),
    )
    def open(self, max_entries: int, segment_size: int, max_age_ms: int) -> None:
        self.options = {
            "max_entries": max_entries,
            "segment_size": segment_size,
            "max_age_ms": max_age_ms,
            "first_allocation": 8 << 10,
        }
        self.ledgers = [self.reopened() for _ in range(2)]

    def reopened(self) -> ManagedLedger:
        ledger = self.site.open(**self.options)
        ledger.damage = self.reports.append
        return ledger

    @rule(
        who=st.integers(0, 1),
        sizes=st.lists(st.sampled_from([0, 5, 100, 3000, 9000, 70_000]), min_size=1, max_size=3),
        level=st.sampled_from(["process", "flush"]),
    )
    def append(self, who: int, sizes: list[int], level: str) -> None:
        payloads = self.payloads(sizes)
        position = send_batch(self.ledgers[who], payloads)
        if level == "flush":
            self.ledgers[who].sync()
        self.record(position, payloads)

    def payloads(self, sizes: list[int]) -> list[bytes]:
        self.number += 1
        return [b"%d/%d " % (self.number, n) + b"x" * size for n, size in enumerate(sizes)]

    def record(self, position: Position, payloads: list[bytes]) -> None:
        self.unknown = []
        if self.entries:
            assert position > self.entries[-1].position
        (entry,) = self.ledgers[0].cursor(position, inclusive=True).read(1, 1, 1)
        assert entry.values() == payloads
        self.entries.append(Entry(position, entry.publish_time, payloads))

    @rule(who=st.integers(0, 1), point=st.sampled_from(STEPS))
    def interrupted_append(self, who: int, point: str) -> None:
        payloads = self.payloads([10])
        failpoints.set(point, "raise:KeyboardInterrupt")
        position = None
        try:
            position = send_batch(self.ledgers[who], payloads)
        except KeyboardInterrupt:
            if not point.startswith("roll") and point not in BEFORE_COMMIT:
                position = self.ledgers[1 - who].last_position()
        finally:
            failpoints.clear()
        if position is not None:
            self.record(position, payloads)
        else:
            self.unknown = payloads

    @rule(seconds=st.sampled_from([0.001, 0.02, 1.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(back=st.integers(1, 500))
    def clock_steps_back(self, back: int) -> None:
        self.clock.set_wall_ms(self.clock.wall_ms() - back)

    @rule(who=st.integers(0, 1))
    def roll(self, who: int) -> None:
        self.ledgers[who].roll()
        self.unknown = []

    @precondition(lambda self: self.entries)
    @rule(who=st.integers(0, 1), data=st.data())
    def trim(self, who: int, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.entries))
        self.ledgers[who].trim_before(entry.position.ledger_id)
        self.trimmed = max(self.trimmed, entry.position.ledger_id)
        # A cursor inside a trimmed segment may read it to its end or jump: only untouched ones are compared.
        self.cursors = []

    @rule(who=st.integers(0, 1))
    def close_and_reopen(self, who: int) -> None:
        self.ledgers[who].close()
        self.cursors = []
        self.ledgers[who] = self.reopened()

    @rule()
    def reboot(self) -> None:
        """All processes gone, and another boot: the words are not believed any more; the files are."""
        for ledger in self.ledgers:
            ledger.close()
        self.cursors = []
        control = TopicControl.open(self.site.directory)
        is_empty = control.words[TopicWord.TAIL] == 0
        control.adopt(1, b"another boot id.")
        control.close()
        self.ledgers = [self.reopened() for _ in range(2)]
        assert is_empty or self.ledgers[0].tail
        if self.unknown:
            # A frame that was written whole and not published: a recovery may take it for published.
            last = self.ledgers[0].last_position()
            if last is not None and (not self.entries or last > self.entries[-1].position):
                self.record(last, self.unknown)
            self.unknown = []
        if not self.retained():
            # With every retained entry trimmed away the trim point is known by the files that are left.
            self.trimmed = max(self.trimmed, self.ledgers[0].first_position().ledger_id)

    def retained(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.position.ledger_id >= self.trimmed]

    @rule(who=st.integers(0, 1), data=st.data(), inclusive=st.booleans())
    def new_cursor(self, who: int, data: st.DataObject, inclusive: bool) -> None:
        retained = self.retained()
        if retained and data.draw(st.booleans()):
            at = data.draw(st.integers(0, len(retained) - 1))
            position = retained[at].position
        else:
            at, position = 0, START
            inclusive = True
        cursor = self.ledgers[who].cursor(position, inclusive=inclusive)
        at += not inclusive
        self.cursors.append((cursor, len(self.entries) - len(retained) + at))

    @precondition(lambda self: self.cursors)
    @rule(data=st.data(), most=st.integers(1, 4))
    def read(self, data: st.DataObject, most: int) -> None:
        index = data.draw(st.integers(0, len(self.cursors) - 1))
        cursor, at = self.cursors[index]
        found = cursor.read(most, 1000, 1 << 30)
        expected = self.entries[at : at + len(found)]
        assert [(entry.ledger_id, entry.entry_id) for entry in found] == [one.position for one in expected]
        assert [entry.values() for entry in found] == [one.payloads for one in expected]
        assert found or at == len(self.entries)
        self.cursors[index] = (cursor, at + len(found))

    @rule(data=st.data(), who=st.integers(0, 1))
    def find(self, data: st.DataObject, who: int) -> None:
        retained = self.retained()
        if not retained:
            return
        wanted = data.draw(st.sampled_from(retained)).published + data.draw(st.integers(-1, 1))
        found = self.ledgers[who].find_by_publish_time(wanted)
        following = [one.position for one in retained if one.published >= wanted]
        rest = self.ledgers[who].cursor(found, inclusive=True).read(1, 1, 1)
        assert [(entry.ledger_id, entry.entry_id) for entry in rest] == following[:1]

    @rule(data=st.data(), who=st.integers(0, 1))
    def backlog(self, data: st.DataObject, who: int) -> None:
        retained = self.retained()
        at = data.draw(st.integers(-1, len(retained) - 1))
        position = retained[at].position if at >= 0 else Position(0, -1)
        expected = sum(len(one.payloads) for one in retained[at + 1 :])
        assert self.ledgers[who].messages_after(position) == expected

    @invariant()
    def times_never_go_back(self) -> None:
        times = [entry.published for entry in self.entries]
        assert times == sorted(times)

    def teardown(self) -> None:
        try:
            if self.ledgers:
                expected = [payload for entry in self.retained() for payload in entry.payloads]
                for ledger in self.ledgers:
                    assert values(ledger) == expected
                assert not {report.kind for report in self.reports} & {HOLE, LOST_TAIL, MISSING_SEGMENT}
                report = check_topic(self.site.directory)
                assert report.is_clean, report.problems
        finally:
            self.site.close()
            self.disk.__exit__(None, None, None)
            shutil.rmtree(self.root)


TestLedgerModel = LedgerMachine.TestCase
TestLedgerModel.settings = settings(stateful_step_count=40)
TestLedgerModel.__doc__ = "Whatever is done, everybody reads the list of what was appended."
