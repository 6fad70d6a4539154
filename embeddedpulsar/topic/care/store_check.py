"""The check of a whole store or of a topic: reads all of it and changes nothing."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from typing import Any, Final

from embeddedpulsar._engine.cold.location import OWNER
from embeddedpulsar._engine.format.catalog_record import TopicEntry
from embeddedpulsar._engine.format.control import (
    CONTROL_HEADER_SIZE,
    CONTROL_SIZE,
    KIND_STORE,
    KIND_SUBSCRIPTION,
    WORD_COUNT,
    StoreWord,
    are_possible,
    parse_control_header,
)
from embeddedpulsar._engine.format.document import (
    KIND_COLD_LEDGER,
    KIND_COMPACTED_START,
    KIND_OBJECT_OWNER,
    KIND_OFFLOAD,
    KIND_POLICIES,
    KIND_SCHEMAS,
    KIND_SINK_COMMIT,
    decode_document,
)
from embeddedpulsar._engine.format.journal_record import FIRST_RECORD_OFFSET, parse_journal_header, valid_end
from embeddedpulsar._engine.log import filenames
from embeddedpulsar._engine.log.filenames import ledgers_of
from embeddedpulsar._engine.log.log_check import CheckReport, Problem, check_journal, check_topic, unverified
from embeddedpulsar._engine.platform import clock, descriptors, disk, nofollow
from embeddedpulsar._engine.platform.access import irregular
from embeddedpulsar._engine.platform.lease import OnlookerLiveness, is_held, is_locked
from embeddedpulsar.damage import CONTROL, INDEX, JOURNAL, SEGMENT_HEADER
from embeddedpulsar.exceptions import InvalidConfiguration, StorageError, TopicNotFound
from embeddedpulsar.settings import BrokerSettings
from embeddedpulsar.topic import store_root
from embeddedpulsar.topic.care.care_progress import CareProgress, ProgressMeter
from embeddedpulsar.topic.care.compaction_check import check_compaction
from embeddedpulsar.topic.care.store_report import (
    DOCUMENT,
    ID_REUSE,
    IN_USE,
    LEFTOVER,
    META,
    POLICIES,
    SCHEMAS,
    SETTINGS,
    UNKNOWN_SETTING,
    UNVERIFIED,
    StoreReport,
    TopicReport,
    explained,
)
from embeddedpulsar.topic.catalog import root_layout
from embeddedpulsar.topic.catalog.catalog import Catalog
from embeddedpulsar.topic.catalog.topic_places import directories_in, read_meta
from embeddedpulsar.topic.sinks.sink_place import DONE, PENDING

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
        >>> from embeddedpulsar.topic.store import Store
        >>> with tempfile.TemporaryDirectory() as root:
        ...     Store.open(root).release()
        ...     check_store(root).is_clean
        True
    """
    path = nofollow.canonical(os.fspath(root))
    meter = ProgressMeter("checking", on_progress)
    if topic is not None:
        problems: list[Problem] = []
        directories = _directories_of(path, topic)
    else:
        problems = list(_check_root(path))
        problems += _check_documents(path)
        problems += _steady(path, is_closed, lambda: _check_catalog(path))
        parent = root_layout.in_root(path, root_layout.TOPICS)
        directories = [os.path.join(parent, name) for name in _topic_directories(parent)]
    reports: list[TopicReport] = []
    for number, directory in enumerate(directories):
        meter.topic(number + 1, len(directories))
        reports += _check_topic(path, directory, is_closed, meter)
    living, leases = _check_leases(path)
    if topic is None:
        ledgers_there = [ledger for report in reports for ledger in _ledgers(report.directory)]
        problems += _check_ids(path, max(ledgers_there, default=0))
        problems += _check_links(path)
        problems += _check_lock_files(path)
        if is_closed:
            problems += _check_locks(path)
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
    )


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
        return [os.path.join(parent, one.below_topics()) for one in catalog.with_logs(entry) if one.is_made]
    finally:
        catalog.close()


def _check_topic(root: str, directory: str, is_closed: bool, meter: ProgressMeter) -> Iterator[TopicReport]:
    """One report; none of a topic that is deleted meanwhile."""
    found: list[CheckReport] = []

    def look() -> list[Problem]:
        found.append(_look_at(directory, meter))
        return found[-1].problems

    subscriptions = _subscriptions(directory)
    problems = _steady(root, is_closed, look)
    if is_closed or os.path.isdir(directory):
        name = _name_of(directory)
        problems = [explained(problem, name) for problem in problems]
        yield TopicReport(name, directory, found[-1]._replace(problems=problems), len(subscriptions))


