"""A file mapped into memory and shared with every process that maps it.

The rules, each from a crash that was measured:

* blocks are reserved (`MappedFile.allocate`) before a page is touched, for writing or reading: a touched hole
  on a full disk kills the process with SIGBUS, past every ``except``;
* a file is never made shorter, for the same reason; it goes by unlink, which leaves maps intact;
* a word that others read is published by ``words[i] = v``, one 8-byte store. ``struct.pack_into`` zeroes its
  target first, and readers have seen the zero.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import mmap
import os
import stat
import sys
import weakref
from typing import TYPE_CHECKING, Any, Final, cast

from embeddedpulsar.exceptions import CorruptionError, ForeignFileError
from embeddedpulsar.platform import descriptors, disk
from embeddedpulsar.platform.descriptors import late_import

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Sequence

SMALL_FILE: Final = 64 * 1024  # up to here a file is reserved whole when created

_KEEPS_NO_DESCRIPTOR: Final = sys.version_info >= (3, 13)
_EASY_MAPS: Final = 32
"""So many maps of control words may cost a descriptor each, at most; those of further ones take 5 ms once."""
_SHARE: Final = 16
_USUAL_MAP_LIMIT: Final = 65_530
_easy_maps = 0
_FAILED: Final = (1 << 64) - 1
_calls: tuple[Any, Any] | None = None


def is_available() -> bool:
    """Whether this system supports `map_bare`: 64 bits, and a C library that Python can call."""
    return _load() is not None


@functools.cache
def map_limit() -> int:
    """Return how many maps the system lets a process have."""
    try:
        with open("/proc/sys/vm/max_map_count", "rb") as file:
            return int(file.read())
    except (OSError, ValueError):
        return _USUAL_MAP_LIMIT


def map_bare(fd: int, size: int, *, writable: bool = True) -> ctypes.Array[ctypes.c_char]:
    """Map ``size`` bytes of the file as ``mmap`` does from Python 3.13 on (``trackfd``): ``fd`` may be closed
    afterwards.

    Returns:
        The bytes. They are unmapped when this and the last view of it are gone, and cannot be before. Unless
        writable, a store into them ends the process: the caller makes a read-only view.
    """
    calls = _load()
    if calls is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    import ctypes  # there by now

    map_, unmap = calls
    access = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
    address = map_(None, size, access, mmap.MAP_SHARED, fd, 0)
    if address in (None, _FAILED):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    memory = (ctypes.c_char * size).from_address(address)
    weakref.finalize(memory, unmap, address, size).atexit = False
    return memory


def _load() -> tuple[Any, Any] | None:
    global _calls
    if _calls is None:
        try:
            # 5 ms, and needed by processes with many topics only.
            ctypes = late_import("ctypes")
            library = ctypes.CDLL(None, use_errno=True)
            map_, unmap = library.mmap, library.munmap
        except (ImportError, OSError, AttributeError, TypeError):
            return None
        if ctypes.sizeof(ctypes.c_void_p) != 8 or ctypes.sizeof(ctypes.c_long) != 8:
            return None
        map_.restype = ctypes.c_void_p
        map_.argtypes = [
            *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
        ]
        unmap.restype = ctypes.c_int
        unmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        _calls = (map_, unmap)
    return _calls


class MappedFile:
    """One mapping of one file. Thread-safe as bytes are; the owner decides which threads may write.

    Attributes:
        path: the name it was opened by.
        size: bytes mapped.
        view: the map as bytes; read-only unless writable. Valid until `close`, slices of it until released.
        words: the same map as 64-bit words in native byte order.
        device, inode: the identity of the file, to notice that it was copied or replaced.
        created: whether this call made the file.
        allocated: bytes this object knows to be reserved.
    """

    __slots__ = (
        "_fd",
        "_is_easy",
        "_keeps_fd",
        "_map",
        "allocated",
        "created",
        "device",
        "inode",
        "path",
        "size",
        "view",
        "words",
        "writable",
    )

    def __init__(
        self,
        path: str,
        fd: int,
        size: int,
        status: os.stat_result,
        *,
        writable: bool,
        created: bool,
        lean: bool = False,
    ) -> None:
        global _easy_maps
        self._map: object = None
        self.path: Final = path
        self._fd = fd
        self._keeps_fd = True
        self.size: Final = size
        self.writable: Final = writable
        self.created: Final = created
        self.device: Final = status.st_dev
        self.inode: Final = status.st_ino
        self.allocated = 0
        self._is_easy = False
        is_easy = _KEEPS_NO_DESCRIPTOR or not lean or self._is_among_the_first()
        what = f"cannot map {path}"
        if not is_easy and is_available():
            self._map = descriptors.calling(what, lambda: map_bare(fd, size, writable=writable))
        else:
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            options = {"trackfd": False} if _KEEPS_NO_DESCRIPTOR else {}
            # `fd` was just opened, so a copy of it has no low number either.
            self._map = descriptors.calling(what, lambda: mmap.mmap(fd, size, access=access, **options))
        view = memoryview(self._map).cast("B")
        self.view = view if writable else view.toreadonly()
        self.words = self.view[: size // 8 * 8].cast("Q")
        if lean and is_easy:
            self._is_easy = True
            _easy_maps += 1

    @property
    def slices(self) -> bytearray:
        """The map as what takes slices fastest. A slice stored into a bare map is copied byte by byte."""
        return cast("bytearray", self._map if isinstance(self._map, mmap.mmap) else self.view)

    @staticmethod
    def _is_among_the_first() -> bool:
        return _easy_maps < min(_EASY_MAPS, descriptors.limit() // _SHARE)

    @property
    def fd(self) -> int:
        """A descriptor, for flushes and positional reads and writes; opened again if it was given back.

        Raises:
            FileNotFoundError: it was given back, and the file was removed.
            CorruptionError: or replaced by another.
        """
        if self._fd < 0 and self._map is not None:
            self._fd = self._opened()
        return self._fd

    def _opened(self) -> int:
        fd = disk.DISK.open_file(self.path, os.O_RDWR if self.writable else os.O_RDONLY)
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) != (self.device, self.inode):
            os.close(fd)
            raise CorruptionError(path=self.path, reason="the file was replaced by another")
        return fd

    def flush(self) -> None:
        """Return when the disk has what was stored into the map. Errors as of `fd`.

        By a descriptor of its own: of several threads that flush, the first to be done would close a shared
        one, and the number might be another file's by then.
        """
        fd = self._opened()
        try:
            disk.DISK.fdatasync(fd, self.path)
        finally:
            os.close(fd)

    def rest(self) -> None:
        """Keep no descriptor besides the map, from now on. One that is needed is opened for a moment."""
        self._keeps_fd = False
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def pwrite(self, buffers: Sequence[disk.Buffer], offset: int) -> None:
        """Write by one call, not through the map. Errors as of `fd` and `Disk.pwrite_all`."""
        try:
            disk.DISK.pwrite_all(self.fd, buffers, offset)
        finally:
            self.rest_if_lean()

    def rest_if_lean(self) -> None:
        """Give the descriptor back unless it is kept between uses."""
        if not self._keeps_fd:
            self.rest()

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        writable: bool,
        size: int | None = None,
        create: bool = False,
        lean: bool = False,
    ) -> MappedFile:
        """Map ``path``.

        Args:
            writable: map for writing too. A read-only map refuses stores with TypeError.
            size: bytes to map; the whole file if None.
            create: create the file, or let an existing one grow, to ``size`` bytes of zeros. Up to
                `SMALL_FILE` bytes it is reserved whole; a larger one is a hole until `allocate`. Any number
                of processes may do this at once for the same size.
            lean: keep no descriptor (see `rest`); the map itself needs none either where many are open. For
                files of which there are many.

        Raises:
            FileNotFoundError: absent, and not to be created.
            CorruptionError: shorter than ``size``, or empty.
            ForeignFileError: a symbolic link, directory, FIFO or device.
            StorageFullError: no room.
            DescriptorLimitError: no descriptors are left.
        """
        name = os.fspath(path)
        if create and (size is None or not writable):
            raise ValueError("a file is created with a size and for writing")
        fd, created = _open(name, os.O_RDWR if writable else os.O_RDONLY, create)
        try:
            if not created:
                status = os.fstat(fd)
                _require_regular(status, name)
            if create and size is not None:
                _grow(fd, size, is_new=created)
                status = os.fstat(fd)
            length = _checked_length(status, name, size)
            mapped = cls(name, fd, length, status, writable=writable, created=created, lean=lean)
        except BaseException:
            os.close(fd)
            raise
        if create and length <= SMALL_FILE:
            mapped.allocated = length
        if lean:
            mapped.rest()
        return mapped

    def allocate(self, upto: int, start: int | None = None) -> None:
        """Reserve the blocks below ``upto``; loads and stores below it are safe afterwards.

        Args:
            upto: first byte that need not be reserved; at most `size`.
            start: bytes below are reserved already (by any process); default what this object reserved
            itself.

        Raises:
            StorageFullError: no room; nothing changed.
        """
        first = self.allocated if start is None else start
        if upto > self.size:
            raise ValueError(f"cannot reserve {upto} bytes of {self.path}: {self.size} are mapped")
        if upto > first:
            disk.DISK.fallocate(self.fd, first, upto - first)
            self.rest_if_lean()
        self.allocated = max(self.allocated, upto)

    def is_current(self) -> bool:
        """Whether `path` still names this very file."""
        try:
            status = os.lstat(self.path)
        except FileNotFoundError:
            return False
        return status.st_ino == self.inode and status.st_dev == self.device

    def will_need(self, start: int, end: int) -> None:
        """Ask the kernel to read ``[start, end)`` ahead. A hint."""
        first = start - start % mmap.PAGESIZE
        if isinstance(self._map, mmap.mmap) and hasattr(mmap, "MADV_WILLNEED") and end > first:
            self._map.madvise(mmap.MADV_WILLNEED, first, min(end, self.size) - first)

    def not_needed(self, start: int, end: int) -> None:
        """Take the pages of ``[start, end)`` out of this process; they stay in the page cache. A hint."""
        first = start - start % mmap.PAGESIZE
        if isinstance(self._map, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED") and end > first:
            self._map.madvise(mmap.MADV_DONTNEED, first, min(end, self.size) - first)

    @property
    def closed(self) -> bool:
        return self._map is None

    def close(self) -> None:
        """Give the descriptor back, and the map too unless a slice of it is still in use: then the map
        goes with the last slice. Idempotent."""
        global _easy_maps
        mapping, self._map = self._map, None
        if mapping is None:
            return
        self.rest()
        if self._is_easy:
            _easy_maps -= 1
        self.words.release()
        self.view.release()
        if not isinstance(mapping, mmap.mmap):
            return  # unmapped with the last view: that is now, unless a slice is still in use
        try:
            mapping.close()
        except BufferError:
            return  # unmapped when the last exported view dies

    def __repr__(self) -> str:
        state = "closed" if self.closed else ("writable" if self.writable else "read-only")
        return f"<MappedFile {self.path} {self.size} bytes {state}>"


def _open(path: str, flags: int, create: bool) -> tuple[int, bool]:
    try:
        if create:
            with contextlib.suppress(FileExistsError):
                return disk.DISK.create_exclusive(path), True
        return disk.DISK.open_file(path, flags), False
    except IsADirectoryError as e:
        raise ForeignFileError(path=path, reason="is a directory", remedy="move it away") from e
    except OSError as e:
        if os.path.islink(path):
            raise ForeignFileError(
                path=path, reason="is a symbolic link", remedy="replace it by the file"
            ) from e
        raise


def _grow(fd: int, size: int, *, is_new: bool) -> None:
    if size <= SMALL_FILE:
        if disk.HAS_POSIX_FALLOCATE or os.fstat(fd).st_size < size:
            disk.DISK.fallocate(fd, 0, size)  # also finishes what a creator that died had begun
    elif not is_new and disk.HAS_POSIX_FALLOCATE and os.fstat(fd).st_size < size:
        disk.DISK.fallocate(
            fd, size - 1, 1
        )  # unlike ftruncate it cannot shrink a file that another just grew
    else:
        disk.DISK.truncate_new(fd, size)


def _require_regular(status: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ForeignFileError(path=path, reason="is not a regular file", remedy="move it away")


def _checked_length(status: os.stat_result, path: str, size: int | None) -> int:
    length = status.st_size if size is None else size
    if length == 0 or status.st_size < length:
        raise CorruptionError(
            path=path,
            reason=f"the file holds {status.st_size} bytes, expected {length or 'some'}",
            remedy="it was cut or never completed; run a check of the store",
        )
    return length
