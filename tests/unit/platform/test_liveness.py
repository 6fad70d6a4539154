"""Who lives: by a byte that is locked for life, and by a file in ``clients/`` that may be removed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar._engine.platform import doorbell
from embeddedpulsar._engine.platform import lease as module
from embeddedpulsar._engine.platform.doorbell import FifoDoorbell, PollingDoorbell
from embeddedpulsar._engine.platform.lease import Liveness, has_any
from tests.children import ForkedChild, in_child

Make = Callable[[], Any]
needs_bytes = pytest.mark.skipif(not module._ARE_THERE, reason="open-file-description locks are Linux's")


@pytest.fixture
def roll(tmp_path: Path) -> str:
    """A file to lock bytes of; beside it the directory of the leases."""
    (tmp_path / "clients").mkdir()
    (tmp_path / "store.ctl").write_bytes(bytes(100))
    return str(tmp_path / "store.ctl")


@pytest.fixture(params=[FifoDoorbell, PollingDoorbell])
def make(request: pytest.FixtureRequest, tmp_path: Path, roll: str) -> Iterator[Make]:
    """Doorbells of either kind, as if each were a process's; closed at the end."""
    made = []

    def one() -> Any:
        directory = str(tmp_path / "clients")
        made.append(request.param.create(directory, Liveness(directory, roll)))
        return made[-1]

    yield one
    for bell in made:
        bell.close()


@needs_bytes
def test_a_byte_is_held_until_its_process_gives_it_up(tmp_path: Path, roll: str):
    """One does not stand for another, and the file does not grow."""
    uuid, another = os.urandom(16), os.urandom(16)
    here, there = Liveness(str(tmp_path / "clients"), roll), Liveness(str(tmp_path / "clients"), roll)
    assert not has_any(roll)
    here.hold(uuid)
    assert there.is_alive(uuid) and not there.is_alive(another) and has_any(roll)
    here.close()
    here.close()
    assert not there.is_alive(uuid) and not has_any(roll)
    there.close()
    assert os.path.getsize(roll) == 100


@needs_bytes
def test_the_byte_of_a_killed_process_is_free(tmp_path: Path, roll: str):
    """The kernel sees to it."""
    uuid, kept = os.urandom(16), []

    def hold() -> None:
        kept.append(Liveness(str(tmp_path), roll))
        kept[0].hold(uuid)

    child = ForkedChild(hold)
    child.ready()
    asking = Liveness(str(tmp_path), roll)
    assert asking.is_alive(uuid)
    child.end()
    assert not asking.is_alive(uuid)
    asking.close()


@needs_bytes
def test_a_forked_child_leaves_the_byte_to_its_parent(tmp_path: Path, roll: str):
    """Closing its copy frees nothing."""
    uuid = os.urandom(16)
    here, there = Liveness(str(tmp_path), roll), Liveness(str(tmp_path), roll)
    here.hold(uuid)
    in_child(here.close)
    assert there.is_alive(uuid)
    here.close()
    there.close()


@needs_bytes
def test_the_byte_is_given_up_before_the_doorbell(tmp_path: Path, roll: str):
    """Linux closes the descriptors of a process that dies from the highest on."""
    directory = str(tmp_path / "clients")
    bell, asking = FifoDoorbell.create(directory, Liveness(directory, roll)), Liveness(directory, roll)
    assert bell.liveness._fd > bell._reader
    assert asking.is_alive(bell.uuid)
    bell.close()
    asking.close()


@needs_bytes
def test_a_lease_that_was_found_free_is_not_opened_again(make: Make, roll: str, monkeypatch):
    """Unless another file has its name: then that one is tried."""
    bell, other = make(), make()
    if not isinstance(bell, FifoDoorbell):
        return
    freed = os.open(bell.path, os.O_WRONLY | os.O_NONBLOCK)
    other.liveness.hold(other.uuid)
    bell.liveness.close()  # the byte is free, and the file is held
    os.unlink(bell.path)
    assert bell.mend()
    assert other.liveness.is_alive(bell.uuid, freed)
    os.close(freed)
    freed = os.open(bell.path, os.O_WRONLY | os.O_NONBLOCK)
    monkeypatch.setattr(module, "is_held", lambda path: pytest.fail("opened"))
    assert not other.liveness.is_alive(bell.uuid, freed)
    assert not other.liveness.is_alive(bell.uuid)
    os.close(freed)


