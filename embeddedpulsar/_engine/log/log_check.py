"""The auditor of a topic's files: reads everything, trusts nothing, changes nothing.

`embeddedpulsar._engine.store.care.store_check` checks a whole store with it.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable
from zlib import crc32

from embeddedpulsar import damage
from embeddedpulsar._engine.cold.cold_ledger import (
    ColdLedger,
    is_away,
    offloaded_ledger,
)
from embeddedpulsar._engine.filenames import (
    cold_path,
    control_path,
    index_path,
    journal_path,
    ledgers_of,
    log_path,
    snapshot_path,
)
from embeddedpulsar._engine.format import journal_record, subscription_record, transaction_record
from embeddedpulsar._engine.format.control import (
    CONTROL_HEADER_SIZE,
    CONTROL_SIZE,
    KIND_SUBSCRIPTION,
    KIND_TOPIC,
    KIND_TRANSACTIONS,
    WORD_COUNT,
    SubscriptionWord,
    TopicWord,
    TransactionWord,
    are_possible,
    parse_control_header,
    split_journal,
    split_tail,
)
from embeddedpulsar._engine.format.document import document_crc
from embeddedpulsar._engine.format.frame import (
    BLOCK_CRC,
    INDEX_HEADER_SIZE,
    SLOT_SIZE,
    SLOTS_OFFSET,
    SLOTS_PER_BLOCK,
    block_crc_offset,
    is_block_sealed_and_intact,
    parse_index_header,
)
from embeddedpulsar._engine.format.journal_record import (
    BASE,
    FIRST_RECORD_OFFSET,
    parse_journal_header,
    records,
    valid_end,
)
from embeddedpulsar._engine.log.chain_scan import ChainScan, scan_log
from embeddedpulsar._engine.log.journal_file import JournalFile, choose, generations, note_lost
from embeddedpulsar._engine.log.segment import find_segment_header, ledgers_with_cold
from embeddedpulsar._engine.log.segments import Link, walk_segments
from embeddedpulsar._engine.log.topic_control import is_of_this_boot
from embeddedpulsar._engine.platform import descriptors, disk
from embeddedpulsar._engine.platform.access import irregular, named
from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar.damage import CONTROL, JOURNAL, Damage
from embeddedpulsar.exceptions import (
    CorruptionError,
    DescriptorLimitError,
    StorageError,
    UnsupportedFormatVersion,
)
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple
from embeddedpulsar.topic_name import NON_DURABLE_PREFIX

if TYPE_CHECKING:
    from typing import Final

LINK: Final = "link"
"""What a segment's header says about the ledger before it is not what that ledger holds."""
TRAILER: Final = "trailer"
"""The end mark of a frame is damaged; its messages are not."""
COLD: Final = "offloaded"
"""The objects of an offloaded ledger are missing or incomplete, or their location cannot be looked at."""
STRAY: Final = "stray"
"""A segment that no other one leads to; the next roll or recovery removes it."""
UNREADABLE: Final = "unreadable"
"""A file that this process could not read: what is in it is unknown, and nothing says that it is damaged."""
NEWER: Final = "newer release"
"""A file that a newer release wrote: this release can neither verify nor use it."""
_COMMANDS: Final = {
    KIND_TOPIC: journal_record.RECORDS,
    KIND_SUBSCRIPTION: subscription_record.RECORDS,
    KIND_TRANSACTIONS: transaction_record.RECORDS,
}
_JOURNAL_WORDS: Final = {
    KIND_TOPIC: TopicWord.JOURNAL,
    KIND_SUBSCRIPTION: SubscriptionWord.JOURNAL,
    KIND_TRANSACTIONS: TransactionWord.JOURNAL,
}
_WORDS: Final = struct.Struct(f"<{WORD_COUNT}Q")


