"""A file mapped into memory and shared with every process that maps it.

The rules, each from a crash that was measured:

* blocks are reserved (`MappedFile.allocate`) before a page is touched, for writing or reading: a touched hole
  on a full disk kills the process with SIGBUS, past every ``except``;
* a file is never made shorter, for the same reason; it goes by unlink, which leaves maps intact;
* a word that others read is published by ``words[i] = v``, one 8-byte store. ``struct.pack_into`` zeroes its
  target first, and readers have seen the zero.

Files that say by a shared lock that a process uses them: the kernel ends it with the process.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import mmap
import os
import stat
import sys
import weakref
from collections.abc import Callable
from functools import partial

from embeddedpulsar._engine.platform import descriptors, disk, fork, nofollow
from embeddedpulsar._engine.platform.access import LINK_CODES, irregular
from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar._engine.platform.file_lock import LOCK_EX_NB, flock
from embeddedpulsar.exceptions import CorruptionError, StorageFullError, StorageOSError
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Final


_LARGEST_PIECE: Final = 2 << 20
_ROOM_TO_ROUND: Final = 16 << 20
SMALL_FILE: Final = 64 * 1024  # up to here a file is reserved whole when created

_HAS_TRACKFD: Final = sys.version_info >= (3, 13)
_USUAL_MAP_LIMIT: Final = 65_530
_MAP_FIXED: Final = 0x10
_MADV_POPULATE_WRITE: Final = 23
_HAS_POPULATE: Final = sys.platform == "linux" and hasattr(mmap.mmap, "madvise")
# Python 3.11 does not name it; other systems have it by another number, or something else by this one.
_NORESERVE: Final = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
_ANONYMOUS: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
_ANONYMOUS_SHARED: Final = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _NORESERVE
_NO_FILE: Final = LINK_CODES | {errno.EISDIR, errno.ENXIO}
_WORDS_OF_PY_BUFFER: Final = 10
_calls: _Calls | None = None
_noted: Final[dict[tuple[int, int], tuple[weakref.ref[mmap.mmap], int]]] = {}
"""A map of each file and its length, by the device and the inode, where flushes need one."""
NO_FILE: Final = os.stat_result((0,) * 10)
"""The status of a file that is not there."""
_marks: Final = itertools.count((1 << 41) + 1)
"""Positions of open files, one for each, from 2 TiB on: a file of ext4 may have 16."""
# A failed ``mmap`` with MAP_FIXED may have unmapped what was there. Unmapping the range again could
# then hit a map that another thread got at this address.
_spoiled: list[mmap.mmap] = []
"""Maps whose pages the system may have given away when it refused others in their place: never unmapped."""


def _mark_position(fd: int) -> int:
    """Put the position of an open file where no other has it; 0 if the file system has no such place, or the
    position is used."""
    if not disk.HAS_PWRITE:
        return 0
    try:
        return os.lseek(fd, next(_marks), os.SEEK_SET)
    except OSError:
        return 0


def is_available() -> bool:
    """Whether maps need no descriptor here."""
    return _HAS_TRACKFD or _load() is not None


@functools.cache
def map_limit() -> int:
    """Return how many maps the system lets a process have."""
    try:
        with open("/proc/sys/vm/max_map_count", "rb") as file:
            return int(file.read())
    except (OSError, ValueError):
        return _USUAL_MAP_LIMIT


def map_file(fd: int, size: int, writable: bool = True) -> mmap.mmap:
    """Map ``size`` bytes of the file. The map has no descriptor of its own; ``fd`` may be closed afterwards.

    A descriptor inside of a map would be closed with it, in a forked child too, where the program may have
    closed all numbers and opened files of its own. Python leaves it out from 3.13 on (``trackfd``). Before
    that, a map of no file is made, and the pages of the file are put in its place.

    Without a file (``fd`` is -1) the map is memory of this process.

    Where there is neither (a Python before 3.13 without ``_ctypes``, or not of 64 bits), the map has one.
    """
    if fd < 0:
        return mmap.mmap(-1, size)
    if size <= 0:  # which `mmap` takes for the whole file
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
    # Three ways, the best first: Python leaves the descriptor out; the pages are put over a map of no
    # file; or, without ``_ctypes``, the map keeps a duplicate of the descriptor.
    if _HAS_TRACKFD:
        options: dict[str, Any] = {"trackfd": False}
        return mmap.mmap(fd, size, access=access, **options)
    calls = _load()
    if calls is None:
        return mmap.mmap(fd, size, access=access)
    # Without rights, it refuses stores with TypeError, like a map for reading.
    # Anonymous and without reserve, so the range costs address space and no memory until it is
    # replaced.
    rights = mmap.PROT_READ | mmap.PROT_WRITE if writable else 0
    try:
        mapping = mmap.mmap(-1, size, flags=_ANONYMOUS, prot=rights)
    except OSError as e:
        if e.errno != errno.ENOMEM:
            raise
        # A private map that may be written counts as data (RLIMIT_DATA), as long as it takes to replace it; a
        # shared one does not, and takes longer to make.
        mapping = mmap.mmap(-1, size, flags=_ANONYMOUS_SHARED, prot=rights)
    rights |= mmap.PROT_READ
    try:
        address = calls.address_of(mapping, writable)
        # MAP_FIXED puts the file where the anonymous pages are, in one step: no other thread can get
        # the range between.
        mapped = calls.map(address, size, rights, mmap.MAP_SHARED | _MAP_FIXED, fd, 0)
    except calls.argument_error as error:
        raise RecursionError(str(error)) from None  # an argument is converted by a call
    if mapped != address:
        # ENOMEM is the one error after which the old pages may be gone.
        code = calls.errno()
        if code == errno.ENOMEM:
            _spoiled.append(mapping)
        raise OSError(code, os.strerror(code))
    return mapping


def _note_map(mapping: mmap.mmap, status: os.stat_result, size: int) -> None:
    """Have `Disk.fsync` write what is stored through a map of this file: macOS leaves it out (POSIX has
    ``msync`` for it). One map will do, the longest: all share the pages."""
    disk.FLUSH_MAPS = _flush_maps
    file = status.st_dev, status.st_ino
    known = _noted.get(file)
    if known is None or known[1] <= size or known[0]() is None:
        _noted[file] = weakref.ref(mapping, partial(_drop_noted, file)), size


def _drop_noted(file: tuple[int, int], reference: weakref.ref[mmap.mmap]) -> None:
    known = _noted.get(file)
    if known is not None and known[0] is reference:
        del _noted[file]


def _flush_maps(fd: int) -> None:
    status = os.fstat(fd)
    known = _noted.get((status.st_dev, status.st_ino))
    mapping = known[0]() if known is not None else None
    if mapping is not None:
        with contextlib.suppress(ValueError):  # it is closed
            mapping.flush()
            return
    # A file that other processes may have mapped. A new one that is open for writing alone cannot be mapped
    # by it, and no process has it mapped: what is mapped is opened for both.
    if stat.S_ISREG(status.st_mode) and status.st_size:
        with (
            contextlib.suppress(PermissionError),
            mmap.mmap(fd, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ) as whole,
        ):
            whole.flush()


class _Calls(NamedTuple):
    map: Callable[..., int | None]
    address_of: Callable[[mmap.mmap, bool], int]
    errno: Callable[[], int]
    argument_error: type[Exception]


def _load() -> _Calls | None:
    """The call ``mmap`` of the C library, by the C part of ctypes: 0.5 ms, with the Python part 2 ms."""
    global _calls
    if _calls is None:
        try:
            with late_imports():
                import _ctypes
            c: Any = _ctypes  # what is in it is not public
            library = c.dlopen(None, os.RTLD_NOW)
            _calls = _calls_of(c, lambda name: c.dlsym(library, name))
        except (ImportError, OSError, AttributeError, TypeError, ValueError):
            return None
    return _calls


def _calls_of(c: Any, symbol: Callable[[str], int]) -> _Calls:
    # The types that ``ctypes`` would make, without its Python part, whose import takes most of 2 ms.
    # One letter says what a type converts: P a pointer, l a long, i an int, b a byte, O an object.
    simple = c._SimpleCData
    pointer: Any = type("Pointer", (simple,), {"_type_": "P"})
    byte: Any = type("Byte", (simple,), {"_type_": "b"})
    long: Any = type("Long", (simple,), {"_type_": "l"})
    number: Any = type("Int", (simple,), {"_type_": "i"})
    obj: Any = type("Object", (simple,), {"_type_": "O"})
    # Offsets are passed as C longs, which have 64 bits on these machines only.
    if c.sizeof(pointer) != 8 or c.sizeof(long) != 8:
        raise ValueError("64 bits are needed")
    # ``mmap`` sets errno, of which ctypes keeps a copy per thread. The calls into Python need the
    # interpreter lock, which PYTHONAPI keeps.
    flags = c.FUNCFLAG_CDECL | c.FUNCFLAG_USE_ERRNO
    system = type("System", (c.CFuncPtr,), {"_flags_": flags, "_restype_": pointer})
    flags = c.FUNCFLAG_CDECL | c.FUNCFLAG_PYTHONAPI
    python = type("Python", (c.CFuncPtr,), {"_flags_": flags, "_restype_": number})
    map_ = system(symbol("mmap"))
    map_.argtypes = (pointer, long, number, number, number, long)
    get, release = python(symbol("PyObject_GetBuffer")), python(symbol("PyBuffer_Release"))
    get.argtypes, release.argtypes = (obj, pointer, number), (pointer,)
    py_buffer = pointer * _WORDS_OF_PY_BUFFER

    def address_of(mapping: mmap.mmap, writable: bool) -> int:
        # A writable buffer has its address for the asking. A read-only one is asked for by the C
        # interface, and given back at once: the map object keeps the memory.
        if writable:
            return int(c.addressof(byte.from_buffer(mapping)))
        buffer = py_buffer()
        place = c.addressof(buffer)
        get(mapping, place, 0)
        address = buffer[0]
        release(place)
        return int(address)

    return _Calls(map_, address_of, c.get_errno, c.ArgumentError)


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
        "__weakref__",
        "_fd",
        "_keeps_fd",
        "_map",
        "_mark",
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
        self.path = path
        self._fd = fd
        self._keeps_fd = True
        self._mark = 0
        self.size: Final = size
        self.writable: Final = writable
        self.created: Final = created
        self.device: Final = status.st_dev
        self.inode: Final = status.st_ino
        self.allocated = 0
        what = f"cannot map {path}"
        self._map: mmap.mmap | None
        self._map = descriptors.calling(what, map_file, fd, size, writable)
        if writable and disk.FULL_FSYNC is not None and fd >= 0:
            _note_map(self._map, status, size)
        view = memoryview(self._map)
        self.view = view if writable else view.toreadonly()
        self.words = self.view[: size // 8 * 8].cast("Q")
        if not lean:
            fork.register(self)

    @property
    def slices(self) -> bytearray:
        """The map as what takes slices fastest."""
        return cast("bytearray", self._map)

    @property
    def fd(self) -> int:
        """A descriptor of the file, for flushes and positional reads and writes; opened again if it was given
        back.

        It is proved to be of the file: code of the application may have closed it, and opened another file
        that got the number. The first time by the status of the file, 1 us. From then on by the position of
        the open file, 0.3 us: nothing here reads or writes at the position, so it is put where no other file
        has it. Asking for the status each time would make flushes slower: of a file whose times were asked
        for, Linux notes the time of the next write exactly, and flushes that with the data.

        Raises:
            FileNotFoundError: it was given back, and the file was removed.
            CorruptionError: or replaced by another.
        """
        fd = self._fd
        if fd >= 0:
            mark = self._mark
            if mark:
                try:
                    if os.lseek(fd, 0, os.SEEK_CUR) == mark:
                        return fd
                except OSError:
                    self._mark = 0  # the number is closed, or a pipe's by now
            # A number that is another file's by now is forgotten and not closed: it is not ours.
            if not descriptors.is_of(fd, self.device, self.inode):
                fd = self._fd = -1
        if fd < 0 and self._map is not None:
            fd = self._fd = self._opened()
        if self._keeps_fd and fd >= 0:
            self._mark = _mark_position(fd)
        return fd

    def _opened(self) -> int:
        fd = disk.DISK.open_file(self.path, os.O_RDWR if self.writable else os.O_RDONLY)
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) != (self.device, self.inode):
            os.close(fd)
            raise CorruptionError(path=self.path, reason="the file was replaced by another")
        return fd

    def note_renamed(self, path: str) -> None:
        """Note the name that the file has from now on. The caller renamed it, under a lock."""
        self.path = path

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

    def close_descriptor(self) -> None:
        """Keep no descriptor besides the map, from now on. One that is needed is opened for a moment."""
        self._keeps_fd = False
        self._give_back()

    def _give_back(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0 and descriptors.is_of(fd, self.device, self.inode):
            os.close(fd)

    def after_fork_in_child(self) -> None:
        """Give the inherited descriptor back while its number is still ours; the map stays."""
        self._give_back()

    def pwrite(self, buffers: Sequence[disk.Buffer], offset: int) -> None:
        """Write by one call, not through the map. Errors as of `fd` and `Disk.pwrite_all`."""
        # By a call and not through the map where that is cheaper (large frames), or where a fault
        # would have to clear pages.
        try:
            disk.DISK.pwrite_all(self.fd, buffers, offset)
        finally:
            self.close_descriptor_if_lean()

    def close_descriptor_if_lean(self) -> None:
        """Give the descriptor back unless it is kept between uses."""
        if not self._keeps_fd:
            self.close_descriptor()

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
            lean: keep no descriptor (see `close_descriptor`). For files of which there are many.

        Raises:
            FileNotFoundError: absent, and not to be created.
            CorruptionError: shorter than ``size``, or empty.
            StorageOSError: a symbolic link, directory, FIFO or device.
            StorageFullError: no room.
            DescriptorLimitError: no descriptors are left.
        """
        # Order: open or create, prove what it is, grow, then map. The first process that maps it has
        # the whole size.
        name = os.fspath(path)
        if create and (size is None or not writable):
            raise ValueError("a file is created with a size and for writing")
        fd, created = _open(name, os.O_RDWR if writable else os.O_RDONLY, create)
        try:
            if not created:
                # Of the open file: the name may lead elsewhere by now.
                status = os.fstat(fd)
                _require_regular(status, name)
            if create and size is not None:
                # An existing file grows, too: its creator may have died before it did.
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
            mapped.close_descriptor()
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
        # By another process perhaps: the words of the topic say how far, and the caller passes that.
        first = self.allocated if start is None else start
        if upto > self.size:
            raise ValueError(f"cannot reserve {upto} bytes of {self.path}: {self.size} are mapped")
        if upto > first:
            self._reserve(first, upto)
            self.close_descriptor_if_lean()
        self.allocated = max(self.allocated, upto)

    def _reserve(self, first: int, upto: int) -> None:
        """Reserve ``[first, upto)`` so that stores there need no more of the disk.

        The first store into a page through a map has the file system give blocks to the whole of the piece of
        memory that has the page: up to 2 MiB that were read ahead, 64 KiB where pages are as large. A piece
        that reaches from before ``upto`` into the hole behind needs more than what is reserved, and on a disk
        that others have filled the process gets SIGBUS. Pieces begin at multiples of their size, and those at
        the start of a file are small: none reaches over an end that is rounded up.
        """
        rounded = _rounded_up(upto, self.size)
        # The last space of a disk is for what keeps the store usable, so there it is reserved to the byte.
        # So it is where a quota has no room for more.
        if rounded == upto or disk.DISK.free_bytes(self.fd) > rounded - first + _ROOM_TO_ROUND:
            try:
                disk.DISK.fallocate(self.fd, first, rounded - first)
            except StorageFullError:
                if rounded == upto:
                    raise
            else:
                return
        disk.DISK.fallocate(self.fd, first, upto - first)
        self.populate(upto - 1, upto)  # what a piece that is there already needs, or the error

    def is_current(self) -> bool:
        """Whether `path` still names this very file."""
        try:
            status = os.lstat(self.path)
        except FileNotFoundError:
            return False
        return status.st_ino == self.inode and status.st_dev == self.device

    def will_need(self, start: int, end: int) -> None:
        """Ask the kernel to read ``[start, end)`` ahead. A hint."""
        # ``madvise`` takes whole pages: rounded down here, and the end is cut at the size of the map.
        first = start - start % mmap.PAGESIZE
        if self._map is not None and hasattr(mmap, "MADV_WILLNEED") and end > first:
            self._map.madvise(mmap.MADV_WILLNEED, first, min(end, self.size) - first)

    def populate(self, start: int, end: int) -> bool:
        """Map the pages of ``[start, end)``, which are reserved, for writing; False if this system cannot.

        Raises:
            StorageFullError: the file system needs more for it than is reserved, and the disk is full.
        """
        first = start - start % mmap.PAGESIZE
        if self._map is None or not _HAS_POPULATE:
            return False
        try:
            self._map.madvise(_MADV_POPULATE_WRITE, first, min(end, self.size) - first)
        except OSError as e:
            if e.errno == errno.EFAULT:  # a store would be a SIGBUS
                raise StorageFullError(
                    f"no block of the disk can be had for {self.path}: {os.strerror(errno.ENOSPC)}",
                    path=self.path,
                    errno=errno.ENOSPC,
                    remedy="nothing was published; free space, and try again",
                ) from e
            return False  # a kernel before 5.14, or no memory: the stores will tell
        return True

    def not_needed(self, start: int, end: int) -> None:
        """Take the pages of ``[start, end)`` out of this process; they stay in the page cache. A hint."""
        first = start - start % mmap.PAGESIZE
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED") and end > first:
            self._map.madvise(mmap.MADV_DONTNEED, first, min(end, self.size) - first)

    @property
    def closed(self) -> bool:
        return self._map is None

    def close(self) -> None:
        """Give the descriptor back, and the map too unless a slice of it is still in use: then the map
        goes with the last slice. Idempotent."""
        mapping, self._map = self._map, None
        if mapping is None:
            return
        self.close_descriptor()
        # The views of this object go first. A slice that a reader still has makes ``close`` fail, and
        # the map then lives as long as the slice.
        self.words.release()
        self.view.release()
        try:
            mapping.close()
        except BufferError:
            return  # unmapped when the last exported view dies

    def __repr__(self) -> str:
        state = "closed" if self.closed else ("writable" if self.writable else "read-only")
        return f"<MappedFile {self.path} {self.size} bytes {state}>"


