"""A log in memory: what a signal handler, an interrupt and a trim may do to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar.exceptions import AlreadyClosed
from embeddedpulsar.format.entry import encode_single
from embeddedpulsar.managed_ledger.memory_log import MemoryLog
from embeddedpulsar.managed_ledger.position import Position
from embeddedpulsar.testing.manual_clock import ManualClock
from tests.ledger_site import PREFIX, START, LedgerSite, drain, send, values


class StruckClock(ManualClock):
    """A clock that calls a function when it is read, as a signal handler may run there."""

    strike: Callable[[], object] | None = None

    def wall_ns(self) -> int:
        strike, self.strike = self.strike, None
        if strike is not None:
            strike()
        return super().wall_ns()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Any]:
    """A place for logs in memory."""
    with LedgerSite(tmp_path, clock=StruckClock(), in_memory=True) as made:
        yield made


def appended_in(log: MemoryLog) -> list[bytes]:
    """The payloads of a log, whose positions have to be in order."""
    views = drain(log.cursor(START, inclusive=True))
    positions = [Position(view.ledger_id, view.entry_id) for view in views]
    assert positions == sorted(set(positions))
    return [view.value(0) for view in views]


@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize("inside", range(1, 7))
def test_a_signal_handler_appends_inside_an_append(site: Any, before: int, inside: int):
    """Also when either of them, or both, begin a ledger: nothing is lost, and nothing is there twice."""
    log = site.open(max_entries=3)
    for number in range(before):
        send(log, b"before-%d" % number)
    site.clock.strike = lambda: [send(log, b"inside-%d" % number) for number in range(inside)]
    send(log, b"outside")
    send(log, b"after")
    expected = [b"before-%d" % number for number in range(before)]
    expected += [b"inside-%d" % number for number in range(inside)]
    assert appended_in(log) == [*expected, b"outside", b"after"]
    assert log.messages_after(Position(0, -1)) == before + inside + 2


def test_a_signal_handler_appends_while_a_ledger_begins(site: Any, monkeypatch: pytest.MonkeyPatch):
    """In the call that gives the new ledger its id."""
    strikes: list[bytes] = []
    allocate = site.allocate

    def struck(above: int) -> int:
        if strikes:
            send(log, strikes.pop())
        return int(allocate(above))

    monkeypatch.setattr(site, "allocate", struck)
    log = site.open(max_entries=2)
    for number in range(6):
        strikes.append(b"inside-%d" % number)
        send(log, b"%d" % number)
        strikes.clear()
    found = appended_in(log)
    assert [one for one in found if one.isdigit()] == [b"%d" % number for number in range(6)]
    assert len(found) == len(set(found)) > 6


def test_an_interrupted_append_leaves_no_trace(site: Any):
    """The next one takes its place."""
    log = site.open(max_entries=3)
    send(log, b"one")

    def interrupt() -> None:
        raise KeyboardInterrupt

    for _ in range(2):
        site.clock.strike = interrupt
        with pytest.raises(KeyboardInterrupt):
            send(log, b"interrupted")
        assert not log.lock.held
        send(log, b"next")
    assert values(log) == [b"one", b"next", b"next"]


def test_a_reader_continues_behind_what_was_trimmed(site: Any):
    """A cursor inside a trimmed ledger reads it to its end, another one begins at the first that is left."""
    log = site.open(max_entries=2)
    sent = [send(log, b"%d" % number) for number in range(7)]
    inside, outside = (log.cursor(sent[1], inclusive=True) for _ in range(2))
    assert inside.read(1, 10, 1000)[0].value(0) == b"1"
    inside.seek(sent[0])
    assert inside.read(1, 10, 1000)[0].value(0) == b"0"
    assert log.trimming.give_up(sent[4].ledger_id, log.trimming.rewind_count())
    assert [log.trimming.remove(1, 1.0), log.trimming.remove(9, 1.0), log.trimming.remove(9, 1.0)] == [
        1,
        1,
        0,
    ]
    assert [view.value(0) for view in drain(inside)] == [b"1", b"4", b"5", b"6"]
    assert [view.value(0) for view in drain(outside)] == [b"4", b"5", b"6"]
    assert log.first_position() == sent[4] and log.last_position() == sent[6]
    assert log.find_by_publish_time(0) == sent[4]
    assert log.messages_after(Position(0, -1)) == 3
    assert log.reaches(1 << 32 | 1 << 20), "a place in a ledger that was trimmed"


def test_a_closed_log_gives_and_takes_nothing(site: Any):
    """Its cursors end, too; opened again, the log has its entries."""
    log = site.open()
    send(log, b"one")
    cursor = log.cursor(START, inclusive=True)
    append, word = log.append_nowait, log.tail
    log.close()
    log.close()
    for action in (
        lambda: append(encode_single(b"x", 0, PREFIX)),
        lambda: log.append_nowait(encode_single(b"x", 0, PREFIX)),
        lambda: cursor.read(1, 1, 1),
        lambda: log.cursor(START, inclusive=True),
        lambda: log.tail,
        log.last_position,
        log.sync,
        log.segments,
    ):
        with pytest.raises(AlreadyClosed):
            action()
    again = site.open()
    assert values(again) == [b"one"] and again.tail == word
    assert "closed" in repr(log) and "closed" not in repr(again)


def test_sequence_ids_between_two_places(site: Any):
    """Of all producers, or of those that are asked for."""
    log = site.open(max_entries=2)
    words = [log.append_nowait(encode_single(b"x", number, PREFIX))[3] for number in range(7)]
    assert log.sequence_ids(None, log.tail, 0) == {"site": 6}
    assert log.sequence_ids(["site", "other"], words[4], words[1]) == {"site": 4}
    assert log.sequence_ids(["other"], log.tail, 0) == {}
    assert log.sequence_ids(None, words[3], words[3]) == {}
