"""What consumers of a simulated subscription answer: acknowledgements, entries given back, seeks."""

from __future__ import annotations

from typing import Final

from embeddedpulsar._engine.format.subscription_record import ABORTED, COMMITTED
from embeddedpulsar.exceptions import TransactionConflict
from embeddedpulsar.message_id import Position
from tests.storms.dispatch.dispatch_steps import DispatchSteps
from tests.storms.dispatch.virtual_consumer import VirtualConsumer
from tests.storms.dispatch.virtual_log import VirtualEntry

_ALL: Final = (1 << 32) - 1
"""Of a bit set, to compare those that stand for a whole entry."""


class DispatchAnswers:
    """Role: like `DispatchSteps`, whose consumers these are."""

    def __init__(self, scene: DispatchSteps) -> None:
        self._scene: Final = scene
        self._chance: Final = scene.chance
        self._model: Final = scene.model
        self._begun = 0

    # -- acknowledging -----------------------------------------------------------------------------

    def acknowledge(self) -> None:
        """Some of what an application holds; of a batch perhaps a part."""
        consumer = self._scene.any_consumer()
        if consumer is None or not consumer.held:
            return
        chosen = self._some(sorted(consumer.held))
        entries, partial = [], {}
        for position in chosen:
            count = consumer.held[position].count
            indexes = self._chance.randrange(1, 1 << count)
            if indexes == (1 << count) - 1 or self._chance.random() < 0.5:
                entries.append(tuple(position))
            else:
                partial[tuple(position)] = (indexes, count)
        self._acknowledge(consumer, entries, partial)

    def _acknowledge(
        self,
        consumer: VirtualConsumer,
        entries: list[tuple[int, ...]],
        partial: dict[tuple[int, ...], tuple[int, int]],
    ) -> None:
        is_current = self._scene.judge.is_current(consumer)
        known = consumer.attachment.chunks.with_parts(entries)  # type: ignore[arg-type]
        done = consumer.attachment.acknowledge(entries, partial)  # type: ignore[arg-type]
        if (entries or partial) and done != is_current:
            self._scene.problems.append(f"{consumer} was told {done} about its acknowledgement")
        if done:
            log = self._scene.log
            for one in entries:  # and of chunked messages all parts, whoever was given them
                entry = log.entries[log.index_of(Position(*one))]
                for position in (*entry.earlier, entry.position):
                    self._ack(position, -1)
                    consumer.held.pop(position, None)
            for (ledger_id, entry_id), (indexes, _) in partial.items():
                self._ack(Position(ledger_id, entry_id), indexes)
        elif known != consumer.attachment.chunks.with_parts(entries):  # type: ignore[arg-type]
            self._scene.problems.append(f"{consumer} forgot parts with a void acknowledgement")

    def _ack(self, position: Position, indexes: int) -> None:
        entry = self._scene.log.entries[self._scene.log.index_of(position)]
        whole = (1 << entry.count) - 1
        self._model.ack(position, whole if indexes < 0 else indexes, entry.count)

    def acknowledge_all(self, consumer: VirtualConsumer) -> None:
        """Everything an application holds; what was moved meanwhile, it forgets."""
        self._acknowledge(consumer, [tuple(one) for one in consumer.held], {})
        consumer.held.clear()

    def acknowledge_anything(self) -> None:
        """Entries somebody else has, or that nobody has read, or that do not exist."""
        consumer = self._scene.any_consumer()
        entries = self._scene.log.entries
        if consumer is None or not entries:
            return
        chosen = [one.position for one in self._some(entries[-20:]) if not one.is_damaged]
        made_up = [] if chosen else [(entries[-1].position.ledger_id, entries[-1].position.entry_id + 9)]
        self._acknowledge(consumer, [*map(tuple, chosen)], {})
        consumer.attachment.acknowledge(made_up)

    def acknowledge_cumulatively(self) -> None:
        """Everything up to an entry an application holds."""
        consumer = self._scene.any_consumer()
        if consumer is None or not consumer.held or consumer.attachment.delivers_singly:
            return
        position = self._chance.choice(sorted(consumer.held))
        count = consumer.held[position].count
        index = self._chance.randrange(-1, count)
        if not consumer.attachment.acknowledge_cumulative(*position, index, count if index >= 0 else 0):
            return
        before = set(self._model.acked)
        for entry in self._scene.log.entries[: self._scene.log.index_of(position)]:
            if not entry.count and (entry.may_expire or (entry.last and entry.last.position > position)):
                continue  # a part of a message that ends behind it
            if entry.last is not None and entry.last.position in before:
                continue  # its message went before, without it: this one may expire instead
            self._model.ack(entry.position, (1 << entry.count) - 1, entry.count)
        self._ack(position, -1 if index < 0 else (2 << index) - 1)
        consumer.held = {one: view for one, view in consumer.held.items() if one not in self._model.acked}

    # -- transactions ------------------------------------------------------------------------------

    def acknowledge_in_transaction(self) -> None:
        """Some of what an application holds, or anything; refused if the rules say so, and only then."""
        consumer, entries = self._scene.any_consumer(), self._scene.log.entries
        if consumer is None or not entries:
            return
        held = sorted(consumer.held)
        anything = [one.position for one in entries[-20:] if one.count and not one.is_damaged]
        places = held if held and self._chance.random() < 0.8 else anything
        if not places:
            return
        whole: list[Position] = []
        partial: dict[Position, tuple[int, int]] = {}
        for position in self._some(places)[:4]:
            count = self._entry(position).count
            indexes = self._chance.randrange(1, 1 << count)
            if places is held and indexes != (1 << count) - 1 and self._chance.random() < 0.5:
                partial[position] = indexes, count
            else:
                whole.append(position)
        self._acknowledge_in(self._transaction(), consumer, whole, partial)

    def _acknowledge_in(
        self,
        transaction: tuple[int, int],
        consumer: VirtualConsumer,
        whole: list[Position],
        partial: dict[Position, tuple[int, int]],
    ) -> None:
        model, is_current = self._model, self._scene.judge.is_current(consumer)
        conflicts = any(one in model.acked or model.held.get(one) for one in whole)
        for position, (indexes, _) in partial.items():
            taken = model.partial.get(position, 0)
            for holder in model.held.get(position, {}).values():
                taken |= holder
            conflicts = conflicts or position in model.acked or bool(taken & indexes)
        # A part that cannot be read is acknowledged once a consumer comes to it; the model does not see that.
        acks = self._scene.judge.state.acks
        parts = {
            part
            for one in whole
            for part in self._entry(one).earlier
            if part not in model.acked and not (self._entry(part).is_damaged and acks.is_acked(part))
        }
        conflicts = conflicts or any(model.held.get(one) for one in parts)
        try:
            bits = {(one.ledger_id, one.entry_id): both for one, both in partial.items()}
            done = consumer.attachment.acknowledge(whole, bits, transaction=transaction)
        except TransactionConflict as e:
            if not conflicts:
                self._scene.problems.append(f"{consumer} was refused {whole} and {partial}: {e}")
            return
        if conflicts and is_current:
            self._scene.problems.append(f"{consumer} was not refused {whole} and {partial}")
        if done != is_current:
            self._scene.problems.append(f"{consumer} was told {done} about its transaction")
        if not done:
            return
        for position in (*whole, *parts):
            model.held.setdefault(position, {})[transaction] = -1
            consumer.held.pop(position, None)
        for position, (indexes, _) in partial.items():
            holders = model.held.setdefault(position, {})
            holders[transaction] = holders.get(transaction, 0) | indexes

    def _transaction(self) -> tuple[int, int]:
        """One that is open, or a new one."""
        open_ones = sorted(self._model.open_transactions)
        if len(open_ones) >= self._scene.setup.transactions or (open_ones and self._chance.random() < 0.5):
            return self._chance.choice(open_ones)
        self._begun += 1
        return (0, self._begun)

    def _entry(self, position: Position) -> VirtualEntry:
        return self._scene.log.entries[self._scene.log.index_of(position)]

    def acknowledge_cumulatively_in_transaction(self) -> None:
        """Everything up to an entry an application holds."""
        consumer, model = self._scene.any_consumer(), self._model
        if consumer is None or not consumer.held or consumer.attachment.delivers_singly:
            return
        position, transaction = self._chance.choice(sorted(consumer.held)), self._transaction()
        if not consumer.attachment.chunks.is_idle:
            return  # what is left out then is tested elsewhere
        count = consumer.held[position].count
        index = self._chance.randrange(-1, count)
        index, size = (index, count) if 0 <= index < count - 1 else (-1, 0)
        bits = (2 << index) - 1 if index >= 0 else -1
        conflicts = position <= self._scene.judge.seen.mark_delete
        if model.through is not None:
            holder, last, own = model.through
            is_further = (position, bits & _ALL) > (last, own & _ALL)
            conflicts = conflicts or holder != transaction or not is_further
        is_current = self._scene.judge.is_current(consumer)
        try:
            done = consumer.attachment.acknowledge_cumulative(*position, index, size, transaction=transaction)
        except TransactionConflict as e:
            if not conflicts:
                self._scene.problems.append(f"{consumer} was refused everything up to {position}: {e}")
            return
        if conflicts and is_current:
            self._scene.problems.append(f"{consumer} was not refused everything up to {position}")
        if done:
            model.through = transaction, position, bits
            consumer.held = {one: view for one, view in consumer.held.items() if one > position}

    def end_transaction(self) -> None:
        """A transaction commits or aborts; some process follows that at once, told or not."""
        open_ones = sorted(self._model.open_transactions)
        if not open_ones:
            return
        transaction, outcome = self._chance.choice(open_ones), self._chance.choice((COMMITTED, ABORTED))
        self._scene.world.decided[transaction] = outcome
        process = self._scene.world.acting = self._chance.choice(self._scene.running())
        if self._chance.random() < 0.5:
            process.subscription.end_transaction(transaction, outcome)
        else:
            process.subscription.pending_transactions()

    def end_all(self) -> None:
        """No transaction is open any more."""
        while self._model.open_transactions:
            before = self._model.open_transactions
            self.end_transaction()
            self._scene.on_step()
            if self._model.open_transactions == before:
                self._scene.problems.append(f"transactions do not end: {before}")
                return
        if self._scene.setup.is_shared or not self._model.must_ask:
            return
        for consumer in self._scene.consumers:
            self._scene.world.acting = consumer.process
            consumer.attachment.redeliver()
            consumer.start_over()

    # -- giving back -------------------------------------------------------------------------------

    def give_back(self) -> None:
        """Some entries an application holds are to come again; perhaps they are not its own any more."""
        consumer = self._scene.any_consumer()
        if consumer is None or not consumer.held:
            return
        chosen = self._some(sorted(consumer.held))
        is_current = self._scene.judge.is_current(consumer)
        owned = self._scene.judge.owned(consumer) if is_current else set()
        if consumer.attachment.redeliver_entries([tuple(one) for one in chosen]):
            consumer.start_over()
            return
        for position in chosen:
            if position in owned:
                self._model.count(position)
        consumer.forget(chosen)

    def give_everything_back(self) -> None:
        """Everything a consumer has is to come again."""
        consumer = self._scene.any_consumer()
        if consumer is None:
            return
        is_current = self._scene.judge.is_current(consumer)
        owned = self._scene.judge.owned(consumer) if is_current else set()
        seen = set(consumer.seen)
        consumer.attachment.redeliver()
        for position in owned & seen:
            self._model.count(position)
        consumer.start_over()

    def seek(self) -> None:
        """The subscription is put somewhere else."""
        consumer = self._scene.any_consumer()
        entries = self._scene.log.entries
        if consumer is None or not entries:
            return
        position, inclusive = self._chance.choice(entries).position, self._chance.random() < 0.5
        consumer.attachment.seek(position, inclusive)
        consumer.start_over()
        self.forget_seen()
        self._model.seek(position.previous() if inclusive else position)

    def forget_seen(self) -> None:
        """The subscription was moved: what consumers were given is void."""
        for consumer in self._scene.known.values():
            consumer.seen.clear()
        self._model.first.clear()
        self._model.handed.clear()

    # -- replicas ----------------------------------------------------------------------------------

    def compact(self) -> None:
        """A process begins a new generation of the journal."""
        process = self._scene.world.acting = self._chance.choice(self._scene.running())
        shared = process.shared
        shared.transact(lambda _: shared._journal.compact(self._scene.now_ms()))

    def _some(self, things: list) -> list:  # type: ignore[type-arg]
        return self._chance.sample(things, self._chance.randrange(1, len(things) + 1))
