"""Making, finding and healing the directories of topics, in step with the catalog.

``staging/`` of a store: directories that are not topics yet, or no longer.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence

from embeddedpulsar._engine import filenames
from embeddedpulsar._engine.format.catalog_record import TopicEntry
from embeddedpulsar._engine.format.control import CONTROL_HEADER_SIZE, KIND_TOPIC, parse_control_header
from embeddedpulsar._engine.format.frame import SEGMENT_HEADER_SIZE, parse_segment_header
from embeddedpulsar._engine.platform import descriptors, disk, failpoints, filesystem, nofollow
from embeddedpulsar._engine.store import root_layout
from embeddedpulsar._engine.store.catalog import Catalog
from embeddedpulsar._engine.store.root_layout import (
    MOST_IN_TOPICS,
    directories_in,
    is_topic_directory,
    possible_directories,
    read_meta,
    remove_topic,
    write_meta,
)
from embeddedpulsar.damage import CATALOG, TOPIC_FILES, Damage, DamageHook
from embeddedpulsar.exceptions import CorruptionError, ForeignFileError, StorageFullError, TopicNotFound
from embeddedpulsar.records import TYPE_CHECKING
from embeddedpulsar.topic_name import LIFE_SEPARATOR, TopicName, directory_name, is_directory_of

if TYPE_CHECKING:
    from typing import Final

_NOTE: Final = ".end"


class Staging:
    """Topics are built here before they get their name, and go here when they are deleted.
    Invariant: what is in it while no process holds the catalog lock was left by a process that died, or is
    being removed.
    Callers: the holder of the catalog lock, except `is_empty`.

    Attributes:
        path: the directory.
    """

    def __init__(self, root: str) -> None:
        self.path: Final = root_layout.in_root(root, root_layout.STAGING)
        self._notes: Final = root_layout.in_root(root, root_layout.OFFLOADED)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left, or being made or deleted."""
        return not descriptors.names_in(self.path)

    def place(self) -> str:
        """A path that no process looks for."""
        return f"{self.path}{os.sep}{os.urandom(8).hex()}"

    def put_away(self, directory: str) -> str:
        """Take the directory of a topic that is gone; returns where it is to be removed from."""
        staged = self.place()
        with contextlib.suppress(FileNotFoundError):  # made, and never filled
            disk.DISK.replace(directory, staged)
        return staged

    def remove(self, path: str) -> bool:
        """Remove what was put away; see `remove_topic`. Any thread, without a lock."""
        return remove_topic(path, self._notes)

    def note_end(self, directories: Iterable[str]) -> str:
        """Note that the topics in these directories are about to be deleted, so that an opening of the store
        puts them away if this process dies before it has.

        Returns:
            The note, to be removed by `remove_tree` once they are put away, or are not deleted.
        """
        note = f"{self.place()}{_NOTE}"
        with contextlib.suppress(StorageFullError):  # a deletion makes room: it must not need any
            disk.DISK.atomic_write(note, "\n".join(directories).encode(), durable=False)
        return note

    def clear(self, remove_if_ended: Callable[[str], object]) -> None:
        """Remove everything, and what notes say by ``remove_if_ended(directory)``."""
        for name in descriptors.names_in(self.path):
            path = os.path.join(self.path, name)
            if name.endswith(_NOTE):
                for directory in disk.DISK.read_file(path).decode(errors="replace").splitlines():
                    remove_if_ended(directory)
            self.remove(path)


failpoints.declare("topic:staged", "topic:described", "topic:renamed", "topic:catalogued")
failpoints.declare("announced:made", "partitions:described", "partitions:grown")


