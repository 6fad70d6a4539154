"""Topics found in the files of a store that this process has not opened: no lock, and no right to write.

Which logs a name stands for, where they lie, which segments they have, and what else their directories say.
Each call looks again: topics come, grow and go meanwhile.

What had become of the transactions of such a store, and what they have in its logs.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

from embeddedpulsar._engine import filenames
from embeddedpulsar._engine.format.catalog_record import TopicEntry
from embeddedpulsar._engine.format.transaction_record import TOPIC
from embeddedpulsar._engine.log.entry_range import EVERYTHING, Bounds, EntryRange, plan_segments
from embeddedpulsar._engine.log.segment import Segment, note_of_offloaded
from embeddedpulsar._engine.log.segment_snapshot import (
    Fate,
    SegmentInfo,
    committed_segments,
    topic_incarnation,
    transactions_in,
    visible_logs,
)
from embeddedpulsar._engine.log.topic_control import boot_in
from embeddedpulsar._engine.platform import descriptors, disk
from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar._engine.platform.lease import OnlookerLiveness
from embeddedpulsar._engine.platform.timing import SYSTEM_CLOCK
from embeddedpulsar._engine.store.catalog import Catalog
from embeddedpulsar._engine.store.root_layout import (
    CATALOG,
    CLIENTS,
    CONTROL,
    TOPICS,
    TRANSACTIONS,
    directories_in,
    find_directory,
    in_root,
    read_meta,
)
from embeddedpulsar._engine.store.schema_registry import SchemaDocument, read_schemas
from embeddedpulsar.damage import DamageHook
from embeddedpulsar.exceptions import CorruptionError, ForeignFileError, StorageError, TopicNotFound
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple
from embeddedpulsar.topic_name import TopicName, directory_name, is_directory_of

if TYPE_CHECKING:
    from typing import Any, Final

    from embeddedpulsar._engine.format.transaction_record import Commit, ParticipantFacts
    from embeddedpulsar._engine.txn.transaction_view import TransactionView

_NO_LOCK: Final[Any] = None  # of a catalog to which nothing is appended


def topic_partitions(root: str, topic: str) -> list[TopicName]:
    """The logs behind a name: the topic itself, or those of its partitions that were ever used.

    Raises:
        InvalidTopicName: `topic` is not a topic name.
        TopicNotFound: there is no such topic in the store.
    """
    name = TopicName.parse(topic)
    is_there = os.path.isdir(topic_directory(root, name))
    # A partitioned topic has a description of its own in its directory and no log; a partition that was never
    # used has no directory.
    partitions = partition_total(root, name)
    if partitions:
        every = map(name.of_partition, range(partitions))
        return [partition for partition in every if os.path.isdir(topic_directory(root, partition))]
    if is_there:
        return [name]
    # Four cases without a directory: a topic that was created and not yet opened, a partition that was not
    # yet used, a partitioned topic of which only partitions are left, and no topic at all.
    if _catalogued(root, name) is not None:
        return []  # it exists, and was never opened
    if name.partition >= 0:
        if name.partition < partition_total(root, TopicName.parse(name.base)):
            return []  # it exists, and was never used
    else:
        partition_names: list[TopicName] = []  # of a store whose list of topics is lost
        # How many partitions there were is in no file any more, so they are counted up to the first that is
        # missing.
        while os.path.isdir(topic_directory(root, name.of_partition(len(partition_names)))):
            partition_names.append(name.of_partition(len(partition_names)))
        if partition_names:
            return partition_names
    # The commonest mistake is a path that is no store.
    store = "" if os.path.isdir(os.path.join(root, TOPICS)) else ", which is not the directory of a store"
    raise TopicNotFound(f"{name.full} is not in {root}{store}; see `embeddedpulsar topics list`")


def partition_count(root: str, name: TopicName) -> int:
    """How many partitions a topic has; 0 without partitions.

    Raises:
        TopicNotFound: there is no such topic in the store.
    """
    entry = _catalogued(root, name)
    if entry is None:
        raise TopicNotFound(f"{name.full} is not in {root}")
    return entry.partitions


def _catalogued(root: str, name: TopicName) -> TopicEntry | None:
    """What the list of topics says of the topic: one that was never opened has no directory."""
    # A store that is being made, or whose catalog is damaged, has topics by their directories still.
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, CorruptionError, ForeignFileError):
        # Read-only: nothing is appended, so the catalog needs no lock.
        catalog = Catalog(os.path.join(root, CATALOG), _NO_LOCK, is_read_only=True)
        try:
            return catalog.find(name.full)
        finally:
            catalog.close()
    return None


def partition_total(root: str, name: TopicName) -> int:
    """How many partitions a topic has, as its own directory says; 0 for none."""
    # A damaged description is not for a reader to report: the topic is then read as one without partitions.
    with contextlib.suppress(CorruptionError, ForeignFileError, NotADirectoryError):
        entry = read_meta(topic_directory(root, name))
        return 0 if entry is None else entry.partitions
    return 0


def topic_directory(root: str, name: TopicName) -> str:
    """Where the log of a topic (or of one partition) lies: in the directory of the last life of its name."""
    topics = os.path.join(root, TOPICS)
    return find_directory(topics, name.full) or os.path.join(topics, directory_name(name.full))


class Listing(NamedTuple):
    """The segments of one log.

    Attributes:
        name: of the topic or partition.
        segments: what is committed to the log.
        visible: what of it can be read: without what transactions hold back.
    """

    name: TopicName
    segments: list[SegmentInfo]
    visible: list[SegmentInfo]


def plan_logs(
    root: str,
    names: Sequence[TopicName],
    bounds: Bounds = EVERYTHING,
    on_lost: DamageHook | None = None,
    *,
    uncommitted: bool = False,
) -> list[EntryRange]:
    """The entries of topics or partitions within `bounds`, log by log, one range for each segment, in order.

    Arguments and errors as of `listed_logs`.
    """
    listings = listed_logs(root, names, on_lost, uncommitted=uncommitted)
    return [planned for log in listings for planned in plan_segments(log.visible, log.name, bounds)]


def listed_logs(
    root: str,
    names: Sequence[TopicName],
    on_lost: DamageHook | None = None,
    *,
    uncommitted: bool = False,
) -> list[Listing]:
    """The committed segments of several logs, as they can be read together: with whole transactions.

    Args:
        root: of the store.
        names: of the logs.
        on_lost: called with segments that are missing or unreadable, and left out; may raise.
        uncommitted: whether entries of transactions are visible that are open, or were aborted.

    Raises:
        TopicNotFound: a topic was deleted meanwhile.
        CorruptionError: a segment is missing or unreadable, and there is no ``on_lost``.
    """
    if uncommitted:
        logs = [listed_segments(root, name, on_lost) for name in names]
        return list(map(Listing, names, logs, logs))
    # Outcomes before listings: what had committed is in the listings with all of its entries.
    with transaction_fates(root) as fate:
        logs = [listed_segments(root, name, on_lost) for name in names]
        return list(map(Listing, names, logs, visible_logs(logs, fate)))


@contextlib.contextmanager
def transaction_fates(root: str) -> Iterator[Fate]:
    """What had become of the transactions of a store when this was entered: those that commit later are
    undecided. Nothing is written, and no lock is taken."""
    directory = in_root(root, TRANSACTIONS)
    if not os.path.isdir(directory):
        # Without transactions nothing of them is loaded. A process may make the first one now.
        yield lambda topic, ledger_id, txn_id: None if os.path.isdir(directory) else False
        return
    with _transactions_of(root) as view:
        yield _fate_of(view)


@contextlib.contextmanager
def _transactions_of(root: str) -> Iterator[TransactionView]:
    """A view of the transactions of a store, refreshed."""
    with late_imports():
        from embeddedpulsar._engine.txn.transaction_view import TransactionView
    liveness = OnlookerLiveness(in_root(root, CLIENTS), in_root(root, CONTROL))
    boot = boot_in(in_root(root, TRANSACTIONS))
    view = TransactionView(root, boot, SYSTEM_CLOCK, liveness.is_alive)
    try:
        view.refresh()
        yield view
    finally:
        view.close()
        liveness.close()


def _fate_of(view: TransactionView) -> Fate:
    with late_imports():
        from embeddedpulsar._engine.store.topic_transactions import FoldedTransactions
        from embeddedpulsar._engine.txn.transaction_state import Outcome
    fates = {Outcome.COMMITTED: True, Outcome.ABORTED: False}
    frozen = view.frozen()
    folded: dict[str, frozenset[int]] = {}

    def fate(topic: str, ledger_id: int, txn_id: int) -> bool | None:
        outcome = frozen.outcome(txn_id)
        if outcome is not Outcome.FOLDED:
            return fates.get(outcome)
        # The store has forgotten it, and had written it into the document of the topic before.
        if topic not in folded:
            folded[topic] = FoldedTransactions.read(topic).ids()
        return txn_id not in folded[topic]

    return fate


def listed_segments(root: str, name: TopicName, on_lost: DamageHook | None = None) -> list[SegmentInfo]:
    """The committed segments of a topic or partition, oldest first; arguments and errors as of `listed_logs`.

    Raises:
        TopicNotFound: the topic was deleted meanwhile.
    """
    try:
        # The list and the end of each segment are taken here and nowhere else: what is appended later is not
        # in the plan.
        return committed_segments(topic_directory(root, name), on_lost)
    except FileNotFoundError:
        raise TopicNotFound(f"{name.full} is not in {root} any more: it was deleted") from None


def topics_in(root: str, known: dict[str, str]) -> set[str]:
    """The full names of the topics of a store that were ever opened; of partitions, those of their topics.

    Args:
        known: the topics of directories, to which those of new ones are added. A directory never changes its
            topic, so a caller that asks again reads only the descriptions of new ones.

    Raises:
        TopicNotFound: there is no such store, or a directory does not say whose it is.
    """
    topics = os.path.join(root, TOPICS)
    try:
        directories = list(directories_in(topics))
    except (FileNotFoundError, NotADirectoryError):
        raise TopicNotFound(f"{root} is not the directory of a store") from None
    for directory in directories:
        if directory not in known:
            try:
                entry = read_meta(os.path.join(topics, directory))
            except (CorruptionError, ForeignFileError) as error:
                raise TopicNotFound(f"cannot tell which topic this is: {error}") from error
            # A topic that is being made has no description yet: the next call finds it.
            if entry is not None:
                known[directory] = TopicName.parse(entry.name).base
    return {known[directory] for directory in directories if directory in known}


def incarnation_in(directory: str) -> int:
    """Which life of the topic a directory holds, also before it has a log; 0 if nothing says it."""
    incarnation = topic_incarnation(directory)
    # The description of a topic is made before its log, and has the incarnation of it.
    if not incarnation:
        entry = read_meta(directory)
        incarnation = 0 if entry is None else entry.incarnation
    return incarnation


def schemas_of(root: str, topic: str) -> SchemaDocument:
    """The schemas of a topic; of a partition, those of its topic, which its partitions share.

    Raises:
        InvalidTopicName: ``topic`` is not a topic name.
        CorruptionError, ForeignFileError: as of `read_schemas`.
    """
    name = TopicName.parse(topic)
    base = TopicName.parse(name.base)
    # A partition that is a topic of its own, since no partitioned topic has its base name, has its own.
    if name.partition >= 0 and partition_total(root, base):
        name = base
    return read_schemas(filenames.schemas_path(topic_directory(root, name)))[0]


def entry_limits(root: str) -> Callable[[TopicName], int]:
    """Returns what says of a topic how many bytes an entry of it may have: by the policy of the topic or its
    namespace, below the setting of the store as it is now."""
    # Of those that look into a store without opening it, writers alone ask.
    with late_imports():
        from embeddedpulsar._engine.store.policies.admitting import MAX_MESSAGE_SIZE
        from embeddedpulsar._engine.store.policies.policy_documents import PolicyDocuments
        from embeddedpulsar._engine.store.store_session import read_settings
    settings = read_settings(root)
    policies = PolicyDocuments(root, settings)

    def limit(name: TopicName) -> int:
        own = policies.value(MAX_MESSAGE_SIZE, name.full, topic_directory(root, name))
        return min(own, settings.maxMessageSize) if own else settings.maxMessageSize

    return limit


_PAGE: Final = 4096


class TopicAtRest(NamedTuple):
    """A topic or partition that was ever opened, and its directory."""

    name: str
    directory: str

    def words(self) -> bytes:
        """The control words of the topic and its subscriptions, as they are; some 30 us for each file."""
        below = filenames.subscriptions_path(self.directory)
        pages = [_page(filenames.control_path(self.directory))]
        with contextlib.suppress(OSError):
            names = sorted(descriptors.names_in(below))
            pages += [_page(filenames.control_path(os.path.join(below, name))) for name in names]
        return b"".join(pages)


def made_topics(root: str) -> list[TopicAtRest]:
    """The topics and partitions of a store that were ever opened, sorted by name."""
    topics = in_root(root, TOPICS)
    catalog = Catalog(in_root(root, CATALOG), _NO_LOCK, is_read_only=True)
    try:
        return [
            TopicAtRest(entry.name, os.path.join(topics, entry.below_topics()))
            for entry in catalog.topics()
            if entry.is_made and not entry.partitions and is_directory_of(entry.directory, entry.name)
        ]
    finally:
        catalog.close()


def _page(path: str) -> bytes:
    try:
        return disk.DISK.read_file(path, _PAGE)
    except OSError:
        return b""


class TornCommit(NamedTuple):
    """A committed transaction of which entries are missing in a topic.

    Attributes:
        txn_id: which.
        directory: of the topic.
        ledger_id: where the first of its entries was stored.
        entries: how many were stored.
        missing: how many of these are not there.
    """

    txn_id: int
    directory: str
    ledger_id: int
    entries: int
    missing: int


class TransactionFindings(NamedTuple):
    """What transactions have in the logs of a store.

    Attributes:
        open, prepared: transactions that have no end yet.
        undecided_entries, aborted_entries: entries that are not delivered yet, or never.
        entries: those of all transactions.
        torn: commits of which a part is missing.
    """

    open: int = 0
    prepared: int = 0
    undecided_entries: int = 0
    aborted_entries: int = 0
    entries: int = 0
    torn: tuple[TornCommit, ...] = ()


def find_transactions(root: str, directories: Sequence[str]) -> TransactionFindings:
    """Compare what transactions committed with what the logs of topics have, and count what is not delivered.

    Only what the journal still has of a commit can be compared. A commit below level "flush" may be on the
    disk after a power loss, and entries of it not.

    Args:
        root: of the store.
        directories: of its topics.
    """
    with _transactions_of(root) as view:
        fate = _fate_of(view)
        counts = {True: 0, False: 0, None: 0}
        stored: dict[str, _StoredEntries] = {}
        for directory in directories:
            stored[directory] = {}
            for _ in _count_entries(directory, stored[directory]):
                pass
            # What cannot be read says nothing: the check of the topic reports its document, and entries whose
            # id is 0.
            with contextlib.suppress(StorageError):
                for ledger_id, of_ids in stored[directory].items():
                    for txn_id, count in (of_ids or {}).items():
                        counts[fate(directory, ledger_id, txn_id) if txn_id else True] += count
        topics = in_root(root, TOPICS)
        torn: list[TornCommit] = []
        for name, commits in _by_topic(view.commits()).items():
            directory = os.path.join(topics, name)
            torn += _torn_in(directory, stored.get(directory, {}), commits)
        prepared = len(view.prepared())
        is_open = sum(fate("", 0, each.txn_id) is None for each in view.open_transactions())
    aborted, undecided = counts[False], counts[None]
    entries = sum(counts.values())
    return TransactionFindings(is_open - prepared, prepared, undecided, aborted, entries, tuple(torn))


def compare_commits(root: str, generation: int) -> Generator[None, None, list[TornCommit]]:
    """Compare what transactions committed, by the generations of their journal before this one, with what the
    logs have. Beside processes that use the store; gives way between two steps.

    Returns:
        The commits of which a part is missing.

    Raises:
        StorageError: the files of transactions cannot be read.
    """
    with _transactions_of(root) as view:
        by_topic = yield from _gather(view.commits(generation))
    torn: list[TornCommit] = []
    for name, commits in by_topic.items():
        directory = os.path.join(in_root(root, TOPICS), name)
        stored: _StoredEntries = {}
        first = min(facts.first for _, facts in commits)
        yield from _count_entries(directory, stored, first, max(facts.last for _, facts in commits))
        torn += _torn_in(directory, stored, commits)
    return torn


_StoredEntries = dict[int, "Counter[int] | None"]
"""By ledger, how many entries each transaction has in it; None where the log is not here."""
_LEDGER_SHIFT: Final = 32
_ENTRY_MASK: Final = (1 << _LEDGER_SHIFT) - 1
_MANY: Final = 1 << 62
_COMMITS_A_STEP: Final = 128
_CommitsByTopic = dict[str, "list[tuple[int, ParticipantFacts]]"]
"""By directory, relative to that of all topics, what each transaction committed in it."""


def _gather(commits: Iterable[Commit]) -> Generator[None, None, _CommitsByTopic]:
    by_topic: _CommitsByTopic = {}
    for number, commit in enumerate(commits):
        for facts in commit.participants:
            if facts.kind == TOPIC:
                by_topic.setdefault(facts.name, []).append((commit.txn_id, facts))
        if not number % _COMMITS_A_STEP:
            yield
    return by_topic


def _by_topic(commits: Iterable[Commit]) -> _CommitsByTopic:
    """`_gather`, at once."""
    steps = _gather(commits)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            by_topic: _CommitsByTopic = end.value
            return by_topic


def _count_entries(
    directory: str, stored: _StoredEntries, first: int = 0, last: int = _MANY
) -> Iterator[None]:
    """Count the entries of transactions in the ledgers of a topic, one in each step.

    Args:
        directory: of the topic.
        stored: is filled.
        first, last: ledger << 32 | entry: what lies before or behind is not asked for.
    """
    with contextlib.suppress(FileNotFoundError, StorageError):  # the check of the topic says what is damaged
        for info in committed_segments(directory, lambda report: None):
            ledger_id = info.ledger_id
            is_asked_for = first >> _LEDGER_SHIFT <= ledger_id <= last >> _LEDGER_SHIFT
            stored[ledger_id] = None
            if not info.is_revised or not is_asked_for:
                stored[ledger_id] = Counter()
            elif note_of_offloaded(directory, ledger_id) is None:
                begin = first & _ENTRY_MASK if first >> _LEDGER_SHIFT == ledger_id else 0
                with contextlib.suppress(FileNotFoundError):  # trimmed meanwhile
                    segment = Segment.open(directory, ledger_id)
                    entries = transactions_in(segment, begin, info.entries, info.end_offset)
                    stored[ledger_id] = Counter(entries.ids)
                yield


def _torn_in(
    directory: str, stored: _StoredEntries, commits: Iterable[tuple[int, ParticipantFacts]]
) -> Iterator[TornCommit]:
    """Those of the commits in a topic of which entries are missing."""
    incarnation = incarnation_in(directory)
    for txn_id, facts in commits:
        if facts.incarnation == incarnation:
            first, last = facts.first >> _LEDGER_SHIFT, facts.last >> _LEDGER_SHIFT
            missing = facts.operations - _found(stored, txn_id, first, last)
            if missing > 0:
                yield TornCommit(txn_id, directory, first, facts.operations, missing)


def _found(stored: _StoredEntries, txn_id: int, first: int, last: int) -> int:
    """How many entries there may be of a transaction between two ledgers; very many where ledgers of them
    were trimmed, are offloaded or cannot be read."""
    if first < min(stored, default=_MANY):
        return _MANY
    ledgers = [of_ids for ledger_id, of_ids in stored.items() if first <= ledger_id <= last]
    # What is damaged may be of it.
    return sum(_MANY if of_ids is None else of_ids[txn_id] + of_ids[0] for of_ids in ledgers)