def _look_at(directory: str, meter: ProgressMeter) -> CheckReport:
    try:
        report = check_topic(directory, meter.ledger)
        # A damaged note of an offloaded ledger is met as the header that is in it, and found below as itself.
        problems = [one for one in report.problems if not _is_note(one)]
        problems += _check_document(filenames.policies_path(directory))
        problems += _check_document(filenames.schemas_path(directory), KIND_SCHEMAS, SCHEMAS)
        problems += _check_document(filenames.offload_path(directory), KIND_OFFLOAD, DOCUMENT)
        for ledger in ledgers_of(descriptors.names_in(directory), filenames.COLD_SUFFIX):
            problems += _check_document(filenames.cold_path(directory, ledger), KIND_COLD_LEDGER, DOCUMENT)
        problems += check_compaction(directory, _is_locked, meter.ledger)
        for name in _subscriptions(directory):
            own = os.path.join(filenames.subscriptions_path(directory), name)
            problems += check_journal(own, KIND_SUBSCRIPTION)
            start = filenames.compacted_start_path(own)
            problems += _check_document(start, KIND_COMPACTED_START, DOCUMENT)
    except FileNotFoundError as e:
        gone = str(e.filename or e)
        return CheckReport([Problem(META, gone, 0, "the file went away while it was read")])
    except (OSError, StorageError) as e:  # a directory that cannot be listed
        return CheckReport([unverified(META, directory, e)])
    return report._replace(problems=problems)


def _is_note(problem: Problem) -> bool:
    return problem.kind == SEGMENT_HEADER and problem.path.endswith(filenames.COLD_SUFFIX)


def _steady(root: str, is_closed: bool, look: Callable[[], list[Problem]]) -> list[Problem]:
    """What is found, and is still found when processes that use the store have gone on meanwhile."""
    found = look()
    for pause_s in _PAUSES_S:
        if not found or is_closed or not _check_leases(root)[0]:
            break
        clock.sleep(pause_s)
        places = {(problem.kind, problem.path) for problem in found}
        again = look()
        found = [problem for problem in again if (problem.kind, problem.path) in places]
    return found


def _check_root(root: str) -> Iterator[Problem]:
    try:
        if store_root.read_meta(root) is None:
            yield Problem(META, root_layout.in_root(root, root_layout.META), 0, "there is no store here")
    except (OSError, StorageError) as e:
        yield unverified(META, root_layout.in_root(root, root_layout.META), e)
    for name in sorted(descriptors.names_in(root)):
        if not root_layout.is_ours(name):
            yield Problem(LEFTOVER, os.path.join(root, name), 0, "this does not belong into a store")


def _catalogued(root: str) -> tuple[list[TopicEntry], Callable[[str], int], list[Problem]]:
    """The topics of the catalog, which incarnation of a name was deleted last, and what is wrong with it."""
    path = root_layout.in_root(root, root_layout.CATALOG)
    try:
        data = disk.DISK.read_file(path)
        header = parse_journal_header(data)
        catalog = Catalog(path, _NO_LOCK, is_read_only=True, with_index=False)
    except FileNotFoundError:
        return [], lambda _: 0, [Problem(JOURNAL, path, 0, "there is no catalog")]
    except (OSError, StorageError) as e:
        return [], lambda _: 0, [unverified(JOURNAL, path, e)]
    try:
        end, _ = valid_end(data, FIRST_RECORD_OFFSET, len(data), header.chain_seed)
        problems = []
        if any(data[end:]):
            problems.append(Problem(LEFTOVER, path, end, "a record that was not finished, or is damaged"))
        entries, ended = catalog.topics(), catalog.ended_lives()
        return entries, lambda name: ended.get(name, 0), problems
    except StorageError as e:
        return [], lambda _: 0, [unverified(JOURNAL, path, e)]
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
            found, expected = (
                (catalog.topics(), catalog.ended_lives(), catalog.end) for catalog in (indexed, plain)
            )
            if not indexed.has_index:
                yield Problem(INDEX, path, 0, "the index of the catalog is damaged, and not used")
            elif found != expected and found[-1] == expected[-1]:
                yield Problem(INDEX, path, 0, "the index does not say what the catalog says")
    except (OSError, StorageError) as e:
        yield unverified(INDEX, path, e)


