"""The check of a whole store or of a topic: reads all of it and changes nothing.

What a check of a store found, what it means, and what can be done about it.

The check of what compaction left of a topic.

What transactions have in the logs: what is open, what was aborted, and commits of which a part is missing.

How far a check, a repair or a backup is.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, Final

from embeddedpulsar import damage
from embeddedpulsar._engine import filenames
from embeddedpulsar._engine.cold.location import OWNER
from embeddedpulsar._engine.filenames import (
    compacted_in,
    compacted_path,
    compaction_lock_path,
    compaction_path,
    ledgers_of,
    log_path,
)
from embeddedpulsar._engine.format.catalog_record import TopicEntry
from embeddedpulsar._engine.format.control import (
    CONTROL_HEADER_SIZE,
    CONTROL_SIZE,
    KIND_STORE,
    KIND_SUBSCRIPTION,
    KIND_TRANSACTIONS,
    WORD_COUNT,
    StoreWord,
    are_possible,
    parse_control_header,
)
from embeddedpulsar._engine.format.document import (
    KIND_COLD_LEDGER,
    KIND_COMPACTED_START,
    KIND_COMPACTION,
    KIND_FOLDED_TRANSACTIONS,
    KIND_OBJECT_OWNER,
    KIND_OFFLOAD,
    KIND_POLICIES,
    KIND_SCHEMAS,
    KIND_SINK_COMMIT,
    decode_document,
)
from embeddedpulsar._engine.format.frame import REVISED_VERSION
from embeddedpulsar._engine.format.journal_record import damage_behind
from embeddedpulsar._engine.log import log_check
from embeddedpulsar._engine.log.compacted_ledger import (
    CompactedLedger,
    CompactionRecord,
    read_record,
    rows_of,
)
from embeddedpulsar._engine.log.log_check import CheckReport, Problem, check_journal, check_topic, unverified
from embeddedpulsar._engine.platform import descriptors, disk, nofollow, timing
from embeddedpulsar._engine.platform.access import irregular
from embeddedpulsar._engine.platform.lease import OnlookerLiveness, is_held, is_locked
from embeddedpulsar._engine.platform.timing import SYSTEM_CLOCK
from embeddedpulsar._engine.store import root_layout, store_root
from embeddedpulsar._engine.store.catalog import Catalog
from embeddedpulsar._engine.store.root_layout import directories_in, read_meta
from embeddedpulsar._engine.store.topic_lookup import TransactionFindings, find_transactions
from embeddedpulsar.damage import CATALOG, CONTROL, INDEX, SEGMENT_HEADER, Damage
from embeddedpulsar.exceptions import InvalidConfiguration, StorageError, TopicNotFound
from embeddedpulsar.message_id import BEFORE_FIRST, Position
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.settings import BrokerSettings

META: Final = "meta"
"""A document that names a store or topic is damaged, missing, or says something else than its place."""
LEFTOVER: Final = "leftover"
"""A file of an operation that died. Harmless: the next process that needs the name removes it."""
IN_USE: Final = "in use"
"""A lock is held or a process lives, although the store should be closed."""
ID_REUSE: Final = "ledger id"
"""The store could give out a ledger id that a topic has already."""
TORN: Final = "torn transaction"
"""A transaction committed, and a power loss took a part of it."""
POLICIES: Final = "policies"
"""A document with the policies of a topic or namespace is damaged."""
SCHEMAS: Final = "schemas"
DOCUMENT: Final = "document"
"""The document with the schemas of a topic is damaged."""
FOLDED: Final = "folded transactions"
"""The document with the transactions of a topic that were aborted is damaged."""
COMPACTED: Final = "compacted"
"""The compacted ledger of a topic, or the document that names it, is damaged or missing."""
SETTINGS: Final = "settings"
"""``broker.conf`` cannot be read, or asks for what there is not; the store cannot be opened."""
UNKNOWN_SETTING: Final = "unknown setting"
"""A name in ``broker.conf`` that is no setting here."""

UNVERIFIED: Final = frozenset((log_check.UNREADABLE, log_check.NEWER))
"""Kinds of problems that say nothing of what is in a file: they are no damage, and nothing is repaired."""
NOTES: Final = frozenset((LEFTOVER, IN_USE, log_check.STRAY, UNKNOWN_SETTING))
"""Kinds of problems that harm nothing: what they name goes away by itself, or should not be here."""

_STRANGER: Final = "this does not belong into a store"
REPAIR: Final = "repair the store"
_RESTORE: Final = "restore the files of the ledger from a backup if the messages matter"
_NONE: Final = "nothing"

MEANINGS: Final = {
    damage.HOLE: ("these messages are lost; readers report them and continue behind them", _RESTORE),
    damage.LOST_TAIL: ("what stood behind is lost", _RESTORE),
    damage.MISSING_SEGMENT: ("the messages of this ledger are lost", _RESTORE),
    damage.SEGMENT_HEADER: ("the header is derived from the entries where they are whole", REPAIR),
    damage.INDEX: ("nothing is lost: the index is derived again when it is needed", REPAIR),
    damage.CONTROL: ("nothing is lost: the words are derived again when the topic is opened", REPAIR),
    log_check.COLD: (
        "reading these messages raises an error until the location has the objects",
        "make the location readable, or put back a copy of the objects",
    ),
    log_check.LINK: ("readers verify the entries themselves", _RESTORE),
    log_check.TRAILER: ("the messages themselves are whole", REPAIR),
    damage.JOURNAL: (
        "what it said is lost from there on: acknowledged messages may be delivered again",
        REPAIR,
    ),
    damage.CATALOG: (
        "a topic or a namespace may be missing, or one that was deleted is listed; what is behind it is read",
        REPAIR,
    ),
    TORN: (
        "what is there of it counts, and the rest is lost: at levels below flush a power loss may take it",
        "restore a backup if its messages belong together; to rule it out, use the level flush",
    ),
    META: ("this is not found or opened", "repair the store, or restore the file from a backup"),
    POLICIES: (
        "its policies are unknown, so nothing is trimmed or expires, and no one opens it",
        damage.REPLACE_POLICIES,
    ),
    SCHEMAS: (
        "producers and consumers with a schema cannot use the topic; its messages are whole",
        "restore the file from a backup",
    ),
    DOCUMENT: (
        "what it says of objects in a location or of a write by Spark is unknown; the file is kept",
        "restore the file from a backup",
    ),
    FOLDED: (
        "which transactions were aborted in the topic is unknown, so messages of those that ended long ago "
        "are not delivered",
        REPAIR,
    ),
    COMPACTED: (
        "those who read compacted read in the log what it has of that, and step over the rest; "
        "the topic is not compacted any more",
        damage.COMPACT_AGAIN,
    ),
    SETTINGS: ("the store cannot be opened", "correct the line"),
    ID_REUSE: ("messages could get ids that others have", "stop all writers, and repair the store"),
    LEFTOVER: ("harmless", _NONE),
    IN_USE: ("harmless", _NONE),
    UNKNOWN_SETTING: ("it has no effect", "remove the line, or correct the name"),
    log_check.STRAY: ("harmless: a later append to the topic removes it", _NONE),
    log_check.UNREADABLE: ("what is in it is unknown; nothing says that it is damaged", "make it readable"),
    log_check.NEWER: ("this release can neither verify nor use it, and leaves it as it is", "upgrade"),
}
"""By kind of problem: what it means, and what to do."""


class TopicReport(NamedTuple):
    """What was found in one topic; `name` is "" where nothing says it."""

    name: str
    directory: str
    found: CheckReport
    subscriptions: int

    @property
    def damage(self) -> list[Problem]:
        """What was read and found wrong, without the notes."""
        return _damage_in(self.found.problems)


class StoreReport(NamedTuple):
    """What was found in a store, and how much there is.

    Attributes:
        problems: what is wrong: each with its kind, path, offset and text; with the topic, ledger and entries
            concerned; and with what it means and what to do. The notes among them harm nothing.
        topics, ledgers, frames, messages: how much was read.
        of_topics: the same for each topic.
        living: how many processes had the store open.
        path: the directory of the store.
        format_version: of the store, as ``store.meta`` says; 0 if that cannot be read.
        transactions: how many have no end yet, and how many entries are not delivered because of them, or
            because theirs were aborted.

    Example:
        >>> from embeddedpulsar import Client
        >>> from embeddedpulsar.testing import check_store
        >>> with Client("./data") as client:
        ...     message_id = client.create_producer("orders").send(b"tea")
        >>> report = check_store("./data")
        >>> report.is_clean, report.damage, report.unverified, report.notes, report.json()["is_whole"]
        (True, [], [], [], True)
    """

    problems: list[Problem]
    topics: int
    ledgers: int
    frames: int
    messages: int
    of_topics: tuple[TopicReport, ...] = ()
    living: int = 0
    path: str = ""
    format_version: int = 0
    transactions: TransactionFindings = TransactionFindings()

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found."""
        return not self.problems

    @property
    def damage(self) -> list[Problem]:
        """What was read and found wrong, without the notes."""
        return _damage_in(self.problems)

    @property
    def unverified(self) -> list[Problem]:
        """What could not be read, or was written by a newer release. Each has its own remedy."""
        return [problem for problem in self.problems if problem.kind in UNVERIFIED]

    @property
    def notes(self) -> list[Problem]:
        """What was found that harms nothing."""
        return [problem for problem in self.problems if problem.kind in NOTES]

    def json(self) -> dict[str, Any]:
        """Return the fields as dicts, lists, strings and numbers. Paths are relative to that of the store."""
        return {
            "path": self.path,
            "format_version": self.format_version,
            "is_whole": not (self.damage or self.unverified),
            "living_processes": self.living,
            "transactions": {
                name: value for name, value in self.transactions._asdict().items() if name != "torn"
            },
            "topics": [
                {
                    "name": topic.name,
                    "directory": os.path.relpath(topic.directory, self.path),
                    "subscriptions": topic.subscriptions,
                    "ledgers": topic.found.ledgers,
                    "entries": topic.found.frames,
                    "messages": topic.found.messages,
                    "will_be_recovered": topic.found.is_unclean,
                }
                for topic in self.of_topics
            ],
            "problems": [
                {
                    **problem._asdict(),
                    "path": os.path.relpath(problem.path, self.path),
                    "is_damage": problem.kind not in NOTES | UNVERIFIED,
                }
                for problem in self.problems
            ],
        }


