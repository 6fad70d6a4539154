"""Hooks around fork."""

from __future__ import annotations

import gc
import sys

import pytest

from embeddedpulsar._engine.platform import fork
from tests.children import in_child


class Recorder:
    """Writes down which hook ran, in a list it shares with others."""

    def __init__(self, name: str, events: list[str]) -> None:
        self.name = name
        self.events = events
        fork.register(self)

    def before_fork(self) -> None:
        self.events.append(f"before {self.name}")

    def after_fork_in_parent(self) -> None:
        self.events.append(f"parent {self.name}")

    def after_fork_in_child(self) -> None:
        self.events.append(f"child {self.name}")


def test_hooks_run_in_order():
    """Before the fork in reverse order of registration, after it in order, each side its own."""
    events: list[str] = []
    first, second = Recorder("first", events), Recorder("second", events)
    assert in_child(lambda: events) == str(["before second", "before first", "child first", "child second"])
    assert events == ["before second", "before first", "parent first", "parent second"]
    assert first.name != second.name


def test_generation_grows_in_the_child_only():
    """One comparison tells an object that an ancestor made it."""
    before = fork.GENERATION
    assert in_child(lambda: fork.GENERATION) == str(before + 1)
    assert before == fork.GENERATION


def test_grandchildren_count_on():
    """Every generation has its own number."""
    assert in_child(lambda: in_child(lambda: fork.GENERATION)) == str(fork.GENERATION + 2)


def test_registration_keeps_nothing_alive():
    """An object that is gone is not called, and leaves no entry behind."""
    events: list[str] = []
    gc.collect()
    before = len(fork._registered)
    recorder = Recorder("gone", events)
    assert len(fork._registered) == before + 1
    del recorder
    gc.collect()
    assert len(fork._registered) == before
    assert in_child(lambda: events) == "[]"


def test_no_python_code_runs_when_an_object_goes():
    """The interpreter prints what a callback of a weak reference raises: Ctrl-C in it would be lost."""
    recorder = [Recorder("gone", [])]
    before, calls = len(fork._registered), []
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        recorder.clear()
    finally:
        sys.setprofile(None)
    assert (calls, len(fork._registered)) == ([], before - 1)


def test_equal_objects_and_such_without_a_hash():
    """Each is registered for itself."""

    class Equal(Recorder):
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            return True

    events: list[str] = []
    made = [Equal("a", events), Equal("b", events)]
    assert in_child(lambda: events) == str(["before b", "before a", "child a", "child b"])
    assert [one.name for one in made] == ["a", "b"]


def test_hooks_are_optional():
    """An object with only one of the hooks may register."""

    class Child:
        ran = False

        def after_fork_in_child(self) -> None:
            self.ran = True

    child = Child()
    fork.register(child)
    assert in_child(lambda: child.ran) == "True"
    assert not child.ran


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_failing_hook_does_not_stop_the_others():
    """Every object leaves the parent's things alone, even when one of them fails to."""
    events: list[str] = []

    class Failing:
        def after_fork_in_child(self) -> None:
            raise RuntimeError("planned")

    failing = Failing()
    fork.register(failing)
    after = Recorder("after", events)
    assert in_child(lambda: events) == str(["before after", "child after"])
    assert after.events