class TopicDirectories:
    """``topics/`` and ``staging/`` of one store.

    Invariants: a directory under ``topics/`` is complete from the moment it has its name (it is built in
    ``staging/`` and renamed). The catalog follows the directory, so a crash between leaves a directory the
    catalog does not know: `create` of the same topic adopts it, and the first opening after a boot adopts
    all.
    Callers: the holder of the catalog lock, except `path` and `ensure`.
    """

    def __init__(self, root: str, catalog: Catalog, report: DamageHook) -> None:
        self._root = root
        self._topics = root_layout.in_root(root, root_layout.TOPICS)
        self.staging = Staging(root)
        self._catalog = catalog
        self._report = report  # called under the catalog lock, too
        self._built = 0  # incarnation of the topic that was made last, until it is opened

    def path(self, entry: TopicEntry) -> str:
        """The directory of a topic."""
        return self._below(self.relative(entry))

    def relative(self, entry: TopicEntry) -> str:
        """The same, below ``topics/``.

        Raises:
            CorruptionError: the catalog names a directory that is not one of the topic's name.
        """
        try:
            return entry.below_topics()
        except CorruptionError as e:
            raise e.at(self._catalog.path) from None

    def _below(self, directory: str) -> str:
        return f"{self._topics}{os.sep}{directory}"

    def is_used(self, entry: TopicEntry) -> bool:
        """Whether the topic was ever opened."""
        directory = self.path(entry)
        if not entry.is_made:
            return False
        if os.path.exists(filenames.control_path(directory)):
            return True
        with contextlib.suppress(FileNotFoundError):
            return bool(filenames.ledgers_of(descriptors.names_in(directory)))
        return False

    def create(
        self,
        name: str,
        now_ms: int,
        *,
        durable: bool,
        partitions: int = 0,
    ) -> TopicEntry:
        """Make the topic ``name``, or return it if another process was faster.

        Args:
            partitions: how many a partitioned topic has; 0 for one with a log.
        """
        known = self._catalog.find(name)
        if known is not None:
            return known
        entry = self.prepare(name, durable=durable, partitions=partitions)
        # 4. The catalog. From here on it can be listed.
        self._catalog.append_topic(entry, now_ms, durable=durable)
        if failpoints.ACTIVE:
            failpoints.hit("topic:catalogued")
        return entry

    def announce(self, names: Sequence[str], now_ms: int, *, durable: bool) -> None:
        """Make topics, none of which exists, without their directories: those are made by `make`, when the
        topics are first opened."""
        entries: list[TopicEntry] = []
        for name in names:
            is_there, directory = self._place(name, len(entries))
            if is_there:
                entries.append(self._adopt(directory, name, 0))
            else:
                entries.append(TopicEntry(name, directory, _random_incarnation(), is_made=False))
        self._catalog.append_topics(entries, now_ms, durable=durable)
        if failpoints.ACTIVE:
            failpoints.hit("topic:catalogued")

    def make(self, entry: TopicEntry, now_ms: int, *, durable: bool) -> TopicEntry:
        """Make the directory of a topic that was announced; returns what the topic is then.

        Raises:
            TopicNotFound: it was deleted.
        """
        try:
            self._catalog.lock.acquire()
            current = self._catalog.find(entry.name)
            if current is None or current.incarnation != entry.incarnation:
                raise TopicNotFound(f"{entry.name}: no such topic; it was deleted")
            if current.is_made:
                return current
            # 1. The directory. A crash leaves one of which the catalog does not know that it is there.
            opened_entry = current._replace(is_made=True)
            if os.path.isdir(self.path(opened_entry)):
                opened_entry = self._adopt(
                    self.relative(opened_entry), opened_entry.name, opened_entry.partitions
                )
            else:
                self._build(opened_entry, durable)
            # 2. The catalog. From here on it is damage if the directory is missing.
            if opened_entry.incarnation == entry.incarnation:
                self._catalog.append_topic_made(opened_entry, now_ms, durable=durable)
            else:
                self._catalog.append_topic(opened_entry, now_ms, durable=durable)
            if failpoints.ACTIVE:
                failpoints.hit("announced:made")
            return opened_entry
        finally:
            self._catalog.lock.release()

    def prepare(self, name: str, *, durable: bool, partitions: int = 0) -> TopicEntry:
        """Make a directory for the topic ``name``, which the catalog does not know; or find the one that is
        there."""
        is_there, directory = self._place(name)
        if is_there:
            return self._adopt(directory, name, partitions)
        entry = TopicEntry(name, directory, _random_incarnation(), partitions)
        self._build(entry, durable)
        return entry

    def _place(self, name: str, more: int = 0) -> tuple[bool, str]:
        """Whether there is a directory for the next life of a name, and which it is or is to be.

        Args:
            more: topics that are being made beside those of the catalog."""
        lives, _ = self._catalog.ended(name)
        if lives:
            for directory in possible_directories(name, lives - 1):
                self._remove_if_ended(directory)  # its process may have died before it was gone
        flat, spread = possible_directories(name, lives)
        for directory in (flat, spread):
            if os.path.isdir(self._below(directory)):
                return True, directory
        return False, flat if self._catalog.size + more < MOST_IN_TOPICS else spread

    def _remove_if_ended(self, directory: str) -> bool:
        """Whether it was that of a topic that was deleted; then it is gone.

        Args:
            directory: as a note says that a process left; any other text than the name of a directory of a
                topic is reported, and nothing is removed.
        """
        if not is_topic_directory(directory):
            reason = f"a note of a deletion names {directory!r}, which is no directory of a topic"
            done = "nothing was removed there"
            self._report(Damage(self.staging.path, reason=reason, kind=TOPIC_FILES, done=done))
            return False
        is_there = os.path.isdir(self._below(directory))
        entry, _ = self._described(directory) if is_there else (None, "")
        is_ended = (
            entry is not None
            and is_directory_of(directory, entry.name)
            and self._catalog.ended(entry.name)[1] == entry.incarnation
        )
        if is_ended:
            self.staging.remove(self.put_away(directory))
        return is_ended

    def put_away(self, directory: str) -> str:
        """Take the directory of a topic that is gone out of ``topics/``; see `Staging.put_away`."""
        return self.staging.put_away(self._below(directory))

    def _build(self, entry: TopicEntry, durable: bool) -> None:
        nofollow.within(self._root, self._build_within, entry, durable)

    def _build_within(self, entry: TopicEntry, durable: bool) -> None:
        # 1. Under a name that no process looks for. A crash leaves files in staging.
        staged = self.staging.place()
        disk.DISK.mkdir(staged)
        if failpoints.ACTIVE:
            failpoints.hit("topic:staged")
        # 2. What it is (durably, its directory included, if the topic must survive a power loss from the
        # start).
        write_meta(staged, entry, durable=durable)
        if failpoints.ACTIVE:
            failpoints.hit("topic:described")
        # 3. Its name. A crash leaves a complete topic the catalog does not know yet.
        directory = self.path(entry)
        self._make_parent(directory)
        disk.DISK.replace(staged, directory)
        if durable:
            self._flush_names(directory)
        self._built = entry.incarnation
        if failpoints.ACTIVE:
            failpoints.hit("topic:renamed")

    def _make_parent(self, directory: str) -> None:
        parent = os.path.dirname(directory)
        if parent != self._topics and not os.path.isdir(parent):
            with contextlib.suppress(FileExistsError):
                disk.DISK.mkdir(parent)

    def _flush_names(self, directory: str) -> None:
        parent = os.path.dirname(directory)
        disk.DISK.fsync_dir(parent)
        if parent != self._topics:
            disk.DISK.fsync_dir(self._topics)

    def _adopt(self, relative: str, name: str, partitions: int) -> TopicEntry:
        """The topic that lies in a directory already: its creator died, or a power loss took its record."""
        directory = self._below(relative)
        entry, reason = self._described(relative)
        if entry is None:
            # Nothing says which life of the name it is, except what was written for it: segments have the
            # incarnation in their headers, and must fit the description.
            incarnation = self._incarnation_within(directory)
            entry = TopicEntry(name, relative, incarnation, partitions)
            write_meta(directory, entry, durable=False)
            done = f"it was written again for the topic {name}, whose directory it is in"
            self._report(_undescribed(directory, name, reason, done))
        elif entry.partitions != partitions and entry.name == name:
            # Only the process that created it knew of it, so there is no message in it.
            entry = entry._replace(partitions=partitions)
            write_meta(directory, entry, durable=False)
        return _checked(entry, name, directory)

    def grow(self, entry: TopicEntry, now_ms: int, *, durable: bool) -> None:
        """Say that a partitioned topic has more partitions."""
        # 1. In its own directory: should a power loss take the catalog, this is what it is made from. A crash
        # leaves a number that is not used while the catalog is there.
        directory = self.ensure(entry)
        write_meta(directory, entry, durable=durable)
        if failpoints.ACTIVE:
            failpoints.hit("partitions:described")
        # 2. In the catalog. From here on the partitions exist.
        self._catalog.append_topic(entry, now_ms, durable=durable)
        if failpoints.ACTIVE:
            failpoints.hit("partitions:grown")

    def _incarnation_within(self, directory: str) -> int:
        """The incarnation its segments were written for, or its control words; a new one if none of them can
        be read."""
        unreadable = CorruptionError, FileNotFoundError, PermissionError
        # The first that can be read is as good as any: all ledgers of a topic are of one incarnation.
        for ledger_id in filenames.ledgers_of(descriptors.names_in(directory)):
            with contextlib.suppress(*unreadable):
                page = disk.DISK.read_file(filenames.log_path(directory, ledger_id), SEGMENT_HEADER_SIZE)
                return parse_segment_header(page).topic_incarnation
        with contextlib.suppress(*unreadable):
            page = disk.DISK.read_file(filenames.control_path(directory), CONTROL_HEADER_SIZE)
            return parse_control_header(page, KIND_TOPIC).incarnation
        return _random_incarnation()

    def ensure(self, entry: TopicEntry) -> str:
        """The directory of a topic of the catalog, made again or described again if a power loss took it.

        Raises:
            CorruptionError: the directory holds another topic.
        """
        directory = self.path(entry)
        # This process has just made it, so it is described.
        if entry.incarnation == self._built:
            self._built = 0
            return directory
        described, reason = self._described(self.relative(entry))
        # A power loss took the name or the content of the document. The catalog knows the topic, so the
        # directory is described again, and the loss is reported.
        if described is None:
            lost = _undescribed(directory, entry.name, reason, "it was written again from the catalog")
            if not os.path.isdir(directory):
                lost = _undescribed(directory, entry.name, "it was missing", "it was made again, empty")
            # Made before it is reported: the hook of the application may look at the topic.
            self._make_again(entry, directory)
            self._report(lost)
            described = entry
        _checked(described, entry.name, directory)
        self._check_owner(directory)
        return directory

    def _check_owner(self, directory: str) -> None:
        filesystem.check_below(os.stat(self._root), directory, nofollow.directory_status(directory))

    def _make_again(self, entry: TopicEntry, directory: str) -> None:
        try:
            # Under the catalog lock, or a deletion in another process could be undone here.
            self._catalog.lock.acquire()
            current = self._catalog.find(entry.name)
            if current is None or current.incarnation != entry.incarnation:
                raise TopicNotFound(f"{entry.name}: no such topic; it was deleted")
            self._make_parent(directory)
            with contextlib.suppress(FileExistsError):
                disk.DISK.mkdir(directory)
            write_meta(directory, entry, durable=False)
        finally:
            self._catalog.lock.release()

    def make_durable(self, entry: TopicEntry) -> None:
        """Flush everything that makes the topic findable after a power loss. Any thread, without a lock."""
        # In the order in which a search after a power loss would need them: the description, its name, the
        # names of the directories, the record of the catalog.
        directory = self.path(entry)
        meta = filenames.topic_meta_path(directory)
        fd = disk.DISK.open_file(meta, os.O_RDONLY)
        try:
            disk.DISK.fsync(fd, meta)
        finally:
            os.close(fd)
        disk.DISK.fsync_dir(directory)
        self._flush_names(directory)
        self._catalog.sync()

    def clear_staging(self) -> None:
        """Remove what processes left that died while they made or deleted a topic."""
        self.staging.clear(self._remove_if_ended)

    def heal(self, now_ms: int) -> None:
        """After a boot: clear ``staging/``, and add the topics the catalog lost."""
        # What is in staging was left by processes that died, since the catalog lock is held.
        self.clear_staging()
        present = sorted(directories_in(self._topics))
        known = self._catalog.made_directories() if present else set()
        lost = []
        # For each directory that the catalog does not have as made: the rest of a deletion, a topic that was
        # announced, one that says nothing, one whose last record was lost, or one whose record was lost as a
        # whole.
        for name in present:
            if name in known:
                continue
            directory = os.path.join(self._topics, name)
            try:
                entry = read_meta(directory, name)
            except (CorruptionError, ForeignFileError) as e:
                entry = None
                self._report(Damage(e.path or directory, reason=e.reason, kind=TOPIC_FILES))
            # The catalog has its deletion, durably; only the files are left.
            if entry is not None and self._catalog.ended(entry.name)[1] == entry.incarnation:
                self.staging.remove(
                    self.put_away(name)
                )  # the process that deleted it died before it was gone
                continue
            first = os.path.basename(name).partition(LIFE_SEPARATOR)[0]
            if entry is None and self._is_known(name):
                continue  # announced; it is described again when it is opened
            if entry is None or directory_name(entry.name) != first:
                reason = "it is not in the catalog and does not say what it is"
                self._report(Damage(directory, reason=reason, kind=TOPIC_FILES))
                continue
            current = self._catalog.find(entry.name)
            if current is not None and current == entry._replace(is_made=False):
                self._catalog.append_topic_made(entry, now_ms, durable=False)  # its last record was lost
                continue
            lost.append(entry)
        # Topics before their partitions: a partition that stands for a future growth is recognized by its
        # topic.
        for entry in sorted(lost, key=_is_partition):
            # Prepared for a growth that did not happen: no message is in it.
            if not self._is_of_the_future(entry):
                self._catalog.append_topic(entry, now_ms, durable=False)
                path, reason = self._catalog.path, f"the topic {entry.name} was missing from the catalog"
                self._report(
                    Damage(path, reason=reason, kind=CATALOG, topic=entry.name, done="it was added again")
                )

    def heal_namespaces(self, now_ms: int) -> None:
        """Add the namespaces that the catalog lost, which topics with directories are in."""
        for entry in self._catalog.topics():
            namespace = TopicName.parse(entry.name).namespace_name
            if not self._catalog.has_namespace(namespace):
                self._catalog.append_namespace(namespace, now_ms, durable=True)
                path, reason = self._catalog.path, f"the namespace {namespace} was missing from the catalog"
                self._report(Damage(path, reason=reason, kind=CATALOG, done="it was added again"))

    def _described(self, relative: str) -> tuple[TopicEntry | None, str]:
        """What the document in a topic's directory says; or None, and what is wrong with it."""
        directory = self._below(relative)
        try:
            entry = read_meta(directory, relative)
        except (CorruptionError, ForeignFileError) as e:
            # A power loss may leave the name of the document and not its bytes.
            return None, f"{filenames.topic_meta_path(directory)}: {e.reason}"
        if entry is None:
            return None, f"{filenames.topic_meta_path(directory)} was missing"
        return entry, ""

    def _is_known(self, directory: str) -> bool:
        """Whether it is the directory of a topic, opened before or not. Looks at all of them."""
        return any(entry.directory == directory for entry in self._catalog.topics())

    def _is_of_the_future(self, entry: TopicEntry) -> bool:
        """Whether it is a partition that a topic was about to get; it is adopted when the topic grows."""
        name = TopicName.parse(entry.name)
        base = self._catalog.find(name.base) if name.partition >= 0 else None
        return base is not None and 0 < base.partitions <= name.partition

    def highest_ledger_id(self) -> int:
        """The highest ledger id that names a file in the store; 0 without any. Looks at every topic."""
        highest = 0
        for name in directories_in(self._topics):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                names = descriptors.names_in(os.path.join(self._topics, name))
                highest = max(highest, *filenames.ledgers_of(names), 0)
        return highest


def _is_partition(entry: TopicEntry) -> bool:
    return TopicName.parse(entry.name).partition >= 0


def _undescribed(directory: str, topic: str, reason: str, done: str) -> Damage:
    remedy = "nothing needs to be done, unless messages are missing"
    return Damage(directory, reason=reason, kind=TOPIC_FILES, topic=topic, done=done, remedy=remedy)


def _random_incarnation() -> int:
    return int.from_bytes(os.urandom(8), "little") or 1


def _checked(entry: TopicEntry, name: str, directory: str) -> TopicEntry:
    if entry.name != name:
        raise CorruptionError(
            path=filenames.topic_meta_path(directory),
            reason=f"it describes the topic {entry.name}, not {name}",
            remedy="the two names share one directory name; use another name, or put back the right file",
        )
    return entry
