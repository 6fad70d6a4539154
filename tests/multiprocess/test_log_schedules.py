"""Two processes at one log, led through planned orders of events by failpoints."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from embeddedpulsar._engine.log.log_check import check_topic
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar.exceptions import LockTimeout
from tests.ledger_site import START, LedgerSite, drain, send, values
from tests.multiprocess.children import Child, say
from tests.support.failpoint_schedule import Schedule

INSIDE = [
    "append:owner_set",
    "append:body_part",
    "append:body_done",
    "append:index_done",
    "append:tail_stored",
    "append:owner_cleared",
    "roll:file_created",
    "roll:header_written",
    "roll:synced",
    "roll:tail_switched",
]
OUTSIDE = ["append:unlocked"]
PUBLISHED = ("append:tail_stored", "append:owner_cleared", "append:unlocked")


def one_append(root: str) -> None:
    """Append one message, and say so."""
    with LedgerSite(root) as site:
        ledger = site.open(max_entries=3)
        send(ledger, b"child")
        say("sent")


def start(site: LedgerSite, schedule: Schedule, point: str, monkeypatch: pytest.MonkeyPatch) -> Child:
    """Start a child that stops at ``point`` of its append (of the roll before it, when three entries are
    there)."""
    monkeypatch.setenv(failpoints.ENVIRONMENT, f"{point}={schedule.action}")
    child = Child(one_append, site.root)
    monkeypatch.delenv(failpoints.ENVIRONMENT)
    assert schedule.wait_reached(60)
    return child


@pytest.mark.parametrize("end", ["goes on", "dies"])
@pytest.mark.parametrize("point", INSIDE + OUTSIDE)
def test_another_process_stands_at_a_step(
    tmp_path: Path, point: str, end: str, monkeypatch: pytest.MonkeyPatch
):
    """Readers see what is published and no more; a writer waits for one inside, and is told who that is."""
    with LedgerSite(tmp_path) as site:
        ledger = site.open(max_entries=3, lock_timeout_s=0.15)
        before = [b"one", b"two", b"three"]
        for value in before:
            send(ledger, value)
        schedule = Schedule(tmp_path / "schedule")
        with start(site, schedule, point, monkeypatch) as child:
            published = [b"child"] if point in PUBLISHED else []
            assert values(ledger) == before + published
            if point in INSIDE:
                with pytest.raises(LockTimeout) as caught:
                    send(ledger, b"too early")
                if point != "append:owner_cleared":
                    assert f"process {child.process.pid}" in str(caught.value)
            else:
                send(ledger, b"beside")
                published.append(b"beside")
            if end == "dies":
                child.kill()
                child.join()
            else:
                schedule.release()
                assert child.read() == "sent"
                assert child.join() == 0
                if not published:
                    published = [b"child"]
            send(ledger, b"after")
            assert values(ledger) == [*before, *published, b"after"]
        schedule.close()
        report = check_topic(ledger.directory)
        assert report.is_clean, report.problems


@pytest.mark.parametrize("point", ["append:tail_stored", "append:owner_cleared", "append:unlocked"])
@pytest.mark.parametrize("end", ["goes on", "dies"])
def test_a_sleeper_hears_of_an_append_whose_writer_stands_or_dies(
    tmp_path: Path, point: str, end: str, monkeypatch: pytest.MonkeyPatch
):
    """It was asleep before the append; rung, or by the back-stop, it wakes and finds the entry."""
    with LedgerSite(tmp_path) as site:
        ledger = site.open(max_entries=3)
        send(ledger, b"one")
        woken = threading.Event()
        seen = ledger.tail

        def sleep_until_woken() -> None:
            while not ledger.wait(seen, 30):
                continue
            woken.set()

        sleeper = threading.Thread(target=sleep_until_woken)
        sleeper.start()
        schedule = Schedule(tmp_path / "schedule")
        with start(site, schedule, point, monkeypatch) as child:
            if end == "dies":
                child.kill()
            else:
                schedule.release()
                assert child.read() == "sent"
            assert woken.wait(10)
            sleeper.join()
            child.join()
        schedule.close()
        assert values(ledger) == [b"one", b"child"]


def test_a_reader_stands_between_two_ledgers_while_the_first_is_trimmed(tmp_path: Path):
    """It jumps to the first ledger that is left."""
    with LedgerSite(tmp_path) as site, LedgerSite(tmp_path) as other:
        ledger = site.open(max_entries=3)
        for number in range(9):
            send(ledger, b"%d" % number)
        reader = other.open().cursor(START, inclusive=True)
        assert [view.value(0) for view in reader.read(3, 3, 1 << 20)] == [b"0", b"1", b"2"]
        ledger.trim_before(ledger.segments()[-1].ledger_id)
        assert [view.value(0) for view in drain(reader)] == [b"6", b"7", b"8"]
