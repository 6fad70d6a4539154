"""Calls on files of a store: no symbolic link in a path is followed, whenever it is put there."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from embeddedpulsar._engine.platform import nofollow
from embeddedpulsar.exceptions import ForeignFileError, StorageError, StorageOSError

OLD = 10**18
NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


@pytest.fixture(params=["named", "unnamed"])
def naming(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kernel says where an open file lies; or it does not, as to a process that gave up its rights."""
    if request.param == "unnamed":
        monkeypatch.setattr(nofollow, "_OPEN_NAME", "/proc/self/none/")
    return str(request.param)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory outside of the store, with what calls could read, remove and change."""
    place = tmp_path / "outside"
    (place / "below").mkdir(parents=True)
    (place / "file").write_bytes(b"kept")
    (place / "other").write_bytes(b"kept, too")
    os.utime(place / "file", ns=(OLD, OLD))
    return place


def content(place: Path) -> object:
    """All that could change in a directory."""
    return sorted(
        (str(path), path.lstat().st_mode, path.lstat().st_mtime_ns, path.is_file() and path.read_bytes())
        for path in (place, *place.rglob("*"))
    )


def test_what_lies_at_a_path(tmp_path: Path, naming: str):
    """A link is itself meant, wherever it leads; what is not there, or went meanwhile, is nothing."""
    nofollow.mkfifo(f"{tmp_path}/fifo", 0o600)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "nowhere").symlink_to(tmp_path / "none")
    names = ("file", "fifo", "link", "nowhere", "none")
    assert {name: nofollow.kind_of(f"{tmp_path}/{name}") for name in names} == {
        "file": nofollow.FILE,
        "fifo": nofollow.FIFO,
        "link": nofollow.LINK,
        "nowhere": nofollow.LINK,
        "none": nofollow.NOTHING,
    }
    assert nofollow.kind_of(str(tmp_path)) == nofollow.DIRECTORY
    with pytest.raises(StorageOSError, match="symbolic link"):  # a part above is none that is followed
        nofollow.kind_of(f"{tmp_path}/link/file")


CALLS: dict[str, Callable[[str], object]] = {
    "open": lambda at: nofollow.open_file(f"{at}/file", os.O_RDWR | os.O_NOFOLLOW),
    "create": lambda at: nofollow.open_file(f"{at}/new", NEW_FILE),
    "open the directory": lambda at: nofollow.open_directory(f"{at}/below"),
    "status": lambda at: nofollow.status(f"{at}/file"),
    "list": nofollow.names_in,
    "list below": lambda at: nofollow.names_in(f"{at}/below"),
    "walk": lambda at: list(nofollow.tree(at)),
    "unlink": lambda at: nofollow.unlink(f"{at}/file"),
    "rmdir": lambda at: nofollow.rmdir(f"{at}/below"),
    "mkdir": lambda at: nofollow.mkdir(f"{at}/new", 0o700),
    "mkfifo": lambda at: nofollow.mkfifo(f"{at}/new", 0o600),
    "utime": lambda at: nofollow.utime(f"{at}/file", (1, 1)),
    "link": lambda at: nofollow.link(f"{at}/file", f"{at}/new"),
    "replace": lambda at: nofollow.replace(f"{at}/file", f"{at}/other"),
    "move away": lambda at: nofollow.replace(f"{at}/file", f"{os.path.dirname(at)}/taken"),
    "move there": lambda at: nofollow.replace(f"{os.path.dirname(at)}/mine", f"{at}/file"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("where", ["last", "middle", "relative"])
def test_no_call_follows_a_link(
    tmp_path: Path, outside: Path, naming: str, call: Callable[[str], object], where: str
):
    """In place of the directory, or of one above it; absolute or relative. The error names link and
    remedy, and nothing outside is changed."""
    store = tmp_path / "store"
    store.mkdir()
    (store / "mine").write_bytes(b"of the store")
    if where == "middle":
        link, at = store / "topics", store / "topics" / "outside"
        link.symlink_to(tmp_path)
    else:
        link = at = store / "topics"
        link.symlink_to(outside if where == "last" else "../outside")
    (at.parent / "mine").write_bytes(b"of the store") if where == "middle" else None
    before = content(outside)
    with pytest.raises(StorageOSError, match=r"symbolic link to .*remove the link") as caught:
        call(str(at))
    assert (caught.value.path, caught.value.errno) == (str(link), errno.ELOOP)
    assert content(outside) == before and (store / "mine").exists()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_same_calls_without_a_link(
    tmp_path: Path, outside: Path, naming: str, call: Callable[[str], object]
):
    """They do what those of ``os`` do, and leave no descriptor."""
    (tmp_path / "mine").write_bytes(b"of the store")
    if call is CALLS["rmdir"]:
        assert not os.listdir(outside / "below")
    there = len(os.listdir("/proc/self/fd"))
    result = call(str(outside))
    if call in (CALLS["open"], CALLS["create"], CALLS["open the directory"]):
        assert isinstance(result, int)
        os.close(result)
    assert len(os.listdir("/proc/self/fd")) == there


@pytest.mark.parametrize("name", ["unlink", "utime", "status"])
def test_a_link_in_place_of_a_file_is_itself_meant(tmp_path: Path, outside: Path, naming: str, name: str):
    """It can be removed, and what it leads to stays as it is."""
    (tmp_path / "file").symlink_to(outside / "file")
    before = content(outside)
    CALLS[name](str(tmp_path))
    assert content(outside) == before
    assert (tmp_path / "file").is_symlink() == (name != "unlink")


def test_what_is_swapped_later_changes_nothing(tmp_path: Path, outside: Path, naming: str):
    """A descriptor of the directory is held: the call still goes to the one that was there."""
    store = tmp_path / "store"
    store.mkdir()
    (store / "file").write_bytes(b"of the store")
    above, name = nofollow.parent(str(store / "file"))
    store.rename(tmp_path / "aside")
    store.symlink_to(outside)
    os.unlink(name, dir_fd=above)
    os.close(above)
    assert (outside / "file").exists() and not (tmp_path / "aside" / "file").exists()


def test_a_link_swapped_in_before_each_step(tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch):
    """Whenever it comes between the calls of the system, the link is not followed."""
    for step in range(12):
        store = tmp_path / f"store{step}"
        (store / "topics").mkdir(parents=True)
        (store / "topics" / "file").write_bytes(b"of the store")
        before, left = content(outside), [step]

        def swap(store: Path = store, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == -1:
                (store / "topics").rename(store / "aside")
                (store / "topics").symlink_to(outside)

        with monkeypatch.context() as patch:
            for name in ("open", "readlink", "unlink", "stat"):
                real = getattr(os, name)

                def then(*args: object, real: Callable[..., object] = real, **more: object) -> object:
                    swap()
                    return real(*args, **more)

                patch.setattr(os, name, then)
            with contextlib.suppress(StorageOSError, FileNotFoundError):
                nofollow.unlink(str(store / "topics" / "file"))
        assert content(outside) == before


def test_errors_name_the_whole_path(tmp_path: Path, naming: str):
    """Not the last part alone, by which the call is made."""
    path = str(tmp_path / "none")
    for call in (
        nofollow.unlink,
        nofollow.status,
        nofollow.rmdir,
        nofollow.names_in,
        nofollow.open_directory,
    ):
        with pytest.raises(FileNotFoundError) as caught:
            call(path)
        assert caught.value.filename == path
    with pytest.raises(FileNotFoundError) as caught:
        nofollow.open_file(f"{path}/new", NEW_FILE)
    assert caught.value.filename == path
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError) as caught_other:
        nofollow.names_in(str(tmp_path / "file"))
    assert caught_other.value.filename == str(tmp_path / "file")


def test_a_path_that_leads_upwards_is_refused(tmp_path: Path):
    """No path of a store does; one that does was made of what a file says."""
    (tmp_path / "store").mkdir()
    (tmp_path / "secret").write_bytes(b"kept")
    with pytest.raises(StorageError, match="leads upwards"):
        nofollow.unlink(f"{tmp_path}/store/../secret")
    assert (tmp_path / "secret").exists()


def test_relative_paths(tmp_path: Path, naming: str, monkeypatch: pytest.MonkeyPatch):
    """They are those of the working directory."""
    monkeypatch.chdir(tmp_path)
    nofollow.mkdir("made", 0o700)
    os.close(nofollow.open_file("made/file", NEW_FILE))
    os.close(nofollow.open_file("./made/file", os.O_RDONLY | os.O_NOFOLLOW))
    assert nofollow.names_in("made") == ["file"] and nofollow.names_in(".") == ["made"]


@pytest.mark.linux("names of removed files")
def test_a_file_that_is_replaced_while_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As a document is by a newer one: the open file is the older one, and good."""
    path = tmp_path / "document"
    path.write_bytes(b"old")
    (tmp_path / "new").write_bytes(b"new")
    real = os.open

    def then(*args: object, **more: object) -> int:
        fd = real(*args, **more)  # type: ignore[arg-type]
        if (tmp_path / "new").exists():
            os.replace(tmp_path / "new", path)
        return fd

    monkeypatch.setattr(os, "open", then)
    fd = nofollow.open_file(str(path), os.O_RDONLY | os.O_NOFOLLOW)
    assert os.read(fd, 9) == b"old"
    os.close(fd)


