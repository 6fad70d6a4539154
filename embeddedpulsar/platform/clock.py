"""Time and the identity of the boot.

`Clock` is given to all code that needs time, so that tests can stop it or let it jump. Wall time stamps
messages and falls due; every timeout and every age is measured on the monotonic clock.
"""

from __future__ import annotations

import sys
import time
from typing import Protocol

from embeddedpulsar.exceptions import DescriptorLimitError
from embeddedpulsar.platform import descriptors

_BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"
_boot_id: bytes | None = None

sleep = time.sleep
perf_counter = time.perf_counter


class Clock(Protocol):
    """The clock as the layers above use it."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970 (UTC). May step in either direction."""
        ...

    def wall_ns(self) -> int:
        """The same in nanoseconds."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back. Processes in other time namespaces have another one, so a
        time of one process means nothing to the others."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait until so much of `monotonic` has passed."""
        ...


class SystemClock:
    """The clocks of the machine. Thread-safe, without state.

    >>> clock = SystemClock()
    >>> clock.monotonic() <= clock.monotonic()
    True
    """

    __slots__ = ()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    wall_ns = staticmethod(time.time_ns)

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class ManualClock:
    """A clock that moves only when a test moves it.

    >>> clock = ManualClock(wall_ms=1_000, monotonic=5.0)
    >>> clock.advance(0.25)
    >>> clock.wall_ms(), clock.monotonic()
    (1250, 5.25)
    """

    __slots__ = ("_monotonic", "_wall_s")

    def __init__(self, wall_ms: int = 1_700_000_000_000, monotonic: float = 1_000.0) -> None:
        self._wall_s = wall_ms / 1000
        self._monotonic = monotonic

    def wall_ms(self) -> int:
        return round(self._wall_s * 1000)

    def wall_ns(self) -> int:
        return self.wall_ms() * 1_000_000

    def monotonic(self) -> float:
        return self._monotonic

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` (>= 0) pass on both clocks."""
        if seconds < 0:
            raise ValueError(f"a monotonic clock cannot go back by {-seconds} s; use set_wall_ms for a step")
        self._wall_s += seconds
        self._monotonic += seconds

    def set_wall_ms(self, wall_ms: int) -> None:
        """Step the wall clock, as an administrator or NTP would; monotonic time does not notice."""
        self._wall_s = wall_ms / 1000


SYSTEM_CLOCK = SystemClock()


def boot_id() -> bytes:
    """Return 16 bytes that are the same for every process until the machine reboots, then different.

    A file that carries another boot id may have lost what was not flushed. Where the system gives no such id
    (neither Linux, macOS, FreeBSD nor Windows), the hour of the boot, estimated from the clocks, stands in: a
    false alarm costs a recovery scan.

    >>> len(boot_id()), boot_id() == boot_id()
    (16, True)
    """
    global _boot_id
    if _boot_id is None:
        _boot_id = _sixteen_bytes(_boot_text())
    return _boot_id


def _sixteen_bytes(text: str) -> bytes:
    try:
        digits = bytes.fromhex(text.replace("-", ""))
    except ValueError:
        digits = b""
    if len(digits) == 16:  # a UUID, as on Linux and macOS
        return digits
    import hashlib  # 2 ms, and not needed there

    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _boot_text() -> str:
    if sys.platform == "win32":
        return _windows_boot_text()
    try:
        return descriptors.opening(f"cannot open {_BOOT_ID_PATH}", _read_text, _BOOT_ID_PATH)
    except DescriptorLimitError:
        raise  # a guess would let every file of the store seem to be of another boot
    except OSError:
        return _sysctl_boot_text()


def _read_text(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read().strip()


def _sysctl_boot_text() -> str:
    import subprocess  # here and not above: 10 ms, and never needed on Linux

    for name in ("kern.bootsessionuuid", "kern.boot_id"):
        try:
            answer = subprocess.run(
                ["sysctl", "-n", name], capture_output=True, check=True, text=True, timeout=10
            )
        except (OSError, subprocess.SubprocessError):
            continue
        if answer.stdout.strip():
            return answer.stdout.strip()
    return _estimated_boot_text()


def _windows_boot_text() -> str:  # pragma: no cover - Windows only
    if sys.platform == "win32":
        import winreg

        key = r"SYSTEM\CurrentControlSet\Control\Session Manager\Memory Management\PrefetchParameters"
        try:
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, key) as handle:
                return f"boot {winreg.QueryValueEx(handle, 'BootId')[0]}"
        except OSError:
            return _estimated_boot_text()
    return _estimated_boot_text()


def _estimated_boot_text() -> str:
    return f"about {round((time.time() - time.monotonic()) / 3600)}"
