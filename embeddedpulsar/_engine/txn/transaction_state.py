"""The life of a transaction, as a pure state machine: what is the next step towards what a process intends?

Three things are stored of a transaction: records in the journal (the truth), a byte in the table of outcomes
(what readers see), and a slot in the control file (who may still do what). Each step changes one of them by
one store, so that a process that dies between two steps leaves a standing from which the next one goes on,
whatever it intends. Order of a commit: record, slot DECIDED, byte, slot free. Of an abort: byte, slot free;
there is no record, but for a prepared one (record first) and for one that others joined (record last).

What the processes of a store have decided, as a replica of the transaction journal: which transactions are
committed, which are prepared, and what other processes use in those that they joined.

The files of `txn/`: the control words with the slots of open transactions, and the tables of outcomes.

``lock``, ``sync.lock``, ``ctl``, ``journal.<generation>``, ``snapshot.<generation>``, ``outcome.<number>``
(docs/format/transactions.md). The words and the bytes are believed only in the boot, and on the inode, in
which they were written; both are derived from the journal otherwise.
"""

from __future__ import annotations

import contextlib
import enum
import os
import struct
from functools import cache

from embeddedpulsar._engine.filenames import generations_among, outcome_path, outcomes_in, under_construction
from embeddedpulsar._engine.format import transaction_record as record
from embeddedpulsar._engine.format.control import (
    CONTROL_HEADER_SIZE,
    KIND_OUTCOMES,
    KIND_TRANSACTIONS,
    OUTCOMES_PER_FILE,
    OUTCOMES_SIZE,
    TXN_CONTROL_SIZE,
    TXN_SLOT_SIZE,
    TXN_SLOT_TABLE_OFFSET,
    TXN_SLOTS,
    TXN_STATE_BITS,
    ControlHeader,
    TransactionSlotWord,
    TransactionWord,
    pack_control_header,
    parse_control_header,
)
from embeddedpulsar._engine.format.document import KIND_TRANSACTION_SNAPSHOT, decode_document, encode_document
from embeddedpulsar._engine.format.transaction_record import (
    ABORT,
    COMMIT,
    FIRST_TXN_ID,
    RAISE_LOWEST,
    RESERVE,
    ParticipantFacts,
    txn_id_of,
)
from embeddedpulsar._engine.log.topic_control import ControlFile
from embeddedpulsar._engine.platform import descriptors, disk, failpoints, threads
from embeddedpulsar._engine.platform.mapped_file import MappedFile
from embeddedpulsar.exceptions import CorruptionError, UnsupportedFormatVersion
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final


class Outcome(enum.IntEnum):
    """What became of a transaction, as its byte says; stored values, but for the last."""

    UNDECIDED = 0
    COMMITTED = 1
    ABORTED = 2
    PREPARED = 3
    FOLDED = 4
    """Decided, and so long ago that the ledgers it is in have lists of what was aborted in them."""

    @property
    def is_final(self) -> bool:
        """Whether it never changes."""
        return self in (Outcome.COMMITTED, Outcome.ABORTED, Outcome.FOLDED)


class SlotState(enum.IntEnum):
    """State in the slot of a transaction; stored values."""

    FREE = 0
    OPEN = 1
    ENDING = 2
    """Its owner commits: no further operation is admitted, those of other processes are waited for."""
    PREPARED = 3
    DECIDED = 4
    """Its COMMIT is in the journal; the byte follows, at level "flush" when the record is durable."""


class Intent(enum.Enum):
    """What a process wants of a transaction."""

    JOIN = "join"
    STOP = "stop"
    """Admit no further operation."""
    PREPARE = "prepare"
    COMMIT = "commit"
    ABORT = "abort"
    TEND = "tend"
    """Finish what another process began, and end what no process can continue. Any process may."""


class Standing(NamedTuple):
    """All that the next step depends on.

    Attributes:
        state: of the slot of the transaction; FREE if no slot has its id.
        outcome: its byte.
        is_committed, is_prepared: as the journal says.
        is_joined: whether the journal has what other processes use in it.
        is_durable: whether what the journal says may be shown: at level "flush" it is on the disk.
        is_late: whether its deadline has passed.
        is_owned: whether the process that began it lives; of no account once it is prepared.
    """

    state: SlotState
    outcome: Outcome
    is_committed: bool = False
    is_prepared: bool = False
    is_joined: bool = False
    is_durable: bool = True
    is_late: bool = False
    is_owned: bool = True