def explained(problem: Problem, topic: str = "") -> Problem:
    """A problem with its topic, what it means and what to do."""
    meaning, remedy = MEANINGS.get(problem.kind, ("", ""))
    remedy = problem.remedy or remedy
    return problem._replace(topic=problem.topic or topic, meaning=meaning, remedy=remedy)


def _damage_in(problems: list[Problem]) -> list[Problem]:
    return [problem for problem in problems if problem.kind not in NOTES | UNVERIFIED]


def check_compaction(
    directory: str, is_locked: Callable[[str], bool], watch: Callable[[str], object]
) -> Iterator[Problem]:
    """Verify every block of the compacted ledger of a topic, and that it is the one that is named.

    Args:
        directory: of the topic.
        is_locked: whether a process holds a lock.
        watch: called with the path of the compacted ledger before it is read.
    """
    path = compaction_path(directory)
    try:
        decode_document(disk.DISK.read_file(path), KIND_COMPACTION)
    except FileNotFoundError:
        return  # never compacted; what the first compaction leaves when it dies is found as unfinished
    except (OSError, StorageError) as e:
        problem = unverified(COMPACTED, path, e)
        yield problem
        # It could not be read at all: of the ledger that it names nothing is known.
        if problem.kind != COMPACTED:
            return
    record = read_record(directory, None)
    if record.file:
        path = compacted_path(directory, record.file)
        watch(path)
        try:
            yield from _check_ledger(CompactedLedger(path, None), record)
        except FileNotFoundError:
            if read_record(directory, None).file == record.file:  # else it was replaced meanwhile
                yield Problem(COMPACTED, path, 0, "the file is missing")
        except (OSError, StorageError) as e:
            yield unverified(COMPACTED, path, e)
    lock = compaction_lock_path(directory)
    if not (os.path.exists(lock) and is_locked(lock)):
        for name, number in compacted_in(descriptors.names_in(directory)).items():
            if 0 < number != record.file:
                text = "a compacted ledger that does not hold"
                yield Problem(LEFTOVER, os.path.join(directory, name), 0, text)


