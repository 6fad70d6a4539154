"""Clocks and the boot id."""

from __future__ import annotations

import subprocess
import time

import pytest

from embeddedpulsar.platform import clock
from embeddedpulsar.platform.clock import ManualClock, SystemClock


def test_system_clock_follows_the_machine():
    """Wall time is in milliseconds since 1970, monotonic time is the one of the machine."""
    system = SystemClock()
    assert abs(system.wall_ms() - time.time() * 1000) < 60_000
    before = time.monotonic()
    assert before <= system.monotonic() <= time.monotonic()


def test_manual_clock_moves_only_when_told():
    """Advancing moves both clocks together."""
    manual = ManualClock(wall_ms=5, monotonic=1.0)
    assert (manual.wall_ms(), manual.monotonic()) == (5, 1.0)
    manual.advance(1.5)
    assert (manual.wall_ms(), manual.monotonic()) == (1505, 2.5)


def test_manual_clock_steps_its_wall_time_alone():
    """A step of the wall clock, back or forth, is not seen by timeouts."""
    manual = ManualClock(wall_ms=5000, monotonic=1.0)
    manual.set_wall_ms(100)
    assert (manual.wall_ms(), manual.monotonic()) == (100, 1.0)


def test_monotonic_time_cannot_go_back():
    """Asking for it is an error of the test."""
    with pytest.raises(ValueError, match="cannot go back"):
        ManualClock().advance(-1)


def test_boot_id_is_sixteen_stable_bytes():
    """The same value at every call, and in every process."""
    assert len(clock.boot_id()) == 16
    assert clock.boot_id() == clock.boot_id()


def test_boot_id_changes_with_the_boot(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """Another text of the system gives another id."""
    seen = set()
    for text in ("one", "two"):
        (tmp_path / "boot").write_text(text)
        monkeypatch.setattr(clock, "_BOOT_ID_PATH", str(tmp_path / "boot"))
        monkeypatch.setattr(clock, "_boot_id", None)
        seen.add(clock.boot_id())
    assert len(seen) == 2


def test_boot_id_is_asked_of_sysctl_where_proc_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """macOS and FreeBSD have no /proc."""
    monkeypatch.setattr(clock, "_BOOT_ID_PATH", str(tmp_path / "absent"))
    monkeypatch.setattr(clock, "_boot_id", None)
    asked = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        asked.append(command[-1])
        if command[-1] == "kern.bootsessionuuid":
            raise subprocess.CalledProcessError(1, command)
        return subprocess.CompletedProcess(command, 0, "ABC\n", "")

    monkeypatch.setattr(subprocess, "run", run)
    assert clock._boot_text() == "ABC"
    assert asked == ["kern.bootsessionuuid", "kern.boot_id"]


def test_boot_id_falls_back_to_the_hour_of_the_boot(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """Where no system call helps, the clocks give an estimate that is stable for a while."""
    monkeypatch.setattr(clock, "_BOOT_ID_PATH", str(tmp_path / "absent"))

    def run(*args: object, **options: object) -> None:
        raise FileNotFoundError("sysctl")

    monkeypatch.setattr(subprocess, "run", run)
    assert clock._boot_text().startswith("about ")
