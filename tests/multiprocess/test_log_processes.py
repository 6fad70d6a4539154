"""Many processes at one log, at full speed."""

from __future__ import annotations

import os
import time
from pathlib import Path

from embeddedpulsar._engine.log.log_check import check_topic
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar.exceptions import LockTimeout
from tests.children import in_child
from tests.ledger_site import START, LedgerSite, send, send_batch, values
from tests.multiprocess.children import Child, say

WRITERS = 3
READERS = 2
MESSAGES = 600


def write(root: str, number: str) -> None:
    """Append numbered messages, every third as a batch of two."""
    with LedgerSite(root) as site:
        ledger = site.open(segment_size=64 << 10, max_entries=50)
        n = 0
        while n < MESSAGES:
            if n % 3:
                send(ledger, b"%d %d" % (int(number), n))
                n += 1
            else:
                send_batch(ledger, [b"%d %d" % (int(number), n), b"%d %d" % (int(number), n + 1)])
                n += 2
        say("written", n)


def read(root: str, count: str) -> None:
    """Follow the log until so many messages came; leave their order in a file."""
    with LedgerSite(root) as site:
        ledger = site.open()
        cursor = ledger.cursor(START, inclusive=True)
        found: list[bytes] = []
        while len(found) < int(count):
            seen = ledger.tail
            views = cursor.read(50, 1000, 1 << 20)
            for view in views:
                found += view.values()
            if not views:
                assert ledger.wait(seen, 30), "nothing came for 30 s"
    (Path(root) / f"order-{os.getpid()}").write_bytes(b"\n".join(found))


def test_writers_and_readers_at_full_speed(tmp_path: Path):
    """All readers see one order; it holds every message once, each writer's in the order it wrote them."""
    total = 0
    with LedgerSite(tmp_path) as site:
        ledger = site.open()
        expected = WRITERS * _written()
        readers = [Child(read, tmp_path, expected) for _ in range(READERS)]
        writers = [Child(write, tmp_path, number) for number in range(WRITERS)]
        for child in writers:
            with child:
                total += int(child.read().split()[1])
                assert child.join() == 0
        assert total == expected
        for child in readers:
            with child:
                assert child.join() == 0
        order = values(ledger)
        assert len(order) == expected
        for number in range(WRITERS):
            own = [value for value in order if value.startswith(b"%d " % number)]
            assert own == [b"%d %d" % (number, n) for n in range(_written())]
        seen = [path.read_bytes() for path in tmp_path.glob("order-*")]
        assert seen == [b"\n".join(order)] * READERS
        assert check_topic(ledger.directory).is_clean


def _written() -> int:
    n = 0
    while n < MESSAGES:
        n += 1 if n % 3 else 2
    return n


def echo(root: str, rounds: str) -> None:
    """Answer every message of the other side."""
    with LedgerSite(root) as site:
        ledger = site.open()
        cursor = ledger.cursor(START, inclusive=True)
        left = int(rounds)
        say("ready")
        while left:
            seen = ledger.tail
            views = cursor.read(10, 10, 1 << 20)
            if not views:
                ledger.wait(seen, 30)
            for view in views:
                if view.value(0).startswith(b"ping"):
                    send(ledger, b"pong")
                    left -= 1


def test_no_wake_up_is_lost(tmp_path: Path):
    """Two processes answer each other: of 2,000 waits hardly one is as long as the back-stop of 100 ms."""
    rounds = 1000
    slow = 0
    with LedgerSite(tmp_path) as site:
        ledger = site.open()
        cursor = ledger.cursor(START, inclusive=True)
        with Child(echo, tmp_path, rounds) as child:
            assert child.read() == "ready"
            for number in range(rounds):
                send(ledger, b"ping %d" % number)
                start = time.perf_counter()
                answered = False
                while not answered:
                    seen = ledger.tail
                    views = cursor.read(10, 10, 1 << 20)
                    if not views:
                        assert ledger.wait(seen, 30)
                    answered = any(view.value(0) == b"pong" for view in views)
                slow += time.perf_counter() - start > 0.09
            assert child.join() == 0
    assert slow < rounds / 50


def test_a_forked_child_appends_beside_its_parent(tmp_path: Path):
    """Maps and files stay good after a fork; nothing is lost on either side."""
    with LedgerSite(tmp_path) as site:
        ledger = site.open(max_entries=10)
        send(ledger, b"before")

        def child() -> int:
            for number in range(25):
                send(ledger, b"child %d" % number)
            return len(values(ledger))

        assert in_child(child) == "26"
        for number in range(25):
            send(ledger, b"parent %d" % number)
        found = values(ledger)
        assert found[0] == b"before"
        assert found[1:26] == [b"child %d" % number for number in range(25)]
        assert found[26:] == [b"parent %d" % number for number in range(25)]
        assert check_topic(ledger.directory).is_clean


def test_a_child_forked_inside_a_section(tmp_path: Path):
    """A failpoint forks in the middle of an append: the child has no part in it, and waits like any other
    process."""
    with LedgerSite(tmp_path) as site:
        ledger = site.open(max_entries=10, lock_timeout_s=0.2)
        send(ledger, b"before")
        outcome: list[str] = []

        def child() -> str:
            try:
                send(ledger, b"child")
            except LockTimeout:
                return "waited"
            return "sent"

        def fork_here() -> None:
            failpoints.clear()
            outcome.append(in_child(child))

        failpoints.set("append:body_done", fork_here)
        send(ledger, b"parent")
        send(ledger, b"after")
        assert outcome == ["waited"]
        assert values(ledger) == [b"before", b"parent", b"after"]
        assert check_topic(ledger.directory).is_clean