class Problem(NamedTuple):
    """A finding.

    Attributes:
        kind: one of the words of this module, of damage.py or of `_engine.store.care.store_check`.
        path: the file or directory.
        offset: where in the file it begins.
        text: what is wrong.
        ledger_id: the ledger concerned; 0 for none.
        first_entry, last_entry: the entries that are lost with it, both included; 0 and -1 for none.
        topic: full name of the topic; "" if it belongs to the store, or nothing says it.
        meaning: what follows from it.
        remedy: what to do about it.
    """

    kind: str
    path: str
    offset: int
    text: str
    ledger_id: int = 0
    first_entry: int = 0
    last_entry: int = -1
    topic: str = ""
    meaning: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.path} at {self.offset}: {self.kind}: {self.text}"


def unverified(kind: str, path: str, error: Exception, ledger_id: int = 0) -> Problem:
    """The finding for a file whose reading raised ``error``.

    Only what was read and found wrong is damage, of that kind. What could not be read is `UNREADABLE`, what a
    newer release wrote is `NEWER`: both with the remedy of the error in the place of that of the kind.
    """
    # Three things that must not be mixed up: damage, which a repair may replace; what could not be
    # read, which says nothing; and what a newer release wrote, which is right. Anything else is a
    # fault of the program.
    told = named(error)
    if isinstance(told, DescriptorLimitError):
        return Problem(UNREADABLE, path, 0, str(told), ledger_id, remedy="check it again then")
    if not isinstance(told, StorageError):
        raise told
    place, offset = told.path or path, told.offset or 0
    if isinstance(told, UnsupportedFormatVersion):
        return Problem(NEWER, place, offset, told.reason, ledger_id, remedy=told.remedy)
    if isinstance(told, OSError):
        return Problem(UNREADABLE, place, offset, told.reason, ledger_id, remedy=told.remedy)
    return Problem(kind, place, offset, told.reason, ledger_id)


class CheckReport(NamedTuple):
    """The findings of a check. `is_unclean` says that the next process to open the topic runs a recovery."""

    problems: list[Problem]
    ledgers: int = 0
    frames: int = 0
    messages: int = 0
    is_unclean: bool = False

    @property
    def is_clean(self) -> bool:
        return not self.problems


class _Words(NamedTuple):
    """The words of a ctl; `values` is empty where they may not be believed."""

    values: tuple[int, ...]
    problem: Problem | None

    def of(self, index: int) -> int:
        """One word; 0 where none may be believed."""
        return self.values[index] if self.values else 0


