"""A supervisor without processes: what it starts, and what does not end it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Admin
from embeddedpulsar.exceptions import CorruptionError, LockTimeout, NotAllowedError
from embeddedpulsar.functions import FunctionConfig, Supervisor, function_calls, supervisor
from embeddedpulsar.functions.io import Definition
from embeddedpulsar.testing import assert_clean


class FakeProcess:
    """A worker that runs until it is asked to end."""

    pid = 1

    def __init__(self, arguments: list[str]) -> None:
        self._status: int | None = None

    def status(self) -> int | None:
        """As `ChildProcess.status`."""
        return self._status

    def terminate(self) -> None:
        """End."""
        self._status = 0

    def wait(self, timeout_s: float) -> bool:
        """As `ChildProcess.wait`."""
        return True


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """The directory of a store that is whole at the end."""
    yield tmp_path / "store"
    assert_clean(tmp_path / "store")


def supervised(root: Path, functions: list[str] | None = None) -> Supervisor:
    """A supervisor that starts no process."""
    start: Any = FakeProcess
    return Supervisor(root, functions, _start=start)


def test_it_follows_what_is_created_and_deleted(root: Path):
    """Also a function that is deleted while it is supervised, and created again."""
    running = {"public/default/dumps": {0: 1}}
    with Admin(root) as admin, supervised(root) as one:
        for _ in range(2):
            admin.functions().create_function(FunctionConfig("json.dumps", inputs=["in"]))
            one.look()
            assert one.workers() == running
            admin.functions().delete_function("public", "default", "dumps")
            one.look()
            assert one.workers() == {}


def test_one_supervisor_runs_a_function(root: Path):
    """Another one takes over when the first is gone; one for other functions leaves it alone."""
    with Admin(root) as admin:
        admin.functions().create_function(FunctionConfig("json.dumps", inputs=["in"]))
        first, second, other = supervised(root), supervised(root), supervised(root, ["a/b/c"])
        for one in (first, second, other):
            one.look()
        assert [len(one.workers()) for one in (first, second, other)] == [1, 0, 0]
        first.close()
        second.look()
        assert len(second.workers()) == 1
        second.close()
        other.close()


def test_a_look_that_fails_is_repeated(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """It is logged, and the supervisor goes on."""
    monkeypatch.setattr(supervisor, "_LOOK_S", 0.0)
    looks: list[int] = []
    one = supervised(root)

    def look() -> None:
        looks.append(1)
        if len(looks) == 1:
            raise LockTimeout("busy")
        one.stop()

    monkeypatch.setattr(one, "look", look)
    with caplog.at_level(logging.ERROR):
        one.run()
    assert len(looks) == 2
    assert "are looked at again" in caplog.text


def test_a_function_that_another_supervisor_took_over_has_one_group_of_workers(root: Path):
    """This one was stopped for so long that it was taken for dead."""
    with Admin(root) as admin, supervised(root) as first, supervised(root) as second:
        admin.functions().create_function(FunctionConfig("json.dumps", inputs=["in"]))
        first.look()
        first._presences["public/default/dumps"].close()
        second.look()
        first.look()
        assert [len(one.workers()) for one in (first, second)] == [0, 1]


def test_a_function_whose_worker_cannot_be_started(root: Path, caplog: pytest.LogCaptureFixture):
    """It is logged; the functions behind it are started."""

    def start(arguments: list[str]) -> FakeProcess:
        if "failing" in arguments[0]:
            raise BlockingIOError("no process is left")
        return FakeProcess(arguments)

    start_any: Any = start
    with Admin(root) as admin, Supervisor(root, _start=start_any) as one:
        for name in ("failing", "works"):
            admin.functions().create_function(FunctionConfig("json.dumps", name, inputs=["in"]))
        with caplog.at_level(logging.ERROR):
            one.look()
        assert one.workers() == {"public/default/failing": {}, "public/default/works": {0: 1}}
    assert "public/default/failing is looked at again" in caplog.text


def test_a_definition_that_cannot_be_read(
    root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """One of a later release, with a field that this one does not know: it is logged once, and what runs of
    it goes on. The other functions are listed, run and deleted. The error names it."""
    form_of = function_calls.definition_form

    def later(definition: Definition) -> dict[str, Any]:
        form = form_of(definition)
        return form | {"config": form["config"] | {"newField": 1}}

    with Admin(root) as admin, supervised(root) as one:
        functions = admin.functions()
        for name in ("known", "later"):
            functions.create_function(FunctionConfig("json.dumps", name, inputs=["in"]))
        one.look()
        monkeypatch.setattr(function_calls, "definition_form", later)
        functions.restart_function("public", "default", "later")
        functions.create_function(FunctionConfig("json.dumps", "unread", inputs=["in"]))
        monkeypatch.undo()
        with caplog.at_level(logging.ERROR):
            one.look()
            one.look()
        assert one.workers() == {"public/default/known": {0: 1}, "public/default/later": {0: 1}}
        assert caplog.text.count("public/default/unread") == caplog.text.count("public/default/later") == 1
        assert functions.get_functions("public", "default") == ["known", "later", "unread"]
        with pytest.raises(CorruptionError, match=r"public/default/unread.*newField.*release"):
            functions.get_function("public", "default", "unread")
        with pytest.raises(NotAllowedError, match="already"):
            functions.create_function(FunctionConfig("json.dumps", "unread", inputs=["in"]))
        functions.delete_function("public", "default", "known")
        one.look()
        assert one.workers() == {"public/default/later": {0: 1}}


def test_workers_find_a_store_in_memory_by_its_directory():
    """They are other processes, which have no store of its name."""
    started = []

    def start(arguments: list[str]) -> FakeProcess:
        started.append(arguments)
        return FakeProcess(arguments)

    start_any: Any = start
    with Admin("memory://functions") as admin, Supervisor("memory://functions", _start=start_any) as one:
        admin.functions().create_function(FunctionConfig("json.dumps", "works", inputs=["in"]))
        one.look()
        (arguments,) = started
        assert json.loads(arguments[0])["url"] == admin._store.root
