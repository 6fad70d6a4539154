"""Who gives descriptors back, and the error when there are none."""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import os
import resource
import sys

import pytest

from embeddedpulsar._engine.platform import descriptors
from embeddedpulsar._engine.platform.descriptors import Sleepers
from embeddedpulsar.exceptions import DescriptorLimitError
from tests.children import in_child


class Sleeper:
    """Counts its rests."""

    def __init__(self) -> None:
        self.rests = 0
        self.is_busy = False

    def close_descriptor(self) -> bool:
        """Counts."""
        self.rests += not self.is_busy
        return not self.is_busy


class Action:
    """Fails with the given errors, then returns its argument."""

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)

    def __call__(self, value: int = 7) -> int:
        if self.codes:
            raise OSError(self.codes.pop(0), "no")
        return value


@pytest.fixture
def shortages(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One number for each time room was made."""
    made: list[int] = []
    monkeypatch.setattr(descriptors.SLEEPERS, "make_room", lambda: made.append(1))
    return made


def test_the_longest_open_rest_first(monkeypatch: pytest.MonkeyPatch):
    """An eighth of the limit, but at least eight, may keep theirs open."""
    monkeypatch.setattr(descriptors, "limit", lambda: 80)
    sleepers, everybody = Sleepers(), [Sleeper() for _ in range(12)]
    for one in everybody:
        sleepers.opened(one)
    assert [one.rests for one in everybody] == [1, 1] + [0] * 10
    sleepers.closed(everybody[2])
    sleepers.closed(everybody[0])
    sleepers.opened(Sleeper())
    assert [one.rests for one in everybody[:4]] == [1, 1, 0, 0]
    monkeypatch.setattr(descriptors, "limit", lambda: 1)
    sleepers.opened(Sleeper())
    assert len(sleepers) == 8


def test_making_room_lets_all_rest():
    """Those that are gone are left out, and whoever offered help is called."""
    sleepers, one, gone, helped = Sleepers(), Sleeper(), Sleeper(), []
    sleepers.opened(one)
    sleepers.opened(gone)
    sleepers.on_shortage(lambda: helped.append(True))
    del gone
    gc.collect()
    sleepers.make_room()
    assert one.rests == 1 and helped == [True] and len(sleepers) == 0


def test_who_is_busy_is_asked_again(monkeypatch: pytest.MonkeyPatch):
    """A lock that is held keeps its descriptor, and gives it back when the next one needs room."""
    monkeypatch.setattr(descriptors, "limit", lambda: 1)
    sleepers, busy = Sleepers(), Sleeper()
    busy.is_busy = True
    others = [Sleeper() for _ in range(8)]
    sleepers.opened(busy)
    for one in others:
        sleepers.opened(one)
    sleepers.make_room()
    assert busy.rests == 0 and len(sleepers) == 1
    busy.is_busy = False
    sleepers.make_room()
    assert busy.rests == 1 and len(sleepers) == 0


def test_a_second_attempt(shortages: list[int]):
    """Room is made once, and only for a lack of descriptors."""
    assert descriptors.opening("cannot", Action(), 1) == 1 and not shortages
    assert descriptors.opening("cannot", Action(errno.EMFILE), 2) == 2 and len(shortages) == 1
    for codes in ((errno.EACCES,), (errno.EMFILE, errno.EACCES)):
        with pytest.raises(PermissionError):
            descriptors.opening("cannot", Action(*codes))


@pytest.mark.parametrize(("code", "remedy"), [(errno.EMFILE, "ulimit -n"), (errno.ENFILE, "fs.file-max")])
def test_the_error_names_thing_numbers_and_remedy(shortages: list[int], code: int, remedy: str):
    """It is an OSError of that number as well, and not wrapped twice by who opens several files."""
    action = Action(code, code, code, code)
    with pytest.raises(DescriptorLimitError, match=f"cannot open x: .*{remedy}") as caught:
        descriptors.opening("cannot open x", action)
    assert caught.value.errno == code
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(DescriptorLimitError, match="cannot open the store: ") as outer:
        descriptors.named("cannot open the store", descriptors.opening, "cannot open x", action)
    assert "cannot open x" not in str(outer.value)


def test_the_numbers(monkeypatch: pytest.MonkeyPatch):
    """How many are open is counted where the system lets us, and the limit is that of now."""
    open_now = len(os.listdir("/proc/self/fd")) - 1
    assert f"{open_now} file descriptors open, and may have {descriptors.limit()} at most" in str(
        descriptors.limit_error("cannot", errno.EMFILE)
    )
    monkeypatch.setattr(os, "sysconf", lambda _: -1)
    monkeypatch.setattr(os, "listdir", Action(errno.EMFILE))
    assert "that many" in str(descriptors.limit_error("cannot", errno.EMFILE))


def test_a_child_starts_empty():
    """What the parent has open is closed, or left alone, by its own hooks."""
    one = Sleeper()
    descriptors.SLEEPERS.opened(one)
    assert in_child(lambda: len(descriptors.SLEEPERS)) == "0"
    descriptors.SLEEPERS.closed(one)


def import_without_descriptors(folder: str) -> int:
    """Import a module when all descriptors are in use but one that a sleeper gives back."""
    with contextlib.suppress(ImportError):
        importlib.import_module("no_such_module_anywhere")  # the directories are searched while they can be
    most = max(map(int, os.listdir("/proc/self/fd"))) + 8  # whatever this process has open
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    taken = []
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))

    class Lender:
        def close_descriptor(self) -> bool:
            os.close(taken.pop())
            return True

    lender = Lender()
    with descriptors.late_imports():
        from embeddedpulsar import enums  # loaded before: found without a descriptor
    assert enums.ConsumerType.Shared
    refused = pytest.raises(DescriptorLimitError, match=r"cannot load a module from \S*xxlimited")
    with refused, descriptors.late_imports():
        import xxlimited  # noqa: F401 - an extension module
    with pytest.raises(ModuleNotFoundError), descriptors.late_imports():
        importlib.import_module("no_such_module_anywhere")
    sys.path.insert(0, folder)
    with pytest.raises(DescriptorLimitError, match=f"from {folder}"), descriptors.late_imports():
        importlib.import_module("imported_late")
    descriptors.SLEEPERS.opened(lender)
    with descriptors.late_imports():
        import imported_late
    value: int = imported_late.value
    return value


def test_a_late_import_makes_room(tmp_path):
    """A module is imported when no descriptors are left, if an object of this package gives one back."""
    (tmp_path / "imported_late.py").write_text("value = 7\n", "utf-8")
    assert in_child(lambda: import_without_descriptors(str(tmp_path))) == "7"
