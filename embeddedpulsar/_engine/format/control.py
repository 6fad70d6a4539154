"""Control files `ctl`: 8192 mapped bytes (a subscription's 12288, the transactions' 139264) of 64-bit words,
each hot one on a cache line of its own (docs/format/control.md).

Bytes [0,128) identify the file and carry a checksum. The words carry none: they are live, change by one
aligned 8-byte store at a time (`words[i] = v` on `memoryview.cast("Q")`, never `struct.pack_into`), and are
believed only in the boot, and on the inode, in which they were written. Otherwise they are derived again.

Acknowledgements that are not written yet: the file `acks.<consumer id>` (docs/format/control.md).

A header like that of a control file, and words. One process writes them, one aligned 8-byte store at a time;
others read them when its consumer leaves. A word that is 0 says nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from operator import itemgetter
from zlib import crc32

from embeddedpulsar._engine.format.acknowledgement import MAX_BATCH_SIZE, MAX_ENTRY_ID
from embeddedpulsar._engine.format.frame import BYTE_ORDER_MARK, FORMAT_VERSION, is_header, refuse
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Final

CONTROL_HEADER: Final = struct.Struct(
    "<"
    "4s"  # 0  magic
    "H"  # 4  version
    "H"  # 6  byte order mark
    "B"  # 8  kind
    "7x"  # 9  zero
    "16s"  # 16 boot_id in which the words were written
    "Q"  # 32 device the file was on
    "Q"  # 40 inode it had there
    "Q"  # 48 incarnation of the topic (0 in a store's)
    "I"  # 56 crc: crc32 of bytes [0,56)
)
MAGIC: Final = b"EPCT"
CONTROL_HEADER_SIZE: Final = 128
CONTROL_SIZE: Final = 8192
WORD_COUNT: Final = CONTROL_SIZE // 8
_COVERED: Final = CONTROL_HEADER.size - 4

# Persistent values, never renumber.
KIND_STORE: Final = 1
KIND_TOPIC: Final = 2
KIND_SUBSCRIPTION: Final = 3
KIND_ACKS: Final = 4
KIND_TRANSACTIONS: Final = 5
KIND_OUTCOMES: Final = 6

UUID_TABLE_OFFSET: Final = 2048
UUID_SIZE: Final = 16
UUID_SLOTS: Final = 256
GROUP_TABLE_OFFSET: Final = 6144
GROUP_SIZE: Final = 40
GROUPS: Final = 48
CONSUMER_TABLE_OFFSET: Final = 3072
CONSUMER_SLOT_SIZE: Final = 32
CONSUMER_SLOTS: Final = 250
SUBSCRIPTION_CONTROL_SIZE: Final = 12288
TXN_SLOT_TABLE_OFFSET: Final = 8192
TXN_SLOT_SIZE: Final = 128
TXN_SLOTS: Final = 1024
TXN_CONTROL_SIZE: Final = TXN_SLOT_TABLE_OFFSET + TXN_SLOTS * TXN_SLOT_SIZE
TXN_STATE_BITS: Final = 4
OUTCOMES_PER_FILE: Final = 65_536
"""A byte for each id of a transaction in `outcome.<number>`, behind a header."""
OUTCOMES_SIZE: Final = CONTROL_HEADER_SIZE + OUTCOMES_PER_FILE
SUBSCRIBERS: Final = 60
RESOURCE_GROUP_TABLE_OFFSET: Final = 512
RESOURCE_GROUP_SIZE: Final = 96
RESOURCE_GROUPS: Final = 80
GIVEN_TABLE_OFFSET: Final = 1024
"""A word for each consumer slot of a non-persistent topic's subscription: messages its applications got."""
ACKED_TABLE_OFFSET: Final = 1024
"""The same words in a persistent topic's subscription: when the consumer last acknowledged, ms since the
epoch."""

Buffer = bytes | bytearray | memoryview


