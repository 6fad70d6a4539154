"""Consumers of a non-persistent topic: what the application gets counts as acknowledged, and comes once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from embeddedpulsar._engine.format import subscription_record as record
from embeddedpulsar._engine.format.acknowledgement import Ack, group_entries
from embeddedpulsar._engine.format.entry_decoder import RawPosition
from embeddedpulsar._engine.platform.timing import BackgroundWork
from embeddedpulsar._engine.subscription.attachment.active_attachment import ActiveAttachment
from embeddedpulsar._engine.subscription.attachment.attachment import Attachment
from embeddedpulsar._engine.subscription.attachment.shared_attachment import SharedAttachment
from embeddedpulsar._engine.subscription.log_queries import ledgers_of, news_for
from embeddedpulsar._engine.subscription.subscription_files import given_word
from embeddedpulsar.exceptions import AlreadyClosed, ConsumerAssignError, ConsumerBusy
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, Final

    from embeddedpulsar._engine.format.entry import EntryView
    from embeddedpulsar._engine.subscription.state.dispatch_state import Consumer
    from embeddedpulsar._engine.subscription.state.replica import SubscriptionState

GIVEN: Final = bytearray(2)
"""Stands in `EntryView.acked` of an entry of one message that the application was given. Entries of several
have a byte more than messages there, too: so no acknowledgement fills them, and none is written."""
_SETTLE_AFTER_S: Final = 0.1
_SETTLE_AT: Final = 1000


class _OnceDelivered(Attachment, ABC):
    """A consumer that gets each message at most once, and never one from before it came.

    Role: counts, in a word of its slot, the messages its application was given, and acknowledges them by
    itself a little later. What was dropped follows from these counts, also after a SIGKILL.
    Invariants: `given` is called before the application has the first message of an entry; from then on the
    entry is delivered to no consumer again. Nothing is ever given back on request.
    """

    given_at: int
    count: int
    _settling: BackgroundWork
    is_waiting: bool
    last: EntryView | None

    def begin(self) -> None:
        """Called once, when the consumer is attached."""
        self._settling = BackgroundWork(self._membership.call_later, self._acknowledge_given)
        self.is_waiting = False
        self.last = None
        self._count_on()

    def _count_on(self) -> None:
        """Find the word of this consumer, which goes on where the last consumer with its code left it."""
        self.given_at = given_word(self.code)
        self.count = self.words[self.given_at]

    def given(self, view: EntryView) -> None:
        """Note that the application gets the first message of an entry. May be repeated."""
        # Counted already: this is a further message of the entry.
        if view.acked is not None:
            return
        count = view.count
        view.acked, self.last = GIVEN if count == 1 else bytearray(count + 1), view
        try:
            # Stored before the application has the message: after a SIGKILL it counts as delivered,
            # and does not come twice.
            self.words[self.given_at] = self.count = self.count + count
        except ValueError:
            return  # closed meanwhile
        # One timer acknowledges everything that is given until it fires.
        if not self.is_waiting:
            self.is_waiting = True
            self._settling.after(_SETTLE_AFTER_S)

    @abstractmethod
    def _acknowledge_given(self) -> None:
        """Acknowledge what the application was given."""

    def _own(self, state: SubscriptionState) -> Consumer:
        before = self.consumer_id
        consumer = super()._own(state)
        # It joined again, perhaps with another code.
        if consumer.consumer_id != before:
            self._count_on()
        return consumer

    def redeliver(self) -> None:
        """Do nothing: no message comes twice."""

    def redeliver_entries(self, entries: Sequence[RawPosition]) -> bool:
        """Do nothing, and return False: no message comes twice."""
        return False

    def mark_left(self) -> None:
        super().mark_left()
        self._settling.cancel()


class VolatileActiveAttachment(_OnceDelivered, ActiveAttachment):
    """A consumer of Exclusive or Failover: it begins at the end of the log whenever it becomes active."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.begin()

    def _acknowledge_given(self) -> None:
        self.is_waiting = False  # first: what is given from here on is settled later
        last = self.last
        if last is not None and self.is_attached and self._is_active:
            self.acknowledge_cumulative(last.ledger_id, last.entry_id)

    def _adopt_state(self, state: SubscriptionState) -> bool:
        was_active = self._is_active
        was_moved = super()._adopt_state(state)
        # What was appended before is acknowledged and not delivered: it came for the consumer that
        # was active then.
        if self._is_active and not was_active:
            last = self._log.last_position()
            if last is not None and last > state.mark_delete:
                through = record.AckCumulative(self.consumer_id, self.epoch, *last, -1, 0)
                self._shared.commit([*news_for(state, ledgers_of(self._log)), through])
            self._reader.rewind(state)
        return was_moved


class VolatileSharedAttachment(_OnceDelivered, SharedAttachment):
    """A consumer of Shared or Key_Shared: what it was assigned and its application was not given goes to the
    others when it leaves."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._done: list[RawPosition] = []
        self.begin()

    def handed(self, view: EntryView) -> bool:
        if not super().handed(view):
            return False
        if view.acked is None:
            self._done.append((view.ledger_id, view.entry_id))
        self.given(view)
        # The list does not grow on while messages come fast.
        if len(self._done) >= _SETTLE_AT:
            self._settling.run()
        return True

    def _acknowledge_given(self) -> None:
        self.is_waiting = False
        if self._done and self.is_attached:
            try:
                self._shared.transact(self._commit_given)
            except (AlreadyClosed, ConsumerBusy, ConsumerAssignError):
                return  # others have settled for it

    def _commit_given(self, state: SubscriptionState) -> None:
        # Other threads append meanwhile: what is beyond this number is left for the next time.
        count = len(self._done)
        if count and state.consumers.is_current(self.consumer_id, self.epoch):
            groups = group_entries(self._done[:count])
            self._shared.commit([Ack(self.consumer_id, self.epoch, groups, ())])
        del self._done[:count]
