"""The replicated state machine against a model that is nothing but a set of acknowledged messages."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from embeddedpulsar._engine.format import subscription_record as record
from embeddedpulsar._engine.format.acknowledgement import Ack, group_batches, group_entries
from embeddedpulsar._engine.subscription.state.replica import (
    STALE,
    SubscriptionState,
    checkpoint_of,
    decode_snapshot,
    encode_snapshot,
)
from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.message_id import Position


class Log:
    """The topic as the subscription sees it: ledgers, and how many messages each entry holds."""

    def __init__(self) -> None:
        self.ledgers: dict[int, list[int]] = {1: []}
        self.closed: set[int] = set()

    def positions(self) -> list[Position]:
        return [Position(at, entry) for at, sizes in self.ledgers.items() for entry in range(len(sizes))]

    def listed(self, first: int) -> tuple[tuple[int, int], ...]:
        return tuple(
            (at, len(sizes) if at in self.closed else -1) for at, sizes in self.ledgers.items() if at >= first
        )


class SubscriptionMachine(RuleBasedStateMachine):
    """Every command goes through its codec into two replicas; one of them is now and then replaced by its own
    snapshot. The model keeps a set of (position, batch index)."""

    acks = Bundle("acks")

    def __init__(self) -> None:
        super().__init__()
        self.log = Log()
        self.state, self.replica = SubscriptionState(), SubscriptionState()
        self.acked: set[tuple[Position, int]] = set()
        self.consumer = (0, 0)
        self.apply(record.Create("s", 1, 1, -1))

    def apply(self, command: record.Command) -> int:
        effects = self.state.apply(command)
        kind, payload = record.encode(command)
        assert record.decode(kind, payload) == command
        assert self.replica.apply(record.decode(kind, payload)) == effects
        return effects

    def learn(self) -> None:
        self.apply(record.Ledgers(self.log.listed(self.state.mark_delete.ledger_id)))

    def size(self, position: Position) -> int:
        return self.log.ledgers[position.ledger_id][position.entry_id]

    def ack_whole(self, position: Position) -> None:
        self.acked.update((position, index) for index in range(self.size(position)))

    # -- the topic

    @rule(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=40))
    def publish(self, sizes: list[int]) -> None:
        self.log.ledgers[max(self.log.ledgers)] += sizes

    @rule(gap=st.integers(1, 3), learned=st.booleans())
    def roll(self, gap: int, learned: bool) -> None:
        last = max(self.log.ledgers)
        self.log.closed.add(last)
        self.log.ledgers[last + gap] = []
        if learned:
            self.learn()

    @precondition(lambda self: len(self.log.ledgers) > 1)
    @rule()
    def trim(self) -> None:
        del self.log.ledgers[min(self.log.ledgers)]
        self.learn()

    @precondition(lambda self: self.log.positions())
    @rule(data=st.data())
    def power_loss(self, data: st.DataObject) -> None:
        last = data.draw(st.sampled_from(self.log.positions()))
        newest = max(self.log.ledgers)
        self.log.ledgers = {at: sizes for at, sizes in self.log.ledgers.items() if at <= last.ledger_id}
        del self.log.ledgers[last.ledger_id][last.entry_id + 1 :]
        self.apply(record.Clamp(*last))
        self.log.closed.add(last.ledger_id)
        self.log.ledgers[newest + 1] = []
        self.learn()

    # -- consumers

    @rule()
    def attach(self) -> None:
        if self.consumer[0]:
            self.apply(record.Detach(self.consumer[0], record.DETACH_DEAD))
        consumer_id = self.state.epoch + 1
        self.apply(record.Attach(consumer_id, "c", ConsumerType.Exclusive, 0, bytes(16), 5))
        self.consumer = (consumer_id, self.state.epoch)

    @rule()
    def detach(self) -> None:
        self.apply(record.Detach(self.consumer[0], record.DETACH_CLOSED))

    @rule(each=st.integers(0, 9), in_all=st.integers(0, 9))
    def limit(self, each: int, in_all: int) -> None:
        self.apply(record.Limits(each, in_all))

    @rule(messages=st.integers(1, 9), time_ms=st.integers(0, 1 << 40))
    def expire(self, messages: int, time_ms: int) -> None:
        before = self.state.expired.total
        self.apply(record.Expired(messages, time_ms))
        assert self.state.expired.total == before + messages

    @precondition(lambda self: self.log.positions())
    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        to = data.draw(st.sampled_from(self.log.positions()))
        self.apply(record.Seek(*to))
        self.acked.clear()
        for position in self.log.positions():
            if position <= to:
                self.ack_whole(position)
        consumer = self.state.consumers.get(self.consumer[0])
        if consumer is not None:
            self.consumer = (consumer.consumer_id, consumer.epoch)

    # -- acknowledgements: collected first and sent later, as a consumer groups them

    @precondition(lambda self: self.log.positions())
    @rule(target=acks, data=st.data())
    def collect(self, data: st.DataObject) -> tuple[tuple[int, int], list[Position], dict[Position, int]]:
        positions = self.log.positions()
        whole = data.draw(st.lists(st.sampled_from(positions), max_size=len(positions)))
        parts = data.draw(st.dictionaries(st.sampled_from(positions), st.integers(0, 15), max_size=4))
        return self.consumer, whole, parts

    @rule(ack=consumes(acks))
    def acknowledge(self, ack: tuple[tuple[int, int], list[Position], dict[Position, int]]) -> None:
        (consumer_id, epoch), whole, parts = ack
        there = set(self.log.positions())
        whole = [position for position in whole if position in there]
        parts = {at: indexes & (1 << self.size(at)) - 1 for at, indexes in parts.items() if at in there}
        self.learn()
        batches = group_batches({at: (indexes, self.size(at)) for at, indexes in parts.items()})
        effects = self.apply(Ack(consumer_id, epoch, group_entries(whole), batches))
        current = self.state.consumers.is_current(consumer_id, epoch)
        assert (effects & STALE == 0) == current
        if current:
            for position in whole:
                self.ack_whole(position)
            for position, indexes in parts.items():
                self.acked.update((position, i) for i in range(self.size(position)) if indexes >> i & 1)

    @precondition(lambda self: self.log.positions())
    @rule(data=st.data())
    def acknowledge_cumulative(self, data: st.DataObject) -> None:
        to = data.draw(st.sampled_from(self.log.positions()))
        size = self.size(to)
        index = data.draw(st.integers(-1, size - 1))
        self.learn()
        self.apply(record.AckCumulative(*self.consumer, *to, index, 0 if index < 0 else size))
        if self.state.consumers.is_current(*self.consumer):
            for position in self.log.positions():
                if position < to:
                    self.ack_whole(position)
            self.acked.update((to, i) for i in range(size) if index < 0 or i <= index)

    # -- replicas

    @rule()
    def restart(self) -> None:
        self.replica = decode_snapshot(encode_snapshot(self.replica))

    @invariant()
    def replicas_agree(self) -> None:
        assert checkpoint_of(self.state) == checkpoint_of(self.replica)

    @invariant()
    def acknowledged_is_what_the_model_says(self) -> None:
        acks = self.state.acks
        for position in self.log.positions():
            size = self.size(position)
            indexes = {i for i in range(size) if (position, i) in self.acked}
            assert acks.is_acked(position) == (len(indexes) == size), position
            if len(indexes) < size:
                assert acks.indexes(position) == sum(1 << i for i in indexes)

    @invariant()
    def mark_delete_is_before_the_first_unacknowledged(self) -> None:
        acks = self.state.acks
        unacked = [at for at in self.log.positions() if not acks.is_acked(at)]
        assert all(acks.is_acked(at) for at in self.log.positions() if at <= acks.mark_delete)
        if unacked:
            assert acks.mark_delete < unacked[0]
            known = [at for at, _ in acks.ledgers()]
            if unacked[0].ledger_id in known:
                assert acks.mark_delete == unacked[0].previous()
                start = acks.mark_delete.next()
                assert acks.next_unacked(start) == unacked[0]

    @invariant()
    def searches_agree_with_single_looks(self) -> None:
        acks = self.state.acks
        for at, ledger in acks.ledgers():
            entries = range(len(self.log.ledgers.get(at, ())))
            for entry in entries:
                following = [e for e in entries if e >= entry and not ledger.is_acked(e)]
                assert ledger.next_unacked(entry) == (
                    following[0] if following else max(ledger.floor, ledger.top)
                )
            runs = {e for first, last in ledger.runs() for e in range(first, last + 1)}
            assert runs == {e for e in entries if e > ledger.floor and ledger.is_acked(e)}


SubscriptionMachine.TestCase.settings = settings(stateful_step_count=30, deadline=None)
TestSubscription = SubscriptionMachine.TestCase
