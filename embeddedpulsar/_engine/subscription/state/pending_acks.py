"""Acknowledgements of open transactions: they count when the transaction commits, and no consumer gets the
entries until then.

The rules for them are here as well: the process that writes the command compares it with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from embeddedpulsar._engine.format.acknowledgement import (
    FORM_BITMAP,
    FORM_LIST,
    FORM_RANGE,
    MAX_BATCH_SIZE,
    MAX_ENTRY_ID,
    Ack,
    AckBatch,
    AckGroup,
    group_batches,
    group_entries,
)
from embeddedpulsar._engine.format.subscription_record import (
    COMMITTED,
    AckedThrough,
    TransactionAck,
    TransactionId,
)
from embeddedpulsar._engine.subscription.state.ledger_acks import AckBitmaps
from embeddedpulsar.message_id import BEFORE_FIRST, Position
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, Final

_FURTHEST: Final = Position(1 << 63, 0)
"""Behind every entry."""
_FORMS: Final = (FORM_RANGE, FORM_BITMAP, FORM_LIST)
_NO_ACK: Final = Ack(0, 0, (), ())
_new: Final = tuple.__new__  # as a call of the class, without another one
_NOTHING: Final[dict[int, tuple[int, int]]] = {}

IsKept = Callable[[int, int], bool]


class TransactionAcks:
    """What one open transaction acknowledged in this subscription.

    Attributes:
        entries: whole entries, by ledger.
        batches: of entries of which messages are acknowledged, (bit set, messages), by ledger and entry.
        through: the last message of its cumulative acknowledgement, None without one.
        instead: what the commit acknowledges in the place of everything up to ``through``; empty for that.
        last: no entry behind it is acknowledged.
    """

    __slots__ = ("batches", "entries", "instead", "last", "through")

    def __init__(self) -> None:
        self.entries: dict[int, set[int]] = {}
        self.batches: dict[int, dict[int, tuple[int, int]]] = {}
        self.through: AckedThrough | None = None
        self.instead = _NO_ACK
        self.last = BEFORE_FIRST

    def __bool__(self) -> bool:
        return bool(self.entries or self.batches or self.through)

    def positions(self) -> Iterator[tuple[int, list[int]]]:
        """The entries of which something is acknowledged individually, by ledger, ascending."""
        for ledger_id in sorted({*self.entries, *self.batches}):
            yield ledger_id, sorted({*self.entries.get(ledger_id, ()), *self.batches.get(ledger_id, ())})

    @property
    def single(self) -> tuple[int, int] | None:
        """The ledger and the entry, of a transaction that acknowledged just one."""
        if len(self.entries) != 1 or self.batches or self.through is not None:
            return None
        ((ledger_id, own),) = self.entries.items()
        if len(own) != 1:
            return None
        (entry,) = own
        return ledger_id, entry

    def individual(self) -> Ack:
        """The individual acknowledgements, in the smallest form; equal ones give equal values."""
        if not self.batches and len(self.entries) == 1:
            ((ledger_id, own),) = self.entries.items()
            if len(own) == 1:  # the most usual by far; as `group_entries` has it
                (entry,) = own
                return _new(Ack, (0, 0, (_new(AckGroup, (ledger_id, entry, entry, FORM_RANGE, b"")),), ()))
        entries = [(ledger_id, entry) for ledger_id, own in self.entries.items() for entry in sorted(own)]
        batches = {
            (ledger_id, entry): bits
            for ledger_id, by_entry in self.batches.items()
            for entry, bits in by_entry.items()
        }
        return Ack(0, 0, group_entries(entries), group_batches(batches))

    @property
    def entry_count(self) -> int:
        """How many whole entries."""
        return sum(map(len, self.entries.values()))

    @property
    def batch_count(self) -> int:
        """How many entries of which single messages are acknowledged."""
        return sum(map(len, self.batches.values()))

    def numbers(self) -> list[Any]:
        """What an outline of a state says of them."""
        through = None if self.through is None else list(self.through)
        batch_count = self.batch_count if self.batches else 0
        if len(self.entries) == 1:
            (own,) = self.entries.values()
            return [len(own), batch_count, through]
        return [self.entry_count, batch_count, through]

    def pack(self) -> list[Any]:
        """The content for a snapshot."""
        through = None if self.through is None else list(self.through)
        return [_pack_ack(self.individual()), through, _pack_ack(self.instead)]


class PartlyPending(int):
    """`EntryView.skip` of an entry of which some messages are pending.

    A consumer that acknowledges the others has not acknowledged the entry.
    """

    __slots__ = ()


class PendingAcks:
    """The acknowledgements of all open transactions of a subscription.

    Role: part of the replicated state; pure, guarded by the subscription's lock. Outcomes are not looked up,
    `end` gets them. Invariants: an entry that is pending as a whole is so in one transaction, and has no
    pending messages; a message of a batch is pending in one transaction; one transaction at most has a
    cumulative acknowledgement; nothing up to the mark-delete position is pending, and nothing in a ledger
    that the state does not know. Individual and cumulative acknowledgements do not concern each other.

    Attributes:
        transactions: those that have something pending, by id, the first to acknowledge first.
        cumulative: the last message of the cumulative acknowledgement that is pending; None without one.
        last_touched: no entry behind it is pending; a hint that may be too high.
        rewinds: how often single acknowledgements came back to an active consumer, which reads them anew.
        committed, aborted: transactions that ended here.
        ended_ms: when the last of them did; 0 for never.

    >>> pending = PendingAcks()
    >>> acks = AckBitmaps(Position(7, -1))
    >>> ack = Ack(1, 1, group_entries([(7, 2)]), ())
    >>> pending.add(TransactionAck((0, 5), ack, None), acks)
    [(7, [2])]
    >>> pending.refusal(TransactionAck((0, 6), ack, None), acks)
    'entry 7:2 is acknowledged in transaction (0,5), which is open'
    """

    __slots__ = (
        "_bits",
        "_lowest",
        "_whole",
        "aborted",
        "committed",
        "cumulative",
        "ended_ms",
        "last_touched",
        "rewinds",
        "transactions",
    )

    def __init__(self) -> None:
        self.transactions: dict[TransactionId, TransactionAcks] = {}
        self._whole: dict[int, set[int]] = {}  # by ledger, of all transactions
        self._bits: dict[int, dict[int, tuple[int, int]]] = {}  # likewise (bit set, messages) of batches
        self._lowest = _FURTHEST  # nothing before it is pending individually; may be too low
        self.cumulative: AckedThrough | None = None
        self.last_touched = BEFORE_FIRST
        self.rewinds = self.committed = self.aborted = self.ended_ms = 0

    # -- the rules ---------------------------------------------------------------------------------

    def refusal(self, command: TransactionAck, acks: AckBitmaps) -> str:
        """Why an acknowledgement conflicts with others; empty if it does not. Changes nothing.

        Args:
            command: the acknowledgement.
            acks: what is acknowledged.
        """
        if command.through is not None:
            return self._refusal_through(command.transaction, command.through, acks)
        # A whole entry conflicts with anything that is pending of it, as it has all of its messages; with
        # messages that are acknowledged it does not.
        _, _, groups, batches = command.ack
        for group in groups:
            ledger_id, first, last, _, _ = group
            ledger = acks.ledger(ledger_id)
            whole, bits = self._whole.get(ledger_id, ()), self._bits.get(ledger_id, ())
            for entry in (first,) if first == last else group.expanded():
                if ledger.is_acked(entry) if ledger is not None else (ledger_id, entry) <= acks.mark_delete:
                    return f"entry {ledger_id}:{entry} is acknowledged already"
                if entry in whole or entry in bits:
                    return f"entry {ledger_id}:{entry} is acknowledged in {self._holder(ledger_id, entry)}"
        # Messages of a batch conflict with the same ones, acknowledged or pending, or with the whole entry.
        for ledger_id, entry, size, indexes in batches:
            position = Position(ledger_id, entry)
            if acks.is_acked(position):
                return f"entry {_text(position)} is acknowledged already"
            if taken := acks.indexes(position) & indexes:
                return f"{_messages(taken)} of entry {_text(position)} is acknowledged already"
            pending, _ = self.bits_in(ledger_id).get(entry, (0, 0))
            if entry in self._whole.get(ledger_id, ()):
                pending = (1 << size) - 1
            if taken := pending & indexes:
                holder = self._holder(ledger_id, entry, taken)
                return f"{_messages(taken)} of entry {_text(position)} is acknowledged in {holder}"
        return ""

    def _refusal_through(self, transaction: TransactionId, through: AckedThrough, acks: AckBitmaps) -> str:
        position = Position(through.ledger_id, through.entry_id)
        if position <= acks.mark_delete:
            return f"everything up to entry {_text(acks.mark_delete)} is acknowledged already"
        for other, pending in self.transactions.items():
            if pending.through is None:
                continue
            if other != transaction:
                return f"{_transaction(other)} has a cumulative acknowledgement"
            if through.rank <= pending.through.rank:
                last = Position(pending.through.ledger_id, pending.through.entry_id)
                return f"the same transaction acknowledged up to entry {_text(last)}"
        return ""

    def _holder(self, ledger_id: int, entry: int, indexes: int = -1) -> str:
        """The transaction in which an entry is pending, or some of these messages of it."""
        for transaction, pending in self.transactions.items():
            bits, _ = pending.batches.get(ledger_id, _NOTHING).get(entry, (0, 0))
            if entry in pending.entries.get(ledger_id, ()) or bits & indexes:
                return _transaction(transaction)
        raise AssertionError(f"entry {ledger_id}:{entry} is pending in no transaction")

    # -- commands ----------------------------------------------------------------------------------

    def add(self, command: TransactionAck, acks: AckBitmaps) -> list[tuple[int, list[int]]]:
        """Note that a transaction acknowledged something. What is acknowledged or pending already stays as it
        is: the writer of the command has seen to it that there is no such thing.

        Returns:
            The ledgers, and the entries that were not pending in that way before.
        """
        transaction, ack, through = command
        pending = self.transactions.get(transaction) or TransactionAcks()
        if through is None:
            added = self._add_groups(pending, ack.groups, acks)
            if ack.batches:
                added += self._add_batches(pending, ack.batches, acks)
        else:
            added = []
            place = Position(through.ledger_id, through.entry_id)
            if acks.ledger(place.ledger_id) is not None and place > acks.mark_delete:
                self._put_through(pending, through, ack)
        # One of which nothing counted is left out: its outcome does not matter here.
        if pending.entries or pending:
            self.transactions[transaction] = pending
            if pending.last > self.last_touched:
                self.last_touched = pending.last
            self.cumulative = pending.through or self.cumulative
        return added

    def _derive(self) -> None:
        """Find what follows from the transactions anew."""
        transactions = self.transactions.values()
        self.last_touched = max([pending.last for pending in transactions], default=BEFORE_FIRST)
        self.cumulative = next(filter(None, [pending.through for pending in transactions]), None)

    def _add_groups(
        self, pending: TransactionAcks, groups: Iterable[AckGroup], acks: AckBitmaps | None
    ) -> list[tuple[int, list[int]]]:
        """Add whole entries; those of a snapshot without ``acks``, as some may be acknowledged since."""
        added = []
        for group in groups:
            ledger_id, first, last, _, _ = group
            whole, partial = self._whole.get(ledger_id, ()), self._bits.get(ledger_id, ())
            entries = [first] if first == last else list(group.expanded())
            if first == last:  # the most usual by far
                if first in whole or first in partial:
                    continue
            elif whole or partial:
                entries = [entry for entry in entries if entry not in whole and entry not in partial]
            if acks is not None:
                ledger = acks.ledger(ledger_id)
                if ledger is None:
                    continue
                if len(entries) > 1:
                    entries = [entry for entry in entries if ledger.lacks(entry)]
                elif entries and not ledger.lacks(entries[0]):
                    continue
            if entries:
                self._whole.setdefault(ledger_id, set()).update(entries)
                pending.entries.setdefault(ledger_id, set()).update(entries)
                if first != last:
                    first, last = min(entries), max(entries)
                self._widen_bounds(pending, ledger_id, first, last)
                added.append((ledger_id, entries))
        return added

    def _add_batches(
        self, pending: TransactionAcks, batches: Iterable[AckBatch], acks: AckBitmaps | None
    ) -> list[tuple[int, list[int]]]:
        """The same for messages of batches."""
        added = []
        for ledger_id, entry, size, indexes in batches:
            if entry in self._whole.get(ledger_id, ()):
                continue
            # The size that came first stays, as in `LedgerAcks.add_indexes`.
            before, size = self.bits_in(ledger_id).get(entry, (0, size))
            fresh = indexes & ((1 << size) - 1) & ~before
            if acks is not None:
                ledger = acks.ledger(ledger_id)
                if ledger is None or not ledger.lacks(entry):
                    continue
                fresh &= ~ledger.indexes(entry)
            if fresh:
                self._bits.setdefault(ledger_id, {})[entry] = (before | fresh, size)
                own = pending.batches.setdefault(ledger_id, {})
                own[entry] = (own.get(entry, (0, size))[0] | fresh, size)
                self._widen_bounds(pending, ledger_id, entry, entry)
                added.append((ledger_id, [entry]))
        return added

    def _widen_bounds(self, pending: TransactionAcks, ledger_id: int, first: int, last: int) -> None:
        if (ledger_id, first) < self._lowest:
            self._lowest = _new(Position, (ledger_id, first))
        if (ledger_id, last) > pending.last:
            pending.last = _new(Position, (ledger_id, last))

    def _put_through(self, pending: TransactionAcks, through: AckedThrough, instead: Ack) -> None:
        if any(other.through is not None and other is not pending for other in self.transactions.values()):
            return
        if pending.through is None or through.rank > pending.through.rank:
            pending.through, pending.instead = through, Ack(0, 0, instead.groups, instead.batches)
            pending.last = max(pending.last, Position(through.ledger_id, through.entry_id))

    def end(self, transaction: TransactionId, outcome: int, time_ms: int) -> TransactionAcks | None:
        """Take out what a transaction has pending; None if it has nothing."""
        ended = self.transactions.pop(transaction, None)
        if ended is None:
            return None
        for ledger_id, entries in ended.entries.items():
            _subtract(self._whole, ledger_id, entries)
        for ledger_id, by_entry in ended.batches.items():
            self._subtract_bits(ledger_id, by_entry)
        if not self.transactions:
            self.last_touched, self.cumulative, self._lowest = BEFORE_FIRST, None, _FURTHEST
        elif ended.through is not None or ended.last >= self.last_touched:
            self._derive()
        if outcome == COMMITTED:
            self.committed += 1
        else:
            self.aborted += 1
        self.ended_ms = max(self.ended_ms, time_ms)
        return ended

    def _subtract_bits(self, ledger_id: int, by_entry: dict[int, tuple[int, int]]) -> None:
        remaining = self._bits[ledger_id]
        for entry, (bits, size) in by_entry.items():
            unacked = remaining[entry][0] & ~bits
            if unacked:
                remaining[entry] = (unacked, size)
            else:
                del remaining[entry]
        if not remaining:
            del self._bits[ledger_id]

    def clear(self) -> None:
        """Forget everything that is pending: the subscription was moved."""
        self.transactions = {}
        self._whole, self._bits = {}, {}
        self._lowest = _FURTHEST
        self._derive()

    def drop_through(self, mark_delete: Position) -> None:
        """Forget what is pending up to the mark-delete position: it was acknowledged otherwise."""
        # What is pending holds the position back, so there is seldom anything to drop.
        through = self.cumulative
        if mark_delete >= self._lowest or (through is not None and through[:2] <= mark_delete):
            self._keep(lambda ledger_id, entry: (ledger_id, entry) > mark_delete)
            for pending in self.transactions.values():
                if pending.through is not None and pending.through[:2] <= mark_delete:
                    pending.through, pending.instead = None, _NO_ACK
            self._drop_empty()

    def drop_unknown(self, acks: AckBitmaps, last: Position = _FURTHEST) -> None:
        """Forget what is pending in ledgers that are gone, behind the end of those that are closed, and
        behind ``last``."""
        known = {ledger_id: ledger.entries for ledger_id, ledger in acks.ledgers()}

        def exists(ledger_id: int, entry: int) -> bool:
            entries = known.get(ledger_id)
            is_in = entries is not None and not 0 <= entries <= entry
            return is_in and acks.mark_delete < (ledger_id, entry) <= last

        self._keep(exists)
        for pending in self.transactions.values():
            if pending.through is not None and not exists(*pending.through[:2]):
                self._shorten(pending, acks, last)
        self._drop_empty()

    def _shorten(self, pending: TransactionAcks, acks: AckBitmaps, last: Position) -> None:
        """Have a cumulative acknowledgement end with the last entry there is before its message."""
        assert pending.through is not None
        limit = min(last, Position(pending.through.ledger_id, pending.through.entry_id))
        pending.through, instead = None, pending.instead
        for ledger_id, ledger in reversed(acks.ledgers()):
            if ledger_id > limit.ledger_id:
                continue
            end = ledger.entries - 1 if ledger.entries >= 0 else MAX_ENTRY_ID
            position = Position(ledger_id, min(end, limit.entry_id) if ledger_id == limit.ledger_id else end)
            if position.entry_id >= 0 and position > acks.mark_delete:
                pending.through, pending.instead = AckedThrough(*position), instead
                return
        pending.instead = _NO_ACK

    def _keep(self, is_kept: IsKept) -> None:
        """Forget the individual acknowledgements of all other entries."""
        for pending in self.transactions.values():
            pending.entries = _filtered_sets(pending.entries, is_kept)
            pending.batches = _filtered_maps(pending.batches, is_kept)
        self._whole = _filtered_sets(self._whole, is_kept)
        self._bits = _filtered_maps(self._bits, is_kept)
        by_ledger = (*self._whole.items(), *self._bits.items())
        places = [(ledger_id, min(entries)) for ledger_id, entries in by_ledger]
        self._lowest = Position(*min(places)) if places else _FURTHEST

    def _drop_empty(self) -> None:
        self.transactions = {txn_id: pending for txn_id, pending in self.transactions.items() if pending}
        self._derive()

    # -- looking -----------------------------------------------------------------------------------

    def bits(self, position: Position) -> int:
        """The messages of an entry that are pending, as a bit set; 0, too, if it is pending as a whole."""
        bits, _ = self.bits_in(position.ledger_id).get(position.entry_id, (0, 0))
        through = self.cumulative
        if through is not None and through[:2] == position and through.is_partial:
            bits |= (2 << through.batch_index) - 1
        return bits

    def skip(self, position: Position, acknowledged: int) -> int:
        """The messages of an entry that are left out when it is delivered.

        Args:
            position: of an entry that is not pending as a whole.
            acknowledged: its messages that are acknowledged, as a bit set.
        """
        bits = self.bits(position)
        return PartlyPending(bits | acknowledged) if bits else acknowledged

    def bits_in(self, ledger_id: int) -> dict[int, tuple[int, int]]:
        """The messages of batches that are pending individually: (bit set, messages) by entry."""
        return self._bits.get(ledger_id, _NOTHING)

    def partial_in(self, ledger_id: int) -> list[int]:
        """The entries of a ledger of which single messages are pending, `bits`."""
        through, entries = self.cumulative, list(self.bits_in(ledger_id))
        if through is not None and through.ledger_id == ledger_id:
            entries.append(through.entry_id)
        return entries

    def holds(self, position: Position, acks: AckBitmaps) -> bool:
        """Whether an entry has no message that a consumer may get, because of what is pending."""
        ledger_id, entry = position
        if entry in self._whole.get(ledger_id, ()):
            return True
        through = self.cumulative
        if through is not None and (ledger_id, entry, MAX_BATCH_SIZE) <= through.rank:
            return True
        bits = self.bits(position)
        if not bits:
            return False
        _, size = self.bits_in(ledger_id).get(entry, (0, 0))
        if not size and through is not None:
            size = through.batch_size
        return not (1 << size) - 1 & ~(bits | acks.indexes(position))

    def meets(self, ledger_id: int, first: int, last: int) -> bool:
        """Whether anything of the entries ``first..last`` is pending."""
        through = self.cumulative
        if through is not None and (ledger_id, first) <= through[:2]:
            return True
        entries = (*self._whole.get(ledger_id, ()), *self._bits.get(ledger_id, ()))
        return any(first <= entry <= last for entry in entries)

    def held_in(self, ledger_id: int, first: int, last: int, acks: AckBitmaps) -> list[int]:
        """The entries ``first..last`` that `holds` is true of, ascending."""
        through = self.cumulative
        if through is not None and (ledger_id, first) <= through[:2]:
            entries: Iterable[int] = range(first, last + 1)
        else:
            entries = sorted({*self._whole.get(ledger_id, ()), *self._bits.get(ledger_id, ())})
        return [
            entry
            for entry in entries
            if first <= entry <= last and self.holds(Position(ledger_id, entry), acks)
        ]

    def next_open(self, position: Position, acks: AckBitmaps) -> Position:
        """The first entry at or after ``position`` that is neither acknowledged nor held."""
        through = self.cumulative
        while True:
            position = acks.next_unacked(position)
            if through is not None and position < through[:2]:
                position = Position(through.ledger_id, through.entry_id)
            elif self.holds(position, acks):
                position = Position(position.ledger_id, position.entry_id + 1)
            else:
                return position

    def run_length(self, position: Position, most: int) -> int:
        """How many entries from ``position`` on (same ledger) precede the next of which something is pending,
        if that one is not the first."""
        ledger_id, first = position
        return min([most, *(entry - first for entry in self._whole.get(ledger_id, ()) if entry > first)])

    def acks_again(self, consumer_id: int, epoch: int) -> Iterator[TransactionAck]:
        """The commands that make an empty one equal to this, for a consumer that is attached."""
        for transaction, pending in self.transactions.items():
            individual = pending.individual()
            if individual.groups or individual.batches:
                ack = individual._replace(consumer_id=consumer_id, epoch=epoch)
                yield TransactionAck(transaction, ack, None)
            if pending.through is not None:
                instead = pending.instead._replace(consumer_id=consumer_id, epoch=epoch)
                yield TransactionAck(transaction, instead, pending.through)

    # -- snapshots ---------------------------------------------------------------------------------

    @property
    def is_used(self) -> bool:
        """Whether a transaction ever acknowledged anything here."""
        return bool(self.transactions or self.committed or self.aborted)

    def pack(self) -> list[Any]:
        """The content for a snapshot; equal contents give equal values."""
        return self._pack([[*txn_id, *pending.pack()] for txn_id, pending in self.transactions.items()])

    def outline(self) -> list[Any]:
        """The same without the entries, of which there may be many."""
        return self._pack([[*txn_id, *pending.numbers()] for txn_id, pending in self.transactions.items()])

    def _pack(self, transactions: list[Any]) -> list[Any]:
        return [self.rewinds, self.committed, self.aborted, self.ended_ms, transactions]

    @classmethod
    def unpack(cls, packed: Sequence[Any]) -> PendingAcks:
        """What `pack` packed.

        Raises:
            TypeError, ValueError: it is something else.
        """
        pending = cls()
        pending.rewinds, pending.committed, pending.aborted, pending.ended_ms, transactions = packed
        numbers = packed[:4]
        for most, least, individual, through, instead in transactions:
            numbers = [*numbers, most, least, *(through or ())]
            txn_id = most, least
            acks, own = _unpack_ack(individual), TransactionAcks()
            pending._add_groups(own, acks.groups, None)
            pending._add_batches(own, acks.batches, None)
            if through is not None:
                pending._put_through(own, AckedThrough(*through), _unpack_ack(instead))
            # What does not come back as it was packed would make this replica differ from the others.
            if own.pack() != [individual, through, instead] or not own:
                raise ValueError(f"acknowledgements of transaction {txn_id} that meet others, or none")
            pending.transactions[txn_id] = own
            pending._derive()
        if not all(type(number) is int for number in numbers):
            raise ValueError("numbers of pending acknowledgements that are none")
        return pending


def _subtract(sets: dict[int, set[int]], key: int, entries: set[int]) -> None:
    remaining = sets[key]
    remaining -= entries
    if not remaining:
        del sets[key]


def _filtered_sets(sets: dict[int, set[int]], is_kept: IsKept) -> dict[int, set[int]]:
    kept = {
        ledger_id: {entry for entry in entries if is_kept(ledger_id, entry)}
        for ledger_id, entries in sets.items()
    }
    return {ledger_id: entries for ledger_id, entries in kept.items() if entries}


def _filtered_maps(
    maps: dict[int, dict[int, tuple[int, int]]], is_kept: IsKept
) -> dict[int, dict[int, tuple[int, int]]]:
    kept = {
        ledger_id: {entry: bits for entry, bits in by_entry.items() if is_kept(ledger_id, entry)}
        for ledger_id, by_entry in maps.items()
    }
    return {ledger_id: by_entry for ledger_id, by_entry in kept.items() if by_entry}


def _pack_ack(ack: Ack) -> list[Any]:
    batches = [
        [ledger_id, entry, size, indexes.to_bytes((size + 7) >> 3, "little")]
        for ledger_id, entry, size, indexes in ack.batches
    ]
    return [[list(group) for group in ack.groups], batches]


def _unpack_ack(packed: Sequence[Any]) -> Ack:
    groups, batches = packed
    for ledger_id, first, last, form, data in groups:
        # Checked before a group is expanded: the numbers decide how long that takes.
        if not (0 <= first <= last <= MAX_ENTRY_ID and ledger_id >= 0 and form in _FORMS):
            raise ValueError(f"entries {first} to {last} of ledger {ledger_id} in form {form!r}")
        if type(data) is not bytes:
            raise TypeError(f"{data!r} where entries belong")
    own = []
    for ledger_id, entry, size, indexes in batches:
        if not (0 <= entry <= MAX_ENTRY_ID and 0 < size <= MAX_BATCH_SIZE and ledger_id >= 0):
            raise ValueError(f"batch {entry} of {size} messages")
        own.append(AckBatch(ledger_id, entry, size, int.from_bytes(indexes, "little")))
    return Ack(0, 0, tuple([AckGroup(*group) for group in groups]), tuple(own))


def _text(position: Position) -> str:
    return f"{position.ledger_id}:{position.entry_id}"


def _transaction(transaction: TransactionId) -> str:
    return f"transaction ({transaction[0]},{transaction[1]}), which is open"


def _messages(indexes: int) -> str:
    numbers = [index for index in range(indexes.bit_length()) if indexes >> index & 1]
    return f"message {', '.join(map(str, numbers))}"
