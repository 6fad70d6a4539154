"""Looks on at a simulated subscription, and compares each step with what was to be expected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, cast

from embeddedpulsar._engine.format.control import KIND_SUBSCRIPTION, SubscriptionWord
from embeddedpulsar._engine.log.journal import Journal
from embeddedpulsar._engine.log.journal_file import JournalPlace
from embeddedpulsar._engine.subscription.shared_state import OpenRange
from embeddedpulsar._engine.subscription.state.entry_states import WAITING
from embeddedpulsar._engine.subscription.state.replica import (
    SubscriptionReplica,
    SubscriptionState,
    decode_snapshot,
    encode_snapshot,
)
from embeddedpulsar._engine.subscription.subscription_files import SubscriptionControl
from embeddedpulsar.message_id import Position
from tests.storms.dispatch import dispatch_audit as audit
from tests.storms.dispatch.dispatch_model import NOTHING, DispatchModel
from tests.storms.dispatch.dispatch_setup import DispatchSetup
from tests.storms.dispatch.virtual_consumer import VirtualConsumer
from tests.storms.dispatch.virtual_log import VirtualView

if TYPE_CHECKING:
    from embeddedpulsar._engine.log.log import Log

MOST_LOOK_AHEAD: Final = 20_000


class DispatchJudge:
    """Role: a replica of its own that publishes nothing, so that looking on heals nothing.

    Attributes:
        seen: what the state was after the last step.
        closed: consumers that left in good order during this step.
    """

    def __init__(self, directory: str, setup: DispatchSetup, model: DispatchModel) -> None:
        self.seen = NOTHING
        self.closed: set[int] = set()
        self._held: dict[int, int] = {}
        self._setup: Final = setup
        self._model: Final = model
        self._control: Final = SubscriptionControl.open(directory)
        self._open_range: Final = OpenRange(self._control, cast("Log", model.log))
        self._replica: Final = SubscriptionReplica()
        place = JournalPlace(directory, self._control.words, SubscriptionWord.JOURNAL, KIND_SUBSCRIPTION)
        self._journal: Final = Journal(place, self._replica)

    @property
    def state(self) -> SubscriptionState:
        """The state now, with what a consumer that is alone took and no transaction has assigned yet."""
        self._journal.catch_up()
        state = self._replica.state
        command = self._open_range.assignment(state) if self._open_range.owner else None
        if command is None:
            return state
        following = decode_snapshot(encode_snapshot(state))
        following.apply(command)
        return following

    def close(self) -> None:
        """Give the files back."""
        self._journal.close()
        self._control.close()

    def is_current(self, consumer: VirtualConsumer) -> bool:
        """Whether what a consumer has is not void."""
        attachment = consumer.attachment
        return self.state.consumers.is_current(attachment.consumer_id, attachment.epoch)

    def owned(self, consumer: VirtualConsumer) -> set[Position]:
        """The entries that are a consumer's, after the last step."""
        code = self.seen.members.get(consumer.attachment.consumer_id)
        return {position for position, owner in self.seen.owners.items() if owner == code}

    # -- after a step ------------------------------------------------------------------------------

    def was_moved(self) -> bool:
        """Whether a seek was the last that happened: all consumers have the newest epoch."""
        state = self.state
        return (
            all(one.epoch == state.epoch for one in state.consumers.all()) and state.epoch > self.seen.epoch
        )

    def resync(self) -> None:
        """A step was cut short: what it did is what the state says, whatever that is."""
        state, model = self.state, self._model
        model.acked = {one.position for one in model.log.entries if state.acks.is_acked(one.position)}
        indexes = {one.position: state.acks.indexes(one.position) for one in model.log.entries}
        model.partial = {one: number for one, number in indexes.items() if number}
        self.seen = audit.see(state, model.log)
        resting = {
            Position(ledger, one): count
            for ledger, *kept in state.dispatch.counts.pack()
            for one, count in kept
        }
        # A part of a chunked message has no count of its own; it is not known as such before it is read.
        parts = {one.position for one in model.log.entries if not one.count}
        model.counts = {one: count for one, count in resting.items() if one not in parts} | self.seen.counts
        model.joined = dict(state.dispatch.joined)
        audit.adopt_transactions(state, model)
        model.must_ask = True  # one may have aborted in this step

    def after(self, consumers: dict[int, VirtualConsumer], views: list[VirtualView]) -> Iterator[str]:
        """What is wrong after a step in which ``views`` were fetched."""
        before, state, model, setup = self.seen, self.state, self._model, self._setup
        after = self.seen = audit.see(state, model.log)
        for one in model.open_transactions - set(state.pending_acks.transactions):
            returned = model.end(one, setup.is_shared or not after.members)
            model.handed.update(returned)  # later messages of their keys may have been handed out meanwhile
            for each in consumers.values() if setup.is_shared else ():
                each.forget(returned)
        audit.forget_below(state, model)
        audit.note_expired(state, model, before.mark_delete)
        if setup.is_shared:
            gone = set(before.members) - set(after.members)
            for consumer_id in gone - self.closed:
                code, consumer = before.members[consumer_id], consumers.get(consumer_id)
                for position in [one for one, owner in before.owners.items() if owner == code]:
                    if consumer is not None and position in consumer.seen and position not in model.acked:
                        model.count(position)
            if before.members and not set(before.members) & set(after.members):
                model.joined.clear()
            yield from audit.wrong_places(state, after, model)
            yield from audit.wrong_keys(state, after, model, setup.is_ordered)
            yield from audit.wrong_limits(state, setup.batch, self._held)
            yield from audit.wrong_delays(state.dispatch, after, model)
            if before.members == after.members and before.read != after.read and setup.kind != "shared":
                yield from self._beyond_look_ahead(list(before.owners.values()).count(WAITING))
        yield from audit.wrong_acks(state, model, before.mark_delete)
        yield from audit.wrong_transactions(state, model)
        if self._replica.has_diverged:
            yield "a checkpoint does not agree"
        for view in views:
            yield from self._wrong_view(view)
        self.closed.clear()

    def _beyond_look_ahead(self, before: int) -> Iterator[str]:
        most = min(self._setup.look_ahead * len(self.seen.members), MOST_LOOK_AHEAD)
        waiting = list(self.seen.owners.values()).count(WAITING)
        if waiting > max(before, most):
            yield f"{waiting} entries are held back, where {most} may be"

    def _wrong_view(self, view: VirtualView) -> Iterator[str]:
        position, model = Position(view.ledger_id, view.entry_id), self._model
        if position in model.acked:
            yield f"{position} is acknowledged, and was delivered"
        if not model.is_free(view.origin):
            yield f"{position} is in transactions, and was delivered"
        skip = model.partial.get(position, 0) | model.hidden(position)
        if (view.skip or 0) != skip:
            yield f"{position} was delivered without {view.skip}, not {skip}"
        if view.redelivery_count != (model.counts.get(position, 0) if self._setup.is_shared else 0):
            yield f"{position} was delivered with count {view.redelivery_count}, not {model.counts}"
        if self._setup.is_shared and view.origin.deliver_at > model.latest_ms:
            yield f"{position} was delivered {view.origin.deliver_at - model.latest_ms} ms early"

    # -- consumers ---------------------------------------------------------------------------------

    def take_away(self, consumer: VirtualConsumer) -> None:
        """A call that gave entries back was cut short: what is not a consumer's own any more comes again."""
        if self._setup.is_shared and self.is_current(consumer):
            mine = self.owned(consumer) | self._model.acked | set(self._model.held)
            fetched = {Position(view.ledger_id, view.entry_id) for view in consumer.queue}
            consumer.forget(sorted(fetched - mine))

    def wrong_queue(self, consumer: VirtualConsumer) -> Iterator[str]:
        """What a consumer fetched and has not handed out is its own."""
        if not self._setup.is_shared or not self.is_current(consumer):
            return
        mine, found = self.owned(consumer), set()
        for view in consumer.queue:
            position = Position(view.ledger_id, view.entry_id)
            if position in found:
                yield f"{consumer} has {position} twice"
            if position not in mine and position not in self._model.acked | set(self._model.held):
                yield f"{consumer} has {position}, which is not its own"
            found.add(position)

    def wrong_order(self, consumer: VirtualConsumer, view: VirtualView) -> Iterator[str]:
        """An entry was handed out: within its key, for the first time, after those before it."""
        model, entry = self._model, view.origin
        position = entry.position
        if not self.is_current(consumer) or position in model.handed or position in model.acked:
            return
        model.handed.add(position)
        if self._setup.is_ordered and not entry.deliver_at:
            last = model.first.get(entry.key)
            if last is not None and last > position:
                yield f"{position} of key {entry.key} was handed out after {last}"
            model.first[entry.key] = position

    def wrong_sequence(self, consumer: VirtualConsumer, views: list[VirtualView]) -> Iterator[str]:
        """An active consumer gets every unacknowledged entry, in order."""
        model = self._model
        for view in views:
            position = Position(view.ledger_id, view.entry_id)
            expected = {model.next_free(consumer.last)}
            if consumer.may_start_over:
                expected.add(model.next_free(Position(0, -1)))
            if position not in expected:
                yield f"{consumer} got {position} behind {consumer.last}, where {expected} was next"
            consumer.may_start_over = False
            consumer.last = position

    def wrong_active(self, consumers: list[VirtualConsumer], got: VirtualConsumer | None) -> Iterator[str]:
        """One consumer is active, and nobody else gets anything."""
        state = self.state
        active = audit.active_of(state, self._setup.partition)
        for consumer in consumers:
            is_active = consumer.attachment.consumer_id == active
            if not is_active:
                consumer.may_start_over = True
                if consumer is got:
                    yield f"{consumer} got entries, and {active} is active"
