"""The files of `txn/`: the control words with the slots of open transactions, and the tables of outcomes.

``lock``, ``sync.lock``, ``ctl``, ``journal.<generation>``, ``snapshot.<generation>``, ``outcome.<number>``
(docs/format/transactions.md). The words and the bytes are believed only in the boot, and on the inode, in
which they were written; both are derived from the journal otherwise.
"""

from __future__ import annotations

import contextlib
import os
import struct

from embeddedpulsar._engine.filenames import generations_among, outcome_path, outcomes_in, under_construction
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
from embeddedpulsar._engine.log.topic_control import ControlFile
from embeddedpulsar._engine.platform import descriptors, disk, failpoints, threads
from embeddedpulsar._engine.platform.mapped_file import MappedFile
from embeddedpulsar._engine.txn.transaction_state import SlotState
from embeddedpulsar.exceptions import CorruptionError, UnsupportedFormatVersion
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Final

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
