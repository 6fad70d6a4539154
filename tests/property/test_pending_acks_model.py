"""Acknowledgements in and without transactions, in any order, against a model that knows single messages."""

from __future__ import annotations

from array import array
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from embeddedpulsar._engine.format import subscription_record as record
from embeddedpulsar._engine.format.acknowledgement import Ack, group_batches, group_entries
from embeddedpulsar._engine.format.subscription_record import (
    ABORTED,
    COMMITTED,
    STAY,
    AckedThrough,
    Assign,
    FreshRun,
    Redeliver,
    TransactionAck,
    TransactionCommits,
    TransactionEnd,
)
from embeddedpulsar._engine.subscription.state.entry_states import (
    FIRST_OWNER,
    IN_TRANSACTION,
    LAST_OWNER,
    WAITING,
)
from embeddedpulsar._engine.subscription.state.replica import (
    SubscriptionState,
    checkpoint_of,
    decode_snapshot,
    encode_snapshot,
)
from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.message_id import Position

Message = tuple[Position, int]
IDS = [(0, 1), (0, 2), (3, 1)]
TYPES = [ConsumerType.Exclusive, ConsumerType.Failover, ConsumerType.Shared, ConsumerType.KeyShared]
_SLOT = 0xFFFF


class PendingAcksMachine(RuleBasedStateMachine):
    """Every command goes through its codec into three replicas: one lives through all of them, one is now and
    then replaced by its own snapshot, one starts anew from a snapshot of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, list[int]] = {1: []}
        self.replicas = [SubscriptionState() for _ in range(3)]
        self.acked: set[Message] = set()
        self.held: dict[Message, tuple[int, int]] = {}
        self.through: tuple[tuple[int, int], AckedThrough] | None = None
        self.owner: dict[Position, int] = {}  # of entries that were read: a consumer, or 0 for any
        self.counts: Counter[Position] = Counter()
        self.keys: dict[Position, int] = {}
        self.type = ConsumerType.Exclusive
        self.apply(record.Create("s", 1, 1, -1))

    # -- helpers

    @property
    def state(self) -> SubscriptionState:
        return self.replicas[0]

    @property
    def is_shared(self) -> bool:
        return self.type in (ConsumerType.Shared, ConsumerType.KeyShared)

    def apply(self, command: record.Command) -> int:
        decoded = record.decode(*record.encode(command))
        assert decoded == command
        effects = [replica.apply(decoded) for replica in self.replicas]
        assert len(set(effects)) == 1
        self.forget_below()
        return effects[0]

    def forget_below(self) -> None:
        """What lies before the mark-delete position is pending no more."""
        mark_delete = self.state.mark_delete
        self.held = {message: one for message, one in self.held.items() if message[0] > mark_delete}
        if self.through is not None and self.through[1][:2] <= mark_delete:
            self.through = None

    def positions(self) -> list[Position]:
        return [Position(at, entry) for at, sizes in self.sizes.items() for entry in range(len(sizes))]

    def messages(self, position: Position) -> list[Message]:
        return [(position, index) for index in range(self.sizes[position.ledger_id][position.entry_id])]

    def is_acked(self, position: Position) -> bool:
        return all(message in self.acked for message in self.messages(position))

    def is_under(self, message: Message) -> bool:
        """Whether a cumulative acknowledgement is pending that covers a message."""
        if self.through is None:
            return False
        (position, index), through = message, self.through[1]
        rank = (*position, record.MAX_BATCH_SIZE if not through.is_partial else index)
        return position < through[:2] or (position == through[:2] and rank <= through.rank)

    def free(self, position: Position) -> int:
        """The messages that a consumer may get, as a bit set."""
        return sum(
            1 << message[1]
            for message in self.messages(position)
            if message not in self.acked and message not in self.held and not self.is_under(message)
        )

    def learn(self) -> None:
        newest = max(self.sizes)
        first = self.state.mark_delete.ledger_id
        listed = [(at, -1 if at == newest else len(sizes)) for at, sizes in self.sizes.items() if at >= first]
        self.apply(record.Ledgers(tuple(listed)))

    def ack_of(self, data: st.DataObject) -> tuple[Ack, set[Message], set[Position]]:
        """Of a consumer, or of none; with its messages, and the entries that are whole."""
        positions = self.positions()
        whole = set(data.draw(st.lists(st.sampled_from(positions), max_size=4)))
        parts = data.draw(st.dictionaries(st.sampled_from(positions), st.integers(1, 7), max_size=2))
        bits = {
            at: (indexes & (1 << len(self.messages(at))) - 1, len(self.messages(at)))
            for at, indexes in parts.items()
            if at not in whole
        }
        bits = {at: both for at, both in bits.items() if both[0]}
        consumer = data.draw(st.sampled_from(self.state.consumers.all()))
        ack = Ack(consumer.consumer_id, consumer.epoch, group_entries(sorted(whole)), group_batches(bits))
        messages = {message for position in whole for message in self.messages(position)}
        messages |= {(at, i) for at, (indexes, _) in bits.items() for i in range(3) if indexes >> i & 1}
        return ack, messages, whole

    def settle_owners(self) -> None:
        """Entries of which no message is left are nobody's."""
        for position in list(self.owner):
            if not self.free(position):
                del self.owner[position]

    def release(self, messages: set[Message]) -> None:
        """An aborted transaction had these."""
        for position in {position for position, _ in messages}:
            if not self.is_acked(position) and self.free(position):
                if position < self.state.dispatch.read and self.state.dispatch.assigned_by_consumer:
                    self.owner[position] = 0
                if self.is_shared or not len(self.state.consumers):
                    self.counts[position] += 1

    # -- the log

    @rule(sizes=st.lists(st.integers(1, 3), min_size=1, max_size=6))
    def publish(self, sizes: list[int]) -> None:
        self.sizes[max(self.sizes)] += sizes

    @precondition(lambda self: self.sizes[max(self.sizes)])
    @rule()
    def roll(self) -> None:
        self.sizes[max(self.sizes) + 1] = []
        self.learn()

    # -- consumers

    @rule(kind=st.sampled_from(TYPES))
    def attach(self, kind: ConsumerType) -> None:
        state = self.state
        if len(state.consumers):
            if self.type == ConsumerType.Exclusive or len(state.consumers) > 2:
                return
        else:
            self.type = kind
        rules = record.ConsumerRules(selector=1 if self.type == ConsumerType.KeyShared else 0)
        self.apply(record.Attach(state.epoch + 1, f"c{state.epoch}", self.type, 0, bytes(16), 5, rules))

    @precondition(lambda self: len(self.state.consumers))
    @rule(data=st.data(), reason=st.integers(0, 2))
    def detach(self, data: st.DataObject, reason: int) -> None:
        consumer = data.draw(st.sampled_from(self.state.consumers.all()))
        self.apply(record.Detach(consumer.consumer_id, reason))
        self.owner = {at: 0 if one == consumer.consumer_id else one for at, one in self.owner.items()}
        if not len(self.state.consumers):
            self.owner.clear()

    @precondition(lambda self: self.positions())
    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        to = data.draw(st.sampled_from(self.positions()))
        self.held, self.through = {}, None
        self.apply(record.Seek(*to))
        self.learn()
        self.owner.clear()
        self.counts.clear()
        self.acked = {message for at in self.positions() if at <= to for message in self.messages(at)}

    # -- dispatch

    @precondition(lambda self: self.state.dispatch.assigned_by_consumer)
    @rule(data=st.data(), number=st.integers(1, 6))
    def read(self, data: st.DataObject, number: int) -> None:
        read = self.state.dispatch.read
        unread = [at for at in self.positions() if at >= read]
        run = [at for at in unread if at.ledger_id == unread[0].ledger_id][:number] if unread else []
        if not run:
            return
        consumers = [*self.state.dispatch.assigned_by_consumer, 0]
        owners = {at: data.draw(st.sampled_from(consumers)) for at in run}
        hashes = {at: data.draw(st.sampled_from([3, 4])) for at in run}
        fresh = FreshRun(
            run[0].ledger_id,
            run[0].entry_id,
            run[-1].entry_id,
            array("I", [len(self.messages(at)) for at in run]),
            array("I", hashes.values()) if self.type == ConsumerType.KeyShared else None,
        )
        ranges = tuple([(one, *at, at.entry_id) for at, one in owners.items() if one])
        following = (run[-1].ledger_id, run[-1].entry_id + 1)
        self.apply(Assign(following, 0, (fresh,), (), ranges, ()))
        self.keys |= hashes
        self.owner |= owners
        self.settle_owners()

    @precondition(lambda self: any(not one for one in self.owner.values()))
    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        waiting = sorted(at for at, one in self.owner.items() if not one)
        chosen = data.draw(st.lists(st.sampled_from(waiting), min_size=1, unique=True))
        consumer = data.draw(st.sampled_from(sorted(self.state.dispatch.assigned_by_consumer)))
        ranges = tuple([(consumer, *at, at.entry_id) for at in chosen])
        self.apply(Assign(STAY, 0, (), (), ranges, ()))
        self.owner |= dict.fromkeys(chosen, consumer)

    @precondition(lambda self: self.state.dispatch.assigned_by_consumer and self.positions())
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.positions()), min_size=1, unique=True))
        consumer = data.draw(st.sampled_from(self.state.consumers.all()))
        groups = group_entries(chosen)
        self.apply(Redeliver(consumer.consumer_id, consumer.epoch, 0, groups))
        for at in chosen:
            if self.owner.get(at) == consumer.consumer_id:
                self.owner[at] = 0
                self.counts[at] += 1

    # -- acknowledgements

    @precondition(lambda self: len(self.state.consumers) and self.positions())
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        self.learn()
        ack, messages, _ = self.ack_of(data)
        self.acked |= messages
        self.apply(ack)
        self.settle_owners()

    @precondition(lambda self: len(self.state.consumers) and not self.is_shared and self.positions())
    @rule(data=st.data())
    def acknowledge_cumulative(self, data: st.DataObject) -> None:
        self.learn()
        through, consumer = self.draw_through(data), data.draw(st.sampled_from(self.state.consumers.all()))
        self.acked |= self.through_messages(through)
        self.apply(record.AckCumulative(consumer.consumer_id, consumer.epoch, *through))

    def draw_through(self, data: st.DataObject) -> AckedThrough:
        position = data.draw(st.sampled_from(self.positions()))
        size = len(self.messages(position))
        index = data.draw(st.integers(-1, size - 1))
        return AckedThrough(*position, index, 0 if index < 0 else size)

    def through_messages(self, through: AckedThrough) -> set[Message]:
        last = Position(through.ledger_id, through.entry_id)
        messages = {message for at in self.positions() if at < last for message in self.messages(at)}
        return messages | {
            message
            for message in self.messages(last)
            if not through.is_partial or message[1] <= through.batch_index
        }

    @precondition(lambda self: len(self.state.consumers) and self.positions())
    @rule(data=st.data(), one=st.sampled_from(IDS))
    def acknowledge_in_transaction(self, data: st.DataObject, one: tuple[int, int]) -> None:
        self.learn()
        ack, messages, whole = self.ack_of(data)
        conflicts = any(
            self.is_acked(message[0])
            or message in self.held
            or (message[0] not in whole and message in self.acked)
            for message in messages
        )
        command = TransactionAck(one, ack, None)
        assert bool(self.state.pending_acks.refusal(command, self.state.acks)) == conflicts
        if not conflicts:
            self.held |= dict.fromkeys(messages, one)
            self.apply(command)
            self.settle_owners()

    @precondition(lambda self: len(self.state.consumers) and not self.is_shared and self.positions())
    @rule(data=st.data(), one=st.sampled_from(IDS))
    def acknowledge_cumulative_in_transaction(self, data: st.DataObject, one: tuple[int, int]) -> None:
        self.learn()
        through, consumer = self.draw_through(data), data.draw(st.sampled_from(self.state.consumers.all()))
        conflicts = through[:2] <= self.state.mark_delete or (
            self.through is not None and (self.through[0] != one or through.rank <= self.through[1].rank)
        )
        command = TransactionAck(one, Ack(consumer.consumer_id, consumer.epoch, (), ()), through)
        assert bool(self.state.pending_acks.refusal(command, self.state.acks)) == conflicts
        if not conflicts:
            self.through = (one, through)
            self.apply(command)

    @rule(ids=st.lists(st.sampled_from(IDS), min_size=2, max_size=3, unique=True))
    def commit_several(self, ids: list[tuple[int, int]]) -> None:
        for one in ids:
            own, through = self.take_out(one)
            self.acked |= own
            if through is not None:
                self.acked |= self.through_messages(through)
        self.apply(TransactionCommits(tuple(ids), 9))
        self.settle_owners()

    def take_out(self, one: tuple[int, int]) -> tuple[set[Message], AckedThrough | None]:
        """What a transaction that ends has pending."""
        own = {message for message, holder in self.held.items() if holder == one}
        self.held = {message: holder for message, holder in self.held.items() if holder != one}
        through = None
        if self.through is not None and self.through[0] == one:
            through, self.through = self.through[1], None
        return own, through

    @rule(one=st.sampled_from(IDS), is_committed=st.booleans())
    def end(self, one: tuple[int, int], is_committed: bool) -> None:
        own, through = self.take_out(one)
        if is_committed:
            self.acked |= own
            if through is not None:
                self.acked |= self.through_messages(through)
        else:
            self.release(own)
            if through is not None and self.is_shared:
                self.give_free_entries()
        self.apply(TransactionEnd(one, COMMITTED if is_committed else ABORTED, 9))
        self.settle_owners()

    def give_free_entries(self) -> None:
        """What only a cumulative acknowledgement held waits, and was delivered to nobody."""
        for position in self.positions():
            if (
                position < self.state.dispatch.read
                and position > self.state.mark_delete
                and self.free(position)
            ):
                self.owner.setdefault(position, 0)

    # -- replicas

    @rule()
    def restart(self) -> None:
        self.replicas[1] = decode_snapshot(encode_snapshot(self.replicas[1]))

    @rule()
    def start(self) -> None:
        self.replicas[2] = decode_snapshot(encode_snapshot(self.state))

    @invariant()
    def replicas_agree(self) -> None:
        assert len({checkpoint_of(replica) for replica in self.replicas}) == 1
        assert len({encode_snapshot(replica) for replica in self.replicas}) == 1

    @invariant()
    def acknowledged_is_what_the_model_says(self) -> None:
        acks = self.state.acks
        for position in self.positions():
            indexes = sum(1 << i for at, i in self.messages(position) if (at, i) in self.acked)
            assert acks.is_acked(position) == self.is_acked(position), position
            if not self.is_acked(position):
                assert acks.indexes(position) == indexes

    @invariant()
    def pending_is_what_the_model_says(self) -> None:
        state, acks, pending = self.state, self.state.acks, self.state.pending_acks
        own = set(self.held.values()) | ({self.through[0]} if self.through else set())
        assert set(pending.transactions) == own
        assert pending.cumulative == (None if self.through is None else self.through[1])
        assert not pending.transactions or pending.last_touched >= max(
            [message[0] for message in self.held], default=Position(0, -1)
        )
        for position in self.positions():
            if self.is_acked(position):
                continue
            free, all_of_it = self.free(position), (1 << len(self.messages(position))) - 1
            assert pending.holds(position, acks) == (not free)
            if free:
                assert all_of_it & ~(pending.bits(position) | acks.indexes(position)) == free
                assert pending.next_open(position, acks) == position
        assert state.mark_delete < min(
            [at for at in self.positions() if not self.is_acked(at)], default=Position(1 << 40, 0)
        )

    @invariant()
    def entries_are_with_whom_the_model_says(self) -> None:
        dispatch, totals = self.state.dispatch, Counter[int]()
        assert bool(dispatch.assigned_by_consumer) == (self.is_shared and len(self.state.consumers) > 0)
        keys: Counter[int] = Counter()
        for position in self.positions():
            if not self.is_acked(position) and (self.is_shared or not len(self.state.consumers)):
                assert dispatch.redeliveries(*position) == self.counts[position], position
            if not dispatch.assigned_by_consumer or position >= dispatch.read or self.is_acked(position):
                continue
            code = dispatch.pending.state(*position)
            totals[code] += len(self.messages(position))
            if not self.free(position):
                assert code == IN_TRANSACTION, position
            elif not self.owner[position]:
                assert code == WAITING, position
            else:
                assert code == dispatch.assigned_by_consumer[self.owner[position]].code, position
                if self.type == ConsumerType.KeyShared:
                    keys[self.keys[position] & _SLOT] += 1
        if dispatch.assigned_by_consumer:
            assert {code: n for code, n in enumerate(dispatch.pending.totals) if n} == dict(totals)
            assert all(
                code in (WAITING, IN_TRANSACTION) or FIRST_OWNER <= code <= LAST_OWNER for code in totals
            )
            for key in (3, 4):
                assert dispatch.pending.keys.number(key) == keys[key]


PendingAcksMachine.TestCase.settings = settings(stateful_step_count=40, deadline=None)
TestPendingAcks = PendingAcksMachine.TestCase