def test_a_root_may_be_reached_through_links(tmp_path: Path):
    """They are followed once; one that leads nowhere is refused: its disk is not mounted, perhaps."""
    (tmp_path / "disk" / "data").mkdir(parents=True)
    (tmp_path / "data").symlink_to("disk/data")
    (tmp_path / "above").symlink_to(tmp_path / "disk")
    for path in ("data", "above/data", "disk/data"):
        assert nofollow.canonical(str(tmp_path / path)) == str(tmp_path / "disk" / "data")
    assert nofollow.canonical(str(tmp_path / "above" / "new")) == str(tmp_path / "disk" / "new")
    (tmp_path / "disk" / "data").rmdir()
    with pytest.raises(ForeignFileError, match="is not there; mount or make"):
        nofollow.canonical(str(tmp_path / "data"))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("when", ["before", "held"])
def test_no_call_of_a_series_follows_a_link(
    tmp_path: Path, outside: Path, naming: str, call: Callable[[str], object], when: str
):
    """One that is put in the place of a directory below: before the series has it open, the error names it.
    From then on calls go to the directory that was there."""
    store = tmp_path / "store"
    (store / "topics" / "below").mkdir(parents=True)
    for name in ("file", "other"):
        (store / "topics" / name).write_bytes(b"of the store")
    (store / "mine").write_bytes(b"of the store")
    before = content(outside)
    result: list[object] = []

    def series() -> None:
        if when == "held":
            nofollow.status(str(store / "topics" / "file"))
        (store / "topics").rename(store / "aside")
        (store / "topics").symlink_to(outside)
        result.append(call(str(store / "topics")))

    there = len(os.listdir("/proc/self/fd"))
    if when == "before":
        with pytest.raises(StorageOSError, match=r"symbolic link to .*remove the link") as caught:
            nofollow.within(str(store), series)
        assert caught.value.path == str(store / "topics")
    else:
        with contextlib.suppress(StorageOSError):
            nofollow.within(str(store), series)
        if call in (CALLS["open"], CALLS["create"], CALLS["open the directory"]):
            assert isinstance(result[0], int)
            os.close(result[0])
    assert content(outside) == before
    assert len(os.listdir("/proc/self/fd")) == there