class TopicWord:
    """Word indexes (byte offset / 8) of a topic's ctl."""

    TAIL: Final = 16  # ledger << 32 | end offset >> 3; 0: no ledger yet. THE commit word
    OWNER: Final = 24  # pid << 32 | low half of the thread id of the thread that appends; 0: none
    EPOCH: Final = 32  # raised when cached state of other processes is void
    SYNCED: Final = 40  # a tail word: everything before it is durable
    ALLOCATED: Final = 48  # bytes of the tail segment's log that have disk blocks
    INDEX_ALLOCATED: Final = 49  # the same for its index
    TRIM: Final = 56  # first ledger id that is retained
    RETREATS: Final = 57  # raised when a subscription was made, or put further back than it was
    FIRST_OPEN_TXN: Final = 64
    WAITERS: Final = 72  # bitmap of the groups in which a process waits
    TOTAL_MESSAGES: Final = 80
    TOTAL_BYTES: Final = 81
    TOTAL_ENTRIES: Final = 82
    LAST_PUBLISH_MS: Final = 88
    SEEN_ACTIVE_MS: Final = 89  # when a look for inactive topics last found the topic in use; a hint
    JOURNAL: Final = 96  # generation << 32 | end offset >> 3
    RECOVERIES: Final = 104
    STATE: Final = 112
    PUBLISH_RATE: Final = 120  # three words: see `_engine.store.policies.resource_groups.SharedRate`
    PUBLISH_LIMITED: Final = 123  # how often producers had to wait for the publish rate
    DISPATCH_RATE: Final = 128  # three words
    SUBSCRIBERS: Final = 136  # pairs, as many as `SUBSCRIBERS`: see `_engine.store.rate_policy`


class SubscriptionWord:
    """Word indexes (byte offset / 8) of a subscription's ctl."""

    JOURNAL: Final = 16  # generation << 32 | end offset >> 3; 0: the subscription does not exist
    EPOCH: Final = 24
    VERSION: Final = 32  # bumped on every change others care for
    MARK_DELETE_LEDGER: Final = 40
    MARK_DELETE_ENTRY: Final = 41
    READ_LEDGER: Final = 42  # of the read position of Shared and Key_Shared: a hint
    READ_ENTRY: Final = 43
    NEXT_DUE_MS: Final = 48
    WAITERS: Final = 56  # four words: a bit for each consumer that waits, and one for those that are none
    CONSUMERS: Final = 64  # attached consumers
    ASSIGNED: Final = 72  # four words: consumers that others assigned entries to since they last looked
    DUE_WATCH: Final = 80  # which waiting consumer wakes when the next delayed entry is due
    WAITING: Final = 81  # messages that were read and wait for a consumer
    CLAIMS: Final = 82  # raised with every assignment
    RANGE_OWNER: Final = 83  # the only consumer, if it takes entries without claims; closing << 63 | its id
    RANGE_TAKEN: Final = 84  # low bits of its id << 48 | entries it was assigned and took; it alone writes
    PUBLISHED: Final = 88  # the JOURNAL word these words speak of
    SUMMARY: Final = 90  # generation << 32 | offset >> 3 of the last SUMMARY in the journal; 0: none
    DISPATCH_RATE: Final = 92  # three words: see `_engine.store.policies.resource_groups.SharedRate`
    REMOVED: Final = 96  # 1: the subscription ended, and this directory is not used again
    SENT_BEFORE: Final = 104  # messages of a non-persistent topic before the subscription was made
    MADE_MS: Final = 105  # when it was made, of a non-persistent topic; ms since the epoch


class ConsumerSlotWord:
    """Words of one consumer's slot in a subscription's ctl. The process of the consumer alone writes them."""

    CONSUMER_ID: Final = 0  # whose slot it is; written under the lock
    GRANTED: Final = 1  # messages it is ready to be assigned, counted from its attachment on
    HANDED: Final = 2  # low bits of its id << 48 | entries its application was given, counted likewise
    ALIVE_MS: Final = 3  # changed when its process shows itself: ms of its own monotonic clock


