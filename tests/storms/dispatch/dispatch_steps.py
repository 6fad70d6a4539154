"""What happens around a simulated subscription: entries, processes and consumers come and go, and receive."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from embeddedpulsar._engine.subscription.attachment.chunk_keeper import ChunkOptions
from embeddedpulsar.message_id import Position
from tests.storms.dispatch.dispatch_judge import DispatchJudge
from tests.storms.dispatch.dispatch_model import DispatchModel, Seen
from tests.storms.dispatch.dispatch_setup import DispatchSetup
from tests.storms.dispatch.virtual_consumer import VirtualConsumer
from tests.storms.dispatch.virtual_log import VirtualEntry, VirtualLog, VirtualView
from tests.storms.dispatch.virtual_process import Interruption, VirtualProcess, VirtualWorld

_MOST_PROCESSES: Final = 5
_ROUNDS: Final = 2000
CHUNKS: Final = ChunkOptions(max_pending=0, expire_ms=20_000)


class DispatchSteps:
    """Role: takes steps, chosen by chance from what is possible, and notes in the model what they must do.
    Each method that takes no argument and gives nothing back is one step.

    Attributes:
        consumers: those that have not left, or died.
        known: all there ever were, by id.
        views: what the last step fetched.
        got: who fetched it.
        problems: what was wrong within the step.
        on_step: called after each of the steps that a longer one consists of.
    """

    def __init__(self, chance: random.Random, setup: DispatchSetup, directory: str) -> None:
        self.chance: Final = chance
        self.setup: Final = setup
        log = self.log = VirtualLog(chance.randrange(1, 9))
        self.world: Final = VirtualWorld(directory, log, setup.settings(), setup.compact_bytes)
        self.model: Final = DispatchModel(log)
        self.model.decided = self.world.decided
        self.consumers: list[VirtualConsumer] = []
        self.known: dict[int, VirtualConsumer] = {}
        self.views: list[VirtualView] = []
        self.got: VirtualConsumer | None = None
        self.problems: list[str] = []
        self.on_step: Callable[[], object] = list
        self._unfinished: dict[int, list[VirtualEntry]] = {}
        self._messages = 0
        self.deliveries = self.deaths = self._joined = 0
        self.world.start()
        self.judge: Final = DispatchJudge(directory, setup, self.model)

    def table(self) -> list[tuple[int, Callable[[], object]]]:
        """All steps, and how often they are taken."""
        return [
            (10, self.publish),
            (1, self.roll),
            (3, self.start),
            (6, self.join),
            (2, self.leave),
            (1, self.shut_down),
            (2, self.die),
            (2, self.stop),
            (4, self.go_on),
            (2, self.tell_of_deaths),
            (4, self.let_time_pass),
            (1, self.jump),
            (40, self.consume),
            (4, self.change_will),
            (3, self.settle),
            *([(2, self.change_limits)] if self.setup.changes_limits else ()),
        ]

    # -- the log -----------------------------------------------------------------------------------

    def publish(self) -> None:
        """Some entries appear; now and then one is damaged."""
        chance, setup = self.chance, self.setup
        if setup.chunks and chance.randrange(10) < setup.chunks:
            self._publish_parts()
        for _ in range(chance.randrange(1, 8)):
            now = self.now_ms()
            delay = chance.choice((0, 400, 3_000, 30_000)) if chance.random() * 10 < setup.delays else -1
            entry = self.log.append(
                publish_ms=now,
                count=chance.randrange(1, setup.batch + 1),
                key=chance.choice(setup.keys),
                deliver_at=now + delay if delay >= 0 else 0,
                size=chance.randrange(1, 30),
            )
            entry.is_damaged = chance.random() < 0.03

    def _publish_parts(self) -> None:
        """Some parts of a chunked message, begun now or before; perhaps the last."""
        chance = self.chance
        if not self._unfinished or chance.random() < 0.4:
            self._messages += 1
            self._unfinished[self._messages] = []
        message = chance.choice(sorted(self._unfinished))
        key = (
            self._unfinished[message][0].key if self._unfinished[message] else chance.choice(self.setup.keys)
        )
        for _ in range(chance.randrange(1, 4)):
            part = self.log.append(self.now_ms(), 0, key, 0, chance.randrange(1, 30))
            part.message, part.is_damaged = message, chance.random() < 0.03
            self._unfinished[message].append(part)
        if chance.random() < 0.6:
            last = self.log.append(self.now_ms(), 1, key, 0, chance.randrange(1, 90))
            last.message, last.is_damaged = message, chance.random() < 0.03
            parts = self._unfinished.pop(message)
            last.earlier = tuple(one.position for one in parts)
            for one in parts:
                one.last = last

    def roll(self) -> None:
        """A new ledger begins."""
        self.log.roll(self.chance.randrange(1, 4))

    def now_ms(self) -> int:
        """Wall time."""
        self.world.clock.looks = 0
        return self.world.clock.wall_ms()

    # -- processes ---------------------------------------------------------------------------------

    def running(self) -> list[VirtualProcess]:
        """Processes that can act."""
        return [one for one in self.world.processes.values() if not one.is_stopped]

    def start(self) -> None:
        """A process appears."""
        if len(self.world.processes) < _MOST_PROCESSES:
            self.world.start()

    def shut_down(self) -> None:
        """A process closes its subscription in good order, and ends."""
        if len(self.running()) > 1:
            process = self.world.acting = self.chance.choice(self.running())
            everybody = self.judge.state.consumers.all()
            self.judge.closed |= {one.consumer_id for one in everybody if one.client_uuid == process.uuid}
            process.subscription.close()
            self.world.kill(process)
            self.consumers = [one for one in self.consumers if one.process is not process]

    def die(self) -> None:
        """A process is killed between two calls."""
        if len(self.running()) > 1:
            self.bury(self.chance.choice(self.running()))

    def bury(self, process: VirtualProcess) -> None:
        """What a dead process leaves."""
        self.deaths += 1
        self.world.has_lost_rings = True  # it may have been rung in the place of others
        self.world.kill(process)
        self.consumers = [one for one in self.consumers if one.process is not process]

    def stop(self) -> None:
        """A process is stopped."""
        if len(self.running()) > 1:
            self.chance.choice(self.running()).is_stopped = True

    def go_on(self) -> None:
        """Stopped processes go on: timers and calls come in any order."""
        for process in list(self.world.processes.values()):
            if process.is_stopped:
                process.is_stopped = False
                if self.chance.random() < 0.5:
                    self.world.acting = process
                    process.scheduler.run_due()

    def tell_of_deaths(self) -> None:
        """The kernel tells who asked for it."""
        for process in self.running():
            self.world.acting = process
            process.tell_of_deaths()

    def let_time_pass(self, left: float = 0.0) -> None:
        """Time passes; timers run when they are due."""
        left = left or self.chance.choice((0.05, 0.5, 3.0, 11.0, 45.0))
        while left > 0:
            step = min(left, 5.0)
            self.world.clock.advance(step)
            left -= step
            self.world.run_timers(self.chance)

    def jump(self) -> None:
        """The wall clock is set. Sleepers have a back-stop for this."""
        clock = self.world.clock
        clock.set_wall_ms(self.now_ms() + self.chance.choice((-5_000, 700, 60_000)))
        for consumer in self.consumers:
            consumer.wake()

    # -- consumers come and go ---------------------------------------------------------------------

    def join(self) -> None:
        """A consumer attaches, if it is admitted."""
        chance, setup = self.chance, self.setup
        if len(self.consumers) >= setup.consumers:
            return
        before = self.judge.seen
        process = self.world.acting = chance.choice(self.running())
        self._joined += 1
        capacity = chance.choice((1, 2, 5, 20))
        attachment = process.subscription.attach(
            f"c{chance.randrange(3)}-{self._joined}",
            setup.consumer_type,
            priority=chance.choice((0, 0, 1)),
            receiver_queue_size=capacity,
            key_shared=setup.policy(chance),
            topic="t",
            partition=setup.partition,
            chunks=CHUNKS,
        )
        self.consumers.append(VirtualConsumer(process, self.log, attachment, capacity))
        self.note_newcomer(attachment.consumer_id, before.mark_delete, before.read)

    def note_newcomer(self, consumer_id: int, mark_delete: Position, read: Position) -> None:
        """The classic rule: it gets nothing from the read position on, for some time."""
        others = set(self.judge.state.dispatch.assigned_by_consumer) - {consumer_id}
        if self.setup.is_classic and others & set(self.judge.seen.members) and mark_delete.next() < read:
            self.model.joined[consumer_id] = read

    def leave(self) -> None:
        """A consumer is closed."""
        consumer = self.any_consumer()
        if consumer is not None:
            self.consumers.remove(consumer)
            self._depart(consumer)
            consumer.stop_waiting()

    def _depart(self, consumer: VirtualConsumer) -> None:
        """Detach a consumer; if that is interrupted, again by a timer, as `ConsumerClosing` does."""
        self.judge.closed.add(consumer.attachment.consumer_id)
        try:
            consumer.attachment.detach()
        except Interruption:
            consumer.process.scheduler.call_later(0.0, lambda: self._depart(consumer))
            raise

    def any_consumer(self) -> VirtualConsumer | None:
        """A consumer whose process runs."""
        able = [one for one in self.consumers if not one.process.is_stopped]
        if not able:
            return None
        consumer = self.chance.choice(able)
        self.world.acting = consumer.process
        return consumer

    def change_will(self) -> None:
        """An application is busy, or wants messages again."""
        consumer = self.any_consumer()
        if consumer is not None:
            if consumer.is_willing:
                consumer.stop_waiting()
            else:
                consumer.is_willing = True

    def change_limits(self) -> None:
        """What consumers may hold changes; a process passes it on, or dies before, and the next one does."""
        chance, settings = self.chance, self.world.settings
        vars(settings).update(
            maxUnackedMessagesPerConsumer=chance.choice((0, 1, 3, 8)),
            maxUnackedMessagesPerSubscription=chance.choice((0, 0, 5, 12)),
        )
        process = self.world.acting = chance.choice(self.running())
        process.subscription.operator_commands().limit_unacked(settings)

    # -- receiving ---------------------------------------------------------------------------------

    def consume(self) -> None:
        """A consumer does the next thing it would do while its application receives."""
        consumer = self.any_consumer()
        if consumer is not None and consumer.is_willing:
            self._consume(consumer)

    def _consume(self, consumer: VirtualConsumer) -> bool:
        """Whether it did anything."""
        self.world.acting = consumer.process
        self.world.clock.looks = 0
        if consumer.queue:
            old_id, before = consumer.attachment.consumer_id, self.judge.seen
            view = consumer.take()
            self._note_rejoined(consumer, old_id, before)
            if view is not None:
                self.deliveries += 1
                self.problems += self.judge.wrong_order(consumer, view)
            return True
        if not consumer.is_awake:
            return False
        if consumer.has_looked and self.chance.random() < 0.7:
            consumer.doze()
            return True
        before = self.judge.seen
        old_id = consumer.attachment.consumer_id
        self.views = consumer.poll(self.chance.choice((1, 40, 1000)))
        self.got = consumer if self.views else None
        self._note_rejoined(consumer, old_id, before)
        return True

    def _note_rejoined(self, consumer: VirtualConsumer, old_id: int, before: Seen) -> None:
        if consumer.attachment.consumer_id != old_id:
            self.note_newcomer(consumer.attachment.consumer_id, before.mark_delete, before.read)

    def settle(self) -> None:
        """Everybody who is awake and willing receives until it sleeps; then nobody may be asleep for whom
        there is something."""
        if self.world.has_lost_rings or len(self.running()) < len(self.world.processes):
            self.world.has_lost_rings = False
            for consumer in self.consumers:
                consumer.wake()
        self.receive_all()
        sleepers = [one for one in self._able() if one.sleeps]
        for consumer in sleepers:
            self.world.acting = consumer.process
            self.views = consumer.poll(1000)
            if self.views:
                self.got = consumer
                first = self.views[0].origin.position
                self.problems.append(f"{consumer} slept, and {first} was there for it")
                return

    def _able(self) -> list[VirtualConsumer]:
        return [one for one in self.consumers if one.is_willing and not one.process.is_stopped]

    def receive_all(self) -> None:
        """Until all sleep who want messages."""
        for _ in range(_ROUNDS):
            moving = [self._consume_and_judge(one) for one in self._able()]
            if not any(moving):
                return
        self.problems.append("consumers never come to rest")

    def _consume_and_judge(self, consumer: VirtualConsumer) -> bool:
        if consumer not in self.consumers:
            return False
        did = self._consume(consumer)
        if did:
            self.on_step()
        return did
