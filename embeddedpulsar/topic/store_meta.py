"""``store.meta``: it makes a directory a store. Written once, last of all, and durably at every level."""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from embeddedpulsar.exceptions import CorruptionError, ForeignFileError, UnsupportedFormatVersion
from embeddedpulsar.format.document import KIND_STORE_META, decode_document, encode_document
from embeddedpulsar.platform import descriptors, disk
from embeddedpulsar.topic.catalog import root_layout

STORE_FORMAT: Final = 1
"""Version of the layout of the directory as a whole. Raised when an old release would misread a new store."""
_ID_SIZE: Final = 16
_RESTORE: Final = "restore store.meta from a copy of the store"


class StoreMeta(NamedTuple):
    """Identity of a store: the same for every process, kept by copies."""

    store_id: bytes
    created_ms: int
    format: int = STORE_FORMAT


def read(root: str) -> StoreMeta | None:
    """The store in ``root``; None where there is none yet.

    Raises:
        ForeignFileError: ``root`` holds files of something else.
        CorruptionError: ``store.meta`` is damaged, or missing from a store that has topics.
        UnsupportedFormatVersion: a newer release made this store.
    """
    path = root_layout.in_root(root, root_layout.META)
    try:
        data = disk.DISK.read_file(path)
    except FileNotFoundError:
        _check_absent(root)
        return None
    try:
        fields = decode_document(data, KIND_STORE_META)
        return _from_fields(fields)
    except CorruptionError as e:
        raise CorruptionError(path=path, reason=e.reason, offset=e.offset, remedy=_RESTORE) from None
    except (ForeignFileError, UnsupportedFormatVersion) as e:
        raise e.at(path) from None


def _from_fields(fields: dict[str, object]) -> StoreMeta:
    version, store_id, created_ms = fields.get("format"), fields.get("store_id"), fields.get("created_ms")
    if isinstance(version, int) and version > STORE_FORMAT:
        raise UnsupportedFormatVersion(
            reason=f"this store has layout version {version}; this release knows up to {STORE_FORMAT}",
            remedy="upgrade embeddedpulsar",
        )
    if (
        not isinstance(version, int)
        or not isinstance(store_id, bytes)
        or len(store_id) != _ID_SIZE
        or not isinstance(created_ms, int)
    ):
        raise CorruptionError(reason="fields are missing")
    return StoreMeta(store_id, created_ms, version)


def _check_absent(root: str) -> None:
    """A directory without ``store.meta`` is free for a new store if nothing but our own beginnings is
    there."""
    foreign = sorted(name for name in descriptors.names_in(root) if not root_layout.is_ours(name))
    if foreign:
        shown = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
        raise ForeignFileError(
            path=root,
            reason=f"the directory is not a store and not empty: it holds {shown}",
            remedy="choose an empty or new directory",
        )
    topics = root_layout.in_root(root, root_layout.TOPICS)
    if os.path.isdir(topics) and descriptors.names_in(topics):
        raise CorruptionError(
            path=root_layout.in_root(root, root_layout.META),
            reason="it is missing, though the store has topics",
            remedy=_RESTORE,
        )


def write(root: str, now_ms: int) -> StoreMeta:
    """Make ``root`` a store: the last step of its creation, under the store lock."""
    meta = StoreMeta(os.urandom(_ID_SIZE), now_ms)
    path = root_layout.in_root(root, root_layout.META)
    disk.DISK.atomic_write(path, encode_document(KIND_STORE_META, meta._asdict()), durable=True)
    return meta
