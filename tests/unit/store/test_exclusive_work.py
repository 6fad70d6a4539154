"""Unit tests of embeddedpulsar._engine.store.topic_compaction: what is asked for is done once,
and its end is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddedpulsar._engine.store.topic_compaction import (
    ERROR,
    NOT_RUN,
    RUNNING,
    SUCCESS,
    ExclusiveWork,
    LongRunningProcessStatus,
    joint_status,
)
from embeddedpulsar.testing import ManualClock


@pytest.fixture
def work(tmp_path: Path) -> ExclusiveWork:
    """Its thread runs when it is started."""
    return ExclusiveWork("topic", "work", str(tmp_path / "lock"), ManualClock())


def test_a_call_joins_what_began_by_itself(work: ExclusiveWork) -> None:
    """It is done after that. A third one is refused."""
    done: list[str] = []

    def first() -> None:
        done.append("first")
        assert work.is_running() and not work.is_to_end
        assert work.begin(lambda: done.append("second"), lambda: done.append("end"), is_wanted=True)
        assert not work.begin(lambda: done.append("third"), int, is_wanted=True)

    assert work.begin(first, int, is_wanted=False)
    assert done == ["first", "second", "end"]
    assert not work.is_running() and work.progress is None


def test_an_error_ends_what_was_asked_for(work: ExclusiveWork) -> None:
    """Those that wait for the end of their work are called, and the next work is not refused."""
    ended: list[str] = []

    def fail() -> None:
        assert work.begin(int, lambda: ended.append("joined"), is_wanted=True)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work.begin(fail, lambda: ended.append("own"), is_wanted=False)
    assert ended == ["own", "joined"]
    assert work.begin(int, lambda: ended.append("next"), is_wanted=True) and ended[-1] == "next"


def test_a_thread_that_cannot_be_started(work: ExclusiveWork, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller gets the error, and may try again."""

    class Refused:
        ident = None

        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(ManualClock, "thread", lambda self, target, name: Refused())
        with pytest.raises(RuntimeError):
            work.begin(int, int, is_wanted=True)
    assert not work.is_running() and work.begin(int, int, is_wanted=True)


def test_the_status_of_partitions() -> None:
    """One that runs counts more than one that failed, and that more than one that succeeded."""
    found = [LongRunningProcessStatus(one, one) for one in (SUCCESS, NOT_RUN, ERROR, RUNNING)]
    assert [joint_status(found[:n]).last_error for n in range(1, 5)] == [SUCCESS, SUCCESS, ERROR, RUNNING]
    assert joint_status([]) == (NOT_RUN, "")