def _check_ledger(ledger: CompactedLedger, record: CompactionRecord) -> Iterator[Problem]:
    try:
        if (ledger.horizon, ledger.messages) != (record.horizon, record.messages):
            text = f"it has {ledger.messages} messages up to {ledger.horizon}, and another number is noted"
            yield Problem(COMPACTED, ledger.path, 0, text)
        last, messages = (BEFORE_FIRST, -1), 0
        for block, place in zip(rows_of(ledger), ledger.places, strict=True):
            ids = block.ids
            messages += block.rows
            for row in range(block.rows):
                at = (Position(ids.ledgers[row], ids.entries[row]), ids.indexes[row])
                if at <= last or at[0] > ledger.horizon:
                    text = f"{at[0]} stands behind {last[0]}, and the horizon is {ledger.horizon}"
                    yield Problem(COMPACTED, ledger.path, place.offset, text)
                    break
                last = at
        if messages != ledger.messages:
            text = f"{messages} messages where the header says {ledger.messages}"
            yield Problem(COMPACTED, ledger.path, 0, text)
    finally:
        ledger.close()


_INTERVAL_S: Final = 1.0


class CareProgress(NamedTuple):
    """How far a check, a repair or a backup is. ``str`` gives a line for people.

    Attributes:
        doing: what is being done, such as ``checking``.
        topic: the number of the present topic, from 1.
        topics: how many there are.
        size: bytes read so far.
    """

    doing: str
    topic: int
    topics: int
    size: int

    def __str__(self) -> str:
        return f"{self.doing} topic {self.topic:,} of {self.topics:,}, {self.size >> 20:,} MiB read"