class Step(enum.Enum):
    """One store, or the end.

    Attributes:
        is_last: whether nothing is left to be done.
    """

    is_last: bool

    APPEND_COMMIT = "append commit"
    APPEND_PREPARE = "append prepare"
    APPEND_ABORT = "append abort"
    MOVE_ENDING = "move to ending"
    MOVE_PREPARED = "move to prepared"
    MOVE_DECIDED = "move to decided"
    FREE_SLOT = "free slot"
    SHOW_COMMITTED = "show committed"
    SHOW_ABORTED = "show aborted"
    SHOW_PREPARED = "show prepared"
    FLUSH = "flush"
    """Make the journal durable, without the lock, and ask again."""
    DONE = "done"
    REFUSED_COMMITTED = "refused: committed"
    REFUSED_ABORTED = "refused: aborted"
    REFUSED_LATE = "refused: late"
    REFUSED_PREPARED = "refused: prepared"
    REFUSED_ENDING = "refused: ending"
    REFUSED_FORGOTTEN = "refused: forgotten"
    """It ended so long ago that its outcome was folded into the topics."""

    def __init__(self, text: str) -> None:
        self.is_last = text == "done" or text.startswith("refused")


def next_step(intent: Intent, now: Standing) -> Step:
    """The next step towards an intent. A pure function; a process that follows it holds the transaction lock.

    Steps end: each but FLUSH changes the standing, and none is taken back.

    Example:
        >>> standing = Standing(SlotState.OPEN, Outcome.UNDECIDED)
        >>> next_step(Intent.COMMIT, standing)
        <Step.APPEND_COMMIT: 'append commit'>
        >>> next_step(Intent.TEND, standing), next_step(Intent.TEND, standing._replace(is_owned=False))
        (<Step.DONE: 'done'>, <Step.SHOW_ABORTED: 'show aborted'>)
    """
    # 1. What readers may have seen never changes: what is left is to be cleared away.
    if now.outcome is Outcome.COMMITTED or now.outcome is Outcome.ABORTED:
        if now.is_joined and now.outcome is Outcome.ABORTED:
            return Step.APPEND_ABORT
        return _answer(intent, now) if now.state is SlotState.FREE else Step.FREE_SLOT
    # 2. Decided, perhaps by a process that died behind its record.
    if now.is_committed:
        if now.state is not SlotState.DECIDED and now.state is not SlotState.FREE:
            return Step.MOVE_DECIDED
        return Step.SHOW_COMMITTED if now.is_durable else Step.FLUSH
    if now.is_prepared:
        return _prepared(intent, now)
    # 3. No process can commit it: its slot is gone, or its PREPARE was ended by an ABORT.
    if now.state is not SlotState.OPEN and now.state is not SlotState.ENDING:
        return Step.SHOW_ABORTED
    # 4. Open. The first to store the byte, or the record, wins; both are stored under the lock.
    if intent is Intent.ABORT or now.is_late or not now.is_owned:
        return Step.SHOW_ABORTED
    if intent is Intent.COMMIT:
        return Step.APPEND_COMMIT
    if intent is Intent.PREPARE:
        return Step.APPEND_PREPARE
    if now.state is SlotState.ENDING:
        return Step.REFUSED_ENDING if intent is Intent.JOIN else Step.DONE
    return Step.MOVE_ENDING if intent is Intent.STOP else Step.DONE


def _prepared(intent: Intent, now: Standing) -> Step:
    if now.is_late or intent is Intent.ABORT:
        return Step.APPEND_ABORT
    if intent is Intent.COMMIT:
        return Step.APPEND_COMMIT
    if now.state is not SlotState.PREPARED:
        return Step.MOVE_PREPARED
    if now.outcome is not Outcome.PREPARED:
        return Step.SHOW_PREPARED
    if intent is Intent.PREPARE:
        return Step.DONE if now.is_durable else Step.FLUSH
    return Step.DONE if intent is Intent.TEND else Step.REFUSED_PREPARED


def _answer(intent: Intent, now: Standing) -> Step:
    if intent is Intent.TEND:
        return Step.DONE
    if now.outcome is Outcome.COMMITTED:
        return Step.DONE if intent is Intent.COMMIT else Step.REFUSED_COMMITTED
    if intent is Intent.ABORT:
        return Step.DONE
    return Step.REFUSED_LATE if now.is_late else Step.REFUSED_ABORTED


