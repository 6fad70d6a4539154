"""Workers of frameworks of jobs, as each framework starts them, of which one is killed: the short form of
``storms frameworks``."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddedpulsar.frameworks.job_store import JobStore
from tests.storms.framework_storm import FRAMEWORKS, FrameworkStorm


@pytest.mark.parametrize("name", sorted(FRAMEWORKS))
def test_no_task_is_lost(name: str, tmp_path: Path):
    """Every task runs, every result comes back, and the store is whole."""
    pytest.importorskip(FRAMEWORKS[name].package, reason="the extra is not installed")
    report = FrameworkStorm(name, str(tmp_path), seed=1, work_s=0.005).run(tasks=300, most_kills=1)
    assert report.is_clean, f"{report}\n{(tmp_path / f'{name}.log').read_text('utf-8')[-2000:]}"


def test_the_judge(tmp_path: Path):
    """It finds tasks that were lost, results that are wrong, and tasks that are left in a queue."""
    name = next(iter(FRAMEWORKS))
    storm = FrameworkStorm(name, str(tmp_path), seed=1, work_s=0)
    store = JobStore(tmp_path / f"{name}-store")
    for queue in FRAMEWORKS[name].queues:
        store.create_queue(queue)
        store.client.create_producer(queue).send(b"task")
    store.close()
    (tmp_path / f"{name}-effects").write_text("0\n2\n2\n", "ascii")
    storm._judge(4, "3 results", 0)
    text = "\n".join(storm.report.problems)
    for expected in (
        "2 tasks were lost: [1, 3]",
        "the client ended with status 0 and said '3 results'",
        f"{FRAMEWORKS[name].queues[0]} has 1 tasks in the end",
    ):
        assert expected in text
    assert storm.report.figures["run more than once"] == 1
