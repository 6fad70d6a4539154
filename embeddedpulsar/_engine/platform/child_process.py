"""Programs that this process starts, watches and ends."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence

from embeddedpulsar._engine.platform import threads
from embeddedpulsar._engine.platform.threads import system
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Final

_WATCHED: Final = "EMBEDDEDPULSAR_PARENT_PIPE"
"""The variable with the descriptor of a pipe of which the process that started a program has the other
end."""
_LOOK_MS: Final = 500
_PR_SET_PDEATHSIG: Final = 1


class ChildProcess:
    """A program that was started by this process. Its output is that of this process.

    A program that calls `termination` ends when this process is gone, however that ended.

    Args:
        arguments: the command.
        environment: variables that it has besides those of this process.
        input: what it reads from its standard input.

    Example:
        >>> import sys
        >>> child = ChildProcess([sys.executable, "-c", "raise SystemExit(3)"])
        >>> child.wait(60.0), child.status()
        (True, 3)
    """

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str] | None = None, input: bytes = b""
    ) -> None:
        self._owner: Final = os.getpid()
        # The child polls the read end, which becomes readable when the last write end is closed. Only this
        # process has one, and forks of it: on exec all descriptors but those in ``pass_fds`` are closed.
        watched, self._kept = os.pipe()  # the system closes the kept end when this process ends
        try:
            with (
                tempfile.TemporaryFile() as file
            ):  # unlike a pipe, it takes all of it whether it is read or not
                file.write(input)
                file.seek(0)
                self._process: Final[subprocess.Popen[bytes]] = subprocess.Popen(
                    list(arguments),
                    stdin=file,
                    env={**os.environ, **(environment or {}), _WATCHED: str(watched)},
                    pass_fds=(watched,),
                )
        # Nothing polls the pipe then. The read end is closed in either case: the child has a copy of
        # its own.
        except BaseException:
            self._let_go()
            raise
        finally:
            os.close(watched)

    @property
    def pid(self) -> int:
        """Its id."""
        return self._process.pid

    def status(self) -> int | None:
        """Its exit status, or the number of the signal that ended it as a negative number; None while it
        runs."""
        status = self._process.poll()
        if status is not None:
            self._let_go()
        return status

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end. False if it still runs."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        self._let_go()
        return True

    def _let_go(self) -> None:
        """Close the end of the pipe; not in a forked child, where the number may be that of another file."""
        kept, self._kept = self._kept, -1
        if kept >= 0 and os.getpid() == self._owner:
            os.close(kept)

    def terminate(self) -> None:
        """Ask it to end."""
        self._process.terminate()

    def kill(self) -> None:
        """End it."""
        self._process.kill()


def termination(grace_s: float, parent: int) -> threads.Event:
    """An event that is set when this process is asked to end, or the process ``parent``, which started it, is
    gone.

    If this process still runs ``grace_s`` later, because its main thread is in a call that does not return,
    it writes where its threads are to the standard error, and ends as if killed. So what it holds goes to
    others. Ctrl-C is left to the process that started it.

    For a program of its own, in its main thread. Code that never gives up the interpreter lock delays this
    until it does. Linux resumes a process that is stopped (SIGSTOP) when its parent dies, so that it ends.
    """
    # SIGINT goes to the whole group of a terminal. The parent decides what Ctrl-C means, and asks
    # with SIGTERM.
    event = threads.Event()
    signal.signal(signal.SIGTERM, lambda *_: event.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Bound here: code that the program loads may replace what the modules have.
    poller, getppid, wait = system.poll(), os.getppid, threads.sleep
    watched = int(os.environ.pop(_WATCHED, "-1"))
    if watched >= 0:
        os.set_inheritable(watched, False)
        poller.register(watched, select.POLLIN)
    _have_death_of_parent_resume()

    def watch() -> None:
        # Without the pipe, and where a fork of the parent has its end, too, the id tells that the parent is
        # gone.
        while getppid() == parent and not event.is_set():
            if poller.poll(_LOOK_MS):
                break
        event.set()
        wait(grace_s)
        end_now(f"the process did not end within {grace_s:g} s")

    threads.start_daemon(watch, "parent-watch")
    return event


def _have_death_of_parent_resume() -> None:
    """Have the system send SIGCONT to this process when its parent dies, where it can (Linux).

    A stopped process runs no code that could see the end of the pipe. SIGKILL in place of SIGCONT would give
    a healthy call no grace; and the signal is sent at the end of the *thread* that started this process, too,
    at which SIGCONT does no harm.
    """
    if sys.platform == "linux":
        with contextlib.suppress(ImportError, AttributeError):  # a Python without ctypes, or without prctl
            import ctypes

            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0)


@contextlib.contextmanager
def on_termination(stop: Callable[[], object]) -> Iterator[None]:
    """Call ``stop`` when this process is asked to end: at SIGTERM, and at SIGHUP unless that is ignored. For
    the main thread."""
    before = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, lambda *_: stop())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_now(reason: str) -> None:
    """End this process as a kill does, after writing to its standard error why, and where its threads are."""
    try:
        # SIGKILL rather than ``sys.exit``: the main thread does not return, so no handler and no
        # finalizer would run. The kernel frees the locks.
        sys.stderr.write(f"{reason}; its threads were here:\n")
        sys.stderr.flush()
        faulthandler.dump_traceback(sys.stderr)
    finally:
        os.kill(os.getpid(), signal.SIGKILL)