def test_a_link_swapped_in_before_each_step_of_a_series(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
):
    """In the place of the first directory, or of one below."""
    for step, name in itertools.product(range(24), ("store", "store/topics")):
        root = tmp_path / f"root{step}{len(name)}"
        (root / "store" / "topics").mkdir(parents=True)
        for file in ("file", "other"):
            (root / "store" / "topics" / file).write_bytes(b"of the store")
        (outside / "topics").mkdir(exist_ok=True)
        (outside / "topics" / "file").write_bytes(b"kept")
        before, left = content(outside), [step]

        def swap(place: Path = root / name, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == -1:
                place.rename(place.parent / "aside")
                place.symlink_to(outside)

        def series(topics: Path = root / "store" / "topics") -> None:
            os.close(nofollow.open_file(str(topics / "file"), os.O_RDWR | os.O_NOFOLLOW))
            nofollow.replace(str(topics / "file"), str(topics / "other"))
            nofollow.unlink(str(topics / "other"))

        with monkeypatch.context() as patch:
            for call in ("open", "readlink", "unlink", "stat", "fstat", "replace"):
                real = getattr(os, call)

                def then(*args: object, real: Callable[..., object] = real, **more: object) -> object:
                    swap()
                    return real(*args, **more)

                patch.setattr(os, call, then)
            with contextlib.suppress(StorageOSError, FileNotFoundError):
                nofollow.within(str(root / "store"), series)
        assert content(outside) == before


def test_a_series_proves_its_directory_once(tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch):
    """However many calls, and also below. Nothing stays open, whatever ends it."""
    links, real = [0], os.readlink

    def count(path: str) -> str:
        links[0] += 1
        return real(path)

    def series() -> None:
        for _ in range(3):
            os.close(nofollow.open_file(f"{outside}/file", os.O_RDONLY | os.O_NOFOLLOW))
            os.close(nofollow.open_file(f"{outside}/below/new", NEW_FILE))
            nofollow.within(f"{outside}/below", nofollow.unlink, f"{outside}/below/new")
            assert nofollow.names_in(f"{outside}/below") == []
            with pytest.raises(FileNotFoundError) as caught:
                nofollow.status(f"{outside}/none")
            assert caught.value.filename == f"{outside}/none"
            with pytest.raises(FileExistsError) as there:
                nofollow.mkdir(f"{outside}/below", 0o700)
            assert there.value.filename == f"{outside}/below"
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "readlink", count)
    there = len(os.listdir("/proc/self/fd"))
    with pytest.raises(KeyboardInterrupt):
        nofollow.within(str(outside), series)
    assert links == [1] and len(os.listdir("/proc/self/fd")) == there
    nofollow.status(f"{outside}/file")
    assert links == [2]  # the series is over


