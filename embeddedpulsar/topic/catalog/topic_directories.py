"""Making, finding and healing the directories of topics, in step with the catalog."""

from __future__ import annotations

import contextlib
import os

from embeddedpulsar.damage import CATALOG, TOPIC_FILES, Damage, DamageHook
from embeddedpulsar.exceptions import (
    CorruptionError,
    ForeignFileError,
    TopicNotFound,
    UnsupportedFormatVersion,
)
from embeddedpulsar.format.catalog_record import TopicEntry
from embeddedpulsar.format.control import CONTROL_HEADER_SIZE, KIND_TOPIC, parse_control_header
from embeddedpulsar.format.document import KIND_TOPIC_META, decode_document, encode_document
from embeddedpulsar.format.segment_header import SEGMENT_HEADER_SIZE, parse_segment_header
from embeddedpulsar.platform import descriptors, disk, failpoints
from embeddedpulsar.storage import filenames
from embeddedpulsar.topic.catalog import root_layout
from embeddedpulsar.topic.catalog.catalog import Catalog
from embeddedpulsar.topic_name import LIFE_SEPARATOR, TopicName, directory_name

failpoints.declare("topic:staged", "topic:described", "topic:renamed", "topic:catalogued")
failpoints.declare("partitions:described", "partitions:grown")


class TopicDirectories:
    """``topics/`` and ``staging/`` of one store.

    Invariants: a directory under ``topics/`` is complete from the moment it has its name (it is built in
    ``staging/`` and renamed). The catalog follows the directory, so a crash between leaves a directory the
    catalog does not know: `create` of the same topic adopts it, and the first opening after a boot adopts
    all. What is in ``staging/`` while no process holds the catalog lock is left over.
    Callers: the holder of the catalog lock, except `path` and `ensure`.
    """

    def __init__(self, root: str, catalog: Catalog, report: DamageHook) -> None:
        self._topics = root_layout.in_root(root, root_layout.TOPICS)
        self._staging = root_layout.in_root(root, root_layout.STAGING)
        self._catalog = catalog
        self._report = report  # called under the catalog lock, too

    def path(self, entry: TopicEntry) -> str:
        """The directory of a topic."""
        return os.path.join(self._topics, entry.directory)

    def is_used(self, entry: TopicEntry) -> bool:
        """Whether the topic was ever opened."""
        directory = self.path(entry)
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

    def prepare(self, name: str, *, durable: bool, partitions: int = 0) -> TopicEntry:
        """Make a directory for the topic ``name``, which the catalog does not know; or find the one that is
        there."""
        lives, ended = self._catalog.ended(name)
        directory = os.path.join(self._topics, life_directory_name(name, lives))
        if lives:
            self._remove_ended(os.path.join(self._topics, life_directory_name(name, lives - 1)), ended)
        if os.path.isdir(directory):
            return self._adopt(directory, name, partitions)
        entry = TopicEntry(name, os.path.basename(directory), _random_incarnation(), partitions)
        self._build(directory, entry, durable)
        return entry

    def _remove_ended(self, directory: str, incarnation: int) -> None:
        """The process that deleted the topic may have died before its directory was gone."""
        entry, _ = _described(directory) if os.path.isdir(directory) else (None, "")
        if entry is not None and entry.incarnation == incarnation:
            remove_tree(self.put_away(os.path.basename(directory)))

    def put_away(self, directory: str) -> str:
        """Take the directory of a topic that is gone out of ``topics/``; returns where it is to be removed
        from."""
        staged = os.path.join(self._staging, os.urandom(8).hex())
        with contextlib.suppress(FileNotFoundError):  # made, and never filled
            disk.DISK.replace(os.path.join(self._topics, directory), staged)
        return staged

    def _build(self, directory: str, entry: TopicEntry, durable: bool) -> None:
        # 1. Under a name that no process looks for. A crash leaves files in staging.
        staged = os.path.join(self._staging, os.urandom(8).hex())
        disk.DISK.mkdir(staged)
        disk.DISK.mkdir(filenames.subscriptions_path(staged))
        if failpoints.ACTIVE:
            failpoints.hit("topic:staged")
        # 2. What it is (durably, its directory included, if the topic must survive a power loss from the
        # start).
        write_meta(staged, entry, durable=durable)
        if failpoints.ACTIVE:
            failpoints.hit("topic:described")
        # 3. Its name. A crash leaves a complete topic the catalog does not know yet.
        disk.DISK.replace(staged, directory)
        if durable:
            disk.DISK.fsync_dir(self._topics)
        if failpoints.ACTIVE:
            failpoints.hit("topic:renamed")

    def _adopt(self, directory: str, name: str, partitions: int) -> TopicEntry:
        """The topic that lies in ``directory`` already: its creator died, or a power loss took its record."""
        entry, reason = _described(directory)
        if entry is None:
            incarnation = self._incarnation_within(directory)
            entry = TopicEntry(name, os.path.basename(directory), incarnation, partitions)
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
        for ledger_id in filenames.ledgers_of(descriptors.names_in(directory)):
            with contextlib.suppress(*unreadable):
                page = _beginning(filenames.log_path(directory, ledger_id), SEGMENT_HEADER_SIZE)
                return parse_segment_header(page).topic_incarnation
        with contextlib.suppress(*unreadable):
            page = _beginning(filenames.control_path(directory), CONTROL_HEADER_SIZE)
            return parse_control_header(page, KIND_TOPIC).incarnation
        return _random_incarnation()

    def ensure(self, entry: TopicEntry) -> str:
        """The directory of a topic of the catalog, made again or described again if a power loss took it.

        Raises:
            CorruptionError: the directory holds another topic.
        """
        directory = self.path(entry)
        found, reason = _described(directory)
        if found is None:
            lost = _undescribed(directory, entry.name, reason, "it was written again from the catalog")
            if not os.path.isdir(directory):
                lost = _undescribed(directory, entry.name, "it was missing", "it was made again, empty")
            self._make_again(entry, directory)
            self._report(lost)
            found = entry
        _checked(found, entry.name, directory)
        return directory

    def _make_again(self, entry: TopicEntry, directory: str) -> None:
        try:
            self._catalog.lock.acquire()
            current = self._catalog.find(entry.name)
            if current is None or current.incarnation != entry.incarnation:
                raise TopicNotFound(f"{entry.name}: no such topic; it was deleted")
            with contextlib.suppress(FileExistsError):
                disk.DISK.mkdir(directory)
            with contextlib.suppress(FileExistsError):
                disk.DISK.mkdir(filenames.subscriptions_path(directory))
            write_meta(directory, entry, durable=False)
        finally:
            self._catalog.lock.release()

    def make_durable(self, entry: TopicEntry) -> None:
        """Flush everything that makes the topic findable after a power loss. Any thread, without a lock."""
        directory = self.path(entry)
        meta = filenames.topic_meta_path(directory)
        fd = disk.DISK.open_file(meta, os.O_RDONLY)
        try:
            disk.DISK.fsync(fd, meta)
        finally:
            os.close(fd)
        disk.DISK.fsync_dir(directory)
        disk.DISK.fsync_dir(self._topics)
        self._catalog.sync()

    def heal(self, now_ms: int) -> None:
        """After a boot: clear ``staging/``, and add the topics the catalog lost."""
        for name in descriptors.names_in(self._staging):
            remove_tree(os.path.join(self._staging, name))
        known = {entry.directory: entry for entry in self._catalog.topics()}
        lost = []
        for name in sorted(descriptors.names_in(self._topics)):
            if name in known:
                continue
            directory = os.path.join(self._topics, name)
            try:
                entry = read_meta(directory)
            except (CorruptionError, ForeignFileError) as e:
                entry = None
                self._report(Damage(e.path or directory, reason=e.reason, kind=TOPIC_FILES))
            if entry is not None and self._catalog.ended(entry.name)[1] == entry.incarnation:
                remove_tree(self.put_away(name))  # the process that deleted the topic died before it was gone
                continue
            if entry is None or directory_name(entry.name) != name.partition(LIFE_SEPARATOR)[0]:
                reason = "it is not in the catalog and does not say what it is"
                self._report(Damage(directory, reason=reason, kind=TOPIC_FILES))
                continue
            lost.append(entry)
        for entry in sorted(lost, key=_is_partition):
            if not self._is_of_the_future(entry):
                self._catalog.append_topic(entry, now_ms, durable=False)
                path, reason = self._catalog.path, f"the topic {entry.name} was missing from the catalog"
                self._report(
                    Damage(path, reason=reason, kind=CATALOG, topic=entry.name, done="it was added again")
                )

    def _is_of_the_future(self, entry: TopicEntry) -> bool:
        """Whether it is a partition that a topic was about to get; it is adopted when the topic grows."""
        name = TopicName.parse(entry.name)
        base = self._catalog.find(name.base) if name.partition >= 0 else None
        return base is not None and 0 < base.partitions <= name.partition

    def highest_ledger_id(self) -> int:
        """The highest ledger id that names a file in the store; 0 without any. Looks at every topic."""
        highest = 0
        for name in descriptors.names_in(self._topics):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                names = descriptors.names_in(os.path.join(self._topics, name))
                highest = max(highest, *filenames.ledgers_of(names), 0)
        return highest


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


