"""Ctrl-C at any instruction of an append."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path

import pytest

from embeddedpulsar._engine.format.entry import encode_single
from embeddedpulsar._engine.log.log_check import check_topic
from embeddedpulsar.exceptions import PulsarException
from tests.ledger_site import PREFIX, LedgerSite, send, values
from tests.multiprocess.children import Child, say


class Budget:
    """A timer whose handler raises KeyboardInterrupt, as often as it is allowed to."""

    def __init__(self) -> None:
        self.left = 0
        signal.signal(signal.SIGALRM, self.tick)

    def tick(self, *_: object) -> None:
        if self.left:
            self.left -= 1
            raise KeyboardInterrupt


def interrupted_appends(root: str, wanted: str) -> None:
    """Append numbers; say how many interrupts there were, then every number whose append returned.

    A number is used once: after an interrupt nobody knows whether it was stored, so the next append has
        another.
    """
    rng = random.Random(7)
    with LedgerSite(root) as site:
        ledger = site.open(segment_size=64 << 10, max_entries=60)
        stop = threading.Event()
        others: list[int] = []

        def work() -> None:
            while not stop.wait(0.001):
                send(ledger, b"thread %d" % len(others))
                others.append(len(others))

        thread = threading.Thread(target=work)
        thread.start()
        budget = Budget()
        number = interrupts = leaks = 0
        returned: list[int] = []
        append = ledger.append
        while interrupts < int(wanted):
            try:
                try:
                    budget.left = 2
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, 3e-4), rng.uniform(1e-5, 1e-4))
                    while True:
                        number += 1
                        append(encode_single(b"main %d" % number, 0, PREFIX))
                        returned.append(number)
                except KeyboardInterrupt:
                    interrupts += 1
                    budget.left = 0
            except KeyboardInterrupt:
                interrupts += 1
            budget.left = 0
            signal.setitimer(signal.ITIMER_REAL, 0)
            leaks += ledger.lock.held
        stop.set()
        thread.join()
        send(ledger, b"after")
        say(interrupts, leaks, len(others))
        for start in range(0, len(returned), 1000):
            say(*returned[start : start + 1000])
    say("end")


@pytest.mark.parametrize("interrupts", [1_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_an_interrupt_storm_over_appends(tmp_path: Path, interrupts: int):
    """Every append that returned is there once and in order, nothing is torn, and no lock is left held."""
    with LedgerSite(tmp_path) as site:
        beside = site.open()
        sent = 0
        with Child(interrupted_appends, tmp_path, interrupts) as child:
            first: list[str] = []

            def listen() -> None:
                first.append(child.read())

            listener = threading.Thread(target=listen)
            listener.start()
            while listener.is_alive():
                send(beside, b"beside %d" % sent)
                sent += 1
                listener.join(0.002)
            hits, leaks, others = map(int, first[0].split())
            returned = []
            while (line := child.read()) != "end":
                returned += map(int, line.split())
            assert child.join() == 0
        assert hits >= interrupts
        assert leaks == 0
        found: dict[bytes, list[int]] = {b"main": [], b"thread": [], b"beside": []}
        messages = values(beside)
        messages.remove(b"after")
        for value in messages:
            who, number = value.split()
            found[who].append(int(number))
        assert found[b"beside"] == list(range(sent))
        assert found[b"main"] == sorted(set(found[b"main"]))
        assert set(returned) <= set(found[b"main"])
        assert found[b"thread"] == list(range(others))
        assert check_topic(beside.directory).is_clean


def interrupted_writer(root: str) -> None:
    """Append until SIGINT, then say what happened."""
    with LedgerSite(root) as site:
        ledger = site.open()
        try:
            say("ready")
            while True:
                send(ledger, b"x" * 100)
        except KeyboardInterrupt:
            say("interrupted", ledger.lock.held)
        try:
            send(ledger, b"last")
            say("sent")
        except PulsarException as e:
            say(e)


def test_ctrl_c_leaves_a_log_that_works(tmp_path: Path):
    """A real SIGINT: the process goes on, and so do others."""
    with LedgerSite(tmp_path) as site:
        ledger = site.open()
        with Child(interrupted_writer, tmp_path) as child:
            assert child.read() == "ready"
            os.kill(child.process.pid, signal.SIGINT)
            assert child.read() == "interrupted False"
            assert child.read() == "sent"
            assert child.join() == 0
        send(ledger, b"here")
        assert values(ledger)[-2:] == [b"last", b"here"]