class ProgressMeter:
    """Counts what is done, and reports it once a second, for the first time after a second."""

    def __init__(self, doing: str, report: Callable[[CareProgress], object] | None) -> None:
        self._report: Final = report
        self._doing: Final = doing
        self._topic = self._topics = self._size = 0
        self._next = SYSTEM_CLOCK.monotonic() + _INTERVAL_S

    def topic(self, number: int, count: int) -> None:
        """Note that a topic is begun, the first with number 1."""
        self._topic, self._topics = number, count
        self._tell()

    def read(self, size: int) -> None:
        """Note that so many bytes more are read."""
        self._size += size
        self._tell()

    def ledger(self, path: str) -> None:
        """Note that a segment is being read."""
        try:
            size = os.stat(path).st_blocks * 512
        except FileNotFoundError:
            return  # the ledger was trimmed meanwhile
        self.read(size)

    def _tell(self) -> None:
        if self._report is None or SYSTEM_CLOCK.monotonic() < self._next:
            return
        self._report(CareProgress(self._doing, self._topic, self._topics, self._size))
        self._next = SYSTEM_CLOCK.monotonic() + _INTERVAL_S


_NO_LOCK: Final[Any] = None  # of a catalog to which nothing is appended
_TEMPORARY: Final = (".tmp", filenames.NEW_SUFFIX)

_PAUSES_S: Final = (0.02, 0.1, 0.5)


def check_store(
    root: str | os.PathLike[str],
    *,
    is_closed: bool = True,
    topic: str | None = None,
    on_progress: Callable[[CareProgress], object] | None = None,
) -> StoreReport:
    """Audit a store without changing it: every topic and subscription, documents, names, ids, leftovers.

    Args:
        root: the store's directory.
        is_closed: no process should have it open: then a held lock, a living process, and files that only an
            operation in progress may have are problems too. Otherwise a check may run beside processes that
            use the store: what looks damaged is looked at again, and counts if it stays so.
        topic: full name of a topic, partition or partitioned topic, to check nothing else.
        on_progress: called once a second, from the second second on.

    Raises:
        FileNotFoundError: no such directory.
        TopicNotFound: the catalog does not have the topic.

    Example:
        >>> import tempfile
        >>> from embeddedpulsar._engine.store.store import Store
        >>> with tempfile.TemporaryDirectory() as root:
        ...     Store.open(root).release()
        ...     check_store(root).is_clean
        True
    """
    # The order of the parts: first what says which topics there are, then each topic, then what takes all of
    # them to know.
    path = nofollow.canonical(os.fspath(root))
    meter = ProgressMeter("checking", on_progress)
    if topic is not None:
        problems: list[Problem] = []
        directories = _directories_of(path, topic)
    else:
        problems = list(_check_root(path))
        problems += _check_documents(path)
        # What other processes change meanwhile is looked at again until it stays; what only one writes at a
        # time is read once.
        problems += _steady(path, is_closed, lambda: _check_catalog(path))
        control = root_layout.in_root(path, root_layout.TRANSACTIONS)
        if os.path.isdir(control):
            problems += _steady(path, is_closed, lambda: check_journal(control, KIND_TRANSACTIONS))
        parent = root_layout.in_root(path, root_layout.TOPICS)
        directories = [os.path.join(parent, name) for name in _topic_directories(parent)]
    reports: list[TopicReport] = []
    for number, directory in enumerate(directories):
        meter.topic(number + 1, len(directories))
        # Every topic is read, whatever is wrong with the one before: a check reports all that there is.
        reports += _check_topic(path, directory, is_closed, meter)
    living, leases = _check_leases(path)
    transactions = TransactionFindings()
    if topic is None:
        transactions = _transactions_in(path, directories)
        # What is torn stays so; beside processes, entries may have been trimmed or deleted meanwhile.
        if transactions.torn and not is_closed:
            transactions = _transactions_in(path, directories)
        problems += _torn(path, transactions)
        # The highest ledger of all topics: no id below it may be given out again, or two ledgers would have
        # one name.
        ledgers_there = [ledger for report in reports for ledger in _ledgers(report.directory)]
        problems += _check_ids(path, max(ledgers_there, default=0))
        problems += _check_links(path)
        problems += _check_lock_files(path)
        # A held lock is a problem only where no process should have the store open.
        if is_closed:
            problems += _check_locks(path)
        # Leases of the dead, temporary files and topics that are being made are the business of processes at
        # work, and problems only if there is none.
        if is_closed or not living:
            problems += leases
            problems += _check_unfinished(path)
    problems = [explained(problem) for problem in problems]
    return StoreReport(
        [*problems, *(problem for report in reports for problem in report.found.problems)],
        len(reports),
        sum(report.found.ledgers for report in reports),
        sum(report.found.frames for report in reports),
        sum(report.found.messages for report in reports),
        tuple(reports),
        living,
        path,
        _format_version(path),
        transactions,
    )