def check_topic(directory: str, watch: Callable[[str], object] | None = None) -> CheckReport:
    """Audit a topic: the chain of every ledger, bodies, trailers, links, indexes, times, journal.

    Takes no lock and changes nothing, so it may run beside writers; it looks at what was published when it
    began. In a directory whose control words cannot be believed it looks at all there is, and finds what a
    recovery would find.

    Args:
        directory: of the topic.
        watch: called with the path of each ledger before it is read.
    """
    words = _words_or_problem(directory, KIND_TOPIC)
    problems = [words.problem] if words.problem else []
    problems += check_journal(directory, KIND_TOPIC, with_words=False)
    tail_ledger, tail_end = split_tail(words.of(TopicWord.TAIL))
    # Where the words count, files above the tail's ledger do not exist: a writer may be making one at
    # this moment.
    limit = tail_ledger if words.values else None
    unread = _unread_segments(directory, limit)
    if unread:  # each may be the link to those before it: nothing can be said of the log
        return CheckReport([*problems, *unread], is_unclean=not words.values)
    chain = walk_segments(directory, words.of(TopicWord.TRIM), limit=limit)
    problems += [
        Problem(
            report.kind,
            report.path,
            report.offset,
            report.reason,
            report.ledger_id,
            report.first_entry,
            report.last_entry,
        )
        for report in chain.damaged
        if report.ledger_id >= words.of(TopicWord.TRIM)
    ]
    # Above the tail a stray is a roll under way, or one that died and is removed by the next.
    for ledger in chain.strays:
        if ledger < tail_ledger or not words.values:
            text = "a segment nothing refers to"
            problems.append(Problem(STRAY, log_path(directory, ledger), 0, text, ledger))
    frames = messages = 0
    publish_ms = 0
    for link in chain.links:
        # Ledgers below the trim point may vanish while they are read.
        ledger = link.header.ledger_id
        if ledger < words.of(TopicWord.TRIM):
            continue
        if watch is not None:
            watch(log_path(directory, ledger))
        # What is here of an offloaded ledger is the note and the index. Its objects are looked at by
        # their sizes only: reading them may take hours.
        if is_away(directory, ledger):
            note = offloaded_ledger(directory, ledger)
            if note is not None:
                problems += _check_cold(directory, link, note)
                frames += note.entries
                messages += note.messages
                continue
        # A closed ledger ends where the next header says; the tail's where the word says; without
        # words where its frames end.
        end = tail_end if words.values and ledger == tail_ledger else None
        try:
            scan, problems_of_ledger = _check_ledger(directory, link, end)
        # The ledger, or the whole topic, was removed meanwhile. That is for the caller to find out.
        except FileNotFoundError:
            raise
        except (OSError, StorageError) as e:
            problems.append(unverified(damage.HOLE, log_path(directory, ledger), e, ledger))
            continue
        problems += problems_of_ledger
        frames += scan.frames
        messages += scan.messages
        # Publish times never go back, not even from one ledger to the next: searches by time rely on
        # it.
        if link.header.base_publish_ms < publish_ms:
            text = f"base publish time {link.header.base_publish_ms} after {publish_ms}"
            problems.append(Problem(LINK, log_path(directory, ledger), 0, text, ledger))
        publish_ms = scan.last_publish_ms
    # `walk_segments` begins at the newest header that can be read, so it does not miss the tail's by
    # itself.
    if words.values and tail_ledger and tail_ledger not in [link.header.ledger_id for link in chain.links]:
        text = "the tail is in it, and it cannot be read"
        problems.append(
            Problem(damage.MISSING_SEGMENT, log_path(directory, tail_ledger), 0, text, tail_ledger)
        )
    return CheckReport(problems, len(chain.links), frames, messages, not words.values)


def _unread_segments(directory: str, limit: int | None) -> list[Problem]:
    """The segments whose header this process may not, cannot or must not read."""
    problems = []
    for ledger in ledgers_with_cold(directory, descriptors.names_in(directory)):
        if limit is not None and ledger > limit:
            continue
        try:
            # Each header is read before the walk, because one that cannot be read would end it in the
            # middle with an exception.
            find_segment_header(directory, ledger)
        except (FileNotFoundError, CorruptionError):
            continue  # trimmed meanwhile; or what walking the segments reports
        except (OSError, StorageError) as e:
            problems.append(unverified(damage.SEGMENT_HEADER, log_path(directory, ledger), e, ledger))
    return problems


def _check_ledger(directory: str, link: Link, tail_end: int | None) -> tuple[ChainScan, list[Problem]]:
    # Bodies, chain, times and trailers are verified by the scan; here its result is compared with
    # what others say.
    header = link.header
    path = log_path(directory, header.ledger_id)
    end = link.end_offset if link.is_closed else tail_end
    scan = scan_log(
        path,
        chain_seed=header.chain_seed,
        base_publish_ms=header.base_publish_ms,
        end=end,
        last_entry_id=link.last_entry_id,
    )
    problems = [
        Problem(
            damage.HOLE,
            path,
            hole.offset,
            f"entries {hole.first_entry_id} to {hole.last_entry_id}: {hole.reason}",
            header.ledger_id,
            hole.first_entry_id,
            hole.last_entry_id,
        )
        for hole in scan.holes
    ]
    for offset, length in scan.bad_trailers:
        text = f"it does not repeat the frame's length {length}"
        problems.append(Problem(TRAILER, path, offset, text, header.ledger_id))
    # A hole up to the end is reported as a hole, and not as a lost tail, too.
    reached = max([scan.end_offset, *(hole.end_offset for hole in scan.holes)])
    if end is not None and reached < end:
        text = f"the ledger should end at {end}: {scan.stop_reason or 'the file was cut'}"
        problems.append(Problem(damage.LOST_TAIL, path, reached, text, header.ledger_id))
    # Behind a hole the counts of the scan are lower than those that were written, so nothing follows
    # from a difference.
    if link.is_closed and not scan.holes:
        said = (link.end_offset, link.last_entry_id, link.last_crc, link.messages)
        measured = (scan.end_offset, scan.last_entry_id, scan.last_crc, scan.messages)
        if said != measured:
            text = f"the next ledger says (end, last entry, crc, messages) {said}, found {measured}"
            problems.append(Problem(LINK, path, scan.end_offset, text, header.ledger_id))
    return scan, problems + _check_index(directory, link, scan)