def test_a_directory_that_is_replaced_during_a_series(tmp_path: Path, outside: Path, naming: str):
    """By another process: what is not in the one that was removed is found by its path. By the series itself:
    the new one has the name. What is in one that was moved is not there by its path."""
    below, file = outside / "below", f"{outside}/below/file"

    def series() -> None:
        assert nofollow.names_in(str(below)) == []
        below.rename(tmp_path / "gone")
        below.mkdir()
        (below / "file").write_bytes(b"new")
        assert nofollow.status(file).st_size == 3

    def renaming() -> None:
        assert nofollow.names_in(str(below)) == ["file"]
        nofollow.replace(str(below), f"{outside}/moved")
        nofollow.mkdir(str(below), 0o700)
        assert nofollow.names_in(str(below)) == []
        assert nofollow.names_in(f"{outside}/moved") == ["file"]
        nofollow.rmdir(str(below))
        with pytest.raises(FileNotFoundError):
            nofollow.names_in(str(below))

    def forgetful() -> None:
        nofollow.names_in(f"{outside}/moved")
        (outside / "moved").rename(tmp_path / "moved")
        (outside / "moved").mkdir()
        nofollow.end_series()
        assert nofollow.names_in(f"{outside}/moved") == []

    def moved() -> None:
        (outside / "kept").mkdir()
        assert nofollow.names_in(f"{outside}/moved") == []
        with pytest.raises(FileExistsError):
            nofollow.mkdir(f"{outside}/kept", 0o700)
        outside.rename(tmp_path / "outside elsewhere")
        with pytest.raises(FileNotFoundError):  # it exists where the directory is by now, but not by its path
            nofollow.mkdir(f"{outside}/kept", 0o700)

    for part in (series, renaming, forgetful, moved):
        nofollow.within(str(outside), part)


def test_a_series_whose_directory_is_not_there(tmp_path: Path, naming: str):
    """Its calls say so, or make it."""
    nofollow.within(f"{tmp_path}/new", nofollow.mkdir, f"{tmp_path}/new", 0o700)
    with pytest.raises(FileNotFoundError, match="none"):
        nofollow.within(f"{tmp_path}/none", nofollow.names_in, f"{tmp_path}/none")


def test_a_child_forked_in_a_series_touches_no_inherited_number(tmp_path: Path, outside: Path):
    """It may have closed them, and opened files of its own."""

    def series() -> int:
        nofollow.names_in(f"{outside}/below")
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        held = [int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2]
        os.closerange(3, max(held) + 1)
        own = [os.open(tmp_path, os.O_RDONLY) for _ in held]
        (tmp_path / "below").mkdir()
        os.close(nofollow.open_file(f"{outside}/below/made", NEW_FILE))
        numbers.extend(own)
        return 0

    numbers: list[int] = []
    me = os.getpid()
    code = 1
    try:
        code = nofollow.within(str(outside), series)
        if os.getpid() != me:
            for number in numbers:
                os.fstat(number)  # none of them was closed
            code = 0 if not os.listdir(tmp_path / "below") else 3
    finally:
        if os.getpid() != me:
            os._exit(code)
    assert code == 0 and (outside / "below" / "made").exists()
