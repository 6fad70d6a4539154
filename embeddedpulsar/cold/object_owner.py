"""Which objects in locations a store made, so that it may remove them: ``offloaded/owner`` of the store.

A store may be copied, restored, or be a snapshot of a disk; then two stores name the same objects in
their notes. So the notes carry an identity that a copy does not have: it counts only where it was made.
That place is known by the empty file ``offloaded/place``: its device, its number and the time of its
last change. No copy, extraction or restore has the same. A store in another place makes another identity
when it offloads; objects of other identities are only read.

What is not noticed: an image of a whole disk that is used on two machines (docs/cold-data.md).
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

from embeddedpulsar._engine.format.document import KIND_OBJECT_OWNER, decode_document, encode_document
from embeddedpulsar._engine.log.cold_ledger import ColdLedger
from embeddedpulsar._engine.platform import disk, failpoints, nofollow, package_log
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar.damage import TOPIC_FILES, Damage, DamageHook
from embeddedpulsar.exceptions import CorruptionError, ForeignFileError, StorageError

OWNER: Final = "owner"
PLACE: Final = "place"
_LOCK: Final = "lock"
_LOCK_S: Final = 30.0

failpoints.declare("owner:place_made", "owner:written")


def is_own(note: ColdLedger, leftovers: str) -> bool:
    """Whether this store made the objects of a ledger, in this place, and no other store counts on them.

    Args:
        note: of the ledger.
        leftovers: the directory ``offloaded`` of the store.
    """
    return bool(note.owner) and not note.is_shared and note.owner == known_owner(leftovers)


def known_owner(leftovers: str) -> str:
    """The identity of the store in this place; "" if it has none, or that is unknown."""
    try:
        return _owner(leftovers)
    except (NotADirectoryError, StorageError):
        return ""


def _owner(leftovers: str) -> str:
    """As `known_owner`, raising an error if the document is damaged or cannot be read."""
    path = os.path.join(leftovers, OWNER)
    try:
        fields = decode_document(disk.DISK.read_file(path), KIND_OBJECT_OWNER)
        status = nofollow.status(os.path.join(leftovers, PLACE))
    except FileNotFoundError:
        return ""
    except StorageError as e:
        raise e.at(path) from None
    owner = fields.get("owner")
    return owner if isinstance(owner, str) and fields.get("place") == _place(status) else ""


def _place(status: os.stat_result) -> list[int]:
    return [status.st_dev, status.st_ino, status.st_ctime_ns]


def _damage(error: StorageError) -> Damage:
    return Damage(
        error.path or "",
        offset=error.offset or 0,
        reason=error.reason,
        kind=TOPIC_FILES,
        done="another identity takes its place",
        remedy="remove by hand, from their locations, objects of ledgers that were trimmed: they stay there",
    )


def make_owner(leftovers: str, report: DamageHook = package_log.damage) -> str:
    """The identity of the store in this place, made if it has none. Durable, before an object is written.

    Args:
        leftovers: the directory ``offloaded`` of the store.
        report: called with a document that is damaged: another identity takes its place, and the objects of
            the one before stay in their locations.

    Raises:
        LockTimeout: another process is at it, and was stopped there.
        StorageError: what there is cannot be read, or a newer release wrote it.
    """
    owner = known_owner(leftovers)
    if owner:
        return owner
    with contextlib.suppress(FileExistsError):
        disk.DISK.mkdir(leftovers)
        disk.DISK.fsync_dir(os.path.dirname(leftovers))
    lock = FileLock(os.path.join(leftovers, _LOCK))
    try:
        lock.acquire(_LOCK_S)
        try:
            owner = _owner(leftovers)
        except (CorruptionError, ForeignFileError) as e:
            report(_damage(e))
        if owner:
            return owner  # another process was faster
        # 1. The place. A crash, here or before the next step is durable, leaves no identity, or one of
        # another place: no object has it.
        place, made = os.path.join(leftovers, PLACE), os.urandom(16).hex()
        with contextlib.suppress(FileNotFoundError):
            disk.DISK.unlink(place)
        fd = disk.DISK.create_exclusive(place)
        try:
            disk.DISK.fsync(fd, place)
            fields = {"owner": made, "place": _place(os.fstat(fd))}
        finally:
            os.close(fd)
        failpoints.hit("owner:place_made")
        # 2. The identity, durably with both names.
        path = os.path.join(leftovers, OWNER)
        disk.DISK.atomic_write(path, encode_document(KIND_OBJECT_OWNER, fields), durable=True)
        failpoints.hit("owner:written")
        return made
    finally:
        lock.release()
        lock.close()