def test_without_such_locks_the_lease_decides(tmp_path: Path, roll: str, monkeypatch):
    """Elsewhere than on Linux."""
    monkeypatch.setattr(module, "_ARE_THERE", False)
    directory = str(tmp_path / "clients")
    bell = FifoDoorbell.create(directory, Liveness(directory, roll))
    asking = Liveness(directory, roll)
    assert asking.is_alive(bell.uuid) and not has_any(roll)
    bell.close()
    assert not asking.is_alive(bell.uuid)


def test_a_doorbell_that_is_there_is_left_alone(make: Make):
    """Nothing is made again without need."""
    bell = make()
    before = os.stat(bell.path)
    assert bell.mend() is False
    assert os.stat(bell.path).st_ino == before.st_ino


@needs_bytes
@pytest.mark.parametrize("what", ["its name", "the directory"])
def test_a_doorbell_is_made_again(make: Make, what: str, tmp_path: Path):
    """Under the same name, and it rings; it lives for others at any moment, and dies when it is closed."""
    bell, other = make(), make()
    assert other.watch(bell.uuid)
    os.unlink(bell.path)
    if what == "the directory":
        os.unlink(other.path)
        os.rmdir(tmp_path / "clients")
    assert other.liveness.is_alive(bell.uuid)
    assert bell.mend()
    assert os.listdir(tmp_path / "clients").count(bell.uuid.hex()) == 1
    assert not other.wait(0.06) and not other.dead
    assert other.liveness.is_alive(bell.uuid)
    bell.wait(0)
    bell.ring()
    assert bell.wait(0)
    bell.close()
    assert not other.liveness.is_alive(bell.uuid)
    assert other.wait(1) and list(other.dead) == [bell.uuid]


@pytest.mark.parametrize("nth", [1, 2])
def test_a_doorbell_whose_mending_is_interrupted_is_made_again(
    roll: str, nth: int, monkeypatch: pytest.MonkeyPatch
):
    """With ends of two FIFOs it does not fail; the next look makes it whole, and waits for the new one."""
    directory = os.path.join(os.path.dirname(roll), "clients")
    bell = FifoDoorbell.create(directory, Liveness(directory, roll))
    dup2, calls = os.dup2, []

    def interrupted(*arguments: Any, **options: Any) -> int:
        calls.append(arguments)
        if len(calls) == nth:
            raise KeyboardInterrupt
        return dup2(*arguments, **options)

    os.unlink(bell.path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "dup2", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bell.mend()
    bell.ring()
    assert bell.mend() and not bell.mend()
    bell.ring()
    assert bell.wait(0)
    with open(bell.path, "wb", buffering=0) as stranger:
        stranger.write(b"1")
        assert bell.wait(0)
    bell.close()
    assert os.listdir(directory) == []


@needs_bytes
def test_one_without_a_doorbell_is_watched_all_the_same(make: Make):
    """Its death is found when somebody looks."""
    bell, other = make(), make()
    os.unlink(bell.path)
    assert other.watch(bell.uuid) and other.watch(bell.uuid)
    assert not other.wait(0) and not other.mend()
    bell.close()
    assert (other.wait(0.1) or other.mend()) and list(other.dead) == [bell.uuid]


def test_nothing_is_made_in_another_store(make: Make, tmp_path: Path):
    """The directory of the store was removed, and another one is there now."""
    bell = make()
    root = tmp_path.rename(tmp_path.with_name(tmp_path.name + "-gone"))
    try:
        assert not bell.mend()
        (tmp_path / "clients").mkdir(parents=True)
        assert not bell.mend()
        assert os.listdir(tmp_path / "clients") == []
        os.rmdir(tmp_path / "clients")
        os.rmdir(tmp_path)
    finally:
        root.rename(tmp_path)


@needs_bytes
def test_a_process_that_closes_its_doorbell_first_is_dead_as_soon_as_its_byte_is_free(
    tmp_path: Path, roll: str, monkeypatch
):
    """The kernel closes the descriptors of a killed process one after the other: it is looked at again
    after a fraction of a millisecond."""
    directory = str(tmp_path / "clients")
    watcher, other = (FifoDoorbell.create(directory, Liveness(directory, roll)) for _ in range(2))
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            other.liveness.close()

    assert watcher.watch(other.uuid)
    monkeypatch.setattr(doorbell.system, "sleep", sleep)
    for end in (other._reader, other._writer):
        os.close(end)
    other._reader = other._writer = -1
    assert watcher.wait(1.0) and list(watcher.dead) == [other.uuid]
    assert len(slept) == 2 and max(slept) < 1e-3
    other.close()
    watcher.close()
