"""The auditor of a whole store: what every test that used one asks in the end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Final, NamedTuple

from embeddedpulsar.exceptions import StorageError
from embeddedpulsar.format.catalog_record import TopicEntry
from embeddedpulsar.format.control import KIND_STORE, KIND_SUBSCRIPTION, StoreWord, parse_control_header
from embeddedpulsar.format.journal_record import FIRST_RECORD_OFFSET, parse_journal_header, valid_end
from embeddedpulsar.platform.file_lock import FileLock
from embeddedpulsar.platform.lease import is_held
from embeddedpulsar.storage import filenames
from embeddedpulsar.storage.check import CONTROL, JOURNAL, Problem, check_journal, check_topic
from embeddedpulsar.storage.filenames import ledgers_of
from embeddedpulsar.topic import root_layout, store_meta, topic_meta
from embeddedpulsar.topic.catalog import Catalog

META: Final = "meta"
"""A document that names a store or topic is damaged, missing, or says something else than its place."""
LEFTOVER: Final = "leftover"
"""A file of an operation that died. Harmless: whoever needs the name removes it."""
IN_USE: Final = "in use"
"""A lock is held or a process lives, although the store should be closed."""
ID_REUSE: Final = "ledger id"
"""The store could give out a ledger id that a topic has already."""
_TEMPORARY: Final = (".tmp", filenames.NEW_SUFFIX)


class StoreReport(NamedTuple):
    """What was found in a store, and how much there is."""

    problems: list[Problem]
    topics: int
    ledgers: int
    frames: int
    messages: int

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found."""
        return not self.problems


def check_store(root: str | os.PathLike[str], *, is_closed: bool = True) -> StoreReport:
    """Audit a store without changing it: every topic and subscription, names, ids, leases, leftovers.

    Args:
        root: the store's directory.
        is_closed: nobody should have it open: then a held lock, a living process, and files that only an
            operation in progress may have are problems too.

    Raises:
        FileNotFoundError: no such directory.

    Example:
        >>> import tempfile
        >>> from embeddedpulsar.topic.store import Store
        >>> with tempfile.TemporaryDirectory() as root:
        ...     Store.open(root).release()
        ...     check_store(root).is_clean
        True
    """
    path = os.fspath(root)
    problems = list(_check_root(path))
    entries, found = _catalogued(path)
    problems += found
    topics = _directories(root_layout.in_root(path, root_layout.TOPICS))
    problems += _check_names(path, entries, topics)
    ledgers = frames = messages = highest = 0
    for name in topics:
        directory = os.path.join(root_layout.in_root(path, root_layout.TOPICS), name)
        report = check_topic(directory)
        problems += report.problems
        ledgers, frames = ledgers + report.ledgers, frames + report.frames
        messages += report.messages
        highest = max([highest, *ledgers_of(os.listdir(directory))])
        for subscription in _directories(filenames.subscriptions_path(directory)):
            own = os.path.join(filenames.subscriptions_path(directory), subscription)
            problems += check_journal(own, KIND_SUBSCRIPTION)
    problems += _check_ids(path, highest)
    if is_closed:
        problems += _check_closed(path)
    return StoreReport(problems, len(topics), ledgers, frames, messages)


def assert_clean(root: str | os.PathLike[str]) -> StoreReport:
    """`check_store` of a closed store, failing with all its problems."""
    report = check_store(root)
    if report.problems:
        raise AssertionError("\n".join(map(str, report.problems)))
    return report


def _check_root(root: str) -> Iterator[Problem]:
    try:
        if store_meta.read(root) is None:
            yield Problem(META, root_layout.in_root(root, root_layout.META), 0, "there is no store here")
    except StorageError as e:
        yield Problem(META, e.path or root, e.offset or 0, e.reason)
    for name in sorted(os.listdir(root)):
        if not root_layout.is_ours(name):
            yield Problem(LEFTOVER, os.path.join(root, name), 0, "this does not belong into a store")