_new: Final = tuple.__new__


def after(step: Step, now: Standing, *, must_flush: bool = False) -> Standing:
    """The standing when a step was made. What is known without another look: the lock is held.

    Args:
        step: which; neither FLUSH nor one that is last.
        now: the standing before.
        must_flush: whether a decision is shown only when it is durable.

    Example:
        >>> now = after(Step.APPEND_COMMIT, Standing(SlotState.OPEN, Outcome.UNDECIDED))
        >>> after(Step.MOVE_DECIDED, now).state, now.is_committed
        (<SlotState.DECIDED: 4>, True)
    """
    state, outcome, is_committed, is_prepared, is_joined, is_durable, is_late, is_owned = now
    # The steps of a commit first, which come most often.
    if step is Step.APPEND_COMMIT:
        is_committed, is_prepared, is_joined = True, False, False
    elif step is Step.MOVE_DECIDED:
        state, is_durable = SlotState.DECIDED, not must_flush
    elif step is Step.SHOW_COMMITTED:
        outcome = Outcome.COMMITTED
    elif step is Step.FREE_SLOT:
        state = SlotState.FREE
    elif step is Step.SHOW_ABORTED:
        outcome = Outcome.ABORTED
    elif step is Step.APPEND_PREPARE:
        is_prepared, is_joined, is_late = True, False, False  # the deadline is another one
    elif step is Step.APPEND_ABORT:
        is_prepared = is_joined = False
    elif step is Step.MOVE_PREPARED:
        state, is_durable = SlotState.PREPARED, False
    elif step is Step.SHOW_PREPARED:
        outcome = Outcome.PREPARED
    elif step is Step.MOVE_ENDING:
        state = SlotState.ENDING
    # As `Standing(...)`, which takes another call.
    return _new(
        Standing, (state, outcome, is_committed, is_prepared, is_joined, is_durable, is_late, is_owned)
    )


@cache  # few of the standings occur; a commit follows the same path nearly always
def steps_towards(intent: Intent, now: Standing, must_flush: bool) -> tuple[Step, ...]:
    """The steps towards an intent, up to a flush, or to the end, which is the last of them.

    Example:
        >>> steps = steps_towards(Intent.COMMIT, Standing(SlotState.OPEN, Outcome.UNDECIDED), False)
        >>> [step.value for step in steps]
        ['append commit', 'move to decided', 'show committed', 'free slot', 'done']
    """
    steps = []
    while True:
        step = next_step(intent, now)
        steps.append(step)
        if step.is_last or step is Step.FLUSH:
            return tuple(steps)
        now = after(step, now, must_flush=must_flush)


COMMIT_OF_OPEN: Final = tuple(
    steps_towards(Intent.COMMIT, Standing(SlotState.OPEN, Outcome.UNDECIDED), must_flush)
    for must_flush in (False, True)
)
"""The steps of nearly all commits, by whether they flush: by the owner, of one that is open and not late."""


class PreparedTransaction(NamedTuple):
    """A transaction that waits for its end, which any process may give.

    Attributes:
        txn_id: its id.
        label: as `prepare` was given.
        prepared_ms: when, in ms since the epoch.
        deadline_ms: when it is aborted, in ms since the epoch; 0 for never.
        participants: what it did.
    """

    txn_id: int
    label: str
    prepared_ms: int
    deadline_ms: int
    participants: tuple[ParticipantFacts, ...]


_BITMAP_BYTES: Final = OUTCOMES_PER_FILE // 8
_EIGHT_OUTCOMES: Final = tuple(
    bytes(Outcome.COMMITTED if bits >> bit & 1 else Outcome.ABORTED for bit in range(8))
    for bits in range(256)
)
"""Of each byte of bits, the lowest bit first."""
_SHIFT: Final = OUTCOMES_PER_FILE.bit_length() - 1
_MASK: Final = OUTCOMES_PER_FILE - 1


