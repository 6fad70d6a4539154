"""Workers of Celery, as its users start them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("celery", reason="the extra is not installed")

from kombu import pools

from embeddedpulsar import Admin
from embeddedpulsar.testing.trial_store import assert_clean
from tests.conftest import ROOT

_END_S = 60.0
# What Celery warns of, when it runs as root or forks beside threads of the test.
pytestmark = pytest.mark.filterwarnings("ignore")


class Site:
    """A store, and what tasks wrote."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "store"
        self.effects = folder / "effects"
        self.log = folder / "worker.log"
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "CELERY_STORE": f"embeddedpulsar://{self.store}",
            "CELERY_EFFECTS": str(self.effects),
        }

    @contextlib.contextmanager
    def worker(self, name: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        """A worker of Celery, which ends as Celery documents."""
        words = ["-m", "celery", "-A", "tests.multiprocess.celery_app", "worker", "-n", name, "-l", "INFO"]
        with open(self.log, "ab") as log:
            process = subprocess.Popen(
                [sys.executable, *words, *options],
                env=self.environment,
                cwd=ROOT,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield process
            if process.poll() is None:
                process.terminate()
                assert process.wait(_END_S) == 0, self.log.read_text("utf-8")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def lines(self, word: str) -> list[list[str]]:
        """What tasks of a name wrote."""
        if not self.effects.exists():
            return []
        lines = [line.split() for line in self.effects.read_text("ascii").splitlines()]
        return [line[1:] for line in lines if line[0] == word]

    def wait_for(self, word: str, count: int = 1) -> list[list[str]]:
        """Wait until a task of a name began so often."""
        end = time.monotonic() + _END_S
        while len(lines := self.lines(word)) < count:
            assert time.monotonic() < end, self.log.read_text("utf-8")
            time.sleep(0.005)
        return lines


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A store that is whole in the end."""
    site = Site(tmp_path)
    monkeypatch.setenv("CELERY_STORE", site.environment["CELERY_STORE"])
    yield site
    with Admin(site.store) as admin:  # who opens the store clears away what the killed ones left
        for topic in admin.topics().get_list("public/kombu-transient"):
            assert (
                admin.topics().get_subscriptions(topic) == []
            )  # it is deleted when it was unused for a minute
    assert_clean(site.store)


def test_workers_that_are_killed(site: Site):
    """What a worker of processes holds goes to another one, marked; scheduled tasks are on time; controls
    reach all workers."""
    from tests.multiprocess.celery_app import app, work

    app.conf.broker_url = site.environment["CELERY_STORE"]
    with site.worker("a@here", "-c", "2") as first:
        work.delay("hello")
        site.wait_for("hello")
        for number in range(100):
            work.delay("quick", seconds=0.0 if number % 2 else 0.001)
        site.wait_for("quick", 100)
        work.delay("long", 60.0)
        assert site.wait_for("long")[0][:2] == [str(first.pid), "False"]
        with site.worker("b@here", "-P", "solo") as second:
            due = time.time() + 1.0
            work.apply_async(["soon"], countdown=1.0)
            began = float(site.wait_for("soon")[0][2])
            assert due <= began < due + 5.0
            answers: set[str] = set()
            while answers != {"a@here", "b@here"}:
                answers = {name for reply in app.control.ping(timeout=1.0) for name in reply}
                assert time.time() < due + _END_S
            os.killpg(first.pid, signal.SIGKILL)
            killed = time.time()
            first.wait()
            parent, is_again, began_again = site.wait_for("long", 2)[1]
            assert (parent, is_again) == (str(os.getpid()), "True")
            assert float(began_again) < killed + 5.0
            second.kill()  # in the middle of it
            second.wait()
    with site.worker("c@here", "-P", "threads", "-c", "2"):
        site.wait_for("long", 3)
        assert app.control.purge() == 0
        app.control.broadcast("pool_shrink", {"n": 1})
        app.control.shutdown()
    app.pool.force_close_all()
    pools.reset()  # of producers, which are of the process
    app.close()
