"""Interrupts at any instruction of a locked section: nothing stays locked, nobody's hold is ended."""

from __future__ import annotations

import pytest

from tests.children import run_python, start_python

PROGRAM = "from tests.multiprocess import lock_storm; lock_storm.main()"


def storm(path: str, shape: str, interrupts: int) -> tuple[int, int, int]:
    """Interrupts that hit, locks found held afterwards, sections that two were in."""
    rival = start_python(PROGRAM, path, "0", shape, "rival")
    try:
        words = run_python(PROGRAM, path, str(interrupts), shape, "storm", timeout_s=250).split()
    except BaseException:
        rival.kill()
        raise
    finally:
        rival.communicate(timeout=60)
    assert rival.returncode == 0
    hits, leaks, intrusions = map(int, words)
    return hits, leaks, intrusions


@pytest.mark.parametrize("shape", ["plain", "nested"])
@pytest.mark.parametrize("interrupts", [2_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_an_interrupt_storm_leaks_no_lock(tmp_path, shape: str, interrupts: int):
    """However many interrupts: no lock is left held, no section is entered by two."""
    hits, leaks, intrusions = storm(str(tmp_path / "lock"), shape, interrupts)
    assert hits >= interrupts
    assert (leaks, intrusions) == (0, 0)


def test_the_storm_would_find_a_leak(tmp_path):
    """A release that is a Python function is interrupted before its first line, and the storm shows it."""
    _, leaks, _ = storm(str(tmp_path / "lock"), "fragile", 2_000)
    assert leaks > 0
