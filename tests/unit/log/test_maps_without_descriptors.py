"""Segments beyond those that may have descriptors are mapped without any."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddedpulsar._engine.log import segments
from embeddedpulsar._engine.log.log_check import check_topic
from embeddedpulsar._engine.log.segment import Segment
from embeddedpulsar._engine.log.segments import SEGMENTS
from embeddedpulsar._engine.platform import mapped_file
from tests.ledger_site import LedgerSite, send, values

pytestmark = pytest.mark.skipif(not mapped_file.is_available(), reason="needs _ctypes and 64 bits")

TOPICS = 40
LARGE = bytes(100_000)


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[LedgerSite]]:
    """Places of many topics, in a process that has descriptors for the segments of two."""
    monkeypatch.setattr(segments, "_descriptor_budget", lambda: 2)
    SEGMENTS.drop_all()
    made = []
    for number in range(TOPICS):
        directory = tmp_path / str(number)
        directory.mkdir()
        made.append(LedgerSite(directory))
    yield made
    for site in made:
        site.close()
    monkeypatch.undo()
    SEGMENTS.allow(0)


def descriptors_of_segments(places: list[LedgerSite]) -> int:
    """How many descriptors of segments and indexes this process has open in these places."""
    names = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _exists(fd)]
    root = str(places[0].root.parent)
    return sum(name.startswith(root) and name.endswith((".log", ".idx")) for name in names)


def _exists(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


def test_each_is_mapped_once(places: list[LedgerSite], monkeypatch: pytest.MonkeyPatch):
    """However many topics are written to in turn; and messages of every size come back."""
    opened: list[int] = []
    original = Segment.open.__func__  # type: ignore[attr-defined]

    def noted(kind: type[Segment], directory: str, ledger_id: int, **options: bool) -> Segment:
        opened.append(ledger_id)
        made: Segment = original(kind, directory, ledger_id, **options)
        return made

    monkeypatch.setattr(Segment, "open", classmethod(noted))
    ledgers = [site.open(segment_size=256 << 10) for site in places]
    sent = [b"one", LARGE, b"three", *(b"%d" % number for number in range(1100)), LARGE, b"last"]
    for value in sent[:4]:
        for ledger in ledgers:
            send(ledger, value)
    assert not opened
    assert descriptors_of_segments(places) <= 6
    for value in sent[4:]:
        send(ledgers[-1], value)
    ledgers[-1].roll()
    send(ledgers[-1], b"next ledger")
    assert values(ledgers[0]) == sent[:4]
    assert values(ledgers[-1]) == [*sent, b"next ledger"]
    assert descriptors_of_segments(places) <= 6
    SEGMENTS.drop_all()
    assert values(ledgers[-1])[-1] == b"next ledger"
    send(ledgers[-1], b"mapped again")
    for site, ledger in zip(places, ledgers, strict=True):
        ledger.close()
        assert check_topic(site.directory).is_clean


def test_without_room_for_another_map(places: list[LedgerSite], monkeypatch: pytest.MonkeyPatch):
    """The maps of segments go, and it is tried once more."""
    ledgers = [site.open() for site in places[:5]]
    for ledger in ledgers:
        send(ledger, b"x")
    real = mapped_file.map_file
    refused = [True]

    def full(fd: int, size: int, writable: bool = True) -> object:
        if refused and refused.pop():
            raise OSError(12, os.strerror(12))
        return real(fd, size, writable=writable)

    monkeypatch.setattr(mapped_file, "map_file", full)
    last = places[5].open()
    send(last, b"x")
    assert len(SEGMENTS) == 1
    assert [values(ledger) for ledger in ledgers] == [[b"x"]] * 5