def _transactions_in(root: str, directories: list[str]) -> TransactionFindings:
    # A store without transactions has neither the directory nor entries of the format that they need.
    has_any = os.path.isdir(root_layout.in_root(root, root_layout.TRANSACTIONS))
    has_any = has_any or _format_version(root) >= REVISED_VERSION
    return find_transactions(root, directories) if has_any else TransactionFindings()


def _torn(root: str, findings: TransactionFindings) -> Iterator[Problem]:
    for torn in findings.torn:
        text = f"{torn.missing} of {torn.entries} entries are missing of the transaction (0,{torn.txn_id})"
        name = _name_of(torn.directory)
        yield Problem(TORN, log_path(torn.directory, torn.ledger_id), 0, text, torn.ledger_id, topic=name)
    # Without the directory every transaction counts as aborted.
    transactions = root_layout.in_root(root, root_layout.TRANSACTIONS)
    if findings.entries and not os.path.isdir(transactions):
        text = f"it is missing: {findings.entries} entries of transactions count as aborted"
        remedy = "put back the directory txn of the store, or restore a backup"
        yield Problem(damage.JOURNAL, transactions, 0, text, remedy=remedy)


def _format_version(root: str) -> int:
    with contextlib.suppress(StorageError, OSError):  # found as a problem
        meta = store_root.read_meta(root)
        return 0 if meta is None else meta.format
    return 0


def _directories_of(root: str, topic: str) -> list[str]:
    """The directories of a topic, or of its partitions that were ever opened."""
    path = root_layout.in_root(root, root_layout.CATALOG)
    catalog = Catalog(path, _NO_LOCK, is_read_only=True)
    try:
        entry = catalog.find(topic)
        if entry is None:
            raise TopicNotFound(f"{topic}: no such topic in {root}")
        parent = root_layout.in_root(root, root_layout.TOPICS)
        return [
            os.path.join(parent, log_entry.below_topics())
            for log_entry in catalog.with_logs(entry)
            if log_entry.is_made
        ]
    finally:
        catalog.close()


def _check_topic(root: str, directory: str, is_closed: bool, meter: ProgressMeter) -> Iterator[TopicReport]:
    """One report; none of a topic that is deleted meanwhile."""
    reports: list[CheckReport] = []

    def read_topic() -> list[Problem]:
        reports.append(_look_at(directory, meter))
        return reports[-1].problems

    # Listed before the topic is read: one that is deleted meanwhile still counts its subscriptions.
    subscriptions = _subscriptions(directory)
    problems = _steady(root, is_closed, read_topic)
    # A topic that is gone was deleted beside the check, which is no damage; of a closed store it is.
    if is_closed or os.path.isdir(directory):
        name = _name_of(directory)
        problems = [explained(problem, name) for problem in problems]
        yield TopicReport(name, directory, reports[-1]._replace(problems=problems), len(subscriptions))


def _look_at(directory: str, meter: ProgressMeter) -> CheckReport:
    try:
        report = check_topic(directory, meter.ledger)
        # A damaged note of an offloaded ledger is met as the header that is in it, and found below as itself.
        problems = [problem for problem in report.problems if not _is_note(problem)]
        problems += _check_document(filenames.policies_path(directory))
        problems += _check_document(filenames.schemas_path(directory), KIND_SCHEMAS, SCHEMAS)
        problems += _check_document(filenames.offload_path(directory), KIND_OFFLOAD, DOCUMENT)
        problems += _check_document(filenames.folded_path(directory), KIND_FOLDED_TRANSACTIONS, FOLDED)
        for ledger in ledgers_of(descriptors.names_in(directory), filenames.COLD_SUFFIX):
            problems += _check_document(filenames.cold_path(directory, ledger), KIND_COLD_LEDGER, DOCUMENT)
        problems += check_compaction(directory, _is_locked, meter.ledger)
        for name in _subscriptions(directory):
            own = os.path.join(filenames.subscriptions_path(directory), name)
            problems += check_journal(own, KIND_SUBSCRIPTION)
            start = filenames.compacted_start_path(own)
            problems += _check_document(start, KIND_COMPACTED_START, DOCUMENT)
    except FileNotFoundError as e:
        # A file that goes while it is read belongs to a process at work; `_steady` looks again.
        gone = str(e.filename or e)
        return CheckReport([Problem(META, gone, 0, "the file went away while it was read")])
    except (OSError, StorageError) as e:  # a directory that cannot be listed
        return CheckReport([unverified(META, directory, e)])
    return report._replace(problems=problems)


