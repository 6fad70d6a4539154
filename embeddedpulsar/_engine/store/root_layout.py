"""Every file name in the root of a store; the files of a topic's directory are named in
`_engine.filenames`.

broker.conf · store.meta · store.ctl · store.lock · catalog · catalog.index · catalog.lock · housekeeping.lock
clients/<uuid> · topics/<dir>/ · staging/<random>/ · tenants/ · sinks/<key>/ · quarantine/ · offloaded/ · txn/

Where topics lie: the names of their directories, and the ``topic.meta`` in them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from embeddedpulsar._engine import filenames
from embeddedpulsar._engine.format.catalog_record import TopicEntry
from embeddedpulsar._engine.format.document import KIND_TOPIC_META, decode_document, encode_document
from embeddedpulsar._engine.log import topic_control
from embeddedpulsar._engine.platform import descriptors, disk, nofollow
from embeddedpulsar.exceptions import CorruptionError, ForeignFileError, UnsupportedFormatVersion
from embeddedpulsar.records import TYPE_CHECKING
from embeddedpulsar.topic_name import LIFE_SEPARATOR, directory_name, spread_directory_name

if TYPE_CHECKING:
    from typing import Final

SETTINGS: Final = "broker.conf"
META: Final = "store.meta"
CONTROL: Final = topic_control.STORE_CONTROL
STORE_LOCK: Final = "store.lock"
CATALOG: Final = "catalog"
CATALOG_INDEX: Final = "catalog.index"
CATALOG_LOCK: Final = "catalog.lock"
HOUSEKEEPING_LOCK: Final = "housekeeping.lock"
CLIENTS: Final = topic_control.CLIENTS
TOPICS: Final = filenames.TOPICS
STAGING: Final = "staging"
TENANTS: Final = "tenants"
SINKS: Final = filenames.SINKS
QUARANTINE: Final = "quarantine"
OFFLOADED: Final = "offloaded"
TRANSACTIONS: Final = filenames.TRANSACTIONS

DIRECTORIES: Final = (CLIENTS, TOPICS, STAGING)
ALL_DIRECTORIES: Final = (*DIRECTORIES, TENANTS, SINKS, QUARANTINE, OFFLOADED, TRANSACTIONS)
OURS: Final = frozenset(
    (
        *(SETTINGS, META, CONTROL, STORE_LOCK, CATALOG, CATALOG_INDEX, CATALOG_LOCK, HOUSEKEEPING_LOCK),
        *ALL_DIRECTORIES,
    )
)
_LEFTOVERS: Final = (".tmp", ".new")


def is_ours(name: str) -> bool:
    """Whether a file of that name belongs in the root of a store.

    Example:
        >>> is_ours("store.meta"), is_ours("store.meta.4f-0.tmp"), is_ours("holiday.jpg")
        (True, True, False)
        >>> is_ours("outbox.4f0a.lock"), is_ours("values.4f0a.lock")
        (True, True)
    """
    return name in OURS or name.endswith(_LEFTOVERS) or name.startswith((filenames.OUTBOX, filenames.VALUES))


def in_root(root: str, name: str) -> str:
    """The path of one of the names above."""
    return f"{root}{os.sep}{name}"  # `os.path.join` takes five times as long


MOST_IN_TOPICS: Final = 1000
"""Topics beyond these get directories below one of 1,024 directories, so that none grows large."""
_SPREAD_LENGTH: Final = 2


def life_directory_name(name: str, lives: int) -> str:
    """The directory of a topic whose name had so many topics before. Theirs may still be open somewhere.

    Example:
        >>> life_directory_name("persistent://public/default/t", 0)
        't-lqtqykzmdh4ywu3lsk2aj64nam-t'
        >>> life_directory_name("persistent://public/default/t", 1)
        't-lqtqykzmdh4ywu3lsk2aj64nam-t.2'
    """
    first = directory_name(name)
    return f"{first}{LIFE_SEPARATOR}{lives + 1}" if lives else first


def possible_directories(name: str, lives: int) -> tuple[str, str]:
    """The directory of such a life in a store with few topics, and in one with many.

    Example:
        >>> possible_directories("persistent://public/default/t", 1)
        ('t-lqtqykzmdh4ywu3lsk2aj64nam-t.2', 'lq/t-lqtqykzmdh4ywu3lsk2aj64nam-t.2')
    """
    life = life_directory_name(name, lives)
    return life, f"{life[2:4]}/{life}"


def directories_in(topics: str) -> Iterator[str]:
    """The directories of topics in ``topics``, and in the directories in it that many are spread over.

    What only lies there, as a file that a file manager makes, is none; see `strangers_in`. Something else in
    the place of a topic's directory, or a directory of any name, is one: the process that opens it
    reports what is wrong.
    """
    for name in _names_below(topics):
        if is_topic_directory(name) or _is_directory(topics, name):
            yield name


def strangers_in(topics: str) -> Iterator[str]:
    """What lies in ``topics``, or in a directory that topics are spread over, and is no directory."""
    for name in _names_below(topics):
        if not is_topic_directory(name) and not _is_directory(topics, name):
            yield name


def _is_directory(topics: str, name: str) -> bool:
    return nofollow.kind_of(os.path.join(topics, name)) == nofollow.DIRECTORY


def _names_below(topics: str) -> Iterator[str]:
    for name in descriptors.names_in(topics):
        if len(name) != _SPREAD_LENGTH:
            yield name
            continue
        with contextlib.suppress(NotADirectoryError):
            yield from [f"{name}/{below}" for below in descriptors.names_in(os.path.join(topics, name))]


def is_topic_directory(relative: str) -> bool:
    """Whether a path below ``topics/`` looks like that of a topic's directory. Looks at no file.

    Example:
        >>> is_topic_directory("ab/t-abx.2"), is_topic_directory("../t-abx"), is_topic_directory("t-abx/..")
        (True, False, False)
    """
    parent, _, name = relative.rpartition("/")
    is_spread = len(parent) == _SPREAD_LENGTH and parent.isalnum()
    return (is_spread or not parent) and name.startswith("t-") and "\0" not in name


def is_place_of(path: str, topics: str) -> bool:
    """Whether a directory of a topic lies there.

    Example:
        >>> is_place_of("/d/topics/ab/t-abx", "/d/topics"), is_place_of("/d/topics/t-abx/ctl", "/d/topics")
        (True, False)
    """
    parent, name = os.path.split(os.path.dirname(path))
    return os.path.join(parent, name) == topics or (parent == topics and len(name) == _SPREAD_LENGTH)


def find_directory(topics: str, name: str) -> str | None:
    """The path of the directory of a topic, found without the catalog: that of the last life of its name;
    None if there is none."""
    first = directory_name(name)
    best, newest = -1, None
    # A topic without a number is of the first life; the number of later ones is behind a dot.
    for parent in (topics, os.path.join(topics, os.path.dirname(spread_directory_name(name)))):
        if best < 0 and os.path.isdir(os.path.join(parent, first)):
            return os.path.join(parent, first)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for entry in descriptors.names_in(parent):
                begin, _, number = entry.partition(LIFE_SEPARATOR)
                if begin == first and number.isdigit() and int(number) > best:
                    best, newest = int(number), os.path.join(parent, entry)
    return newest


def remove_tree(path: str) -> None:
    """Remove a directory with everything in it, or a file; what cannot be removed stays."""
    if not os.path.isdir(path) or os.path.islink(path):
        with contextlib.suppress(OSError):
            disk.DISK.unlink(path)
        return
    with contextlib.suppress(OSError):
        for name in descriptors.names_in(path):
            remove_tree(os.path.join(path, name))
        disk.DISK.rmdir(path)


def remove_topic(path: str, notes: str) -> bool:
    """Remove the directory of a topic that is gone, as `remove_tree`. Notes of offloaded ledgers are moved to
    the directory ``notes``: their objects are removed later, because a location may not answer.

    Returns:
        Whether there were any.
    """
    cold_notes = []
    with contextlib.suppress(OSError):
        cold_notes = [name for name in descriptors.names_in(path) if name.endswith(filenames.COLD_SUFFIX)]
    # The notes first, durably: they are all that says which objects of the location have no topic any more. A
    # kill before the directory goes leaves both, and the removal is repeated.
    if cold_notes:
        with contextlib.suppress(FileExistsError):
            disk.DISK.mkdir(notes)
            disk.DISK.fsync_dir(os.path.dirname(notes))
        token = os.urandom(8).hex()
        for name in cold_notes:
            with contextlib.suppress(FileNotFoundError):
                disk.DISK.replace(os.path.join(path, name), os.path.join(notes, f"{token}-{name}"))
        disk.DISK.fsync_dir(notes)
    remove_tree(path)
    return bool(cold_notes)


def write_meta(directory: str, entry: TopicEntry, *, durable: bool) -> None:
    """Write the document of a topic whose directory is ``directory``."""
    fields = {"name": entry.name, "incarnation": entry.incarnation, "partitions": entry.partitions}
    path = filenames.topic_meta_path(directory)
    disk.DISK.atomic_write(path, encode_document(KIND_TOPIC_META, fields), durable)


def read_meta(directory: str, relative: str = "") -> TopicEntry | None:
    """The topic kept in ``directory``; None without a document.

    Args:
        directory: its path.
        relative: its path below ``topics/``; the last part of the path if empty.

    Raises:
        CorruptionError: the document is damaged, or incomplete.
        ForeignFileError, UnsupportedFormatVersion: as it says.
    """
    path = filenames.topic_meta_path(directory)
    try:
        data = disk.DISK.read_file(path)
    except FileNotFoundError:
        return None
    try:
        fields = decode_document(data, KIND_TOPIC_META)
        name, incarnation, partitions = (fields.get(key) for key in ("name", "incarnation", "partitions"))
        if not isinstance(name, str) or not isinstance(incarnation, int) or not isinstance(partitions, int):
            raise CorruptionError(reason="fields are missing")
    except (CorruptionError, ForeignFileError, UnsupportedFormatVersion) as e:
        raise e.at(path) from None
    return TopicEntry(name, relative or os.path.basename(directory), incarnation, partitions)
