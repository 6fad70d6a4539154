"""Clients of one store and the consumers of one subscription, in every order, against a simple model."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from embeddedpulsar import BatchingType, Client, ConsumerType, InitialPosition
from embeddedpulsar._engine.format.subscription_record import DETACH_DEAD
from embeddedpulsar._engine.subscription.liveness_monitor import commit_detach_commands, detach_command
from embeddedpulsar.testing.manual_clock import ManualScheduler
from tests.conformance.manual_time import ManualTime

NACK_MS = 1000
LONG_MS = 120_000
MOST_CONSUMERS = 3
SINGLY = (ConsumerType.Shared, ConsumerType.KeyShared)


class Sent:
    """One message, and what is to be expected of it."""

    def __init__(self, number: int, key: str, entry: Any, due_ms: int) -> None:
        self.number = number
        self.key = key
        self.entry = entry  # of its batch, or its own
        self.due_ms = due_ms
        self.is_acked = False
        self.id: Any = None


class Member:
    """A consumer, and what its application holds."""

    def __init__(self, client: Client, consumer: Any) -> None:
        self.client = client
        self.consumer = consumer
        self.held: dict[int, Any] = {}  # number -> message
        self.handed: set[Any] = set()  # entries of which it was given something, as they were assigned last
        self.last = -1
        self.begun: tuple[Any, int] | None = None  # a batch that was begun before another consumer sought
        self.may_start_over = True


class ConsumersModel(RuleBasedStateMachine):
    """Everything acknowledged stays away, everything else comes, counted and in order as its type has it."""

    type = ConsumerType.Shared

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp(prefix="consumers-")
        self.time = ManualTime(Path(self.directory) / "store")
        self.clients = [self.time.client, self.more_clients(), self.more_clients()]
        self.producer: Any = None
        self.batches: Any = None
        self.sent: list[Sent] = []
        self.counts: dict[Any, int] = {}
        self.first: dict[str, int] = {}
        self.received: set[int] = set()
        self.members: list[Member] = []

    def more_clients(self) -> Client:
        client = Client(Path(self.directory) / "store")
        core: Any = client._core
        assert isinstance(core.scheduler, ManualScheduler)
        return client

    @initialize()
    def begin(self) -> None:
        self.join(0)
        self.producer = self.clients[0].create_producer("t")
        self.batches = self.clients[1].create_producer(
            "t",
            batching_enabled=True,
            batching_type=BatchingType.KeyBased,
            batching_max_publish_delay_ms=LONG_MS,
        )

    @property
    def is_singly(self) -> bool:
        return self.type in SINGLY

    # -- what happens --------------------------------------------------------------------------------

    @rule(count=st.integers(1, 4), key=st.sampled_from("abc"), delay_ms=st.sampled_from([0, 0, 0, 5000]))
    def publish(self, count: int, key: str, delay_ms: int) -> None:
        for _ in range(count):
            number = len(self.sent)
            due = self.time.now_ms() + delay_ms if delay_ms else 0
            sent = Sent(number, key, number, due)
            options = {"deliver_at": due} if delay_ms else {}
            sent.id = self.producer.send(b"%d" % number, partition_key=key, **options)
            self.sent.append(sent)

    @rule(count=st.integers(2, 4), key=st.sampled_from("abc"))
    def publish_batch(self, count: int, key: str) -> None:
        entry = len(self.sent)
        for _ in range(count):
            sent = Sent(len(self.sent), key, entry, 0)
            self.batches.send_async(b"%d" % sent.number, None, partition_key=key)
            self.sent.append(sent)
        self.batches.flush()

    @precondition(lambda self: len(self.members) < MOST_CONSUMERS)
    @rule(which=st.integers(0, 2))
    def join(self, which: int) -> None:
        if self.type == ConsumerType.Exclusive and self.members:
            return
        client = self.clients[which]
        consumer = client.subscribe(
            "t",
            "s",
            self.type,
            initial_position=InitialPosition.Earliest,
            receiver_queue_size=3,
            negative_ack_redelivery_delay_ms=NACK_MS,
            ack_group_time_ms=0,
            batch_index_ack_enabled=True,
        )
        self.members.append(Member(client, consumer))

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 9), number=st.integers(1, 6))
    def receive(self, which: int, number: int) -> None:
        member = self.members[which % len(self.members)]
        for _ in range(number):
            message = member.consumer.receive_nowait()
            if message is None:
                return
            self.check(member, message)

    @precondition(lambda self: any(member.held for member in self.members))
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from([one for one in self.members if one.held]))
        for number in data.draw(st.lists(st.sampled_from(sorted(member.held)), min_size=1, unique=True)):
            member.consumer.acknowledge(member.held.pop(number))
            self.sent[number].is_acked = True

    @precondition(lambda self: any(member.held for member in self.members))
    @rule(data=st.data())
    def negatively_acknowledge(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from([one for one in self.members if one.held]))
        number = data.draw(st.sampled_from(sorted(member.held)))
        member.consumer.negative_acknowledge(member.held[number])
        self.time.pass_ms(2 * NACK_MS)
        if not self.is_singly:
            self.start_over(member)
            return
        entry = self.sent[number].entry
        self.count({entry})
        member.handed.discard(entry)
        member.held = {one: message for one, message in member.held.items() if self.sent[one].entry != entry}

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 9))
    def redeliver(self, which: int) -> None:
        member = self.members[which % len(self.members)]
        if self.is_singly or member is self.members[0]:
            self.count(member.handed)
            member.consumer.redeliver_unacknowledged_messages()
            self.start_over(member)

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 9))
    def close(self, which: int) -> None:
        self.members.pop(which % len(self.members)).consumer.close()

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 9))
    def crash(self, which: int) -> None:
        """As if the process of a consumer had died: what its application was given counts."""
        member = self.members.pop(which % len(self.members))
        core = member.consumer._core
        shared, consumer_id = core.session.subscription._existing(), core.session.attachment.consumer_id
        shared.transact(
            lambda state: commit_detach_commands(
                state,
                shared,
                core.session.ledger,
                [detach_command(state, shared.control, consumer_id, DETACH_DEAD)],
            )
        )
        core._closing._shut("it crashed")
        core.session.release()
        member.client._core.forget_consumer(member.consumer)
        if self.is_singly:
            self.count(member.handed)

    @precondition(lambda self: self.members and self.sent)
    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        single = [sent for sent in self.sent if sent.id is not None]
        if not single:
            return
        target = data.draw(st.sampled_from(single))
        self.members[0].consumer.seek(target.id)
        for sent in self.sent:
            sent.is_acked = sent.number <= target.number
        self.counts.clear()
        self.first.clear()
        self.received.clear()
        for member in self.members:
            if member is not self.members[0] and self.is_singly and member.last >= 0:
                member.begun = (self.sent[member.last].entry, member.last)
            self.start_over(member)

    @rule(milliseconds=st.sampled_from([1, 400, 6000, 31_000]))
    def pass_time(self, milliseconds: int) -> None:
        self.time.pass_ms(milliseconds)

    @rule(milliseconds=st.sampled_from([-3000, 4000]))
    def set_the_clock(self, milliseconds: int) -> None:
        self.time.clock.set_wall_ms(self.time.now_ms() + milliseconds)
        if milliseconds < 0:  # what was due then was delivered then
            for sent in self.sent:
                sent.due_ms = min(sent.due_ms, self.time.now_ms())

    # -- what is to be expected -----------------------------------------------------------------------

    def count(self, entries: set[Any]) -> None:
        for entry in entries:
            if self.is_singly and any(not one.is_acked for one in self.sent if one.entry == entry):
                self.counts[entry] = self.counts.get(entry, 0) + 1

    def start_over(self, member: Member) -> None:
        member.held.clear()
        member.handed.clear()
        member.may_start_over = True

    def check(self, member: Member, message: Any) -> None:
        sent = self.sent[int(message.data())]
        if member.begun == (sent.entry, sent.number - 1):
            member.begun = (sent.entry, sent.number)  # the rest of it still comes, and means nothing
            return
        member.begun = None
        assert not sent.is_acked
        assert all(sent.number not in other.held for other in self.members)
        if self.is_singly:
            assert message.redelivery_count() == self.counts.get(sent.entry, 0)
            assert sent.due_ms <= self.time.now_ms()
        else:
            assert member is self.members[0]
            assert message.redelivery_count() == 0
            self.check_sequence(member, sent.number)
        if sent.number not in self.received and not sent.due_ms and self.type == ConsumerType.KeyShared:
            assert self.first.get(sent.key, -1) < sent.number
            self.first[sent.key] = sent.number
        self.received.add(sent.number)
        member.last = sent.number
        member.held[sent.number] = message
        member.handed.add(sent.entry)

    def check_sequence(self, member: Member, number: int) -> None:
        left = [sent.number for sent in self.sent if not sent.is_acked]
        expected = {next((one for one in left if one > member.last), -1)}
        if member.may_start_over:
            expected.add(left[0])
        assert number in expected
        member.may_start_over = False

    def teardown(self) -> None:
        try:
            self.drain()
        finally:
            for client in self.clients:
                client.close()
            self.time.close()
            shutil.rmtree(self.directory)

    def drain(self) -> None:
        """Everything that is not acknowledged comes to one or the other."""
        if self.producer is None:
            return
        if not self.members:
            self.join(0)
        quiet = 0
        while quiet < 2:
            got = False
            for member in list(self.members):
                while (message := member.consumer.receive_nowait()) is not None:
                    self.check(member, message)
                    got = True
                for number in list(member.held):
                    member.consumer.acknowledge(member.held.pop(number))
                    self.sent[number].is_acked = True
                    got = True
            quiet = 0 if got else quiet + 1
            self.time.pass_ms(10_000)
        assert [sent.number for sent in self.sent if not sent.is_acked] == []
        assert self.members[0].consumer._core.session.attachment.backlog() == 0


@pytest.mark.parametrize("consumer_type", list(ConsumerType))
def test_consumers_agree_with_the_model(consumer_type: ConsumerType):
    """For each type."""

    class Model(ConsumersModel):
        type = consumer_type

    examples = max(settings.default.max_examples // 2, 1)
    run_state_machine_as_test(Model, settings=settings(max_examples=examples, stateful_step_count=40))