def _is_note(problem: Problem) -> bool:
    return problem.kind == SEGMENT_HEADER and problem.path.endswith(filenames.COLD_SUFFIX)


def _steady(root: str, is_closed: bool, look: Callable[[], list[Problem]]) -> list[Problem]:
    """What is found, and is still found when processes that use the store have gone on meanwhile."""
    problems = look()
    # Three looks, each later than the one before: the steps of an operation take milliseconds, a stopped
    # process longer.
    for pause_s in _PAUSES_S:
        if not problems or is_closed or not _check_leases(root)[0]:
            break
        timing.sleep(pause_s)
        # By kind and path: offsets and texts may change from look to look while the trouble is the same.
        places = {(problem.kind, problem.path) for problem in problems}
        again = look()
        problems = [problem for problem in again if (problem.kind, problem.path) in places]
    return problems


def _check_root(root: str) -> Iterator[Problem]:
    try:
        if store_root.read_meta(root) is None:
            yield Problem(META, root_layout.in_root(root, root_layout.META), 0, "there is no store here")
    except (OSError, StorageError) as e:
        yield unverified(META, root_layout.in_root(root, root_layout.META), e)
    for name in sorted(descriptors.names_in(root)):
        if not root_layout.is_ours(name):
            yield Problem(LEFTOVER, os.path.join(root, name), 0, _STRANGER)
    topics = root_layout.in_root(root, root_layout.TOPICS)
    for name in sorted(root_layout.strangers_in(topics)) if os.path.isdir(topics) else ():
        yield Problem(LEFTOVER, os.path.join(topics, name), 0, _STRANGER)


def _catalogued(root: str) -> tuple[list[TopicEntry], Callable[[str], int], list[Problem]]:
    """The topics of the catalog, which incarnation of a name was deleted last, and what is wrong with it."""
    path = root_layout.in_root(root, root_layout.CATALOG)
    gaps: list[Damage] = []
    try:
        catalog = Catalog(path, _NO_LOCK, is_read_only=True, with_index=False, report=gaps.append)
    except FileNotFoundError:
        return [], lambda _: 0, [Problem(CATALOG, path, 0, "there is no catalog")]
    except (OSError, StorageError) as e:
        return [], lambda _: 0, [unverified(CATALOG, path, e)]
    try:
        entries, ended = catalog.topics(), catalog.ended_lives()
        # Behind the end of the catalog there are zeros, or the record of a process that was killed in the
        # middle; anything else is damage, as what was stepped over.
        end, rest = catalog.end, disk.DISK.read_file(path)[catalog.end :]
        problems = [Problem(CATALOG, path, gap.offset, gap.reason) for gap in gaps]
        reason = damage_behind(rest, 0, end)
        if reason:
            problems.append(Problem(CATALOG, path, end, f"records are lost: {reason}"))
        elif any(rest):
            problems.append(Problem(LEFTOVER, path, end, "a record that was not finished"))
        return entries, lambda name: ended.get(name, 0), problems
    except (OSError, StorageError) as e:
        return [], lambda _: 0, [unverified(CATALOG, path, e)]
    finally:
        catalog.close()


def _check_catalog(root: str) -> list[Problem]:
    entries, ended, problems = _catalogued(root)
    if any(problem.kind in UNVERIFIED for problem in problems):
        return problems  # which topics there are is not known
    topics = _topic_directories(root_layout.in_root(root, root_layout.TOPICS))
    problems += _check_index(root)
    return [*problems, *_check_names(root, entries, ended, topics)]


def _check_index(root: str) -> Iterator[Problem]:
    """Whether the index of the catalog, if it is used, says what the catalog says."""
    log, path = (root_layout.in_root(root, name) for name in (root_layout.CATALOG, root_layout.CATALOG_INDEX))
    if not os.path.exists(path) or not os.path.exists(log):
        return
    try:
        with contextlib.ExitStack() as closing:
            indexed = Catalog(log, _NO_LOCK, is_read_only=True)
            closing.callback(indexed.close)
            plain = Catalog(log, _NO_LOCK, is_read_only=True, with_index=False)
            closing.callback(plain.close)
            indexed_facts, plain_facts = (
                (catalog.topics(), catalog.ended_lives(), catalog.end) for catalog in (indexed, plain)
            )
            # The catalog may have grown between the two readings: they are compared if both end at the same
            # place.
            if not indexed.has_index:
                yield Problem(INDEX, path, 0, "the index of the catalog is damaged, and not used")
            elif indexed_facts != plain_facts and indexed_facts[-1] == plain_facts[-1]:
                yield Problem(INDEX, path, 0, "the index does not say what the catalog says")
    except (OSError, StorageError) as e:
        yield unverified(INDEX, path, e)


