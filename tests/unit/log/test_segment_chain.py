"""The ledgers of a topic in order."""

from __future__ import annotations

from pathlib import Path

from embeddedpulsar._engine.log.segments import SegmentSet
from embeddedpulsar._engine.log.topic_control import TopicControl
from embeddedpulsar.damage import Damage
from embeddedpulsar.testing.manual_clock import ManualClock
from tests.ledger_site import LedgerSite, send


def test_the_chain_follows_the_tail(tmp_path: Path):
    """Each roll adds one link, each trim takes some away; a snapshot stays what it was."""
    with LedgerSite(tmp_path) as site:
        ledger = site.open(max_entries=2)
        control = TopicControl.open(site.directory)
        reports: list[Damage] = []
        segments = SegmentSet(control.home, control.words, reports.append)
        assert segments.chain().tail_ledger == 0 and segments.chain().at_or_after(1) == 0
        snapshots = []
        for n in range(7):
            send(ledger, b"%d" % n)
            snapshots.append(segments.chain())
        assert [len(snapshot.ids) for snapshot in snapshots] == [0, 0, 1, 1, 2, 2, 3]
        chain = segments.chain()
        assert chain is segments.chain()
        assert chain.ids == (1, 2, 3) and chain.tail_ledger == 4
        assert [closed.last_entry_id for closed in chain.closed] == [1, 1, 1]
        assert [closed.messages_before for closed in chain.closed] == [0, 2, 4]
        assert chain.messages_before_tail == 6
        ledger.trim_before(3)
        after = segments.chain()
        assert after.ids == (3,) and chain.ids == (1, 2, 3)
        assert after.messages_before_tail - after.closed[0].messages_before == 2
        send(ledger, b"7")
        send(ledger, b"8")
        assert segments.chain().ids == (3, 4)
        assert not reports
        control.close()


def test_a_fresh_chain_is_found_by_links(tmp_path: Path):
    """Whoever comes late walks the headers back, as far as they are retained."""
    with LedgerSite(tmp_path) as site:
        ledger = site.open(max_entries=1)
        for n in range(10):
            send(ledger, b"%d" % n)
        ledger.trim_before(4)
        control = TopicControl.open(site.directory)
        reports: list[Damage] = []
        chain = SegmentSet(control.home, control.words, reports.append).chain()
        assert chain.ids == (4, 5, 6, 7, 8, 9) and chain.tail_ledger == 10 and not reports
        assert chain.find(5) is not None and chain.find(10) is None and chain.find(3) is None
        assert (chain.at_or_after(1), chain.at_or_after(7), chain.at_or_after(11)) == (4, 7, 0)
        assert (chain.after(9), chain.after(10)) == (10, 0)
        assert chain.before(5) is not None and chain.before(4) is None
        control.close()


def test_ledgers_by_time(tmp_path: Path):
    """The ledger in which entries of a time begin, for times before, within, between and behind."""
    clock = ManualClock(wall_ms=100)
    with LedgerSite(tmp_path, clock=clock) as site:
        ledger = site.open(max_entries=1)
        for n in range(4):
            clock.set_wall_ms(100 + 10 * n)
            send(ledger, b"%d" % n)
        control = TopicControl.open(site.directory)
        chain = SegmentSet(control.home, control.words, lambda _: None).chain()
        found = [chain.floor_by_time(at) for at in (0, 100, 101, 110, 111, 130, 131, 999)]
        assert found == [1, 1, 1, 1, 2, 3, 4, 4]
        control.close()