class Decisions:
    """The replica: the same records in the same order give the same state in every process.

    Role: what is committed, as a bit for each id; all else that needs to be known is aborted or open.
    Callers: the holder of the transaction lock. Pure: no clock, no file.

    Attributes:
        reserved: ids below may have been given out.
        lowest: nothing asks for ids below.
        prepared: by id.
        joined: by id, what processes that joined use in it.

    Example:
        >>> decisions = Decisions()
        >>> decisions.replay(*record.RECORDS.encode(record.Commit(70_000)), 0)
        >>> decisions.is_committed(70_000), decisions.is_committed(70_001)
        (True, False)
    """

    def __init__(self) -> None:
        self.reserved = self.lowest = FIRST_TXN_ID
        self.prepared: dict[int, PreparedTransaction] = {}
        self.joined: dict[int, dict[tuple[int, int, str], ParticipantFacts]] = {}
        self._committed: dict[int, bytearray] = {}

    def is_committed(self, txn_id: int) -> bool:
        """Whether the journal has its COMMIT. False for one below `lowest`."""
        bits = self._committed.get(txn_id >> _SHIFT)
        at = txn_id & _MASK
        return bits is not None and bool(bits[at >> 3] >> (at & 7) & 1)

    def standing(
        self,
        txn_id: int,
        state: SlotState,
        outcome: Outcome,
        wall_ms: Callable[[], int],
        *,
        is_durable: bool,
        is_late: bool,
        is_owned: bool,
    ) -> Standing:
        """What is known of a transaction: by its slot and byte, as the caller read them, and by the records.

        Args:
            txn_id: of it.
            state, outcome, is_durable, is_owned: see `Standing`.
            wall_ms: ms since the epoch, by which a prepared one is late.
            is_late: by its slot, which says nothing of one that is prepared.
        """
        prepared = self.prepared.get(txn_id)
        if prepared is not None:
            is_late = 0 < prepared.deadline_ms <= wall_ms()
        return Standing(
            state,
            outcome,
            self.is_committed(txn_id),
            prepared is not None,
            txn_id in self.joined,
            is_durable,
            is_late,
            is_owned,
        )

    def commit(self, txn_id: int) -> None:
        """Follow a COMMIT of this process, as `replay` does."""
        if self.prepared or self.joined:
            self._end(txn_id)
        self.note_committed(txn_id)

    def note_committed(self, txn_id: int) -> None:
        """Follow a COMMIT, or what shows that there was one."""
        bits = self._committed.get(txn_id >> _SHIFT)
        if bits is None:
            bits = self._committed[txn_id >> _SHIFT] = bytearray(_BITMAP_BYTES)
        at = txn_id & _MASK
        bits[at >> 3] |= 1 << (at & 7)

    def outcomes_of(self, number: int) -> bytearray:
        """The bytes of one file of outcomes, as if nothing were open: what is not committed and not prepared
        is aborted."""
        bits = self._committed.get(number) or bytes(_BITMAP_BYTES)
        outcomes = bytearray(b"".join(map(_EIGHT_OUTCOMES.__getitem__, bits)))
        for txn_id in self.prepared:
            if txn_id >> _SHIFT == number:
                outcomes[txn_id & _MASK] = Outcome.PREPARED
        return outcomes

    def reset(self, snapshot: bytes | None) -> None:
        """Take over a snapshot; with None, start from nothing."""
        fields = {} if snapshot is None else decode_document(snapshot, KIND_TRANSACTION_SNAPSHOT)
        try:
            reserved = int(fields.get("reserved", FIRST_TXN_ID))
            lowest = int(fields.get("lowest", FIRST_TXN_ID))
            committed = {
                int(number): bytearray(bits.ljust(_BITMAP_BYTES, b"\0"))
                for number, bits in fields.get("committed", ())
            }
            prepared = {
                command.txn_id: _prepared_of(command, int(time_ms))
                for payload, time_ms in fields.get("prepared", ())
                for command in (record.RECORDS.decode(record.PREPARE, payload),)
            }
            joined: dict[int, dict[tuple[int, int, str], ParticipantFacts]] = {}
            for txn_id, payload in fields.get("joined", ()):
                joined[int(txn_id)] = {facts.key: facts for facts in record.parse_participants(payload, 0)}
        except (TypeError, ValueError, AttributeError) as e:
            raise CorruptionError(
                reason=f"a snapshot of transactions has a field of another kind ({e})"
            ) from e
        self.reserved, self.lowest = reserved, lowest
        self._committed, self.prepared, self.joined = committed, prepared, joined

    def replay(self, kind: int, payload: bytes, time_ms: int) -> None:
        """Apply one committed record.

        Raises:
            CorruptionError: its payload is none.
            UnsupportedFormatVersion: a newer release wrote it.
        """
        # Nearly all are these, of which the first field is enough.
        if kind == COMMIT:
            self._end(txn_id := txn_id_of(payload))
            self.note_committed(txn_id)
        elif kind == ABORT:
            self._end(txn_id_of(payload))
        elif kind == RESERVE:
            self.reserved = max(self.reserved, txn_id_of(payload))
        elif kind == RAISE_LOWEST:
            self._raise_lowest(txn_id_of(payload))
        else:
            command = record.RECORDS.decode(kind, payload)
            if isinstance(command, record.Prepare):
                self._end(command.txn_id)
                self.prepared[command.txn_id] = _prepared_of(command, time_ms)
            elif isinstance(command, record.Join):
                joined = self.joined.setdefault(command.txn_id, {})
                joined[command.participant.key] = command.participant

    def _end(self, txn_id: int) -> None:
        if self.prepared or self.joined:
            self.prepared.pop(txn_id, None)
            self.joined.pop(txn_id, None)

    def _raise_lowest(self, txn_id: int) -> None:
        self.lowest = max(self.lowest, txn_id)
        for number in [number for number in self._committed if number < self.lowest >> _SHIFT]:
            del self._committed[number]

    def leap(self, kind: int, payload: bytes) -> bool:
        """No record holds the whole state."""
        return False

    def snapshot(self) -> bytes:
        """The state as a document; equal states give equal bytes."""
        encode = record.RECORDS.encode
        fields = {
            "reserved": self.reserved,
            "lowest": self.lowest,
            "committed": [
                [number, bytes(bits.rstrip(b"\0"))] for number, bits in sorted(self._committed.items())
            ],
            "prepared": [
                [encode(record.Prepare(txn_id, deadline_ms, label, facts))[1], prepared_ms]
                for txn_id, label, prepared_ms, deadline_ms, facts in sorted(self.prepared.values())
            ],
            "joined": [
                [txn_id, record.pack_participants(tuple(sorted(joined.values())))]
                for txn_id, joined in sorted(self.joined.items())
            ],
        }
        return encode_document(KIND_TRANSACTION_SNAPSHOT, fields)


