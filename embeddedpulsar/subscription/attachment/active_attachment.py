"""Consumers of Exclusive and Failover: the active one reads everything, in order. Hot: `read`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from embeddedpulsar._engine.format.acknowledgement import AckGroup
from embeddedpulsar._engine.format.entry import EntryView
from embeddedpulsar._engine.log.log import Log
from embeddedpulsar._engine.log.position import Position
from embeddedpulsar._engine.platform import fork
from embeddedpulsar.exceptions import ConsumerBusy
from embeddedpulsar.subscription.attachment.attachment import Attachment, Entry
from embeddedpulsar.subscription.attachment.chunk_keeper import ChunkOptions
from embeddedpulsar.subscription.attachment.compacted_reader import CompactedReader, CompactedSource
from embeddedpulsar.subscription.attachment.membership import Membership
from embeddedpulsar.subscription.attachment.unacked_reader import UnackedReader
from embeddedpulsar.subscription.dispatch.dispatcher import ACTIVE_DISPATCHERS
from embeddedpulsar.subscription.shared_state import SharedState
from embeddedpulsar.subscription.state.consumer_registry import Consumer
from embeddedpulsar.subscription.state.state_machine import SubscriptionState


class ActiveAttachment(Attachment):
    """A consumer that gets everything while it is the active one, and nothing while it is not.

    Role: see `Attachment`. Invariants: a consumer that becomes active begins at the first unacknowledged
    entry; the consumer that was active before sees the epoch raised before it reads on. Acknowledgements of
    entries that were read while active count afterwards too.
    """

    def __init__(
        self,
        log: Log,
        shared: SharedState,
        membership: Membership,
        consumer: Consumer,
        state: SubscriptionState,
        chunks: ChunkOptions,
        compacted: CompactedSource | None = None,
    ) -> None:
        super().__init__(log, shared, membership, consumer, chunks)
        self._active_of: Final = ACTIVE_DISPATCHERS[consumer.consumer_type].active
        self._reader: Final = (
            UnackedReader(log, shared, state)
            if compacted is None
            else CompactedReader(log, shared, state, compacted)
        )
        self._note_read: Final = self.chunks.assembler.last_parts.note_read
        self._is_active = self._active_of(state.consumers) == self.consumer_id
        self._was_switched = False

    def read(self, max_messages: int, max_bytes: int) -> list[EntryView]:
        """The next unacknowledged entries; none at the tail, or while another consumer is active.

        Lock-free while nothing ahead is acknowledged: 0.4 us on top of `EntryCursor.read`.
        """
        fresh = self.fresh
        if fresh.epoch != fresh.mark or self._fork_generation != fork.GENERATION:  # or it is closed
            try:
                self._resync()
            except ConsumerBusy:
                return []  # taken for dead, and another consumer came: ours waits until it may join again
        if not self._is_active:
            return []
        reader = self._reader
        position = reader.position
        try:
            while True:
                views = reader.read(max_messages, max_bytes)
                if reader.has_jumped:
                    reader.has_jumped = False
                    skipped, reader.skipped = reader.skipped, []
                    self._acknowledger.acknowledge_unreadable(skipped)
                if not views or self._note_read(views):
                    return views
                views, rest = self._complete(views, max_bytes, is_noted=False)
                if rest is not None:
                    reader.go_back((rest.ledger_id, rest.entry_id))
                if views:
                    return views
        except BaseException:
            reader.go_back(position)  # an interrupt, for example: the entries read were not delivered
            raise

    def prepare(self) -> None:
        if not self._is_active and not self._log.is_volatile:
            self._reader.prepare()

    def _tell_moved(self, was_moved: bool) -> None:
        super()._tell_moved(was_moved)
        if self._was_switched:
            self._was_switched = False
            if self.on_switched is not None:
                self.on_switched()

    def is_active(self) -> bool:
        return self._shared.transact(lambda state: self._active_of(state.consumers) == self.consumer_id)

    @property
    def awaits_appends(self) -> bool:
        """Whether it is the active one: the others wait to become active, not for entries."""
        return self._is_active

    def has_news(self, has_tail_moved: bool, seen_version: int) -> bool:
        return (has_tail_moved and self._is_active) or self.version != seen_version

    def has_read_all(self, tail: int) -> bool:
        return self._reader.has_read_all(tail)

    def _follow(self, state: SubscriptionState) -> bool:
        was_moved = super()._follow(state)
        is_active = self._active_of(state.consumers) == self.consumer_id
        if is_active and not self._is_active:
            self._shared.note(f"consumer {self.name} takes over")
            self._reader.rewind(state)
        elif self._is_active and not is_active:
            self._was_switched = True
        self._is_active = is_active
        self._reader.note_ack(state.acks.last_touched())
        return was_moved

    def before_ack(self, state: SubscriptionState, ledger_id: int) -> list[AckGroup]:
        """Make an inactive consumer's acknowledgement known: the active one must not deliver its entries."""
        if self._active_of(state.consumers) != self.consumer_id:
            self._shared.control.announce()
        return self._reader.take_deferred(ledger_id)

    def _go_to(self, state: SubscriptionState) -> None:
        self._reader.rewind(state)

    def seek(self, position: Position, inclusive: bool) -> None:
        self._reader.before_seek(position)
        super().seek(position, inclusive)

    def read_position(self) -> Entry:
        return self._reader.position

    @property
    def read_before(self) -> Entry:
        return self._reader.furthest

    def note_ack(self, last: Position) -> None:
        self._reader.note_ack(last)

    def redeliver(self) -> None:
        """Read again from the first unacknowledged entry, leaving out acknowledged ones.

        Only this consumer's read position moves: nothing is journalled, and acknowledgements under way count.
        """
        try:
            self._tell_if_moved(self._shared.transact(self._rewind))
        except ConsumerBusy:
            return  # taken for dead: another consumer has it

    def redeliver_entries(self, entries: Sequence[Entry]) -> bool:
        """Redeliver everything: redelivering single entries would break the order."""
        self.redeliver()
        return True

    def _rewind(self, state: SubscriptionState) -> bool:
        was_moved = self._follow(state)
        self._reader.rewind(state)
        return was_moved
