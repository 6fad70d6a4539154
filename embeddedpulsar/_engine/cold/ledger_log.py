"""The log of a closed ledger, wherever it is: in the store, or in an offload location, from which it is
fetched."""

from __future__ import annotations

import contextlib
import errno
import os

from embeddedpulsar._engine.cold.cold_ledger import offloaded_ledger
from embeddedpulsar._engine.filenames import parse_ledger
from embeddedpulsar._engine.platform import disk
from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar._engine.platform.mapped_file import MappedFile
from embeddedpulsar.records import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

Opened = TypeVar("Opened")

_ATTEMPTS: Final = 10


def fetch(path: str) -> str:
    """Bring the log of an offloaded ledger back.

    Returns:
        Its path; or that of a copy, which the caller opens and unlinks, where it may not write.

    Raises:
        ColdReadError: the location cannot be read, or has other bytes. Nothing was changed.
        FileNotFoundError: the ledger is not in a location; or it was trimmed meanwhile.
        LockTimeout: another process fetches, or the caller must not wait.
    """
    directory, name = os.path.split(path)
    note = offloaded_ledger(directory, parse_ledger(name) or 0)
    if note is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    # Looked up again here: between the failed opening and now another process may have fetched it or
    # trimmed the ledger.
    with late_imports():
        from embeddedpulsar._engine.cold import fetching
    return fetching.fetch(directory, note)


def map_log(path: str, *, lean: bool = False) -> MappedFile:
    """Map the log of a closed ledger for reading, fetched if it is in a location. Errors as of `fetch`."""
    return with_log(path, lambda place: MappedFile.open(place, writable=False, lean=lean))


def with_log(path: str, open_log: Callable[[str], Opened]) -> Opened:
    """Open the log of a closed ledger by its path, or by that of a copy; fetched if it is in a location.
    Errors as of `fetch`."""
    # Housekeeping may remove a log that was fetched before it is opened here, so the fetch is
    # repeated. The last try raises what stands in the way.
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(FileNotFoundError):
            return open_log(path)
        copy = fetch(path)
        # A copy beside the store has no name any more once it is open: the descriptor keeps it.
        if copy != path:
            try:
                return open_log(copy)
            finally:
                disk.DISK.unlink(copy)
    return open_log(path)