def _check_names(
    root: str, entries: list[TopicEntry], ended: Callable[[str], int], topics: list[str]
) -> Iterator[Problem]:
    parent = root_layout.in_root(root, root_layout.TOPICS)
    # By directory, only those that were ever opened: the others have none.
    known: dict[str, TopicEntry] = {}
    for entry in entries:
        try:
            directory = entry.below_topics()
        except StorageError as e:
            # The directory in an entry is checked before anything of it becomes a path.
            yield Problem(CATALOG, root_layout.in_root(root, root_layout.CATALOG), 0, e.reason)
            continue
        if entry.is_made:
            known[directory] = entry
    for name in sorted(known.keys() - set(topics)):
        yield Problem(META, os.path.join(parent, name), 0, f"the directory of {known[name].name} is missing")
    for name in topics:
        directory = os.path.join(parent, name)
        named = known.get(name)
        try:
            described = read_meta(directory)
        except (OSError, StorageError) as e:
            yield unverified(META, directory, e)
            continue
        # What there may be for a directory: nothing that names its topic; the rest of one that was deleted;
        # one that was never finished, since no ledger is in it; one with messages that the catalog does not
        # know; and one of another life, or another topic, than the catalog says.
        if described is None:
            yield Problem(META, directory, 0, "nothing says which topic this is")
        elif named is None and ended(described.name) >= described.incarnation:
            # Incarnations rise with each life of a name, so a directory of the one that ended, or of one
            # before, is a rest.
            yield Problem(LEFTOVER, directory, 0, f"the rest of {described.name}, which was deleted")
        elif named is None and not _ledgers(directory):
            yield Problem(LEFTOVER, directory, 0, f"{described.name}, which was not finished")
        elif named is None:
            yield Problem(META, directory, 0, f"the catalog does not know {described.name}")
        elif (described.name, described.incarnation) != (named.name, named.incarnation):
            yield Problem(META, directory, 0, f"this is {described.name}, the catalog says {named.name}")


def _check_ids(root: str, highest: int) -> Iterator[Problem]:
    path = root_layout.in_root(root, root_layout.CONTROL)
    try:
        data = disk.DISK.read_file(path)
        parse_control_header(data, KIND_STORE)
    except FileNotFoundError:
        yield Problem(CONTROL, path, 0, "the file is missing")
        return
    except (OSError, StorageError) as e:
        yield unverified(CONTROL, path, e)
        return
    # Whole words alone: the file may have been cut anywhere.
    words = memoryview(data[: min(len(data), CONTROL_SIZE) & ~7]).cast("Q")
    if len(words) < WORD_COUNT or not are_possible(KIND_STORE, words):
        # The words have no checksum: values that no process writes are damage.
        yield Problem(CONTROL, path, CONTROL_HEADER_SIZE, "its words are damaged")
        return
    at = 8 * StoreWord.NEXT_LEDGER_ID
    following = int.from_bytes(data[at : at + 8], "little")
    # Equal is an error, too: the next ledger would get the id of one that exists.
    if following <= highest:
        yield Problem(ID_REUSE, path, at, f"ledger {highest} exists, and {following} would come next")


def _check_documents(root: str) -> Iterator[Problem]:
    """``broker.conf``, the policies of namespaces, and what is noted of sinks and offloaded objects."""
    path = root_layout.in_root(root, root_layout.SETTINGS)
    # The settings are optional; so are all documents below.
    try:
        with contextlib.suppress(FileNotFoundError):
            settings = BrokerSettings.parse(disk.DISK.read_file(path).decode())
            yield from (Problem(UNKNOWN_SETTING, path, 0, text) for text in settings.warnings())
            settings.check_supported()
    except (InvalidConfiguration, UnicodeDecodeError) as e:
        yield Problem(SETTINGS, path, 0, str(e))
    except (OSError, StorageError) as e:
        yield unverified(SETTINGS, path, e)
    tenants = root_layout.in_root(root, root_layout.TENANTS)
    for name in sorted(descriptors.names_in(tenants) if os.path.isdir(tenants) else ()):
        # A document that is being written has another name until it is whole.
        if not name.endswith(_TEMPORARY):
            yield from _check_document(os.path.join(tenants, name))
    offloaded = root_layout.in_root(root, root_layout.OFFLOADED)
    for name in sorted(descriptors.names_in(offloaded) if os.path.isdir(offloaded) else ()):
        # The owner of a location, and notes of ledgers whose objects are still to be removed.
        kind = KIND_OBJECT_OWNER if name == OWNER else KIND_COLD_LEDGER
        if name == OWNER or name.endswith(filenames.COLD_SUFFIX):
            yield from _check_document(os.path.join(offloaded, name), kind, DOCUMENT)
    sinks = root_layout.in_root(root, root_layout.SINKS)
    for key in _directories(sinks):
        for name in (filenames.PENDING, filenames.DONE):
            yield from _check_document(os.path.join(sinks, key, name), KIND_SINK_COMMIT, DOCUMENT)