def _prepared_of(command: record.Prepare, time_ms: int) -> PreparedTransaction:
    txn_id, deadline_ms, label, participants = command
    return PreparedTransaction(txn_id, label, time_ms, deadline_ms, participants)


failpoints.declare("txn:table_built", "txn:table_named")

SHIFT: Final = OUTCOMES_PER_FILE.bit_length() - 1
"""An id shifted right by so much is the number of its file of outcomes."""
MASK: Final = OUTCOMES_PER_FILE - 1
NO_SLOT: Final = -1
_TABLE: Final = TXN_SLOT_TABLE_OFFSET // 8
_SLOT_WORDS: Final = TXN_SLOT_SIZE // 8
_END: Final = _TABLE + TXN_SLOTS * _SLOT_WORDS
_STATE_MASK: Final = (1 << TXN_STATE_BITS) - 1
_STATES: Final[tuple[SlotState, ...]] = (*SlotState, *([SlotState.FREE] * (_STATE_MASK + 1 - len(SlotState))))
_UUID: Final = struct.Struct("=QQ")
_LABEL_WORDS: Final = _SLOT_WORDS - TransactionSlotWord.LABEL
_LABEL: Final = struct.Struct(f"={_LABEL_WORDS}Q")
NO_OWNER: Final = bytes(16)
"""The owner of a prepared transaction."""


def state_word(txn_id: int, state: SlotState) -> int:
    """The first word of a slot.

    Example:
        >>> state_word(17, SlotState.OPEN) == 17 << 4 | 1
        True
    """
    return txn_id << TXN_STATE_BITS | state


class OpenTransaction(NamedTuple):
    """What the slot of a transaction says.

    Attributes:
        txn_id, state: which, and how far it is.
        slot: where it is.
        owner: lease of the process that began it; zeros of a prepared one.
        pid: of that process, as it saw it itself.
        started_ms: when, in ms since the epoch.
        deadline_ms: on the machine's monotonic clock; of a prepared one since the epoch; 0 for never.
        joined: how many processes joined it.
        label: its first 56 bytes.
    """

    txn_id: int
    state: SlotState
    slot: int
    owner: bytes
    pid: int
    started_ms: int
    deadline_ms: int
    joined: int
    label: str