def _catalogued(root: str) -> tuple[list[TopicEntry], list[Problem]]:
    path = root_layout.in_root(root, root_layout.CATALOG)
    try:
        with open(path, "rb") as file:
            data = file.read()
        header = parse_journal_header(data)
        lock = FileLock(root_layout.in_root(root, root_layout.CATALOG_LOCK))
        catalog = Catalog(path, lock)
    except FileNotFoundError:
        return [], [Problem(JOURNAL, path, 0, "there is no catalog")]
    except StorageError as e:
        return [], [Problem(JOURNAL, path, e.offset or 0, e.reason)]
    try:
        end, _ = valid_end(data, FIRST_RECORD_OFFSET, len(data), header.chain_seed)
        problems = []
        if any(data[end:]):
            problems.append(Problem(LEFTOVER, path, end, "a record that was not finished, or is damaged"))
        return catalog.topics(), problems
    finally:
        catalog.close()
        lock.close()


def _check_names(root: str, entries: list[TopicEntry], topics: list[str]) -> Iterator[Problem]:
    parent = root_layout.in_root(root, root_layout.TOPICS)
    known = {entry.directory: entry for entry in entries}
    for name in sorted(known.keys() - set(topics)):
        yield Problem(META, os.path.join(parent, name), 0, f"the directory of {known[name].name} is missing")
    for name in topics:
        directory = os.path.join(parent, name)
        entry = known.get(name)
        try:
            found = topic_meta.read(directory)
        except StorageError as e:
            yield Problem(META, e.path or directory, e.offset or 0, e.reason)
            continue
        if found is None:
            yield Problem(META, directory, 0, "nothing says which topic this is")
        elif entry is None:
            yield Problem(META, directory, 0, f"the catalog does not know {found.name}")
        elif (found.name, found.incarnation) != (entry.name, entry.incarnation):
            yield Problem(META, directory, 0, f"this is {found.name}, the catalog says {entry.name}")


def _check_ids(root: str, highest: int) -> Iterator[Problem]:
    path = root_layout.in_root(root, root_layout.CONTROL)
    try:
        with open(path, "rb") as file:
            data = file.read()
        parse_control_header(data, KIND_STORE)
    except FileNotFoundError:
        yield Problem(CONTROL, path, 0, "the file is missing")
        return
    except StorageError as e:
        yield Problem(CONTROL, path, e.offset or 0, e.reason)
        return
    at = 8 * StoreWord.NEXT_LEDGER_ID
    following = int.from_bytes(data[at : at + 8], "little")
    if following <= highest:
        yield Problem(ID_REUSE, path, at, f"ledger {highest} exists, and {following} would come next")


def _check_closed(root: str) -> Iterator[Problem]:
    clients = root_layout.in_root(root, root_layout.CLIENTS)
    for name in sorted(os.listdir(clients) if os.path.isdir(clients) else ()):
        path = os.path.join(clients, name)
        if is_held(path):
            yield Problem(IN_USE, path, 0, "the process lives")
        else:
            yield Problem(LEFTOVER, path, 0, "the lease of a process that is gone")
    for directory, _, names in os.walk(root):
        for name in names:
            path = os.path.join(directory, name)
            if name.endswith(_TEMPORARY):
                yield Problem(LEFTOVER, path, 0, "a file that was not finished")
            elif name.endswith("lock") and _is_locked(path):
                yield Problem(IN_USE, path, 0, "the lock is held")
    staging = root_layout.in_root(root, root_layout.STAGING)
    for name in _directories(staging):
        yield Problem(LEFTOVER, os.path.join(staging, name), 0, "a topic that was not finished")


def _is_locked(path: str) -> bool:
    lock = FileLock(path)
    try:
        return not lock.try_acquire()
    finally:
        lock.release()
        lock.close()


def _directories(path: str) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return sorted(entry.name for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False))
    return []
