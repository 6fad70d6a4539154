"""A server of PostgreSQL for tests, where its programs and `psycopg` are installed."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import glob
import os
import shutil
import signal
import subprocess
import tempfile
from functools import cache
from itertools import count
from typing import Final

import pytest

from embeddedpulsar._engine.platform.timing import perf_counter

_USER: Final = "postgres"
_OPTIONS: Final = ("-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=40")
_LONG_S: Final = 60
_PR_SET_PDEATHSIG: Final = 1
_numbers: Final = count()


def _programs() -> str | None:
    """The directory of ``initdb`` and ``pg_ctl``."""
    found = shutil.which("initdb")
    installed = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))
    path = found or (installed[-1] if installed else None)
    return None if path is None else os.path.dirname(os.path.realpath(path))


def _end_with_parent() -> None:
    """In the child: have it end as a crash does when the tests are killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGQUIT), 0, 0, 0)


class Server:
    """A server of its own, which ends with the tests.

    Attributes:
        host: the directory of its socket.
    """

    def __init__(self, programs: str) -> None:
        self._programs: Final = programs
        self.host = tempfile.mkdtemp(prefix="pg-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        self._data: Final = f"{self.host}/data"
        # The programs refuse to run as root.
        self._as: Final = {"user": _USER} if os.getuid() == 0 else {}
        if self._as:
            shutil.chown(self.host, _USER)
        self._run("initdb", "-D", self._data, "-U", _USER, "-A", "trust", "--no-sync", "-E", "UTF8")
        self.start()
        atexit.register(self._end, os.getpid())

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [f"{self._programs}/{program}", *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=self.host,
            timeout=_LONG_S,
            **self._as,  # type: ignore[call-overload]
        )

    def start(self) -> None:
        """Start it, and wait until it answers. It ends with this process, however that ends."""
        import psycopg

        with open(f"{self.host}/log", "ab") as log:
            self._process = subprocess.Popen(
                [f"{self._programs}/postgres", "-D", self._data, *_OPTIONS, "-k", self.host],
                stdout=log,
                stderr=log,
                cwd=self.host,
                preexec_fn=_end_with_parent,
                **self._as,  # type: ignore[call-overload]
            )
        end_s = perf_counter() + _LONG_S
        while True:
            try:
                psycopg.connect(self._url(_USER)).close()
                return
            except psycopg.OperationalError:
                assert perf_counter() < end_s
            with contextlib.suppress(subprocess.TimeoutExpired):
                raise RuntimeError(f"PostgreSQL ended with the status {self._process.wait(0.02)}")

    def stop(self) -> None:
        """Stop it as a crash does: connections are cut."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(_LONG_S)

    def database(self) -> str:
        """Make an empty database, and return its URL."""
        import psycopg

        name = f"test{next(_numbers)}"
        with psycopg.connect(self._url(_USER), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self._url(name)

    def _url(self, name: str) -> str:
        return f"postgresql://{_USER}@/{name}?host={self.host}"

    def _end(self, pid: int) -> None:
        if os.getpid() == pid:  # and not a forked child
            self.stop()
            shutil.rmtree(self.host)


@cache
def server() -> Server:
    """The server of this process; the test is skipped where there is none."""
    pytest.importorskip("psycopg")
    programs = _programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    return Server(programs)
