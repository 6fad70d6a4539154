"""How a consumer acknowledges: by commands, under the subscription's lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from embeddedpulsar._engine.format import subscription_record as record
from embeddedpulsar._engine.format.acknowledgement import (
    MAX_BATCH_SIZE,
    MAX_ENTRY_ID,
    Ack,
    AckGroup,
    group_batches,
    group_entries,
)
from embeddedpulsar._engine.log.position import BEFORE_FIRST, Position
from embeddedpulsar._engine.subscription.ack_ring import AckRing
from embeddedpulsar._engine.subscription.attachment.chunk_keeper import ChunkKeeper, around_parts
from embeddedpulsar._engine.subscription.log_queries import existing, ledgers_of, news_for
from embeddedpulsar._engine.subscription.shared_state import SharedState
from embeddedpulsar._engine.subscription.state.state_machine import STALE, SubscriptionState
from embeddedpulsar.exceptions import PulsarException

if TYPE_CHECKING:
    from embeddedpulsar._engine.log.log import Log

Entry = tuple[int, int]
Partial = Mapping[Entry, tuple[int, int]]


class Holder(Protocol):
    """The part of an `Attachment` that acknowledging needs."""

    consumer_id: int
    epoch: int

    def read_position(self) -> Entry:
        """Entries before this one are known to exist."""

    def note_ack(self, last: Position) -> None:
        """Called before entries up to ``last``, from the read position on, are acknowledged."""

    def before_ack(self, state: SubscriptionState, ledger_id: int) -> list[AckGroup]:
        """Called before an acknowledgement of a ledger is committed, under the subscription's lock. Returns
        what is to be acknowledged with it."""

    def show_acknowledged(self) -> None:
        """Let other processes see that this one runs, and acknowledges now."""


class Acknowledger:
    """Acknowledges for one `Attachment`.

    Role: takes ids that may be made up, late or of parts of messages; issues commands for entries that exist.
    Invariants: the entries of a chunked message are acknowledged in one command, so that a crash cannot leave
    half of them acknowledged.
    """

    def __init__(self, holder: Holder, log: Log, shared: SharedState, chunks: ChunkKeeper) -> None:
        self._holder: Final = holder
        self._log: Final = log
        self._shared: Final = shared
        self._chunks: Final = chunks

    def make_ring(self, epoch: int) -> AckRing | None:
        """Make a file for acknowledgements that are not written yet; None if there is no room for one."""
        shared = self._shared
        try:
            return AckRing.make(shared.directory, self._holder.consumer_id, epoch, shared.control.boot_id)
        except (PulsarException, OSError):
            return None

    def is_plain(self, ledger_id: int, entry_id: int, is_cumulative: bool = False) -> bool:
        """Whether acknowledging this entry alone is complete: it exists, and is no part of a chunked message.
        False if finding that out takes a look at the log."""
        chunks = self._chunks
        try:
            # What was read exists: the comparison spares a look at the log.
            if (ledger_id, entry_id) >= self._holder.read_position() or entry_id > MAX_ENTRY_ID:
                return False
            # Parts of any chunked message may lie before the entry, so there must be none at all.
            if is_cumulative:
                return chunks.is_idle
            if (ledger_id, entry_id) in chunks.delivered:
                return False
            return not chunks.assembler.last_parts.between(ledger_id, entry_id, entry_id)
        except ValueError:
            return False  # closed meanwhile

    def acknowledge(
        self,
        entries: Sequence[Entry],
        partial: Partial | None = None,
        *,
        epoch: int | None = None,
    ) -> bool:
        """Acknowledge whole entries, and single messages of batches, in one command.

        About 10 us and 0.1 us per entry. Order does not matter; entries that are acknowledged already, or
        do not exist, are ignored.

        Args:
            entries: (ledger, entry) pairs.
            partial: (ledger, entry) -> (bit set of acknowledged batch indexes, messages in the batch).
            epoch: `epoch` when the messages were received; default the present one.

        Returns:
            False if nothing was acknowledged because the subscription was moved since.

        Raises:
            AlreadyClosed: the subscription is closed.
            StorageFullError: no room; nothing was acknowledged.
        """
        partial = partial or {}
        chunks = self._chunks
        # The usual case: this consumer holds no chunked message.
        if not chunks.delivered:
            return self._acknowledge(entries, partial, epoch)
        is_valid = self._acknowledge(chunks.with_parts(entries), partial, epoch)
        if is_valid:  # else they stay unacknowledged, and another consumer may acknowledge them
            chunks.settled(entries)
        if chunks.has_many:
            self._shared.transact(lambda state: chunks.drop(state.acks.is_acked))
        return is_valid

    def _acknowledge(self, entries: Sequence[Entry], partial: Partial, epoch: int | None) -> bool:
        try:
            groups, batches = group_entries(entries), group_batches(partial)
        except ValueError:  # ids that no ledger can have
            return self._acknowledge(*self._real(entries, partial), epoch)
        highest = max(_end_of(groups), batches[-1][:2] if batches else BEFORE_FIRST)
        # Some entries were not read here and may be made up: those that the log does not have are
        # left out.
        if highest >= self._holder.read_position():
            entries, partial = self._real(entries, partial)
            groups, batches = group_entries(entries), group_batches(partial)
            highest = max(_end_of(groups), batches[-1][:2] if batches else BEFORE_FIRST)
        parts = self._chunks.strange_parts(groups, entries)
        if parts:
            groups = group_entries([*parts, *entries])
        if not groups and not batches:
            return True
        return self._commit_ack(
            [Ack(self._holder.consumer_id, self._holder.epoch if epoch is None else epoch, groups, batches)],
            Position(*highest),
        )

    def _real(self, entries: Sequence[Entry], partial: Partial) -> tuple[list[Entry], Partial]:
        """The entries of these that are in the log: made-up ids must not acknowledge entries to come."""
        batches = {
            entry: (partial[entry][0] & ((1 << partial[entry][1]) - 1), partial[entry][1])
            for entry in existing(self._log, partial)
            if 0 < partial[entry][1] <= MAX_BATCH_SIZE
        }
        return existing(self._log, entries), batches

    def acknowledge_cumulative(
        self,
        ledger_id: int,
        entry_id: int,
        batch_index: int = -1,
        batch_size: int = 0,
        *,
        epoch: int | None = None,
    ) -> bool:
        """Acknowledge everything up to and including a message.

        Args:
            ledger_id, entry_id: its entry; entry -1 acknowledges all earlier ledgers.
            batch_index: index in its batch; -1 for the whole entry.
            batch_size: messages in the batch, if an index is given.
            epoch: as in `acknowledge`.

        Returns:
            False if nothing was acknowledged because the subscription was moved since.
        """
        position = Position(ledger_id, entry_id)
        if position >= self._holder.read_position():
            if position > (self._log.last_position() or BEFORE_FIRST):
                return True  # a made-up id must not acknowledge the future
        # An index outside of its batch stands for the whole entry.
        index, size = (batch_index, batch_size) if 0 <= batch_index < batch_size else (-1, 0)
        current = self._holder.epoch if epoch is None else epoch
        command = record.AckCumulative(self._holder.consumer_id, current, ledger_id, entry_id, index, size)
        if self._chunks.is_idle:
            return self._commit_ack([command], position)
        # Messages that begin before the position and end behind it keep their first parts:
        # acknowledged, these could be trimmed before the message is delivered.
        spared = self._chunks.unfinished(position)
        commands = around_parts(command, spared, ledgers_of(self._log)) if spared else [command]
        is_valid = self._commit_ack(commands, position)
        if is_valid:
            # With an index the entry itself is acknowledged in part only.
            self._chunks.settled_through(position if index < 0 else position.previous())
        return is_valid

    def _commit_ack(self, commands: Sequence[record.Command], highest: Position) -> bool:
        """Commit acknowledgements of entries up to ``highest``."""
        facts, ledger_id = None, highest.ledger_id
        # Before the lock is taken, because it reads the log; the state without the lock is a hint
        # only, and the command is right without the news.
        if ledger_id > self._shared.state.acks.newest_ledger:
            facts = ledgers_of(self._log)

        def body(state: SubscriptionState) -> bool:
            if not state.exists:
                return False
            self._holder.show_acknowledged()
            self._holder.note_ack(highest)  # under the lock: another thread may have rewound the reader
            news = [] if facts is None else news_for(state, facts)
            more = self._holder.before_ack(state, ledger_id)
            # What the reader stepped over is acknowledged along with it, see `CompactedReader`.
            first = [Ack(self._holder.consumer_id, self._holder.epoch, tuple(more), ())] if more else []
            return self._shared.commit([*news, *first, *commands]) & STALE == 0

        return self._shared.transact(body)

    def acknowledge_unreadable(self, skipped: list[AckGroup]) -> None:
        """Tell the state which ledgers there are now, and acknowledge entries that cannot be read: either
        would hold back the mark-delete position for ever."""
        facts = ledgers_of(self._log)

        def body(state: SubscriptionState) -> None:
            news = news_for(state, facts)
            if news:
                self._shared.commit(news)

        self._shared.transact(body)
        if skipped:
            self._commit_ack(
                [Ack(self._holder.consumer_id, self._holder.epoch, tuple(skipped), ())],
                Position(skipped[-1].ledger_id, skipped[-1].last),
            )


def _end_of(groups: Sequence[AckGroup]) -> Entry:
    return (groups[-1].ledger_id, groups[-1].last) if groups else BEFORE_FIRST
