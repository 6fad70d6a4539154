"""A shared map of a file that keeps no descriptor: what ``mmap`` does from Python 3.13 on (``trackfd``)."""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar.platform.late_import import late_import

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable

_FAILED: Final = (1 << 64) - 1
_calls: tuple[Any, Any] | None = None


def is_available() -> bool:
    """Whether this system supports it: 64 bits, and a C library that Python can call."""
    return _load() is not None


def map_bare(fd: int, size: int) -> ctypes.Array[ctypes.c_char]:
    """Map ``size`` bytes of the file for reading and writing; ``fd`` may be closed afterwards.

    Returns:
        The bytes. They are unmapped when this and the last view of it are gone, and cannot be before.

    Raises:
        OSError: the system refuses.
    """
    calls = _load()
    if calls is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    import ctypes  # there by now

    map_, unmap = calls
    address = map_(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    if address in (None, _FAILED):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    memory = (ctypes.c_char * size).from_address(address)
    weakref.finalize(memory, _unmap, unmap, address, size).atexit = False
    return memory


def _unmap(unmap: Callable[[int, int], int], address: int, size: int) -> None:
    unmap(address, size)


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
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_long,
        ]
        unmap.restype = ctypes.c_int
        unmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        _calls = (map_, unmap)
    return _calls
