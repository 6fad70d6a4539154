"""What an operator does to a subscription without being one of its consumers: acknowledge, and give back.

No command of the state machine is made for this. An acknowledgement needs a consumer. If none is attached,
one attaches, acknowledges and leaves in a single commit. If consumers claim their entries, the first of them
acknowledges. An active consumer has a read position of its own, which goes back to the mark-delete position:
a seek to where the subscription is, which keeps what was acknowledged behind it. The consumer reads from
there and leaves out what is acknowledged (docs/decisions/0165).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from embeddedpulsar._engine.format.acknowledgement import FORM_RANGE, Ack, AckBatch, AckGroup, group_entries
from embeddedpulsar._engine.format.entry_decoder import EntryView
from embeddedpulsar._engine.format.subscription_record import (
    DETACH_CLOSED,
    Attach,
    Command,
    Detach,
    Expired,
    Ledgers,
    Limits,
    Seek,
)
from embeddedpulsar._engine.platform.timing import Clock
from embeddedpulsar._engine.subscription.ack_ring import with_unwritten_acks
from embeddedpulsar._engine.subscription.attachment.active_attachment import unacked_entries
from embeddedpulsar._engine.subscription.log_queries import (
    acknowledged_in,
    ledgers_of,
    messages_left,
    news_for,
)
from embeddedpulsar._engine.subscription.shared_state import SharedState
from embeddedpulsar._engine.subscription.state.replica import HOUSEKEEPER, SubscriptionState
from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.message_id import BEFORE_FIRST, Position
from embeddedpulsar.records import TYPE_CHECKING
from embeddedpulsar.settings import BrokerSettings

if TYPE_CHECKING:
    from typing import Final

    from embeddedpulsar._engine.log.log import Log

_NAME: Final = "operator"
_AT_ONCE: Final = 100_000
"""Of one command; a record has at most 16 MiB."""


class OperatorCommands:
    """Acknowledges in the name of no consumer, and has entries delivered again.

    Role: each method is one commit: after a crash all of it holds, or nothing. Consumers of all processes
    follow it as they follow each other. Callers: any thread.

    Args:
        shared: the state of a subscription that exists.
        log: of its topic.
        uuid: the lease of this process.
        clock: stamps commands.
    """

    def __init__(self, shared: SharedState, log: Log, uuid: bytes, clock: Clock) -> None:
        self._shared: Final = shared
        self._log: Final = log
        self._uuid: Final = uuid
        self._clock: Final = clock

    def unacked_entries(self) -> Iterator[EntryView]:
        """The entries that are not acknowledged, in order, chunked messages whole, up to the tail."""
        return unacked_entries(self._log, self._shared.transact)

    def skip(self, count: int) -> int:
        """Acknowledge the first ``count`` messages that are not acknowledged; returns how many there were."""
        entries: list[Position] = []
        batches: list[AckBatch] = []
        remaining, facts = count, ledgers_of(self._log)
        # First what consumers acknowledged and did not write: it is not to be counted among the
        # messages that are skipped.
        self._shared.transact(lambda state: self._write_acks(state, facts))
        for view in self.unacked_entries():
            if remaining <= 0:
                break
            indexes = _unacked_indexes(view)
            if len(indexes) <= remaining:
                entries.append(Position(view.ledger_id, view.entry_id))
                remaining -= len(indexes)
            else:
                # The last entry is a batch with more messages than are left to skip: its first ones
                # are acknowledged.
                mask = sum(1 << index for index in indexes[:remaining])
                batches.append(AckBatch(view.ledger_id, view.entry_id, view.count, mask))
                remaining = 0
        self.acknowledge_messages(entries, batches)
        return count - remaining

    def acknowledge_messages(self, entries: Sequence[Position], batches: Sequence[AckBatch] = ()) -> None:
        """Acknowledge entries, all parts of those that end chunked messages, and parts of batches."""
        self.acknowledge(group_entries([*entries, *self._parts_of(entries)]), batches)

    def _parts_of(self, entries: Sequence[Position]) -> list[Position]:
        """The other parts of those of the entries that end chunked messages."""
        chunks, wanted = self._log.chunks(), set(entries)
        parts: list[Position] = []
        for group in group_entries(entries):
            for place in chunks.last_parts.between(group.ledger_id, group.first, group.last):
                if place in wanted:
                    parts += chunks.parts_of(place)
        return parts

    def skip_through(self, position: Position, *, is_expiry: bool = False) -> None:
        """Acknowledge everything up to and including ``position``.

        Args:
            is_expiry: whether the messages count as expired.
        """
        self.acknowledge(self._groups_through(position), expires=position if is_expiry else None)

    def expire_through(self, position: Position, *, is_expiry: bool) -> bool:
        """As `skip_through`, but consumers do not go back: they keep what they hold, and leave out the rest.

        Returns:
            Whether there was anything to acknowledge.
        """
        groups = self._groups_through(position)
        return self.acknowledge(groups, rewinds=False, expires=position if is_expiry else None)

    def limit_unacked(self, settings: BrokerSettings) -> bool:
        """Have the consumers there are follow the limits of unacknowledged messages that hold now.

        Returns:
            Whether another limit held for one of them.
        """

        def body(state: SubscriptionState) -> bool:
            # Read under the lock: the process that comes last knows the last policy.
            each, in_all = settings.maxUnackedMessagesPerConsumer, settings.maxUnackedMessagesPerSubscription
            dispatch, consumers = state.dispatch, state.consumers.each()
            is_other = dispatch.most_unacked != in_all or any(
                consumer.rules.max_unacked != each for consumer in consumers
            )
            if dispatch.assigned_by_consumer and is_other:
                self._shared.commit([Limits(each, in_all)])
                return True
            return False

        return self._shared.transact(body)

    def end_if_idle(self, since_ms: int) -> bool:
        """End the subscription if it has no consumers, and had none since that time, in ms.

        If a release stored its state that did not note this time, it counts from now on.
        """

        def body(state: SubscriptionState) -> bool:
            if not state.exists or len(state.consumers):
                return False
            # A consumer that comes and leaves stamps the time.
            if not state.last_active_ms:
                self._shared.commit(self._for_a_moment(state, _NAME, []))
            elif state.last_active_ms <= since_ms:
                self._shared.remove()
                return True
            return False

        return self._shared.transact(body)

    def _for_a_moment(
        self, state: SubscriptionState, name: str, commands: Sequence[Command]
    ) -> list[Command]:
        """Commands between the coming and the going of a consumer."""
        following = state.epoch + 1  # the id is the epoch: no earlier consumer has it
        now_ms = self._clock.wall_ms()
        joining = Attach(following, name, ConsumerType.Exclusive, 0, self._uuid, now_ms)
        return [joining, *commands, Detach(following, DETACH_CLOSED)]

    def _groups_through(self, position: Position) -> list[AckGroup]:
        # What waits for a transaction was not delivered, and is not skipped: it comes when that commits.
        position = min(position, self._log.max_read_position() or BEFORE_FIRST)
        # The position may move on until the commit: what is acknowledged twice has no effect.
        start = self._shared.transact(lambda state: state.mark_delete).next()
        groups = []
        for segment in self._log.segments():
            ledger_id = segment.ledger_id
            if start.ledger_id <= ledger_id <= position.ledger_id:
                first = start.entry_id if ledger_id == start.ledger_id else 0
                last = segment.entries - 1
                if ledger_id == position.ledger_id:
                    last = min(last, position.entry_id)
                if first <= last:
                    groups.append(AckGroup(ledger_id, first, last, FORM_RANGE, b""))
        return groups

    def acknowledge(
        self,
        groups: Sequence[AckGroup],
        batches: Sequence[AckBatch] = (),
        *,
        rewinds: bool = True,
        expires: Position | None = None,
    ) -> bool:
        """Acknowledge entries, which must be in the log, and parts of batches. Nothing is written if they are
        acknowledged already.

        Args:
            groups, batches: what to acknowledge.
            rewinds: whether an active consumer goes back to the first message that is left.
            expires: the last position of ``groups``, if their messages count as expired.

        Returns:
            Whether something was written.
        """
        facts = ledgers_of(self._log)
        expiry = None if expires is None or not groups else ExpiryCount(self._log, self._shared, expires)

        def body(state: SubscriptionState) -> bool:
            if expiry is not None and state.exists:
                self._write_acks(state, facts)  # what consumers acknowledged does not expire
            # Some may have been acknowledged since the log was read.
            unacked = [group for group in groups if not state.acks.has(group)]
            if not state.exists or not (unacked or batches):
                return False
            # Consumers of Exclusive and Failover have no assigned entries: the active one reads for
            # itself.
            is_active = state.consumers.consumer_type is not None and not state.dispatch.assigned_by_consumer
            # The rewind voids what the consumer collected and did not write, so that is written
            # before.
            if is_active and rewinds:
                self._write_acks(state, facts)
            elif is_active:
                self._shared.control.announce()  # it looks what is acknowledged before it reads on
            commands = self._acknowledging(state, facts, unacked, batches, rewinds=rewinds)
            if expiry is not None and (messages := expiry.messages(state)):
                commands.append(Expired(messages, self._clock.wall_ms()))
            self._shared.commit(commands)
            return True

        return bool(groups or batches) and self._shared.transact(body)

    def give_back(self) -> bool:
        """Have everything that consumers hold and did not acknowledge delivered again.

        Returns:
            False, and nothing done, if no consumer is attached.
        """
        facts = ledgers_of(self._log)

        def body(state: SubscriptionState) -> bool:
            consumers = state.consumers.all()
            if consumers:
                self._write_acks(state, facts)
                self._shared.commit([*_rewind(state, facts), *_kept(state, consumers[0].consumer_id)])
            return bool(consumers)

        return self._shared.transact(body)

    def _write_acks(self, state: SubscriptionState, facts: Ledgers) -> None:
        """Commit what consumers acknowledged and did not write yet: it would be void after a rewind."""
        shared = self._shared
        # The files are read as those of consumers that leave, and the departures are left out: they
        # stay attached.
        leaving = [Detach(consumer.consumer_id, DETACH_CLOSED) for consumer in state.consumers.all()]
        departures = with_unwritten_acks(
            state, shared.directory, shared.control.boot_id, leaving, lambda: facts
        )
        commands = [command for command in departures if type(command) is not Detach]
        if commands:
            shared.commit(commands)

    def _acknowledging(
        self,
        state: SubscriptionState,
        facts: Ledgers,
        groups: Sequence[AckGroup],
        batches: Sequence[AckBatch],
        *,
        rewinds: bool,
    ) -> list[Command]:
        news, following = news_for(state, facts), state.epoch + 1
        consumers = state.consumers.all()
        if not consumers:
            # Under the name of the housekeeper its coming does not count as use of the subscription.
            name = _NAME if rewinds else HOUSEKEEPER
            return self._for_a_moment(state, name, [*news, *_acks(following, following, groups, batches)])
        first = consumers[0]
        # No read position has to go back: any consumer acknowledges for all.
        if state.dispatch.assigned_by_consumer or not rewinds:
            return [*news, *_acks(first.consumer_id, first.epoch, groups, batches)]
        # Under the epoch that the rewind leads to: first what was acknowledged behind the position,
        # which it voided, then the new ones.
        kept = _kept(state, first.consumer_id)
        return [*_rewind(state, facts), *kept, *_acks(first.consumer_id, following, groups, batches)]


class ExpiryCount:
    """Counts what is about to expire: without the lock, and under it only what others acknowledged meanwhile.

    Args:
        log: of the topic.
        shared: the state of the subscription.
        through: the last position that expires.
    """

    def __init__(self, log: Log, shared: SharedState, through: Position) -> None:
        self._log: Final = log
        self._through: Final = through
        self._seen: Final = shared.transact(lambda state: acknowledged_in(state, through))
        # Without the lock, because it may read the index of many segments.
        self._messages: Final = messages_left(log, self._seen, through)

    def messages(self, state: SubscriptionState) -> int:
        """The messages that are not acknowledged yet. Inside a transaction."""
        now = acknowledged_in(state, self._through)
        # Counted again under the lock only if consumers acknowledged some of it meanwhile.
        return self._messages if now == self._seen else messages_left(self._log, now, self._through)


def _rewind(state: SubscriptionState, facts: Ledgers) -> list[Command]:
    """The commands that put all consumers back to the mark-delete position; what is acknowledged behind it is
    forgotten."""
    listed = tuple(ledger for ledger in facts.listed if ledger[0] >= state.mark_delete.ledger_id)
    return [Seek(*state.mark_delete), Ledgers(listed)]


def _kept(state: SubscriptionState, consumer_id: int) -> list[Command]:
    """The commands that acknowledge again, after `_rewind`, what is acknowledged behind the mark-delete
    position, be it in transactions that are open."""
    groups = [AckGroup(*run, FORM_RANGE, b"") for run in state.acks.runs()]
    batches = [AckBatch(*partial) for partial in state.acks.partials()]
    following = state.epoch + 1
    return [
        *_acks(consumer_id, following, groups, batches),
        *state.pending_acks.acks_again(consumer_id, following),
    ]


def _acks(
    consumer_id: int, epoch: int, groups: Sequence[AckGroup], batches: Sequence[AckBatch]
) -> Iterator[Ack]:
    for start in range(0, len(groups), _AT_ONCE):
        yield Ack(consumer_id, epoch, tuple(groups[start : start + _AT_ONCE]), ())
    for start in range(0, len(batches), _AT_ONCE):
        yield Ack(consumer_id, epoch, (), tuple(batches[start : start + _AT_ONCE]))


def _unacked_indexes(view: EntryView) -> list[int]:
    skip = view.skip or 0
    assert isinstance(skip, int)  # of `unacked_entries`
    return [index for index in range(view.count) if not skip >> index & 1]
