"""Processes that run a function, forked from one interpreter that has imported what they need.

A fresh interpreter takes 0.3 s to import pytest, this library and a module of tests; a fork of a warm one
takes 10 ms. The server is a process without threads that has opened no store, so what it forks is like a
fresh interpreter but for the modules that are loaded. It begins with the first child of a process and ends
with that process.

A child belongs to the process that asked for it, not to the server: the server forks twice, and the asking
process is for this moment the one that takes in orphans (`prctl(2)`, PR_SET_CHILD_SUBREAPER).
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from embeddedpulsar._engine.platform import failpoints
from tests.support import other_unix

_SERVER = """
import importlib
from tests.multiprocess import fork_server
module, function, arguments = fork_server.serve()
getattr(importlib.import_module(module), function)(*arguments)
"""
_PR_SET_CHILD_SUBREAPER = 36
_MOST_BYTES = 1 << 20
# What an interpreter and its libraries read only when they start.
_READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "LC_", "LANG")

_mutex = threading.Lock()
_servers: dict[int, _Server] = {}


class ForkedProcess:
    """A child that the server forked, with what tests use of `subprocess.Popen` with text pipes."""

    def __init__(self, pid: int, stdin: int, stdout: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin = os.fdopen(stdin, "w", buffering=1)
        self.stdout = os.fdopen(stdout)

    def poll(self) -> int | None:
        """The exit status, negative for a signal, or None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: It runs longer than so many seconds.
        """
        if self.poll() is None and timeout is not None:
            watched = other_unix.pidfd_open(self.pid)
            try:
                if not select.select([watched], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            finally:
                os.close(watched)
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """Close its input, read what it prints to the end, and wait for its end."""
        self.stdin.close()
        output = self.stdout.read()
        self.stdout.close()
        self.wait(timeout)
        return output, None

    def send_signal(self, number: int) -> None:
        """Send a signal, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class _Server:
    """The server of this process, and its end of the socket."""

    def __init__(self) -> None:
        self._socket, served = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with served:
            self._process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-c", _SERVER, str(served.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                pass_fds=[served.fileno()],
            )
        self.read_at_start = _read_at_start()
        atexit.register(self.end)

    def end(self) -> None:
        """No longer needed. A fork of this process leaves it alone."""
        self._socket.close()
        if _servers.get(os.getpid()) is self:
            self._process.wait(30)

    def fork(self, request: bytes, descriptors: Sequence[int]) -> int:
        """The process id of a child of this process that has these descriptors as its 0, 1 and 2."""
        other_unix.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(self._socket, [request], descriptors)
            answer = self._socket.recv(100)
        finally:
            other_unix.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        assert answer, "the fork server has ended"
        return int(answer)


def fork(module: str, function: str, arguments: Sequence[str]) -> ForkedProcess | None:
    """Run a function in a child, with the environment, the directory and the search path of this process.

    Returns:
        The child; None where only a fresh interpreter can have this environment.
    """
    with _mutex:
        server = _servers.get(os.getpid())
        if server is None:
            _servers.clear()  # a forked process has a server of its own
            server = _servers[os.getpid()] = _Server()
        if server.read_at_start != _read_at_start():
            return None
        request = {
            "run": [module, function, list(arguments)],
            "environment": dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path))),
            "directory": os.getcwd(),
            "path": ["", *filter(None, sys.path)],
        }
        (its_stdin, stdin), (stdout, its_stdout) = os.pipe(), os.pipe()
        try:
            pid = server.fork(json.dumps(request).encode(), [its_stdin, its_stdout, 2])
        finally:
            os.close(its_stdin)
            os.close(its_stdout)
    return ForkedProcess(pid, stdin, stdout)


def _read_at_start() -> dict[str, str]:
    """The part of the environment that a running interpreter no longer heeds."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_READ_AT_START) and name != "PYTHONPATH"
    }


def serve() -> tuple[str, str, list[str]]:
    """In the server: fork children until the process of the tests ends; in each child: what it has to run."""
    importlib.import_module("pytest")
    importlib.import_module("embeddedpulsar.asyncio")
    asked = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        data, descriptors, _, _ = socket.recv_fds(asked, _MOST_BYTES, 3)
        if not data:
            os._exit(0)
        request = json.loads(data)
        # What fails here fails again in the child, which says so.
        with contextlib.suppress(Exception):
            importlib.import_module(request["run"][0])
        gc.freeze()
        between = os.fork()
        if not between:
            between = os.getpid()
            if os.fork():
                os._exit(0)
            return _become(request, descriptors, asked, between)
        os.waitpid(between, 0)
        for descriptor in descriptors:
            os.close(descriptor)


def _become(
    request: dict[str, Any], descriptors: list[int], asked: socket.socket, between: int
) -> tuple[str, str, list[str]]:
    """In the child: be like a process that the asking one has started."""
    # The process between ends at once, and nothing tells when this one has its new parent.
    while os.getppid() == between:
        time.sleep(0.0002)
    asked.send(b"%d" % os.getpid())
    asked.close()
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    sys.path[:] = request["path"]
    sys.argv[1:] = []
    failpoints.clear()
    failpoints.configure(os.environ.get(failpoints.ENVIRONMENT, ""))
    module, function, arguments = request["run"]
    return module, function, arguments