class TransactionWord:
    """Word indexes (byte offset / 8) of the ctl of all transactions."""

    JOURNAL: Final = 16  # generation << 32 | end offset >> 3; 0: no journal yet. THE decision
    SYNCED: Final = 17  # a journal word: everything before it is durable
    UNFLUSHED: Final = 18  # 1: a flush of this generation failed, and the next writer begins another one
    OWNER: Final = 24  # pid << 32 | 1 of the process that is in the lock; 0: none
    NEXT_ID: Final = 32  # the id that the next transaction gets
    RESERVED: Final = 33  # ids below are given out only in this boot, durably
    LOWEST: Final = 40  # nothing asks for ids below
    OPEN: Final = 48  # slots in use
    HINT: Final = 49  # the slot to try first
    COMMITS: Final = 56
    ABORTS: Final = 57
    TEARS: Final = 58  # committed transactions of which a part was missing after a recovery
    RECOVERED: Final = 59  # generation that a recovery began, until older commits are compared with the logs
    WAITERS: Final = 72  # bitmap of the groups in which a process waits for an outcome


class TransactionSlotWord:
    """Words of the slot of one open transaction in the ctl of all transactions."""

    STATE: Final = 0  # id << 4 | state; 0: the slot is free. Stored last, and cleared first
    OWNER: Final = 1  # two words: lease of the process that began it; zeros of a prepared one
    DEADLINE_MS: Final = 3  # on the machine's monotonic clock; of a prepared one since the epoch; 0: never
    STARTED_MS: Final = 4  # since the epoch
    DECIDED: Final = 5  # the journal word behind its COMMIT, once that is written
    PID: Final = 6  # of the process that began it, for people
    JOINED: Final = 7  # how many processes joined it
    SECRET: Final = 8  # a random number, which the token has
    LABEL: Final = 9  # seven words: UTF-8, cut short if need be


class StoreWord:
    """Word indexes (byte offset / 8) of the store's ctl."""

    NEXT_LEDGER_ID: Final = 16
    NEXT_CLIENT_NUMBER: Final = 24
    POLICIES: Final = 32  # raised before and after each change of a policy: odd while one is under way
    INACTIVE_LOOK_MS: Final = 40  # when a process last began to look for inactive topics; a hint


class ResourceGroupWord:
    """Words of one resource group's slot in the store's ctl. Under the store lock."""

    PUBLISH_RATE: Final = 0  # three words: see `_engine.store.policies.resource_groups.SharedRate`
    DISPATCH_RATE: Final = 3  # three words
    PUBLISHED: Final = 6  # messages and bytes that passed
    DISPATCHED: Final = 8  # likewise
    PUBLISH_LIMITED: Final = 10  # how often a producer had to wait
    DISPATCH_LIMITED: Final = 11  # how often a consumer or reader had to wait


LARGEST_COUNT: Final = 1 << 48
"""No count, size or time in a control file comes to that."""
_LARGEST_TXN: Final = 1 << 60
_STATES: Final = 1 << 4  # see `_engine.log.topic_control`
_COUNTS: Final = {
    KIND_STORE: itemgetter(StoreWord.NEXT_CLIENT_NUMBER, StoreWord.POLICIES, StoreWord.INACTIVE_LOOK_MS),
    KIND_TOPIC: itemgetter(
        TopicWord.EPOCH,
        TopicWord.ALLOCATED,
        TopicWord.INDEX_ALLOCATED,
        TopicWord.RETREATS,
        TopicWord.RECOVERIES,
        TopicWord.LAST_PUBLISH_MS,
    ),
    KIND_TRANSACTIONS: itemgetter(
        TransactionWord.COMMITS, TransactionWord.ABORTS, TransactionWord.TEARS, TransactionWord.UNFLUSHED
    ),
    KIND_SUBSCRIPTION: itemgetter(
        SubscriptionWord.EPOCH,
        SubscriptionWord.VERSION,
        SubscriptionWord.CLAIMS,
        SubscriptionWord.WAITING,
        SubscriptionWord.NEXT_DUE_MS,
    ),
}


