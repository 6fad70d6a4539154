"""Failpoints in other processes, by the environment."""

from __future__ import annotations

import signal

import pytest

from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.platform.failpoints import ENVIRONMENT, EXIT_STATUS
from tests.children import run_python, start_python
from tests.support.failpoint_schedule import Schedule

HIT = """
from embeddedpulsar._engine.platform import failpoints
print("before", flush=True)
if failpoints.ACTIVE:
    failpoints.hit("step")
print("after", flush=True)
"""


def test_without_the_variable_nothing_is_active():
    """A process that is not under test pays one read per step."""
    assert run_python(HIT).split() == ["before", "after"]
    assert not failpoints.ACTIVE


@pytest.mark.parametrize(
    ("action", "status"), [("kill", -signal.SIGKILL), ("exit", EXIT_STATUS), ("raise", 1)]
)
def test_the_process_ends_at_the_step(action: str, status: int):
    """By SIGKILL, by _exit or by an exception."""
    process = start_python(HIT, env={ENVIRONMENT: f"step={action}"})
    output, _ = process.communicate(timeout=60)
    assert process.returncode == status
    assert output.split() == ["before"]


def test_the_process_stands_at_the_step_until_released(tmp_path):
    """Two processes can be led through a planned order of events."""
    schedule = Schedule(tmp_path / "schedule")
    process = start_python(HIT, env={ENVIRONMENT: f"step={schedule.action}"})
    assert schedule.wait_reached(60)
    assert process.poll() is None
    schedule.release()
    output, _ = process.communicate(timeout=60)
    assert output.split() == ["before", "after"]
    schedule.close()