class MemoryFile(MappedFile):
    """Bytes in the memory of this process in the place of a file: for a process that may not write to the
    file, or does not want to. Nothing of it is stored.

    Args:
        path: of the file.
        data: the first bytes; zeros follow.
        size: bytes in all.
        status: of the file; zeros if there is none.
    """

    __slots__ = ()

    def __init__(self, path: str, data: bytes, size: int, status: os.stat_result = NO_FILE) -> None:
        super().__init__(path, -1, size, status, writable=True, created=False, lean=True)
        self.view[: len(data)] = data
        self._keeps_fd = False
        self.allocated = size

    @property
    def fd(self) -> int:
        """No descriptor: -1."""
        return -1

    def flush(self) -> None:
        """Do nothing: these bytes are not stored."""

    def is_current(self) -> bool:
        """Whether `path` still names the file that was there, or still none."""
        return super().is_current() if self.inode else not os.path.lexists(self.path)


def _open(path: str, flags: int, create: bool) -> tuple[int, bool]:
    # Of processes that create it at once, one makes it and the others open it; both then grow it to
    # the same size.
    try:
        if create:
            with contextlib.suppress(FileExistsError):
                return disk.DISK.create_exclusive(path), True
        return disk.DISK.open_file(path, flags), False
    except StorageOSError:
        raise  # it says what is wrong with a directory above
    except OSError as e:
        if e.errno in _NO_FILE:
            raise irregular(path, nofollow.status(path).st_mode) from e
        raise


