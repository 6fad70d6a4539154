"""What a test sees and changes of its process and of the boot it runs in."""

from __future__ import annotations

import os

import pytest

from embeddedpulsar._engine.platform import timing


def open_descriptors() -> int:
    """How many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))


def reboot(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the machine had been restarted: words of earlier boots are void."""
    monkeypatch.setattr(timing, "_boot_id", os.urandom(16))