def _check_document(path: str, kind: int = KIND_POLICIES, problem: str = POLICIES) -> Iterator[Problem]:
    try:
        decode_document(disk.DISK.read_file(path), kind)
    except FileNotFoundError:
        # No document means the default.
        return  # as nearly everywhere
    except (OSError, StorageError) as e:
        yield unverified(problem, path, e)


def _check_leases(root: str) -> tuple[int, list[Problem]]:
    """How many processes live; each of them, and what others left, as problems of a closed store."""
    clients = root_layout.in_root(root, root_layout.CLIENTS)
    living, problems = 0, []
    for name in sorted(descriptors.names_in(clients) if os.path.isdir(clients) else ()):
        path = os.path.join(clients, name)
        if nofollow.kind_of(path) in (nofollow.DIRECTORY, nofollow.LINK):  # put there by another program
            problems.append(Problem(LEFTOVER, path, 0, _STRANGER))
        elif _lives(root, path):
            living += 1
            problems.append(Problem(IN_USE, path, 0, "the process lives"))
        else:
            problems.append(Problem(LEFTOVER, path, 0, "the lease of a process that is gone"))
    return living, problems


def _lives(root: str, path: str) -> bool:
    try:
        return is_held(path)
    except PermissionError:  # another user's, who lets this one read the store
        # The lease of another user's process cannot be locked by this one; its liveness is seen in store.ctl.
        clients, name = os.path.split(path)
        liveness = OnlookerLiveness(clients, root_layout.in_root(root, root_layout.CONTROL))
        try:
            return liveness.is_alive(bytes.fromhex(name.partition(".")[0]))
        except ValueError:
            return False  # not the name of a lease
        finally:
            liveness.close()


def _check_locks(root: str) -> Iterator[Problem]:
    for listing in _walk(root):
        for name in listing.files:
            if name.endswith("lock") and _is_locked(os.path.join(listing.path, name)):
                yield Problem(IN_USE, os.path.join(listing.path, name), 0, "the lock is held")


def _check_lock_files(root: str) -> Iterator[Problem]:
    """What stands in the place of a lock and is no file: who needs the lock is refused."""
    for listing in _walk(root):
        for name in (*listing.directories, *listing.files):
            if not name.endswith(filenames.LOCK):
                continue
            path = os.path.join(listing.path, name)
            kind = nofollow.kind_of(path)
            if kind not in (nofollow.NOTHING, nofollow.FILE):
                problem = unverified(META, path, irregular(path, kind))
                yield problem._replace(remedy="move it away: the lock is made again when it is needed")


def _check_unfinished(root: str) -> Iterator[Problem]:
    for listing in _walk(root):
        for name in listing.files:
            if name.endswith(_TEMPORARY):
                yield Problem(LEFTOVER, os.path.join(listing.path, name), 0, "a file that was not finished")
    staging = root_layout.in_root(root, root_layout.STAGING)
    for name in _directories(staging):
        yield Problem(LEFTOVER, os.path.join(staging, name), 0, "a topic that was not finished")


def _check_links(root: str) -> Iterator[Problem]:
    for listing in _walk(root):
        for name in listing.links:
            text = "a symbolic link, and no link inside of a store is followed"
            yield Problem(LEFTOVER, os.path.join(listing.path, name), 0, text)


def _walk(root: str) -> Iterator[nofollow.Listing]:
    """The directories of a store, but for what a repair took out of use."""
    return nofollow.tree(root, but=root_layout.in_root(root, root_layout.QUARANTINE))


def _ledgers(directory: str) -> list[int]:
    with contextlib.suppress(FileNotFoundError):
        return ledgers_of(descriptors.names_in(directory))
    return []


def _name_of(directory: str) -> str:
    with contextlib.suppress(StorageError, OSError):
        described = read_meta(directory)
        return "" if described is None else described.name
    return ""


def _is_locked(path: str) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return is_locked(path)
    return False


def _subscriptions(directory: str) -> list[str]:
    """Those of a topic that have not ended."""
    names = _directories(filenames.subscriptions_path(directory))
    return [name for name in names if not filenames.is_gone(name)]


def _topic_directories(topics: str) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        names = sorted(directories_in(topics))
        return [name for name in names if os.path.isdir(os.path.join(topics, name))]
    return []


def _directories(path: str) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        names = descriptors.names_in(path)
        places = ((name, os.path.join(path, name)) for name in names)
        return sorted(name for name, place in places if nofollow.kind_of(place) == nofollow.DIRECTORY)
    return []
