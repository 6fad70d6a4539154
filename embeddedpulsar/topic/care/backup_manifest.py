"""The manifest of a backup: which files the store had, and where their bytes are (docs/format/backup.md)."""

from __future__ import annotations

import json
import os
import re
from typing import Any, Final
from zlib import crc32

from embeddedpulsar._engine.platform import disk
from embeddedpulsar.exceptions import CorruptionError, ForeignFileError, UnsupportedFormatVersion
from embeddedpulsar.records import NamedTuple

MANIFEST: Final = "manifest"
BACKUP_FORMAT: Final = 1
_FORMAT_NAME: Final = "embeddedpulsar backup"
_REMEDY: Final = "make a new backup into an empty directory"


_OBJECT: Final = re.compile("[0-9a-f]{2}/[0-9a-f]+")


class FileRecord(NamedTuple):
    """One file of the store.

    Attributes:
        path: below the root of the store.
        object: where its bytes are, below ``objects``.
        length: how many of them count.
        size: length of the file; behind the bytes it reads as zeros.
        crc: CRC-32 of the bytes.
        identity: a digest of 64 bits with the highest bit set, of what tells the file from another one of its
            name: see `BackupTarget`. Releases that had a CRC-32 there, or 0, wrote smaller numbers; their
            objects are read, and not used again.
    """

    path: str
    object: str
    length: int
    size: int
    crc: int
    identity: int = 0


class Manifest(NamedTuple):
    """What one backup holds.

    Attributes:
        store_id: of the store, in hexadecimal digits.
        created_ms: when the backup began, in ms since 1970.
        next_ledger_id: at least the next id that the store would have given to a ledger.
        next_client_number: the same for clients.
        topics: how many topics there are.
        files: the files of the store, by their paths.
    """

    store_id: str
    created_ms: int
    next_ledger_id: int
    next_client_number: int
    topics: int
    files: dict[str, FileRecord]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(one.length for one in self.files.values())

    def write(self, target: str) -> None:
        """Let the backup in ``target`` be this one. Durable and atomic: until then it is the one before."""
        lines = [json.dumps(record, separators=(",", ":")) + "\n" for record in self.files.values()]
        body = "".join(lines).encode()
        head: dict[str, Any] = {"name": _FORMAT_NAME, "format": BACKUP_FORMAT, **self._asdict()}
        head |= {"files": len(self.files), "crc": crc32(body)}
        front = json.dumps(head).encode()
        head_crc = f"{crc32(front):08x}\n".encode()
        disk.DISK.atomic_write(os.path.join(target, MANIFEST), front + b"\n" + head_crc + body, durable=True)


def _is_below(path: str) -> bool:
    parts = path.split("/")
    return not {"", os.curdir, os.pardir} & set(parts) and "\0" not in path


def read_manifest(target: str) -> Manifest | None:
    """The manifest of the backup in a directory; None if there is none.

    Raises:
        CorruptionError: it is damaged.
        ForeignFileError: it is something else.
        UnsupportedFormatVersion: a newer release wrote it.
    """
    path = os.path.join(target, MANIFEST)
    try:
        data = disk.DISK.read_file(path)
    except FileNotFoundError:
        return None
    try:
        front, head_crc, body = data.split(b"\n", 2)
        head = json.loads(front)
        if head["name"] != _FORMAT_NAME:
            raise ForeignFileError(path=path, reason="it is no manifest of a backup", remedy=_REMEDY)
        if head["format"] > BACKUP_FORMAT:
            reason = f"this backup has format {head['format']}; this release knows up to {BACKUP_FORMAT}"
            raise UnsupportedFormatVersion(path=path, reason=reason, remedy="upgrade embeddedpulsar")
        if int(head_crc, 16) != crc32(front) or head["crc"] != crc32(body):
            raise ValueError("its checksum is wrong")
        records = [FileRecord(*json.loads(line)) for line in body.splitlines()]
        for record in records:
            if not _OBJECT.fullmatch(record.object) or not _is_below(record.path):
                raise ValueError(f"it names the file {record.path!r}, kept as {record.object!r}")
        head["files"] = {record.path: record for record in records}
        return Manifest(*(head[name] for name in Manifest._fields))
    except (ValueError, KeyError, TypeError) as e:
        raise CorruptionError(path=path, reason=f"the manifest is damaged: {e}", remedy=_REMEDY) from None