class TransactionControl(ControlFile):
    """The words of all transactions of a store, and the slots of those that are open.

    Role: who may do what now. The slot of a transaction changes under the transaction lock; its first word is
    stored last when it is opened and cleared first when it is freed, so a reader without the lock sees a
    whole slot or none. Durable: nothing. Callers: any thread reads; writing needs the transaction lock.
    """

    __slots__ = ()
    _kind = KIND_TRANSACTIONS
    _size = TXN_CONTROL_SIZE

    @staticmethod
    def word_of(slot: int) -> int:
        """Index of the first word of a slot."""
        return _TABLE + _SLOT_WORDS * slot

    def used_slots(self) -> list[int]:
        """The slots that are in use. One copy of the column."""
        states = self.words[_TABLE:_END:_SLOT_WORDS].tolist()
        return [slot for slot, word in enumerate(states) if word]

    def find(self, txn_id: int) -> int:
        """The slot of a transaction; `NO_SLOT` if there is none."""
        states = self.words[_TABLE:_END:_SLOT_WORDS].tolist()
        for slot, word in enumerate(states):
            if word >> TXN_STATE_BITS == txn_id:
                return slot
        return NO_SLOT

    def free_slot(self) -> int:
        """A slot that is free; `NO_SLOT` if there is none."""
        words = self.words
        hint = words[TransactionWord.HINT] % TXN_SLOTS
        if not words[_TABLE + _SLOT_WORDS * hint]:
            return int(hint)
        states = words[_TABLE:_END:_SLOT_WORDS].tolist()
        try:
            return states.index(0)
        except ValueError:
            return NO_SLOT

    def read_slot(self, slot: int) -> OpenTransaction | None:
        """What a slot says; None if it is free, or was used again meanwhile."""
        words, at = self.words, _TABLE + _SLOT_WORDS * slot
        # The first word before the others, and again behind them: in between they were of one transaction.
        state = int(words[at])
        threads.keep_order()
        values = words[at : at + _SLOT_WORDS].tolist()
        threads.keep_order()
        if not state or words[at] >> TXN_STATE_BITS != state >> TXN_STATE_BITS:
            return None
        owner = TransactionSlotWord.OWNER
        return OpenTransaction(
            state >> TXN_STATE_BITS,
            _STATES[state & _STATE_MASK],
            slot,
            _UUID.pack(values[owner], values[owner + 1]),
            values[TransactionSlotWord.PID],
            values[TransactionSlotWord.STARTED_MS],
            values[TransactionSlotWord.DEADLINE_MS],
            values[TransactionSlotWord.JOINED],
            _LABEL.pack(*values[TransactionSlotWord.LABEL :]).rstrip(b"\0").decode(errors="ignore"),
        )

    def state_of(self, slot: int, txn_id: int) -> SlotState:
        """The state in a slot; FREE if it is not that transaction's."""
        if slot < 0:
            return SlotState.FREE
        word = self.words[_TABLE + _SLOT_WORDS * slot]
        if word >> TXN_STATE_BITS != txn_id or not word:
            return SlotState.FREE
        return _STATES[int(word) & _STATE_MASK]

    def owner_of(self, slot: int) -> bytes:
        """The lease in a slot."""
        at = _TABLE + _SLOT_WORDS * slot + TransactionSlotWord.OWNER
        return _UUID.pack(self.words[at], self.words[at + 1])

    def fill(self, slot: int, transaction: OpenTransaction, secret: int) -> None:
        """Open a slot that is free."""
        words, at = self.words, _TABLE + _SLOT_WORDS * slot
        # All but the first word; a slot without it is free, and is filled again by the next that wants it.
        owner = at + TransactionSlotWord.OWNER
        words[owner], words[owner + 1] = _UUID.unpack(transaction.owner)
        words[at + TransactionSlotWord.DEADLINE_MS] = transaction.deadline_ms
        words[at + TransactionSlotWord.STARTED_MS] = transaction.started_ms
        words[at + TransactionSlotWord.DECIDED] = 0
        words[at + TransactionSlotWord.PID] = transaction.pid
        words[at + TransactionSlotWord.JOINED] = 0
        words[at + TransactionSlotWord.SECRET] = secret
        first = at + TransactionSlotWord.LABEL
        if transaction.label or words[first]:
            label = transaction.label.encode()[: _LABEL.size].decode(errors="ignore").encode()
            for number, word in enumerate(_LABEL.unpack(label.ljust(_LABEL.size, b"\0"))):
                words[first + number] = word
        if threads.REORDERS:
            threads.fence()  # see `read_slot`
        words[at] = state_word(transaction.txn_id, transaction.state)


