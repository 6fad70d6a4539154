"""Time and the identity of the boot.

`Clock` is given to all code that needs time, so that tests can stop it or let it jump. Wall time stamps
messages and falls due; ages are measured on the monotonic clock. A call that sleeps measures its timeout on
`SYSTEM_CLOCK`, because sleeping takes real time under any clock.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Protocol

from embeddedpulsar._engine.platform import descriptors, threads
from embeddedpulsar._engine.platform.natives import system
from embeddedpulsar._engine.platform.scheduler import Scheduler, SchedulerLike
from embeddedpulsar.exceptions import DescriptorLimitError

_BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"
_boot_id: bytes | None = None


def sleep(seconds: float) -> None:
    """Wait so long, under any clock."""
    system.sleep(seconds)


def perf_counter() -> float:
    """Seconds on the most precise clock."""
    return float(system.perf_counter())


class ThreadLike(Protocol):
    """The part of a thread that its owner needs."""

    @property
    def is_current(self) -> bool: ...
    def start(self) -> None: ...
    def join(self, timeout: float | None = None) -> None: ...


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

    def scheduler(self, patience_s: float = 0.0) -> SchedulerLike:
        """A scheduler whose timers are due on this clock."""
        ...

    def thread(self, target: Callable[[], object], name: str) -> ThreadLike:
        """A thread for work of a timer that may have to wait."""
        ...


class SystemClock:
    """The clocks of the machine. Thread-safe, without state.

    >>> clock = SystemClock()
    >>> clock.monotonic() <= clock.monotonic()
    True
    """

    __slots__ = ()

    def wall_ms(self) -> int:
        return system.time_ns() // 1_000_000

    wall_ns = staticmethod(system.time_ns)

    monotonic = staticmethod(system.monotonic)

    def sleep(self, seconds: float) -> None:
        system.sleep(seconds)

    def scheduler(self, patience_s: float = 0.0) -> SchedulerLike:
        return Scheduler(self, patience_s)

    def thread(self, target: Callable[[], object], name: str) -> ThreadLike:
        return threads.Thread(target, name)


SYSTEM_CLOCK = SystemClock()

CLOCK: Clock = SYSTEM_CLOCK
"""The clock of the stores that are opened from now on; `embeddedpulsar.testing.ManualClock` replaces it."""


def boot_id() -> bytes:
    """Return 16 bytes that are the same for every process until the machine reboots, then different.

    A file that carries another boot id may have lost what was not flushed. Where the system gives no such id
    (neither Linux, macOS, FreeBSD nor Windows), the hour of the boot, estimated from the clocks, stands in: a
    false alarm costs a recovery scan.

    >>> len(boot_id()), boot_id() == boot_id()
    (16, True)
    """
    # Read once: it cannot change while this process lives. Two threads that read at once store the
    # same.
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
    # Every other failure means that the system has no such file, for which the next way is tried.
    except DescriptorLimitError:
        raise  # a guess would let every file of the store seem to be of another boot
    except OSError:
        return _sysctl_boot_text()


def _read_text(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read().strip()


def _sysctl_boot_text() -> str:
    import subprocess  # here and not above: 10 ms, and never needed on Linux

    # macOS has the first, FreeBSD the second.
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
    # Both clocks are read one after the other and the wall clock may be set, so only the hour of
    # their difference is used. A change of the hour looks like a reboot: recovery runs, and finds the
    # same log.
    return f"about {round((system.time() - system.monotonic()) / 3600)}"
