"""Objects of topics that were deleted: removed by the call that deletes, or by a process that offloads later.

A deletion moves the notes of the topic's ledgers into ``offloaded/`` of the store, which needs no location.
What a location refuses stays there, and is tried again.
"""

from __future__ import annotations

import contextlib
import os

from embeddedpulsar._engine.log.cold_ledger import parse_cold_ledger
from embeddedpulsar._engine.log.filenames import COLD_SUFFIX
from embeddedpulsar._engine.platform import descriptors, disk, package_log
from embeddedpulsar._engine.platform.ownership import rights_in
from embeddedpulsar.cold.fetching import ENDINGS
from embeddedpulsar.cold.location import LocationError, location_of
from embeddedpulsar.cold.object_owner import is_own
from embeddedpulsar.exceptions import PulsarException


def has_leftovers(directory: str) -> bool:
    """Whether there are notes of deleted topics."""
    try:
        return any(name.endswith(COLD_SUFFIX) for name in descriptors.names_in(directory))
    except FileNotFoundError:
        return False


def remove_leftovers(directory: str) -> list[str]:
    """Remove the objects that notes in ``offloaded/`` name, and then the notes. Objects of another store
    stay.

    Returns:
        What was refused, as texts.
    """
    refused = []
    names = []
    with contextlib.suppress(FileNotFoundError):
        names = descriptors.names_in(directory)
    for name in sorted(name for name in names if name.endswith(COLD_SUFFIX)):
        path = os.path.join(directory, name)
        try:
            note = parse_cold_ledger(disk.DISK.read_file(path))
            if is_own(note, directory):
                location, rights = location_of(note.location), rights_in(os.path.dirname(directory))
                for ending in ENDINGS:
                    location.delete(note.prefix + ending, rights)
            disk.DISK.unlink(path)
        except FileNotFoundError:
            continue  # another process removes them too
        except (LocationError, PulsarException, ImportError, OSError) as error:
            refused.append(f"objects of the deleted topic {name}: {str(error).strip()}")
    for text in refused:
        package_log.info("%s; it is tried again", text)
    return refused