def _check_cold(directory: str, link: Link, note: ColdLedger) -> list[Problem]:
    """Check what is here of an offloaded ledger, and that its objects are in the location, by their sizes."""
    path, ledger = cold_path(directory, note.ledger_id), note.ledger_id
    # Note and next header were written by different processes at different times; both name the same
    # end.
    said = (note.end_offset, note.entries - 1, note.last_crc, note.messages)
    problems = []
    if link.is_closed and said != (link.end_offset, link.last_entry_id, link.last_crc, link.messages):
        text = f"the note says (end, last entry, crc, messages) {said}, and the next ledger something else"
        problems.append(Problem(LINK, path, 0, text, ledger))
    with late_imports():
        from embeddedpulsar._engine.cold.fetching import problem_of
    wrong = problem_of(note)
    if wrong:
        problems.append(Problem(COLD, path, 0, wrong, ledger, 0, note.entries - 1))
    index = index_path(directory, ledger)
    try:
        slots = disk.DISK.read_file(index, SLOTS_OFFSET + SLOT_SIZE * note.entries)[SLOTS_OFFSET:]
    except FileNotFoundError:
        slots = b""
    except (OSError, StorageError) as e:
        return [*problems, unverified(damage.INDEX, index, e, ledger)]
    # Without its log an index cannot be compared with frames, so the note has the checksum that it
    # had.
    if crc32(slots) != note.index_crc:
        text = "it is missing or damaged; it is derived from the log, which is fetched for that"
        problems.append(Problem(damage.INDEX, index, 0, text, ledger))
    return problems


