"""Late imports and forks keep out of each other's way."""

from __future__ import annotations

import os
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar._engine.platform.descriptors import late_imports
from tests.children import in_child

WITHIN_S = 10


def late_import(name: str) -> Any:
    """Import a module as functions of the package do."""
    with late_imports():
        return import_module(name)


@pytest.fixture
def slow_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A module that waits while it is executed: (its name, it has begun, it may end)."""
    begun, may_end = threading.Event(), threading.Event()
    monkeypatch.setattr(sys, "slow_module_gates", (begun, may_end), raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "slowly_imported.py").write_text(
        "import sys\n"
        "begun, may_end = sys.slow_module_gates\n"
        "begun.set()\n"
        f"assert may_end.wait({WITHIN_S})\n"
        "value = 7\n",
        "utf-8",
    )
    yield "slowly_imported", begun, may_end
    sys.modules.pop("slowly_imported", None)


def test_a_fork_waits_for_an_import_of_another_thread(slow_module):
    """The child finds the module whole; without the wait it would sleep on its lock for ever."""
    name, begun, may_end = slow_module
    importing = threading.Thread(target=late_import, args=(name,))
    importing.start()
    assert begun.wait(WITHIN_S)
    answers: list[str] = []
    forking = threading.Thread(target=lambda: answers.append(in_child(lambda: late_import(name).value)))
    forking.start()
    forking.join(0.05)
    assert forking.is_alive(), "it waits"
    may_end.set()
    forking.join(WITHIN_S)
    importing.join(WITHIN_S)
    assert answers == ["7"]


def test_a_module_that_is_executed_may_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A module may start a process while it is executed: its thread does not wait for itself."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "forks_at_once.py").write_text(
        "import os\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    os._exit(3)\n"
        "status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n",
        "utf-8",
    )
    assert late_import("forks_at_once").status == 3
    del sys.modules["forks_at_once"]


def test_what_is_not_there_is_said_and_blocks_nobody():
    """An import that fails gives the lock back."""
    with pytest.raises(ImportError):
        late_import("no_such_module_anywhere")
    pid = os.fork()
    if not pid:
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
