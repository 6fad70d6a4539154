"""Repairs a store from what is in it, by what a check finds.

Repairs of the files of one topic or subscription, by what its other files say.

Each may be interrupted and made again. Only files that are derived are replaced; of a log, only the header
and end marks are written.

Repairs of the files in the root of a store: what it is, and which topics it has.

What a repair will do about the findings of a check.

Where a repair puts what it takes out of use: nothing that may hold a message is removed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar import damage
from embeddedpulsar._engine import filenames
from embeddedpulsar._engine.filenames import SUBSCRIPTIONS, log_path
from embeddedpulsar._engine.format import catalog_record
from embeddedpulsar._engine.format.catalog_record import TopicEntry
from embeddedpulsar._engine.format.control import (
    CONTROL_HEADER_SIZE,
    KIND_SUBSCRIPTION,
    KIND_TOPIC,
    SubscriptionWord,
    TopicWord,
    pack_control_header,
    parse_control_header,
    split_journal,
)
from embeddedpulsar._engine.format.frame import (
    COPY_OFFSETS,
    SEGMENT_HEADER_SIZE,
    pack_segment_header,
    pack_trailer,
)
from embeddedpulsar._engine.format.journal_record import (
    FIRST_RECORD_OFFSET,
    JournalBase,
    JournalRecord,
    next_intact,
    record_at,
)
from embeddedpulsar._engine.log import log_check
from embeddedpulsar._engine.log.chain_scan import scan_log
from embeddedpulsar._engine.log.journal_file import (
    JournalFile,
    Replica,
    choose,
    generations,
    replay,
    write_generation,
)
from embeddedpulsar._engine.log.log_check import NEWER, Problem, trusted_words
from embeddedpulsar._engine.log.log_opening import PROCESS, ledger_options
from embeddedpulsar._engine.log.segment import find_segment_header, read_segment_header
from embeddedpulsar._engine.log.segment_index import write_index
from embeddedpulsar._engine.log.segments import Link, walk_segments
from embeddedpulsar._engine.log.topic_control import TERMINATED
from embeddedpulsar._engine.platform import descriptors, disk, failpoints, filesystem, nofollow
from embeddedpulsar._engine.platform import timing as clocks
from embeddedpulsar._engine.platform.filesystem import DirectoryLease, prepare_root
from embeddedpulsar._engine.platform.package_log import DamageChannel
from embeddedpulsar._engine.platform.timing import SYSTEM_CLOCK
from embeddedpulsar._engine.store import root_layout, store_root
from embeddedpulsar._engine.store.care.store_check import (
    FOLDED,
    ID_REUSE,
    LEFTOVER,
    META,
    NOTES,
    REPAIR,
    StoreReport,
    check_store,
)
from embeddedpulsar._engine.store.catalog import Catalog
from embeddedpulsar._engine.store.root_layout import find_directory, is_place_of, read_meta
from embeddedpulsar._engine.store.store_session import StoreSession
from embeddedpulsar._engine.store.topic import Topic
from embeddedpulsar._engine.store.topic_journal import TopicReplica
from embeddedpulsar._engine.subscription import subscription_files
from embeddedpulsar._engine.subscription.state.replica import SubscriptionReplica
from embeddedpulsar._engine.subscription.subscription_files import complete, position_at_rest
from embeddedpulsar.damage import JOURNAL
from embeddedpulsar.exceptions import (
    CorruptionError,
    ForeignFileError,
    NotAllowedError,
    StorageError,
    StorageOSError,
    UnsupportedFormatVersion,
)
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.topic_name import NON_DURABLE_PREFIX, directory_name, is_directory_of

if TYPE_CHECKING:
    from embeddedpulsar._engine.store.care.store_check import CareProgress
    from embeddedpulsar.damage import Damage


_NO_BOOT: Final = bytes(16)
_SECOND_COPY: Final = COPY_OFFSETS[1]

failpoints.declare(
    "repair:header_half", "repair:index_written", "repair:journal_written", "repair:distrusted"
)


def distrust(directory: str, quarantine: Quarantine) -> None:
    """Have the next process that opens a topic or subscription derive its control words from its files."""
    path = filenames.control_path(directory)
    try:
        header = parse_control_header(disk.DISK.read_file(path, CONTROL_HEADER_SIZE))
    except FileNotFoundError:
        return
    except CorruptionError:
        # Not a control file any more: it is taken away, and made anew from the files.
        quarantine.move(path)
        return
    quarantine.copy(path)
    # With the boot of no machine, so that every process takes the words for those of before a reboot.
    _overwrite(path, pack_control_header(header._replace(boot_id=_NO_BOOT)), 0)
    failpoints.hit("repair:distrusted")


def rewrite_header(directory: str, ledger_id: int, store_id: bytes, quarantine: Quarantine) -> None:
    """Write the header of a segment as it can be derived. Without effect if it cannot."""
    path = log_path(directory, ledger_id)
    # A segment that is gone, or whose header cannot be derived, stays as it is: a report says so.
    with contextlib.suppress(CorruptionError, FileNotFoundError):
        search = find_segment_header(directory, ledger_id)
        if not search.damage:
            return
        # The page as it was goes to quarantine first: whatever a repair overwrites can be put back.
        quarantine.keep(path, disk.DISK.read_file(path, SEGMENT_HEADER_SIZE))
        header = search.header._replace(store_id=store_id, topic_incarnation=_incarnation_of(directory))
        page = pack_segment_header(header)
        # One copy after the other, so that one is whole when the process dies in between.
        _overwrite(path, page[:_SECOND_COPY], 0)
        failpoints.hit("repair:header_half")
        _overwrite(path, page[_SECOND_COPY:], _SECOND_COPY)


def _incarnation_of(directory: str) -> int:
    with contextlib.suppress(CorruptionError, ForeignFileError):
        entry = read_meta(directory)
        return 0 if entry is None else entry.incarnation
    return 0


def rewrite_index(directory: str, ledger_id: int) -> None:
    """Write the index and the end marks of a ledger as its frames say."""
    link = _link_of(directory, ledger_id)
    if link is None:
        return
    header, path = link.header, log_path(directory, ledger_id)
    scan = scan_log(
        path,
        chain_seed=header.chain_seed,
        base_publish_ms=header.base_publish_ms,
        end=link.end_offset if link.is_closed else None,
        last_entry_id=link.last_entry_id,
    )
    # End marks that are wrong although the frame is whole: the next reader finds the last frame by them.
    for offset, length in scan.bad_trailers:
        _overwrite(path, pack_trailer(length), offset)
    write_index(directory, header, bytes(scan.slots))
    failpoints.hit("repair:index_written")


def _link_of(directory: str, ledger_id: int) -> Link | None:
    words = trusted_words(directory, KIND_TOPIC)
    chain = walk_segments(directory, words[TopicWord.TRIM] if words else 0)
    return next((link for link in chain.links if link.header.ledger_id == ledger_id), None)


def rewrite_journal(directory: str, is_topic: bool, now_ms: int, quarantine: Quarantine) -> bool:
    """Start a new generation of a journal from all commands that can be read, also behind damaged ones.

    A subscription delivers again from the last position that is known; see
    `_engine.subscription.subscription_files`.

    Returns:
        False, and nothing was changed, if no command of a terminated topic can be read, or nothing says which
        subscription it is.
    """
    kind = KIND_TOPIC if is_topic else KIND_SUBSCRIPTION
    if is_topic:
        topic = TopicReplica()
        base = _replay_best(directory, kind, topic)
        if base is None:
            # The journal has nothing, and the words say that the topic was terminated: a new journal without
            # that would open it again.
            words = trusted_words(directory, kind)
            if words and words[TopicWord.STATE] & TERMINATED:
                return False  # only the words say so, and a new generation has them derived from the journal
            topic, base = TopicReplica(), JournalBase(0, 0, 0)  # sequence ids are found in the log again
        snapshot = topic.snapshot()
    else:
        subscription = SubscriptionReplica()
        base = _replay_best(directory, kind, subscription) or JournalBase(0, 0, 0)
        # A subscription whose name nothing says cannot be delivered to.
        if not complete(subscription, directory, "", position_at_rest(directory), now_ms):
            return False
        snapshot = subscription.snapshot()
    journals, snapshots = generations(directory)
    for generation in journals:
        quarantine.copy(filenames.journal_path(directory, generation))
    for generation in snapshots:
        quarantine.copy(filenames.snapshot_path(directory, generation))
    # Above every generation that there is, of journals and of snapshots, so that no file of before is taken
    # for part of it.
    newest = max([*journals, *snapshots, 0]) + 1
    fd, _, _ = write_generation(directory, newest, kind, snapshot, base, now_ms)
    os.close(fd)
    failpoints.hit("repair:journal_written")
    # The words name a generation of before; after this the next process finds the new one.
    distrust(directory, quarantine)
    return True


def redelivery(directory: str) -> str:
    """From where a damaged subscription delivers again when its journal is written again, in words."""
    replica = SubscriptionReplica()
    _replay_best(directory, KIND_SUBSCRIPTION, replica)
    if not complete(replica, directory, "", position_at_rest(directory), 0):
        return "when a consumer subscribes by its name, which nothing here says"
    return subscription_files.from_where(replica.state.mark_delete)


def _replay_best(directory: str, kind: int, replica: Replica) -> JournalBase | None:
    """Give a replica all commands that can be read; None if there are none, and something is damaged."""
    journal = _best_journal(directory, kind)
    if journal is None:
        return None
    damage: list[Damage] = []
    replayed = replay(journal, replica, damage)
    if not replayed.commands and not journal.snapshot_size and damage:
        return None
    return JournalBase(journal.generation, replayed.crc, len(journal.data))


def _best_journal(directory: str, kind: int) -> JournalFile | None:
    """The journal that the commit word names; where it is not to be believed, the one a recovery takes."""
    words = trusted_words(directory, kind)
    # First the word, as every process does; it names the generation and where it ends.
    if words:
        word = words[TopicWord.JOURNAL if kind == KIND_TOPIC else SubscriptionWord.JOURNAL]
        with contextlib.suppress(CorruptionError, FileNotFoundError):
            generation, end = split_journal(word)
            return JournalFile(directory, generation, end)
    choice = choose(directory, kind, [])
    if choice.journal is None:
        return None
    return JournalFile(directory, choice.journal.generation)  # with what stands behind a break


def _overwrite(path: str, data: bytes, offset: int) -> None:
    fd = disk.DISK.open_file(path, os.O_RDWR)
    try:
        disk.DISK.pwrite_all(fd, [data], offset)
        disk.DISK.fdatasync(fd, path)
    finally:
        os.close(fd)


_RESCUED: Final = "persistent://public/default/rescued-"

failpoints.declare("repair:meta_written", "repair:catalog_written", "repair:rescued")


def store_id_of(root: str) -> bytes:
    """The identity of the store, by ``store.meta`` or the first segment that can be read; zeros if none."""
    with contextlib.suppress(CorruptionError, ForeignFileError):
        meta = store_root.read_meta(root)
        if meta is not None:
            return meta.store_id
    topics = root_layout.in_root(root, root_layout.TOPICS)
    for listing in nofollow.tree(topics):
        for ledger in filenames.ledgers_of(listing.files):
            with contextlib.suppress(CorruptionError, FileNotFoundError):
                return read_segment_header(listing.path, ledger).store_id
    return bytes(16)


def format_of(root: str) -> int:
    """The version that the segments of a store need."""
    newest = store_root.NEW_STORE_FORMAT
    for listing in nofollow.tree(root_layout.in_root(root, root_layout.TOPICS)):
        for ledger in filenames.ledgers_of(listing.files):
            with contextlib.suppress(CorruptionError, FileNotFoundError):
                newest = max(newest, read_segment_header(listing.path, ledger).version)
    return newest


def rewrite_meta(root: str, now_ms: int, quarantine: Quarantine) -> None:
    """Write ``store.meta`` again, with the identity and the version that the segments name."""
    store_id = store_id_of(root)
    quarantine.copy(root_layout.in_root(root, root_layout.META))
    store_root.write_meta(root, now_ms, store_id if any(store_id) else None, format_of(root))
    failpoints.hit("repair:meta_written")


def rewrite_catalog(root: str, now_ms: int, quarantine: Quarantine) -> None:
    """Write the catalog again, from all records that can be read, also behind damaged ones."""
    path = root_layout.in_root(root, root_layout.CATALOG)
    try:
        data = disk.DISK.read_file(path)
    except FileNotFoundError:
        data = b""
    quarantine.copy(path)
    topics = root_layout.in_root(root, root_layout.TOPICS)
    # In their order: a later record of a topic replaces an earlier one.
    Catalog.create(
        path,
        (
            (record.type, _with_own_directories(record, topics), record.time_ms or now_ms)
            for record in _salvaged(data)
        ),
    )
    failpoints.hit("repair:catalog_written")


def _with_own_directories(record: JournalRecord, topics: str) -> bytes:
    """The payload of a record, in which each topic has a directory of its own name: that which is there."""
    if record.type not in (catalog_record.TOPIC, catalog_record.TOPICS, catalog_record.TOPIC_MADE):
        return record.payload
    packed = [record.payload]
    try:
        if record.type != catalog_record.TOPIC:
            packed = [entry for _, entry in catalog_record.entries_of(record.payload)]
        entries = [catalog_record.decode_topic(entry) for entry in packed]
    except CorruptionError:
        return record.payload  # its checksum is right: a newer release wrote it, which reads it
    if all(is_directory_of(entry.directory, entry.name) for entry in entries):
        return record.payload
    for number, entry in enumerate(entries):
        if not is_directory_of(entry.directory, entry.name):
            entries[number] = _believed(entry, topics)
    if record.type == catalog_record.TOPIC:
        return catalog_record.encode_topic(entries[0])
    return catalog_record.encode_topics(entries)


def _believed(entry: TopicEntry, topics: str) -> TopicEntry:
    """The topic of a record that names a wrong directory: as the directory of its name says, if there is one;
    nothing else of the record need be true either."""
    place = find_directory(topics, entry.name)
    if place is None:
        return entry._replace(directory=directory_name(entry.name))
    relative = os.path.relpath(place, topics)
    with contextlib.suppress(StorageError):
        described = read_meta(place, relative)
        if described is not None and described.name == entry.name:
            return described
    return entry._replace(directory=relative)


def _salvaged(data: bytes) -> Iterator[JournalRecord]:
    """All records that verify by themselves, whatever they continue."""
    at = next_intact(data, FIRST_RECORD_OFFSET, len(data))
    while at < len(data):
        record = record_at(memoryview(data)[at:])
        yield record
        at = next_intact(data, at + record.length, len(data))


def catalogue(session: StoreSession, directories: list[str], now_ms: int, quarantine: Quarantine) -> None:
    """Bring the catalog and the descriptions of topics in step with each other.

    A directory that the catalog names is described again. One of which nothing says what it is becomes the
    topic ``rescued-…``, if there are messages in it. Under the catalog lock.
    """
    catalog, topics = session.catalog, session.directories
    topics.heal(now_ms)
    known = {entry.directory: entry for entry in catalog.topics()}
    parent = root_layout.in_root(session.root, root_layout.TOPICS)
    for directory in directories:
        entry = known.get(os.path.relpath(directory, parent))
        if entry is not None:
            if _is_undescribed(directory):
                quarantine.copy(filenames.topic_meta_path(directory))
            with contextlib.suppress(CorruptionError):  # it describes another topic: the check names it
                topics.ensure(entry)
        elif os.path.isdir(directory) and _is_undescribed(directory):
            if filenames.ledgers_of(descriptors.names_in(directory)):
                name = f"{_RESCUED}{os.urandom(4).hex()}"
                quarantine.copy(filenames.topic_meta_path(directory))
                disk.DISK.replace(directory, os.path.join(parent, directory_name(name)))
                disk.DISK.fsync_dir(parent)
                failpoints.hit("repair:rescued")
                topics.create(name, now_ms, durable=True)
            else:
                quarantine.move(directory)
    topics.heal_namespaces(now_ms)


def _is_undescribed(directory: str) -> bool:
    try:
        return read_meta(directory) is None
    except (CorruptionError, ForeignFileError):
        return True


WRITE_META: Final = "write store.meta again, from the headers of the segments"
REMOVE: Final = "remove the doorbell of a process that is gone"
PUT_AWAY: Final = "move it to the quarantine"
WRITE_CATALOG: Final = "write the catalog again, from what is left of it and the topics that are there"
REPLACE_WORDS: Final = "move it to the quarantine; its words are derived again"
WRITE_HEADER: Final = "write the header of the segment again, from its entries"
WRITE_INDEX: Final = "write the index and the end marks again, from the entries"
WRITE_JOURNAL: Final = "write the journal again, from the commands that can be read"
RECOVER: Final = "find the end of the log again, from the entries"
DESCRIBE: Final = (
    "write again which topic this is, as the catalog says; if nothing says it, as a rescued topic"
)

ORDER: Final = (
    WRITE_META,
    REMOVE,
    PUT_AWAY,
    WRITE_CATALOG,
    REPLACE_WORDS,
    WRITE_HEADER,
    WRITE_INDEX,
    WRITE_JOURNAL,
    RECOVER,
    DESCRIBE,
)
"""The order in which they are done: each relies on those before."""
_OF_LEDGERS: Final = {
    damage.INDEX: WRITE_INDEX,
    log_check.TRAILER: WRITE_INDEX,
    damage.SEGMENT_HEADER: WRITE_HEADER,
}


class RepairStep(NamedTuple):
    """One thing that a repair does, or would do.

    Attributes:
        what: what is done.
        path: the file or directory.
        topic: full name of the topic; "" if it belongs to the store, or nothing says it.
        ledger_id: the ledger; 0 for none.
        note: what follows from it, where that is not the same each time.
    """

    what: str
    path: str
    topic: str = ""
    ledger_id: int = 0
    note: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.what}{self.note and '; '}{self.note}"


class RepairReport(NamedTuple):
    """What a repair did, or would do.

    Attributes:
        path: the directory of the store.
        steps: what was done; of a dry run, what would be done.
        is_dry_run: nothing was changed.
        quarantine: the directory with what was taken out of use; "" if nothing was.
        left: damage that cannot be repaired from what is in the store; of a dry run, all that was found.
    """

    path: str
    steps: tuple[RepairStep, ...]
    is_dry_run: bool
    quarantine: str
    left: tuple[Problem, ...]

    def json(self) -> dict[str, Any]:
        """Return the fields as dicts, lists, strings and numbers."""
        return {
            "path": self.path,
            "is_dry_run": self.is_dry_run,
            "quarantine": self.quarantine,
            "steps": [step._asdict() for step in self.steps],
            "left": [problem._asdict() for problem in self.left],
        }


def planned(report: StoreReport) -> tuple[RepairStep, ...]:
    """The steps that are to be taken, in their order. The files are looked at, and not changed."""
    steps = {step: None for problem in report.problems for step in _steps(report.path, problem)}
    return tuple(sorted(steps, key=lambda step: ORDER.index(step.what)))


def _steps(root: str, problem: Problem) -> list[RepairStep]:
    path, kind = problem.path, problem.kind
    directory = os.path.dirname(path)

    def step(what: str, at: str = path) -> RepairStep:
        return RepairStep(what, at, problem.topic, problem.ledger_id if at == path else 0)

    # What lies at the root of the store has steps of its own.
    if os.path.dirname(path) == root or path == root:
        return [step(what) for what in _of_root(os.path.basename(path), problem)]
    # Two cases: a topic that the catalog does not know yet is described in it, and everything else that
    # belongs to no topic is put away.
    if kind == LEFTOVER:
        is_topic = is_place_of(path, root_layout.in_root(root, root_layout.TOPICS))
        if is_topic and not problem.text.endswith("was deleted"):
            return [step(DESCRIBE)]  # made, and not in the catalog yet
        return [step(REMOVE if nofollow.kind_of(path) == nofollow.FIFO else PUT_AWAY)]
    if kind in NOTES:
        return [step(PUT_AWAY), step(PUT_AWAY, _index_beside(path))] if kind == log_check.STRAY else []
    if kind == META:
        return [step(DESCRIBE, directory if os.path.basename(path) == filenames.TOPIC_META else path)]
    # Of a ledger: its own step, and for the newest one, or a damaged header, the end of the log is found
    # again.
    if kind in _OF_LEDGERS:
        ledger = filenames.parse_ledger(os.path.basename(path).replace(filenames.INDEX_SUFFIX, ".log"))
        steps = [step(_OF_LEDGERS[kind])]
        is_newest = ledger is not None and ledger == max(
            filenames.ledgers_of(descriptors.names_in(directory)), default=0
        )
        return [*steps, step(RECOVER, directory)] if is_newest or kind == damage.SEGMENT_HEADER else steps
    if kind in (damage.LOST_TAIL, damage.MISSING_SEGMENT):
        return [step(RECOVER, directory)]
    if kind == damage.CONTROL:
        return [step(REPLACE_WORDS)]
    if kind == FOLDED:
        note = "messages of transactions that were aborted long ago count as committed in this topic"
        return [step(PUT_AWAY)._replace(note=note)]
    # The journal of a subscription that is not durable is of no use without its consumer.
    if kind == damage.JOURNAL:
        is_volatile = os.path.basename(directory).startswith(NON_DURABLE_PREFIX)
        if is_volatile:
            return [step(PUT_AWAY, directory)]
        is_topic = os.path.basename(os.path.dirname(directory)) != filenames.SUBSCRIPTIONS
        note = "" if is_topic else f"the subscription delivers again {redelivery(directory)}"
        return [step(WRITE_JOURNAL, directory)._replace(note=note)]
    return []


def _of_root(name: str, problem: Problem) -> list[str]:
    if name == root_layout.META or problem.kind == META:
        return [WRITE_META]
    if name == root_layout.CATALOG_INDEX:
        return [PUT_AWAY]
    if name == root_layout.CATALOG:
        return [WRITE_CATALOG]
    if name == root_layout.CONTROL and problem.kind in (damage.CONTROL, ID_REUSE):
        return [REPLACE_WORDS]
    if problem.kind == LEFTOVER and name.endswith((".tmp", filenames.NEW_SUFFIX)):
        return [PUT_AWAY]
    return []


def _index_beside(path: str) -> str:
    return path.removesuffix(filenames.LOG_SUFFIX) + filenames.INDEX_SUFFIX


failpoints.declare("repair:moved")


class Quarantine:
    """A directory of one repair below ``quarantine/``, in which files keep their paths below the root.

    Callers: one thread, with the store to itself. Durable: what a method returned from.

    Attributes:
        path: the directory; it is made with the first file.
    """

    def __init__(self, root: str) -> None:
        self._root: Final = root
        begun = datetime.fromtimestamp(SYSTEM_CLOCK.wall_ms() // 1000, UTC)
        name = f"{begun:%Y%m%dT%H%M%SZ}-{os.urandom(3).hex()}"
        self.path: Final = os.path.join(root_layout.in_root(root, root_layout.QUARANTINE), name)

    def move(self, path: str) -> None:
        """Take a file or directory out of the store. Does nothing if it is not there."""
        if not os.path.lexists(path):
            return
        place = self._place(path)
        disk.DISK.replace(path, place)
        # The new name first: after a power loss it may be in both places, not in none.
        disk.DISK.fsync_dir(os.path.dirname(place))
        disk.DISK.fsync_dir(os.path.dirname(path))
        failpoints.hit("repair:moved")

    def copy(self, path: str) -> None:
        """Keep what is in a file, which is about to be written again."""
        try:
            data = disk.DISK.read_file(path)
        except FileNotFoundError:
            return
        self.keep(path, data)

    def keep(self, path: str, data: bytes) -> None:
        """Keep bytes of a file, which are about to be written again."""
        disk.DISK.atomic_write(self._place(path), data, durable=True)

    def _place(self, path: str) -> str:
        place = os.path.join(self.path, os.path.relpath(path, self._root))
        filesystem.make_directories(os.path.dirname(place), mode=None)
        return place


_MOST_ROUNDS: Final = 3
"""A round may find what the one before uncovered: a topic that the catalog did not know."""
_OFFLINE: Final = frozenset((REMOVE, PUT_AWAY))


def repair_store(
    root: str,
    *,
    is_dry_run: bool = False,
    on_progress: Callable[[CareProgress], object] | None = None,
) -> RepairReport:
    """Check a store, and repair what can be repaired from its own files.

    What is taken out of use is moved to the directory ``quarantine``; nothing that may hold a message is
    removed. A repair that was interrupted or killed can be made again.

    Args:
        root: the directory of the store.
        is_dry_run: change nothing, and say what would be done. Processes may use the store meanwhile.
        on_progress: see `check_store`.

    Raises:
        NotAllowedError: processes use the store.
        StorageError: this process may not write there.
        StorageOSError, DescriptorLimitError: a file cannot be read, which is no damage. Nothing was changed.
        UnsupportedFormatVersion: a newer release wrote a file.
        OSError: a file cannot be read or written.
    """
    root = nofollow.canonical(root)
    if is_dry_run:
        report = check_store(root, is_closed=False, on_progress=on_progress)
        return RepairReport(root, planned(report), True, "", (*report.damage, *report.unverified))
    prepare_root(root, create=False, allow_network=True)  # one in which this process may not write is refused
    lease = DirectoryLease.open(root)
    try:
        if not lease.try_exclusive():
            raise NotAllowedError(
                f"the store {root} is in use; close it in all processes, and repair it again. `check`, and a "
                "repair with dry_run, work meanwhile"
            )
        repair = _Repair(root, lease)
        for _ in range(_MOST_ROUNDS):
            report = check_store(root, on_progress=on_progress)
            _require_verified(report)
            if not repair.round(planned(report)):
                break
        report = check_store(root, on_progress=on_progress) if repair.steps else report
    finally:
        lease.close()
    quarantine = repair.quarantine.path
    is_used = os.path.isdir(quarantine)
    remaining = tuple(_told_after(problem) for problem in report.damage)
    return RepairReport(root, tuple(repair.steps), False, quarantine if is_used else "", remaining)


def _told_after(problem: Problem) -> Problem:
    """A problem that a repair has left: to repair once more is no remedy."""
    if REPAIR not in problem.remedy:
        return problem
    remedy = "nothing in the store says what was there; restore it from a backup, or remove it"
    parent = os.path.dirname(os.path.dirname(problem.path))
    if problem.kind == JOURNAL and os.path.basename(parent) == SUBSCRIPTIONS:
        remedy = "subscribe with the name of the subscription, which delivers again; or remove its directory"
    return problem._replace(remedy=remedy)


def _require_verified(report: StoreReport) -> None:
    """Raise if something could not be read: what a repair derives without it could replace what is whole."""
    for problem in report.unverified:
        text = f"{problem.text}; nothing was repaired"
        if problem.kind == NEWER:
            raise UnsupportedFormatVersion(path=problem.path, reason=text, remedy=problem.remedy)
        raise StorageOSError(path=problem.path, reason=text, remedy=problem.remedy)


class _Repair:
    """Carries steps out, each once. Its caller holds the store alone."""

    def __init__(self, root: str, lease: DirectoryLease) -> None:
        self.root: Final = root
        self.quarantine: Final = Quarantine(root)
        self.steps: Final[dict[RepairStep, None]] = {}
        self._lease: Final = lease
        self._now_ms: Final = clocks.CLOCK.wall_ms()

    def round(self, steps: tuple[RepairStep, ...]) -> bool:
        """Carry out the steps that were not done before; returns whether there were any."""
        new = [step for step in steps if step not in self.steps]
        to_describe: list[str] = []
        for step in new:
            if self._do(step):
                self.steps[step] = None
            if step.what == DESCRIBE:
                to_describe.append(step.path)
        if any(step.what not in _OFFLINE for step in new):
            self._open_what_changed(new, to_describe)
        return bool(new)

    def _do(self, step: RepairStep) -> bool:
        """Carry out one step, as far as it needs no open store."""
        what, path, quarantine = step.what, step.path, self.quarantine
        directory = os.path.dirname(path)
        if what == WRITE_META:
            rewrite_meta(self.root, self._now_ms, quarantine)
        elif what == REMOVE:
            with contextlib.suppress(FileNotFoundError):
                disk.DISK.unlink(path)
        elif what in (PUT_AWAY, REPLACE_WORDS):
            quarantine.move(path)
        elif what == WRITE_CATALOG:
            rewrite_catalog(self.root, self._now_ms, quarantine)
        elif what == WRITE_HEADER:
            rewrite_header(directory, step.ledger_id, store_id_of(self.root), quarantine)
        elif what == WRITE_INDEX:
            rewrite_index(directory, step.ledger_id)
        elif what == WRITE_JOURNAL:
            is_topic = os.path.basename(directory) != filenames.SUBSCRIPTIONS
            return rewrite_journal(path, is_topic, self._now_ms, quarantine)
        elif what == RECOVER:
            distrust(path, quarantine)
        return True

    def _open_what_changed(self, steps: list[RepairStep], to_describe: list[str]) -> None:
        """Open the store and its topics as any process would, so that what is derived is derived again."""
        with contextlib.ExitStack() as closing:
            lease = DirectoryLease.open(self.root)  # the session closes it if it cannot be opened
            closing.callback(lease.close)
            try:
                session = StoreSession.open(self.root, lease, clocks.CLOCK, DamageChannel())
            except (CorruptionError, ForeignFileError):
                return  # the check names what is in the way
            closing.callback(session.close)
            try:
                session.catalog.lock.acquire()
                catalogue(session, to_describe, self._now_ms, self.quarantine)
            finally:
                session.catalog.lock.release()
            touched = {path for step in steps for path in (step.path, *_parents(step.path))}
            for entry in session.catalog.topics():
                directory = session.directories.path(entry)
                if directory in touched and not entry.partitions:
                    with contextlib.suppress(CorruptionError, ForeignFileError):
                        self._open_topic(session, entry.name)

    def _open_topic(self, session: StoreSession, name: str) -> None:
        entry = session.catalog.find(name)
        assert entry is not None
        options = ledger_options(session.settings, PROCESS, 1000, session.boot)
        topic = Topic.open(
            session.directories.ensure(entry), entry, session=session, options=options, clock=clocks.CLOCK
        )
        try:
            topic.producers()
            topic.subscriptions()
        finally:
            topic.close()


def _parents(path: str) -> tuple[str, str, str]:
    first = os.path.dirname(path)
    second = os.path.dirname(first)
    return first, second, os.path.dirname(second)