def _is_partition(entry: TopicEntry) -> bool:
    return TopicName.parse(entry.name).partition >= 0


def _described(directory: str) -> tuple[TopicEntry | None, str]:
    """What the document in a topic's directory says; or None, and what is wrong with it."""
    try:
        entry = read_meta(directory)
    except (CorruptionError, ForeignFileError) as e:
        # A power loss may leave the name of the document and not its bytes.
        return None, f"{filenames.topic_meta_path(directory)}: {e.reason}"
    return entry, "" if entry is not None else f"{filenames.topic_meta_path(directory)} was missing"


def _undescribed(directory: str, topic: str, reason: str, done: str) -> Damage:
    remedy = "nothing needs to be done, unless messages are missing"
    return Damage(directory, reason=reason, kind=TOPIC_FILES, topic=topic, done=done, remedy=remedy)


def _beginning(path: str, size: int) -> bytes:
    fd = disk.DISK.open_file(path, os.O_RDONLY)
    try:
        return disk.DISK.pread(fd, size, 0)
    finally:
        os.close(fd)


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


def write_meta(directory: str, entry: TopicEntry, *, durable: bool) -> None:
    """Write the document of a topic whose directory is ``directory``."""
    fields = {"name": entry.name, "incarnation": entry.incarnation, "partitions": entry.partitions}
    path = filenames.topic_meta_path(directory)
    disk.DISK.atomic_write(path, encode_document(KIND_TOPIC_META, fields), durable)


def read_meta(directory: str) -> TopicEntry | None:
    """The topic kept in ``directory``; None without a document.

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
    return TopicEntry(name, os.path.basename(directory), incarnation, partitions)
