"""The disk that loses power."""

from __future__ import annotations

import errno
import mmap
import os
import random
import shutil
import time
from pathlib import Path

import pytest

from embeddedpulsar._engine.platform import disk
from tests.support.disks.fake_disk import FakeDisk
from tests.support.disks.page_map import PAGE


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty directory with a fake disk around it."""
    made = tmp_path / "root"
    made.mkdir()
    return made


@pytest.fixture
def fake(root: Path) -> FakeDisk:
    """The fake disk of `root`."""
    return FakeDisk(root)


def images(fake: FakeDisk, tmp_path: Path, count: int = 60):
    """Draw images, each as a directory that is removed afterwards."""
    state = fake.capture()
    for seed in range(count):
        target = tmp_path / f"image{seed}"
        state.write_image(random.Random(seed), str(target))
        yield target
        shutil.rmtree(target)


def outcomes(fake: FakeDisk, tmp_path: Path, name: str, count: int = 60) -> set[bytes | None]:
    """The contents the file ``name`` has over many images; None where it is missing."""
    seen: set[bytes | None] = set()
    for image in images(fake, tmp_path, count):
        path = image / name
        seen.add(path.read_bytes() if path.exists() else None)
    return seen


def make(fake: FakeDisk, path: Path, data: bytes = b"", *, flush: bool = False) -> int:
    """Create a file with ``data`` and return its descriptor."""
    fd = fake.create_exclusive(str(path))
    if data:
        fake.pwrite_all(fd, [data], 0)
    if flush:
        fake.fsync(fd, str(path))
    return fd


def test_what_was_there_before_is_flushed(root: Path, tmp_path: Path):
    """A store that existed when the fake disk began is safe."""
    (root / "sub").mkdir()
    (root / "sub" / "old").write_bytes(b"old")
    assert outcomes(FakeDisk(root), tmp_path, "sub/old") == {b"old"}


def test_nothing_flushed_may_be_lost(fake: FakeDisk, root: Path, tmp_path: Path):
    """A file without any flush: missing, empty, zeros or complete."""
    os.close(make(fake, root / "file", b"data"))
    assert outcomes(fake, tmp_path, "file") == {None, b"", bytes(4), b"data"}
    assert not fake.is_durable(str(root / "file"))


def test_flushed_bytes_without_a_flushed_name(fake: FakeDisk, root: Path, tmp_path: Path):
    """The name may be missing; where it is there, the bytes are."""
    os.close(make(fake, root / "file", b"data", flush=True))
    assert outcomes(fake, tmp_path, "file") == {None, b"data"}


def test_a_flushed_name_without_flushed_bytes(fake: FakeDisk, root: Path, tmp_path: Path):
    """The file is there, its bytes may not be."""
    os.close(make(fake, root / "file", b"data"))
    fake.fsync_dir(str(root))
    assert outcomes(fake, tmp_path, "file") == {b"", bytes(4), b"data"}


def test_both_flushed_is_safe(fake: FakeDisk, root: Path, tmp_path: Path):
    """The promise of the disk."""
    os.close(make(fake, root / "file", b"data", flush=True))
    fake.fsync_dir(str(root))
    assert outcomes(fake, tmp_path, "file") == {b"data"}
    assert fake.is_durable(str(root / "file"))


def test_stores_through_a_map_are_dirty_pages(fake: FakeDisk, root: Path, tmp_path: Path):
    """They survive from the next flush on; until then any subset of the pages does."""
    fd = make(fake, root / "file")
    fake.fallocate(fd, 0, 4 * PAGE)
    fake.fsync(fd, str(root / "file"))
    fake.fsync_dir(str(root))
    mapping = mmap.mmap(fd, 4 * PAGE)
    for page in range(4):
        mapping[page * PAGE] = page + 1
    marks = {
        tuple(content[page * PAGE] for page in range(4))
        for content in outcomes(fake, tmp_path, "file", 200)
        if content is not None
    }
    assert (0, 0, 0, 0) in marks
    assert (1, 2, 3, 4) in marks
    assert any(0 in mark and any(mark) for mark in marks)
    fake.fdatasync(fd, str(root / "file"))
    assert outcomes(fake, tmp_path, "file") == {mapping[:]}
    mapping.close()
    os.close(fd)


def test_sectors_of_a_page_go_separately(fake: FakeDisk, root: Path, tmp_path: Path):
    """A page may be torn at 512 bytes, no finer."""
    fd = make(fake, root / "file", b"a" * PAGE, flush=True)
    fake.fsync_dir(str(root))
    fake.pwrite_all(fd, [b"b" * PAGE], 0)
    os.close(fd)
    torn = [c for c in outcomes(fake, tmp_path, "file", 200) if c is not None and len(set(c)) == 2]
    assert torn
    for content in torn:
        assert all(len(set(content[start : start + 512])) == 1 for start in range(0, PAGE, 512))


def test_a_rename_is_one_step(fake: FakeDisk, root: Path, tmp_path: Path):
    """Old document or new one, never neither, and never both names gone."""
    os.close(make(fake, root / "document", b"old", flush=True))
    fake.fsync_dir(str(root))
    os.close(make(fake, root / "new.tmp", b"new", flush=True))
    fake.replace(str(root / "new.tmp"), str(root / "document"))
    assert outcomes(fake, tmp_path, "document") == {b"old", b"new"}


def test_a_rename_before_the_flush_of_the_bytes(fake: FakeDisk, root: Path, tmp_path: Path):
    """The classic mistake is found: the new name on an empty file."""
    os.close(make(fake, root / "document", b"old", flush=True))
    fake.fsync_dir(str(root))
    os.close(make(fake, root / "new.tmp", b"new"))
    fake.replace(str(root / "new.tmp"), str(root / "document"))
    assert b"" in outcomes(fake, tmp_path, "document")


def test_atomic_write_survives(fake: FakeDisk, root: Path, tmp_path: Path):
    """A durable document is there after it was written; one that is not durable is old or new or absent."""
    with disk.use(fake):
        disk.DISK.atomic_write(str(root / "document"), b"one", True)
        assert outcomes(fake, tmp_path, "document") == {b"one"}
        disk.DISK.atomic_write(str(root / "document"), b"two", False)
        assert {b"one", b"two"} <= outcomes(fake, tmp_path, "document")


def test_an_unlink_may_come_back(fake: FakeDisk, root: Path, tmp_path: Path):
    """Until the directory is flushed, with the bytes it had."""
    os.close(make(fake, root / "file", b"data", flush=True))
    fake.fsync_dir(str(root))
    fake.unlink(str(root / "file"))
    assert outcomes(fake, tmp_path, "file") == {None, b"data"}
    fake.fsync_dir(str(root))
    assert outcomes(fake, tmp_path, "file") == {None}


def test_a_directory_needs_its_own_name(fake: FakeDisk, root: Path, tmp_path: Path):
    """Flushing the inner directory alone keeps nothing."""
    fake.mkdir(str(root / "sub"))
    os.close(make(fake, root / "sub" / "file", b"data", flush=True))
    fake.fsync_dir(str(root / "sub"))
    assert outcomes(fake, tmp_path, "sub/file") == {None, b"data"}
    fake.fsync_dir(str(root))
    assert outcomes(fake, tmp_path, "sub/file") == {b"data"}
    fake.unlink(str(root / "sub" / "file"))
    fake.rmdir(str(root / "sub"))
    assert {(image / "sub").exists() for image in images(fake, tmp_path)} == {True, False}


def test_a_move_between_directories_loses_no_name(fake: FakeDisk, root: Path, tmp_path: Path):
    """Source, destination or both, never none."""
    for name in ("a", "b"):
        fake.mkdir(str(root / name))
    os.close(make(fake, root / "a" / "file", b"data", flush=True))
    for path in (root / "a", root):
        fake.fsync_dir(str(path))
    fake.replace(str(root / "a" / "file"), str(root / "b" / "file"))
    seen = set()
    for image in images(fake, tmp_path, 200):
        seen.add(((image / "a" / "file").exists(), (image / "b" / "file").exists()))
    assert seen == {(True, False), (False, True), (True, True)}


def test_files_made_by_others_are_noticed(fake: FakeDisk, root: Path, tmp_path: Path):
    """A plain open, a lock file: unflushed until the directory is."""
    (root / "lock").write_bytes(b"")
    (root / "folder").mkdir()
    (root / "folder" / "inner").write_bytes(b"x")
    assert outcomes(fake, tmp_path, "lock") == {None, b""}
    fake.fsync_dir(str(root))
    assert outcomes(fake, tmp_path, "lock") == {b""}
    os.unlink(root / "lock")
    assert outcomes(fake, tmp_path, "lock") == {b"", None}
    (root / "lock").write_bytes(b"again")
    assert {b"again"} < outcomes(fake, tmp_path, "lock")


def test_fifos_and_links_are_not_kept(fake: FakeDisk, root: Path, tmp_path: Path):
    """A lease is worth nothing after a power loss."""
    os.mkfifo(root / "lease")
    (root / "link").symlink_to(root / "lease")
    fake.fsync_dir(str(root))
    assert all(os.listdir(image) == [] for image in images(fake, tmp_path, 5))


def test_a_failed_flush_is_final(fake: FakeDisk, root: Path, tmp_path: Path):
    """The next flush succeeds and writes nothing of what failed; pages dirtied again are written."""
    fd = make(fake, root / "file", b"a" * 3 * PAGE, flush=True)
    fake.fsync_dir(str(root))
    fake.pwrite_all(fd, [b"b" * 2 * PAGE], 0)
    fake.fail("fdatasync", errno=errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        fake.fdatasync(fd, str(root / "file"))
    fake.pwrite_all(fd, [b"c" * PAGE], PAGE)
    fake.fdatasync(fd, str(root / "file"))
    first_pages = {content[:PAGE] for content in outcomes(fake, tmp_path, "file", 200) if content}
    assert b"a" * PAGE in first_pages
    rest = {content[PAGE:] for content in outcomes(fake, tmp_path, "file") if content}
    assert rest == {b"c" * PAGE + b"a" * PAGE}
    fake.pwrite_all(fd, [b"d"], 0)
    fake.fdatasync(fd, str(root / "file"))
    assert len(outcomes(fake, tmp_path, "file")) == 1
    os.close(fd)


def test_a_growing_file_may_keep_its_old_size(fake: FakeDisk, root: Path, tmp_path: Path):
    """Size is one more thing that needs a flush."""
    fd = make(fake, root / "file", b"a" * 100, flush=True)
    fake.fsync_dir(str(root))
    fake.fallocate(fd, 0, 2 * PAGE)
    os.close(fd)
    assert {len(content) for content in outcomes(fake, tmp_path, "file") if content} == {100, 2 * PAGE}


def test_the_same_seed_gives_the_same_image(fake: FakeDisk, root: Path, tmp_path: Path):
    """A failing case can be run again."""
    os.close(make(fake, root / "file", os.urandom(5 * PAGE)))
    for name in ("one", "two"):
        fake.crash_image(random.Random(5), str(tmp_path / name))
    one, two = tmp_path / "one" / "file", tmp_path / "two" / "file"
    assert one.exists() == two.exists()
    if one.exists():
        assert one.read_bytes() == two.read_bytes()


def test_outside_its_root_it_is_a_plain_disk(fake: FakeDisk, tmp_path: Path):
    """Other directories are none of its business."""
    os.close(make(fake, tmp_path / "elsewhere", b"x", flush=True))
    fake.fsync_dir(str(tmp_path))
    fake.mkdir(str(tmp_path / "folder"))
    fake.replace(str(tmp_path / "elsewhere"), str(tmp_path / "folder" / "file"))
    fake.unlink(str(tmp_path / "folder" / "file"))
    fake.rmdir(str(tmp_path / "folder"))
    assert os.listdir(fake.root) == []


def test_a_file_moved_in_from_outside(fake: FakeDisk, root: Path, tmp_path: Path):
    """Is new: nobody has flushed it where it is now."""
    (tmp_path / "outside").write_bytes(b"data")
    fake.replace(str(tmp_path / "outside"), str(root / "file"))
    assert outcomes(fake, tmp_path, "file") == {None, b"", bytes(4), b"data"}


def test_images_are_cheap(fake: FakeDisk, root: Path, tmp_path: Path):
    """Thousands a minute for a tiny store with sparse files; the bound is generous for busy machines."""
    for name in ("ctl", "log", "idx"):
        fd = make(fake, root / name)
        fake.truncate_new(fd, 64 << 20)
        fake.fallocate(fd, 0, 64 * 1024)
        fake.pwrite_all(fd, [os.urandom(20_000)], 4096)
        os.close(fd)
    start = time.perf_counter()
    count = sum(1 for _ in images(fake, tmp_path, 100))
    assert time.perf_counter() - start < 6
    assert count == 100
