"""Functions in worker processes: supervised, killed, stopped; and the short form of ``storms functions``."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Admin, Client
from embeddedpulsar._engine.platform.timing import perf_counter, sleep
from embeddedpulsar.functions import FunctionConfig, Supervisor
from embeddedpulsar.testing import assert_clean
from tests.children import run_python

STORM = """
import sys
from tests.storms import commands as storms
sys.exit(storms.main(["--quiet", "functions", *sys.argv[1:]]))
"""
CODE = """
class Shout:
    def process(self, input, context):
        context.incr_counter("all", 1)
        return input.upper()
"""
PLACE = "public", "default", "Shout"


def wait_until(is_so: Callable[[], object], supervisor: Supervisor, timeout_s: float = 60.0) -> None:
    """Look after the workers until something is so."""
    end_s = perf_counter() + timeout_s
    while not is_so():
        assert perf_counter() < end_s
        supervisor.look()
        sleep(0.02)


def test_a_supervisor_runs_functions(tmp_path: Path):
    """It starts workers of what is created, starts those again that are killed, and ends them."""
    root, file = tmp_path / "store", tmp_path / "shout.py"
    file.write_text(CODE)
    with Client(root) as client, Admin(root) as admin, Supervisor(root) as supervisor:
        out = client.subscribe("out", "test")
        config = FunctionConfig("shout.Shout", inputs=["in"], output="out")
        admin.functions().create_function(config, file)
        # Its first report comes when it has subscribed; what was sent before is not for it.
        wait_until(lambda: admin.functions().get_function_status(*PLACE).instances[0].worker_id, supervisor)
        assert admin.functions().get_function_status(*PLACE).num_running == 1
        with Supervisor(root) as second:  # it stands by
            second.look()
            assert second.workers() == {}
        client.create_producer("in").send(b"tea")
        assert out.receive(30_000).data() == b"TEA"
        (pid,) = supervisor.workers()["public/default/Shout"].values()
        assert admin.functions().get_function_status(*PLACE).instances[0].worker_id == str(pid)
        # A worker that is killed before it acknowledges leaves the message to the next, which counts it too.
        (source,) = admin.topics().get_subscriptions("in")
        stats = admin.topics().get_stats
        wait_until(lambda: not stats("in").subscriptions[source].msg_backlog, supervisor)
        os.kill(pid, signal.SIGKILL)
        client.create_producer("in").send(b"cake")
        wait_until(lambda: out.receive_nowait(), supervisor)
        assert supervisor.workers()["public/default/Shout"][0] != pid
        admin.functions().stop_function(*PLACE)
        wait_until(lambda: not supervisor.workers(), supervisor)
        status = admin.functions().get_function_status(*PLACE)
        assert (status.num_running, status.supervisor_attached, status.is_started) == (0, False, False)
        assert admin.functions().get_function_state(*PLACE, "all") == 2
        admin.functions().delete_function(*PLACE)
    assert_clean(root)


@pytest.mark.slow
def test_workers_end_with_their_supervisor(tmp_path: Path):
    """Also if it is killed; and a worker that cannot find its code says why."""
    root, file = tmp_path / "store", tmp_path / "shout.py"
    file.write_text(CODE)
    with Client(root) as client, Admin(root) as admin:
        config = FunctionConfig("shout.Shout", inputs=["in"], output="out")
        admin.functions().create_function(config, file)
        pid = os.fork()
        if pid == 0:
            os.execv(
                sys.executable,
                [sys.executable, "-m", "embeddedpulsar", "--store", str(root), "functions", "run"],
            )

        def status() -> Any:
            return admin.functions().get_function_status(*PLACE)

        end_s = perf_counter() + 60
        while not status().num_running:
            assert perf_counter() < end_s
            sleep(0.05)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        while status().num_running:
            assert perf_counter() < end_s
            sleep(0.05)
        file.unlink()
        with Supervisor(root) as supervisor:
            wait_until(lambda: "no file" in status().instances[0].error, supervisor)
        client.create_producer("in").close()
    assert_clean(root)


@pytest.mark.parametrize("kills", [3, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(1500)])])
def test_workers_that_are_killed_count_each_input_once(kills: int, tmp_path: Path):
    """Three workers with EFFECTIVELY_ONCE, killed at any moment and at each step of a commit."""
    output = run_python(STORM, "--workspace", str(tmp_path), "--kills", str(kills), timeout_s=1400)
    assert "clean" in output