def are_possible(kind: int, words: Sequence[int] | memoryview) -> bool:
    """Whether control words can have been stored by this release.

    The checksum of the header does not cover them. A few comparisons that noise does not pass; words that
    were stored pass at any moment, also while others change them.

    Example:
        >>> are_possible(KIND_TOPIC, [0] * WORD_COUNT), are_possible(KIND_TOPIC, [7 << 60] * WORD_COUNT)
        (True, False)
    """
    if max(_COUNTS[kind](words)) >= LARGEST_COUNT:
        return False
    if kind == KIND_STORE:
        return 0 < words[StoreWord.NEXT_LEDGER_ID] < LARGEST_COUNT
    if kind == KIND_TRANSACTIONS:
        generation, end = split_journal(words[TransactionWord.JOURNAL])
        next_id = words[TransactionWord.NEXT_ID]
        return (
            (generation > 0 or not end)
            and words[TransactionWord.LOWEST] <= next_id <= words[TransactionWord.RESERVED] < _LARGEST_TXN
            and words[TransactionWord.SYNCED] <= words[TransactionWord.JOURNAL]
            and words[TransactionWord.OPEN] <= TXN_SLOTS
            and words[TransactionWord.HINT] <= TXN_SLOTS
            and words[TransactionWord.WAITERS] >> GROUPS == 0
        )
    if kind == KIND_SUBSCRIPTION:
        generation, end = split_journal(words[SubscriptionWord.JOURNAL])
        return (
            (generation > 0 or not end)
            and words[SubscriptionWord.REMOVED] <= 1
            and words[SubscriptionWord.CONSUMERS] <= CONSUMER_SLOTS
            and words[SubscriptionWord.EPOCH] > 0  # raised before the header is written
        )
    generation, length = split_journal(words[TopicWord.JOURNAL])
    synced = words[TopicWord.SYNCED]  # before the tail, which it follows
    tail = words[TopicWord.TAIL]
    ledger_id, end = split_tail(tail)
    return (
        (not tail or (ledger_id > 0 and end > 0))
        and (generation > 0 or not length)
        and synced <= tail
        and (not tail or words[TopicWord.TRIM] <= ledger_id)
        and words[TopicWord.STATE] < _STATES
        and words[TopicWord.WAITERS] >> GROUPS == 0
    )


class ControlHeader(NamedTuple):
    """Identity of a ctl file: whose words these are, and where they may be believed."""

    kind: int
    boot_id: bytes
    device: int
    inode: int
    incarnation: int


def pack_control_header(header: ControlHeader) -> bytes:
    """The first 128 bytes of a ctl file."""
    covered = CONTROL_HEADER.pack(
        MAGIC,
        FORMAT_VERSION,
        BYTE_ORDER_MARK,
        header.kind,
        header.boot_id,
        header.device,
        header.inode,
        header.incarnation,
        0,
    )[:_COVERED]
    return (covered + struct.pack("<I", crc32(covered))).ljust(CONTROL_HEADER_SIZE, b"\0")


def parse_control_header(buf: Buffer, kind: int | None = None) -> ControlHeader:
    """Check and decode the first 128 bytes of a ctl file; with `kind`, it must be of that kind.

    Raises:
        CorruptionError: too short, damaged, never written, of another kind, or something else.
        UnsupportedFormatVersion: a newer release, or the other byte order, wrote it.
    """
    if len(buf) < CONTROL_HEADER_SIZE:
        raise CorruptionError(reason=f"control file of {len(buf)} bytes has no header", offset=0)
    _, _, _, own_kind, boot_id, device, inode, incarnation, crc = CONTROL_HEADER.unpack_from(buf, 0)
    if not is_header(buf[:_COVERED], MAGIC, crc):
        refuse(buf[:_COVERED], MAGIC, crc, "control file")
    if kind is not None and own_kind != kind:
        raise CorruptionError(reason=f"control file of kind {own_kind} where kind {kind} belongs", offset=8)
    return ControlHeader(own_kind, boot_id, device, inode, incarnation)


def tail_word(ledger_id: int, end_offset: int) -> int:
    """The word for "ledger `ledger_id` ends at byte `end_offset`"; ledger ids have 32 bits, offsets 35.

    Example:
        >>> split_tail(tail_word(7, 4096))
        (7, 4096)
    """
    return ledger_id << 32 | end_offset >> 3


def split_tail(word: int) -> tuple[int, int]:
    """(ledger id, end offset) of a tail word."""
    return word >> 32, (word & 0xFFFFFFFF) << 3


def journal_word(generation: int, end_offset: int) -> int:
    """The word for "the journal of `generation` ends at byte `end_offset`".

    Example:
        >>> split_journal(journal_word(3, 64))
        (3, 64)
    """
    return generation << 32 | end_offset >> 3


