"""Workers in a call that does not return: shown, and ended with their supervisor, however it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Admin, Client, InitialPosition
from embeddedpulsar._engine.platform.timing import perf_counter, sleep
from embeddedpulsar.functions import FunctionConfig
from embeddedpulsar.functions.state import FunctionStatus
from embeddedpulsar.testing import assert_clean

CODE = """
import os, time
class Job:
    def process(self, input, context):
        while input == "hang" and not os.path.exists("cured"):
            time.sleep(0.05)
        return input.upper()
"""
PLACE = "public", "default", "Job"


class Site:
    """A store with a function that hangs until it is cured, and the supervisors of it."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder, self.root = folder, folder / "store"
        file = folder / "job.py"
        file.write_text(CODE)
        self.client = Client(self.root)
        self.admin = Admin(self.root)
        config = FunctionConfig("job.Job", py=str(file), inputs=["in"], output="out", **options)
        self.admin.functions().create_function(config)
        self.out = self.client.subscribe("out", "test", initial_position=InitialPosition.Earliest)
        self.producer = self.client.create_producer("in")
        self.supervisors: list[subprocess.Popen[bytes]] = []
        self.workers: set[int] = set()

    def supervise(self, *options: str) -> subprocess.Popen[bytes]:
        """Start ``embeddedpulsar functions run``."""
        command = [
            sys.executable,
            "-m",
            "embeddedpulsar",
            "--store",
            str(self.root),
            "functions",
            "run",
            *options,
        ]
        self.supervisors.append(subprocess.Popen(command, cwd=self.folder, preexec_fn=_hear_hangups))
        return self.supervisors[-1]

    def status(self) -> FunctionStatus:
        """The status of the function. Its worker is noted."""
        status = self.admin.functions().get_function_status(*PLACE)
        self.workers.update(int(one.worker_id) for one in status.instances if one.worker_id)
        return status

    def hang(self) -> None:
        """Wait until the function runs, and send a message for which it hangs, and others behind it."""
        self.wait_until(lambda: self.status().num_running)
        for text in (b"a", b"hang", b"b"):
            self.producer.send(text)
        assert self.out.receive(30_000).data() == b"A"

    def hung_worker(self) -> int:
        """Return the id of the worker when the status shows its call."""
        in_calls: list[int] = []

        def shows_call() -> bool:
            instance = self.status().instances[0]
            if instance.call_since:
                in_calls.append(int(instance.worker_id))
            return bool(in_calls)

        self.wait_until(shows_call)
        return in_calls[0]

    def wait_until(self, is_so: Callable[[], object], timeout_s: float = 60.0) -> None:
        """Wait until something is so."""
        end_s = perf_counter() + timeout_s
        while not is_so():
            assert perf_counter() < end_s
            sleep(0.05)

    def close(self) -> None:
        """End what runs: supervisors end their workers, also one that was started a moment ago and that no
        status shows. What a test that failed left behind is killed."""
        for one in self.supervisors:
            one.terminate()
        for one in self.supervisors:
            try:
                one.wait(15.0)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()
        for pid in filter(is_there, self.workers):
            os.kill(pid, signal.SIGKILL)
        self.wait_until(lambda: not any(map(is_there, self.workers)))
        self.client.close()
        self.admin.close()
        Client(self.root).close()  # removes the leases of those that were killed
        assert_clean(self.root)


def _hear_hangups() -> None:
    """Undo what ``nohup`` did to the program that runs the tests."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def is_there(pid: int) -> bool:
    """Whether a worker of these tests lives, or still has its locks.

    Each thread of a process that dies gives up the memory, with the command line, and then the files, with
    the lock of the lease. The first thread is a zombie behind that, but others may not have come so far.
    """
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    state, threads = fields[0], int(fields[17])
    has_ended = state in (b"Z", b"X") and threads <= 1
    return not has_ended and (not command or b"functions.worker" in command)


LIMITED = "with a time limit"
SCENARIOS: dict[str, tuple[list[str], dict[str, int]]] = {
    signal.SIGTERM.name: (["--grace", "0.5"], {}),
    signal.SIGHUP.name: (["--grace", "0.5"], {}),
    signal.SIGINT.name: (["--grace", "0.5"], {}),
    "killed": (["--grace", "0.5"], {}),
    "killed while its worker is stopped": (["--grace", "0.5"], {}),
    "interrupted twice": (["--grace", "600"], {}),
    LIMITED: ([], {"call_timeout_ms": 1500, "receiver_queue_size": 1}),
}
"""What each test has: the options of its supervisor, and of its function."""


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Site]]:
    """A store for each test, with a worker that hangs. They start at the same time, because they mostly wait:
    for the imports of two programs, and until a call is a long one."""
    made: dict[str, Site] = {}
    try:
        for name, (options, settings) in SCENARIOS.items():
            made[name] = Site(tmp_path_factory.mktemp("site"), **settings)
            made[name].supervise(*options)
        for name, site in made.items():
            if name != LIMITED:  # its worker would be started again and again until its test comes
                site.hang()
        yield made
    finally:
        with contextlib.ExitStack() as stack:
            for site in made.values():
                stack.callback(site.close)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_supervisor_that_is_asked_to_end(sites: dict[str, Site], number: signal.Signals):
    """It kills the worker after the grace; the next worker gets what that held. The status shows the call."""
    site = sites[number.name]
    worker = site.hung_worker()
    (instance,) = site.status().instances
    assert instance.running
    assert instance.call_message_id.endswith(",1,-1,-1)")
    assert site.admin.functions().get_function_stats(*PLACE).instances[0].call_since == instance.call_since
    site.supervisors[0].send_signal(number)
    site.supervisors[0].wait(30)
    assert not is_there(worker)
    status = site.status()
    assert (status.num_running, status.instances[0].call_since) == (0, 0)
    (site.folder / "cured").touch()
    if number == signal.SIGTERM:
        site.supervise()
        assert {site.out.receive(30_000).data() for _ in range(2)} == {b"HANG", b"B"}
        site.wait_until(lambda: not site.status().instances[0].call_since)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_supervisor_that_is_killed(sites: dict[str, Site], is_stopped: bool):
    """The worker notices by itself, and ends after the grace; one that is stopped is resumed for that."""
    site = sites["killed while its worker is stopped" if is_stopped else "killed"]
    worker = site.hung_worker()
    if is_stopped:
        os.kill(worker, signal.SIGSTOP)
    site.supervisors[0].kill()
    site.supervisors[0].wait()
    site.wait_until(lambda: not is_there(worker), 10.0)


def test_a_second_interrupt(sites: dict[str, Site]):
    """It kills the worker at once, whatever the grace."""
    site = sites["interrupted twice"]
    worker = site.hung_worker()
    site.supervisors[0].send_signal(signal.SIGINT)
    sleep(1.0)
    assert is_there(worker)
    site.supervisors[0].send_signal(signal.SIGINT)
    site.supervisors[0].wait(30)
    assert not is_there(worker)


def test_a_call_with_a_time_limit(sites: dict[str, Site]):
    """The worker is started again, and the message is processed by the next; what it had not fetched, too."""
    site = sites[LIMITED]
    site.hang()
    worker = site.hung_worker()
    site.wait_until(lambda: not is_there(worker))
    (site.folder / "cured").touch()
    assert {site.out.receive(30_000).data() for _ in range(2)} == {b"HANG", b"B"}