def control_of(directory: str, boot: bytes) -> TransactionControl:
    """The control words, made if there are none, or too few. Under the lock.

    Where there is no other file yet, zeros are true: there is no journal. Elsewhere they say nothing.
    """
    with contextlib.suppress(FileNotFoundError, CorruptionError):
        return TransactionControl.open(directory)
    names = descriptors.names_in(directory)
    is_bare = not any(generations_among(names)) and not outcomes_in(names)
    return TransactionControl.create(directory, 0, boot if is_bare else b"")


class OutcomeTable:
    """The outcomes of a range of ids: one mapped byte each.

    Role: what makes a commit visible, by one store. Invariants: a byte changes from 0 to 1, 2 or 3, and from
    3 to 1 or 2; 1 and 2 stay. Durable: nothing. Callers: any thread reads; the holder of the transaction
    lock writes.

    Attributes:
        bytes: those of the ids, the lowest first.
    """

    __slots__ = ("_file", "bytes", "number")

    def __init__(self, file: MappedFile, number: int) -> None:
        self._file: Final = file
        self.number: Final = number
        self.bytes: Final = file.view[CONTROL_HEADER_SIZE:]

    @classmethod
    def open(cls, directory: str, number: int, boot: bytes, *, writable: bool = True) -> OutcomeTable | None:
        """Map a table; None if there is none, or none that can be believed.

        Raises:
            UnsupportedFormatVersion: a newer release wrote it.
        """
        path = outcome_path(directory, number)
        try:
            file = MappedFile.open(path, writable=writable, size=OUTCOMES_SIZE, lean=True)
        except (FileNotFoundError, CorruptionError):
            return None
        try:
            header = parse_control_header(bytes(file.view[:CONTROL_HEADER_SIZE]), KIND_OUTCOMES)
        except CorruptionError:
            header = None
        except UnsupportedFormatVersion as e:
            file.close()
            raise e.at(path) from None
        if header != ControlHeader(KIND_OUTCOMES, boot, file.device, file.inode, number):
            file.close()
            return None
        return cls(file, number)

    @classmethod
    def create(cls, directory: str, number: int, boot: bytes, outcomes: bytes = b"") -> OutcomeTable:
        """Make a table, in the place of one that cannot be believed. Under the transaction lock.

        Args:
            outcomes: its first bytes; the others are 0.
        """
        # The file gets its name when it is complete: a process that maps it by its name finds all bytes.
        path = outcome_path(directory, number)
        building = under_construction(path)
        if os.path.lexists(building):  # of a process that died here
            disk.DISK.unlink(building)
        file = MappedFile.open(building, writable=True, size=OUTCOMES_SIZE, create=True, lean=True)
        try:
            file.allocate(OUTCOMES_SIZE)
            file.view[CONTROL_HEADER_SIZE : CONTROL_HEADER_SIZE + len(outcomes)] = outcomes
            header = ControlHeader(KIND_OUTCOMES, boot, file.device, file.inode, number)
            file.view[:CONTROL_HEADER_SIZE] = pack_control_header(header)
            failpoints.hit("txn:table_built")
            disk.DISK.replace(building, path)
            file.note_renamed(path)
            failpoints.hit("txn:table_named")
            return cls(file, number)
        except BaseException:
            file.close()
            raise

    def close(self) -> None:
        """Unmap. Idempotent."""
        if not self._file.closed:
            self.bytes.release()
            self._file.close()


def read_outcomes(directory: str, number: int) -> bytes:
    """The bytes of a table of whatever boot and place; none if it is not whole."""
    data = disk.DISK.read_file(outcome_path(directory, number), OUTCOMES_SIZE)
    try:
        header = parse_control_header(data, KIND_OUTCOMES)
    except (CorruptionError, UnsupportedFormatVersion):
        return b""
    is_whole = len(data) == OUTCOMES_SIZE and header.incarnation == number
    return data[CONTROL_HEADER_SIZE:] if is_whole else b""