def _grow(fd: int, size: int, *, is_new: bool) -> None:
    # Reserved whole: stores into it cannot fail later for want of room.
    if size <= SMALL_FILE:
        if disk.HAS_POSIX_FALLOCATE or os.fstat(fd).st_size < size:
            # Also finishes what a creator that died had begun.
            disk.DISK.fallocate(fd, 0, size, in_use=True)
    # Several processes may grow it at once. One byte at the end reserves nothing else and never
    # shrinks: unlike ftruncate it cannot cut a file that another just grew.
    elif not is_new and disk.HAS_POSIX_FALLOCATE and os.fstat(fd).st_size < size:
        disk.DISK.fallocate(fd, size - 1, 1, in_use=True)
    else:
        disk.DISK.truncate_new(fd, size)


def _rounded_up(upto: int, size: int) -> int:
    """The end of what is reserved for ``upto`` bytes of a file of ``size``: see `MappedFile._reserve`."""
    unit = max(min(1 << upto.bit_length() - 1, _LARGEST_PIECE), mmap.PAGESIZE)
    return min(size, -(-upto // unit) * unit)


def _require_regular(status: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise irregular(path, status.st_mode)


def _checked_length(status: os.stat_result, path: str, size: int | None) -> int:
    length = status.st_size if size is None else size
    if length == 0 or status.st_size < length:
        raise CorruptionError(
            path=path,
            reason=f"the file holds {status.st_size} bytes, expected {length or 'some'}",
            remedy="it was cut or never completed; run a check of the store",
        )
    return length


_SHARED: Final = 1  # LOCK_SH, the same on every system that has flock
_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

_LOOK_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class HeldFile:
    """A file that this process holds; several may at a time.

    Callers: any thread; `close` ends the hold. A forked child gives its copy back, which leaves the parent's
    hold.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        fork.register(self)

    @classmethod
    def open(cls, path: str) -> HeldFile:
        """Hold ``path``, which is made if it is not there.

        Raises:
            OSError: this process may not write there.
        """
        # `remove_if_free` may remove the name between creation, opening and locking. The hold counts
        # only if the name leads to the locked file.
        while True:
            with contextlib.suppress(FileExistsError):
                os.close(disk.DISK.create_exclusive(path))
            try:
                fd = descriptors.opening(f"cannot open {path}", nofollow.open_file, path, _FLAGS)
            except FileNotFoundError:
                continue  # removed meanwhile
            held = cls(fd)
            try:
                flock(fd, _SHARED)
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(fd), nofollow.status(path)):
                        return held
            except BaseException:
                held.close()
                raise
            held.close()  # `remove_if_free` was faster

    def close(self) -> None:
        """Hold it no more. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    after_fork_in_child = close


def is_held(path: str) -> bool:
    """Whether a process holds ``path``.

    Raises:
        FileNotFoundError: it is not there.
    """
    fd = descriptors.opening(f"cannot open {path}", nofollow.open_file, path, _LOOK_FLAGS)
    try:
        flock(fd, LOCK_EX_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def remove_if_free(path: str) -> bool:
    """Remove ``path`` unless a process holds it; returns whether it is gone."""
    try:
        fd = descriptors.opening(f"cannot open {path}", nofollow.open_file, path, _FLAGS)
    except FileNotFoundError:
        return True
    try:
        # Exclusive while it goes: a process that opened it and waits to hold it compares the file
        # with its name afterwards.
        flock(fd, LOCK_EX_NB)
        if not os.path.samestat(os.fstat(fd), nofollow.status(path)):
            return False  # another call removed the file, and a process made one of that name since
        disk.DISK.unlink(path)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return True
    finally:
        os.close(fd)
    return True