def _check_names(
    root: str, entries: list[TopicEntry], ended: Callable[[str], int], topics: list[str]
) -> Iterator[Problem]:
    parent = root_layout.in_root(root, root_layout.TOPICS)
    known: dict[str, TopicEntry] = {}
    for entry in entries:
        try:
            directory = entry.below_topics()
        except StorageError as e:
            yield Problem(JOURNAL, root_layout.in_root(root, root_layout.CATALOG), 0, e.reason)
            continue
        if entry.is_made:
            known[directory] = entry
    for name in sorted(known.keys() - set(topics)):
        yield Problem(META, os.path.join(parent, name), 0, f"the directory of {known[name].name} is missing")
    for name in topics:
        directory = os.path.join(parent, name)
        named = known.get(name)
        try:
            found = read_meta(directory)
        except (OSError, StorageError) as e:
            yield unverified(META, directory, e)
            continue
        if found is None:
            yield Problem(META, directory, 0, "nothing says which topic this is")
        elif named is None and ended(found.name) >= found.incarnation:
            yield Problem(LEFTOVER, directory, 0, f"the rest of {found.name}, which was deleted")
        elif named is None and not _ledgers(directory):
            yield Problem(LEFTOVER, directory, 0, f"{found.name}, which was not finished")
        elif named is None:
            yield Problem(META, directory, 0, f"the catalog does not know {found.name}")
        elif (found.name, found.incarnation) != (named.name, named.incarnation):
            yield Problem(META, directory, 0, f"this is {found.name}, the catalog says {named.name}")


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
    words = memoryview(data[:CONTROL_SIZE]).cast("Q")
    if len(words) < WORD_COUNT or not are_possible(KIND_STORE, words):
        yield Problem(CONTROL, path, CONTROL_HEADER_SIZE, "its words are damaged")
        return
    at = 8 * StoreWord.NEXT_LEDGER_ID
    following = int.from_bytes(data[at : at + 8], "little")
    if following <= highest:
        yield Problem(ID_REUSE, path, at, f"ledger {highest} exists, and {following} would come next")


def _check_documents(root: str) -> Iterator[Problem]:
    """``broker.conf``, the policies of namespaces, and what is noted of sinks and offloaded objects."""
    path = root_layout.in_root(root, root_layout.SETTINGS)
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
        if not name.endswith(_TEMPORARY):
            yield from _check_document(os.path.join(tenants, name))
    offloaded = root_layout.in_root(root, root_layout.OFFLOADED)
    for name in sorted(descriptors.names_in(offloaded) if os.path.isdir(offloaded) else ()):
        kind = KIND_OBJECT_OWNER if name == OWNER else KIND_COLD_LEDGER
        if name == OWNER or name.endswith(filenames.COLD_SUFFIX):
            yield from _check_document(os.path.join(offloaded, name), kind, DOCUMENT)
    sinks = root_layout.in_root(root, root_layout.SINKS)
    for key in _directories(sinks):
        for name in (PENDING, DONE):
            yield from _check_document(os.path.join(sinks, key, name), KIND_SINK_COMMIT, DOCUMENT)


def _check_document(path: str, kind: int = KIND_POLICIES, problem: str = POLICIES) -> Iterator[Problem]:
    try:
        decode_document(disk.DISK.read_file(path), kind)
    except FileNotFoundError:
        return  # as nearly everywhere
    except (OSError, StorageError) as e:
        yield unverified(problem, path, e)


def _check_leases(root: str) -> tuple[int, list[Problem]]:
    """How many processes live; each of them, and what others left, as problems of a closed store."""
    clients = root_layout.in_root(root, root_layout.CLIENTS)
    living, problems = 0, []
    for name in sorted(descriptors.names_in(clients) if os.path.isdir(clients) else ()):
        path = os.path.join(clients, name)
        if _lives(root, path):
            living += 1
            problems.append(Problem(IN_USE, path, 0, "the process lives"))
        else:
            problems.append(Problem(LEFTOVER, path, 0, "the lease of a process that is gone"))
    return living, problems


def _lives(root: str, path: str) -> bool:
    try:
        return is_held(path)
    except PermissionError:  # another user's, who lets this one read the store
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
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                mode = nofollow.status(path).st_mode
                if not stat.S_ISREG(mode):
                    found = unverified(META, path, irregular(path, mode))
                    yield found._replace(remedy="move it away: the lock is made again when it is needed")


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
        found = read_meta(directory)
        return "" if found is None else found.name
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
        return sorted(name for name in names if _is_directory(os.path.join(path, name)))
    return []


def _is_directory(path: str) -> bool:
    with contextlib.suppress(FileNotFoundError):  # removed meanwhile
        return stat.S_ISDIR(nofollow.status(path).st_mode)
    return False