def _check_index(directory: str, link: Link, scan: ChainScan) -> list[Problem]:
    path, ledger = index_path(directory, link.header.ledger_id), link.header.ledger_id
    count = len(scan.slots) // SLOT_SIZE
    try:
        # A missing index is no loss: it is derived from the frames when it is needed. Of 21 MiB of slots
        # few may be used.
        data = disk.DISK.read_file(path, SLOTS_OFFSET + count * SLOT_SIZE)
        header = parse_index_header(data[:INDEX_HEADER_SIZE])
    except FileNotFoundError:
        return [
            Problem(damage.INDEX, path, 0, "the file is missing; it is derived again when needed", ledger)
        ]
    except (OSError, StorageError) as e:
        return [unverified(damage.INDEX, path, e, ledger)]
    if header.ledger_id != ledger:
        return [Problem(damage.INDEX, path, 8, f"it is the index of ledger {header.ledger_id}", ledger)]
    problems = []
    # Behind a hole message counts differ from what was written; only the frames' checksums are compared.
    first = 20 if scan.holes else 0
    # One report for each ledger: a shifted index would give one for every slot. A slot of a lost
    # entry is not compared.
    for entry in range(count):
        at = SLOTS_OFFSET + entry * SLOT_SIZE
        expected = scan.slots[entry * SLOT_SIZE : (entry + 1) * SLOT_SIZE]
        if any(expected[20:]) and data[at + first : at + SLOT_SIZE] != expected[first:]:
            text = f"slot {entry} does not fit its frame"
            problems.append(Problem(damage.INDEX, path, at, text, ledger))
            break
    # Zero means that the block was not sealed, which a writer that died leaves: that is no damage.
    for block in range(count // SLOTS_PER_BLOCK):
        (crc,) = BLOCK_CRC.unpack_from(data, block_crc_offset(block))
        if crc and not is_block_sealed_and_intact(data, block):
            at = block_crc_offset(block)
            problems.append(Problem(damage.INDEX, path, at, f"block {block} changed", ledger))
    return problems


def check_journal(directory: str, kind: int, *, with_words: bool = True) -> list[Problem]:
    """Audit the journal of a topic (KIND_TOPIC), subscription (KIND_SUBSCRIPTION) or transaction
    (KIND_TRANSACTIONS) directory.

    Every record up to the commit word must verify and continue the chain, and the snapshot must be the one
    the journal starts from. Where the commit word may not be believed, after a reboot and in a copy, no
    record that verifies may stand behind one that does not.

    Args:
        directory: the one of them.
        kind: which of the three.
        with_words: whether what is wrong with the control words is reported, too.
    """
    # Without words that may be believed, the files have to lead to one state, as a recovery would
    # find it.
    words = _words_or_problem(directory, kind)
    problems = [words.problem] if words.problem and with_words else []
    if not words.values:
        return problems + _check_newest_journal(directory, kind, _word_at_rest(directory, kind))
    generation, end = split_journal(words.of(_JOURNAL_WORDS[kind]))
    # The state does not exist: a removed subscription has a word and no journal.
    if not end:
        return problems
    path = journal_path(directory, generation)
    try:
        data = disk.DISK.read_file(path)
        header = parse_journal_header(data)
        if (header.generation, header.owner_kind) != (generation, kind):
            text = f"the header says generation {header.generation} of owner kind {header.owner_kind}"
            problems.append(Problem(JOURNAL, path, 8, text))
        # Up to the commit word every byte counts. What lies behind it was never committed.
        reached, _ = valid_end(data, FIRST_RECORD_OFFSET, min(end, len(data)), header.chain_seed)
        # The type of a command that verifies may be one of a newer release, which a replica here
        # could not apply.
        for _, record in records(data, FIRST_RECORD_OFFSET, reached, header.chain_seed):
            _COMMANDS[kind].require_known(record.type)
        if reached != end:
            problems.append(Problem(JOURNAL, path, reached, f"the chain should continue to {end}"))
        # 0 is of a first generation, which starts from nothing.
        if header.snapshot_crc:
            path = snapshot_path(directory, generation)
            if document_crc(disk.DISK.read_file(path)) != header.snapshot_crc:
                problems.append(Problem(JOURNAL, path, 0, "this is not the snapshot its journal starts from"))
    except FileNotFoundError:
        problems.append(Problem(JOURNAL, path, 0, "the file is missing"))
    except (OSError, StorageError) as e:
        problems.append(unverified(JOURNAL, path, e))
    return problems


def _word_at_rest(directory: str, kind: int) -> int | None:
    """The commit word in a control file of another boot or place; None if nothing says what it was."""
    try:
        # The word of a copy or of an earlier boot is no truth about the files, and still says that
        # there were commands.
        data = disk.DISK.read_file(control_path(directory), CONTROL_SIZE).ljust(CONTROL_SIZE, b"\0")
    except (OSError, StorageError) as e:
        is_lost = isinstance(e, FileNotFoundError) and kind == KIND_SUBSCRIPTION
        return None if is_lost and not _is_volatile(directory) else 0
    word: int = _WORDS.unpack(data)[_JOURNAL_WORDS[kind]]
    try:
        parse_control_header(data, kind)
    # A damaged header says nothing of the words. A word without an end is then no proof that there
    # were no commands, except of a topic and of a subscription that ends with its consumers.
    except (CorruptionError, UnsupportedFormatVersion):
        is_known = bool(split_journal(word)[1]) or kind == KIND_TOPIC or _is_volatile(directory)
        return word if is_known else None
    return word


def _is_volatile(directory: str) -> bool:
    return os.path.basename(directory).startswith(NON_DURABLE_PREFIX)


def _check_newest_journal(directory: str, kind: int, word: int | None) -> list[Problem]:
    # The newest generation is the one that recovery prefers. `choose` finds out if an older one has
    # to serve.
    journals, _ = generations(directory)
    if not journals:
        return []
    lost: list[Damage] = []
    try:
        journal = JournalFile(directory, journals[-1])
        note_lost(directory, word, choose(directory, kind, lost).journal, lost)
    except FileNotFoundError:
        raise
    except (OSError, StorageError) as e:
        return [unverified(JOURNAL, journal_path(directory, journals[-1]), e)]
    if lost:  # no generation leads to the state
        return [Problem(JOURNAL, each.path, each.offset, each.reason) for each in lost]
    # With strict=False the records behind damage are found as well. Damage at the very end may be a
    # record that was not finished when the power went, and is none.
    reached = commands = 0
    for end, record in journal.records(strict=False):
        reached, commands = end, commands + (record.type != BASE)
        try:
            _COMMANDS[kind].require_known(record.type)
        except UnsupportedFormatVersion as e:
            return [unverified(JOURNAL, journal.path, e)]
    problems = [
        Problem(JOURNAL, journal.path, error.offset or 0, error.reason)
        for error in journal.damage
        if (error.offset or 0) < reached  # what comes last may be a command that was not finished
    ]
    if commands:  # without one, the snapshot may be what was not finished
        try:
            journal.read_snapshot()
        except (OSError, StorageError) as e:
            problems.append(unverified(JOURNAL, journal.snapshot_path, e))
    return problems


def trusted_words(directory: str, kind: int) -> tuple[int, ...]:
    """The control words of a topic or subscription directory; empty where they may not be believed."""
    return _read_words(directory, kind).values


def _words_or_problem(directory: str, kind: int) -> _Words:
    try:
        return _read_words(directory, kind)
    except FileNotFoundError:
        raise
    except (OSError, StorageError) as e:
        return _Words((), unverified(CONTROL, control_path(directory), e))


def _is_new(directory: str) -> bool:
    """Whether there is nothing but what a process makes first that was killed while it made the rest."""
    return not any(generations(directory)) and not ledgers_of(descriptors.names_in(directory))


def _read_words(directory: str, kind: int) -> _Words:
    path = control_path(directory)
    if not os.path.isdir(directory):
        raise FileNotFoundError(directory)
    try:
        fd = disk.DISK.open_file(path, os.O_RDONLY)
    # No control file: the topic was made a moment ago, or lost it. Recovery makes one, so it is no
    # damage by itself.
    except FileNotFoundError:
        return _Words((), None)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise irregular(path, status.st_mode)
        data = disk.DISK.pread(fd, CONTROL_SIZE, 0)
        header = parse_control_header(data, kind)
        if len(data) < CONTROL_SIZE:
            raise CorruptionError(reason=f"the file has {len(data)} bytes", offset=len(data))
    # A new file has a header of zeros until its maker adopts it; beside files of a log that is a lost
    # header.
    except CorruptionError as e:
        if not any(data[:CONTROL_HEADER_SIZE]) and _is_new(directory):
            return _Words((), None)
        return _Words((), Problem(CONTROL, path, e.offset or 0, e.reason))
    except UnsupportedFormatVersion as e:
        raise e.at(path) from None
    finally:
        os.close(fd)
    # The same test as `ControlFile.is_trusted`, by one that may only read.
    is_here = (header.device, header.inode) == (status.st_dev, status.st_ino)
    if not is_here or not is_of_this_boot(header, directory):
        return _Words((), None)
    words = _WORDS.unpack(data)
    if not are_possible(kind, words):
        return _Words((), Problem(CONTROL, path, CONTROL_HEADER_SIZE, "its words are damaged"))
    return _Words(words, None)