def split_journal(word: int) -> tuple[int, int]:
    """(generation, end offset) of a journal word."""
    return word >> 32, (word & 0xFFFFFFFF) << 3


RING_SIZE: Final = 16384
_LEAST: Final = 256  # bytes: all words before ENTRIES are always among those that are read
_LOW: Final = 0xFFFFFFFF


class RingWord:
    """Word indexes (byte offset / 8)."""

    EPOCH: Final = 16  # of the consumer when it acknowledged; stored last, cleared first; 0: nothing counts
    CUMULATIVE: Final = 20  # two pairs, used in turn
    ENTRIES: Final = 24  # single words, used in turn
    PARTS: Final = 1280  # pairs, to the end


class Unwritten(NamedTuple):
    """What a consumer acknowledged, as far as its process came to say so; some of it may be written.

    Attributes:
        consumer_id, epoch: of the consumer.
        entries: whole entries, as (ledger, entry).
        parts: (ledger, entry) -> (bit set of acknowledged batch indexes, messages in the batch).
        cumulative: (ledger, entry, batch index or -1, messages in the batch or 0).
    """

    consumer_id: int
    epoch: int
    entries: list[tuple[int, int]]
    parts: dict[tuple[int, int], tuple[int, int]]
    cumulative: list[tuple[int, int, int, int]]


def place_word(ledger_id: int, entry_id: int) -> int:
    """The word for an entry, never 0; of entry -1 of ledger 0, where nothing is, it is.

    Example:
        >>> place_word(7, 3) == 7 << 32 | 4
        True
    """
    return (ledger_id << 32) + entry_id + 1


def index_word(index: int, size: int) -> int:
    """The word behind that of the entry: a message of a batch of ``size``; index -1 for the whole entry."""
    return (index & _LOW) << 32 | size


def parse_ring(data: bytes) -> tuple[ControlHeader, Unwritten]:
    """Decode a whole file. Words that cannot be are left out.

    Raises:
        CorruptionError: it is no such file, or was never completed.
        UnsupportedFormatVersion: a newer release, or the other byte order, wrote it.
    """
    header = parse_control_header(data[:CONTROL_HEADER_SIZE], KIND_ACKS)
    words = _words_in_use(data[:RING_SIZE].ljust(RING_SIZE, b"\0"))
    entries = set(map(_place, filter(None, words[RingWord.ENTRIES : RingWord.PARTS])))
    parts: dict[tuple[int, int], tuple[int, int]] = {}
    if len(words) > RingWord.PARTS:
        for place, index, size in _pairs(words, RingWord.PARTS, RING_SIZE // 8):
            if 0 <= index < size and place[1] >= 0:
                bits, bits_size = parts.get(place, (0, size))
                parts[place] = (bits | 1 << index, max(bits_size, size))
    cumulative = []
    if any(words[RingWord.CUMULATIVE : RingWord.ENTRIES]):
        for place, index, size in _pairs(words, RingWord.CUMULATIVE, RingWord.ENTRIES):
            index, size = (index, size) if index < size else (-1, 0)
            cumulative.append((*place, index, size))
    real = sorted(place for place in entries if 0 <= place[1] <= MAX_ENTRY_ID)
    return header, Unwritten(header.incarnation, words[RingWord.EPOCH], real, parts, sorted(cumulative))


def _words_in_use(data: bytes) -> list[int]:
    """The words up to the last one in use, and some zeros: most consumers leave little behind, and the next
    one waits meanwhile."""
    end = RING_SIZE
    while end > _LEAST and data.startswith(bytes(end // 2), end // 2):
        end //= 2
    return memoryview(data)[:end].cast("Q").tolist()


def _pairs(words: list[int], first: int, end: int) -> Iterator[tuple[tuple[int, int], int, int]]:
    for at in range(first, min(end, len(words)), 2):
        if words[at]:
            place, size = _place(words[at]), words[at + 1] & _LOW
            if place[1] <= MAX_ENTRY_ID and size <= MAX_BATCH_SIZE:
                yield place, words[at + 1] >> 32, size


def _place(word: int) -> tuple[int, int]:
    return word >> 32, (word & _LOW) - 1
