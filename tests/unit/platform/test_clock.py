"""Clocks and the boot id."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from embeddedpulsar._engine.platform import timing
from embeddedpulsar._engine.platform.timing import SystemClock


def test_system_clock_follows_the_machine():
    """Wall time is in milliseconds since 1970, monotonic time is the one of the machine."""
    system = SystemClock()
    assert abs(system.wall_ms() - time.time() * 1000) < 60_000
    before = time.monotonic()
    assert before <= system.monotonic() <= time.monotonic()


def test_boot_id_is_sixteen_stable_bytes():
    """The same value at every call, and in every process."""
    assert len(timing.boot_id()) == 16
    assert timing.boot_id() == timing.boot_id()


def test_boot_id_changes_with_the_boot(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """Another text of the system gives another id."""
    seen = set()
    for text in ("one", "two"):
        (tmp_path / "boot").write_text(text)
        monkeypatch.setattr(timing, "_BOOT_ID_PATH", str(tmp_path / "boot"))
        monkeypatch.setattr(timing, "_boot_id", None)
        seen.add(timing.boot_id())
    assert len(seen) == 2


def test_boot_id_is_asked_of_sysctl_where_proc_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """macOS and FreeBSD have no /proc."""
    monkeypatch.setattr(timing, "_BOOT_ID_PATH", str(tmp_path / "absent"))
    monkeypatch.setattr(timing, "_boot_id", None)
    monkeypatch.setattr(timing, "_sysctl", timing._sysctl_program)  # of a C library without the call
    asked = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        asked.append(command[-1])
        if command[-1] == "kern.bootsessionuuid":
            raise subprocess.CalledProcessError(1, command)
        return subprocess.CompletedProcess(command, 0, "ABC\n", "")

    monkeypatch.setattr(subprocess, "run", run)
    assert timing._boot_text() == "ABC"
    assert asked == ["kern.bootsessionuuid", "kern.boot_id"]


def test_boot_id_falls_back_to_the_hour_of_the_boot(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """Where no system call helps, the clocks give an estimate that is stable for a while."""
    monkeypatch.setattr(timing, "_sysctl", timing._sysctl_program)
    monkeypatch.setattr(timing, "_BOOT_ID_PATH", str(tmp_path / "absent"))

    def run(*args: object, **options: object) -> None:
        raise FileNotFoundError("sysctl")

    monkeypatch.setattr(subprocess, "run", run)
    assert timing._boot_text().startswith("about ")


@pytest.mark.parametrize(
    ("text", "offset_ms"),
    [
        ("monotonic           0         0\nboottime            0         0\n", 0),
        ("monotonic       86400 500000000\nboottime        7 0\n", -86_400_500),
        ("monotonic          -3         0\n", 3000),
        ("something else\n", 0),
        (None, 0),
    ],
)
def test_the_offset_of_a_time_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, offset_ms: int
) -> None:
    """What the kernel adds to the clock of a process in one, in ms; where it has no such file, none."""
    path = tmp_path / "timens_offsets"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(timing, "_OFFSETS_PATH", str(path))
    assert timing.monotonic_offset_ms() == offset_ms
