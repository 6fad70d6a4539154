"""One seeded schedule of everything consumers of one subscription can do."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Final

from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.subscription import shared_state
from embeddedpulsar._engine.subscription.dispatch import dispatchers
from embeddedpulsar._engine.subscription.state.replica import encode_snapshot
from embeddedpulsar.exceptions import ConsumerAssignError, ConsumerBusy
from embeddedpulsar.message_id import Position
from tests.storms.dispatch import dispatch_audit as audit
from tests.storms.dispatch.dispatch_answers import DispatchAnswers
from tests.storms.dispatch.dispatch_setup import DispatchSetup
from tests.storms.dispatch.dispatch_steps import CHUNKS, DispatchSteps
from tests.storms.dispatch.virtual_consumer import VirtualConsumer
from tests.storms.dispatch.virtual_process import Interruption, Killed, Spinning

_FAILPOINTS: Final = (
    "journal:body_done",
    "journal:word_stored",
    "subscription:announced",
    "subscription:published",
    "subscription:unlocked",
    "range:opened",
    "range:taken",
    "range:closing",
    "range:assigned",
    "compact:snapshot_written",
    "compact:journal_created",
    "compact:word_stored",
)
_MOST_WAITS: Final = 5
_LONG_S: Final = 90.0
"""Whoever was interrupted while it left is silent from then on, and missed by now."""
_CUT_SHORT: Final = 0.03
_ROUNDS: Final = 300


class DispatchSchedule:
    """Role: chooses the steps, takes them, and has each judged. Deterministic: the seed decides all.

    Attributes:
        violations: what was wrong, with the number of the step. The schedule ends at the first.
        history: names of the steps.
    """

    def __init__(self, seed: int, directory: str) -> None:
        self._chance: Final = random.Random(seed)
        self.setup: Final = DispatchSetup.draw(self._chance)
        self._kept: Final = (dispatchers.LOOK_AHEAD_PER_CONSUMER, shared_state.CHECKPOINT_EVERY)
        _set_limits(self.setup.look_ahead, 7)
        self.scene: Final = DispatchSteps(self._chance, self.setup, directory)
        self.scene.on_step = self._judge
        self.answers: Final = DispatchAnswers(self.scene)
        self._waits = 0
        self.violations: list[str] = []
        self.history: list[str] = []
        self.steps = 0

    def close(self) -> None:
        """Give everything back."""
        _set_limits(*self._kept)
        self.scene.judge.close()
        self.scene.world.close()

    def _table(self) -> list[tuple[int, Callable[[], object]]]:
        answers = self.answers
        return [
            *self.scene.table(),
            (18, answers.acknowledge),
            (3, answers.acknowledge_anything),
            (3, answers.acknowledge_cumulatively),
            (6, answers.give_back),
            (2, answers.give_everything_back),
            (1, answers.seek),
            (1, answers.compact),
            *self._transactions(),
            (2, self.compare),
        ]

    # -- running -----------------------------------------------------------------------------------

    def run(self) -> None:
        """All steps, then the end of it: everything is delivered."""
        table = self._table()
        weights = [weight for weight, _ in table]
        actions = [action for _, action in table]
        for _ in range(self.setup.steps):
            self._take(self._chance.choices(actions, weights)[0], self._chance.random() < _CUT_SHORT)
            if self.violations:
                return
        for action in (self.scene.settle, self.compare, self.drain):
            self._take(action)
            if self.violations:
                return

    def _transactions(self) -> list[tuple[int, Callable[[], object]]]:
        answers = self.answers
        if not self.setup.transactions:
            return []
        return [
            (10, answers.acknowledge_in_transaction),
            (5, answers.acknowledge_cumulatively_in_transaction),
            (8, answers.end_transaction),
        ]

    def _take(self, action: Callable[[], object], is_cut: bool = False) -> None:
        scene = self.scene
        self.steps += 1
        self.history.append(action.__name__)
        scene.now_ms()
        if is_cut:
            self._set_failpoint()
        try:
            action()
        except (ConsumerBusy, ConsumerAssignError) as e:
            self.history[-1] += f" refused: {e}"
        except Spinning as e:
            self._blame([str(e)])
            return
        except (Killed, Interruption) as e:
            self.history[-1] += f" cut short: {e!r} in {scene.world.acting}"
            self._clean_up(isinstance(e, Killed))
        finally:
            failpoints.clear()
        self._judge()

    def _set_failpoint(self) -> None:
        name, nth = self._chance.choice(_FAILPOINTS), self._chance.choice((1, 1, 2, 3))
        error = self._chance.choice((Killed, Interruption))

        def strike() -> None:
            process = self.scene.world.acting
            if error is Killed and process is not None:
                process.stop_for_good()
                self.scene.world.processes.pop(process.uuid, None)
            raise error(name)

        failpoints.set(name, strike, nth=nth)

    def _clean_up(self, was_killed: bool) -> None:
        """A call was cut short: nobody knows what it did."""
        scene = self.scene
        scene.world.has_lost_rings = True
        process = scene.world.acting
        if process is not None and (was_killed or not process.is_open):
            scene.bury(process)
        failpoints.clear()
        if not scene.running():
            scene.world.start()
        self._note_ids()
        if scene.judge.was_moved():
            self.answers.forget_seen()
        if self.setup.transactions:
            scene.running()[0].subscription.pending_transactions()  # follows what was decided
        scene.judge.resync()
        for consumer in scene.consumers:
            scene.judge.take_away(consumer)
        scene.views, scene.got = [], None

    def _note_ids(self) -> None:
        for consumer in self.scene.consumers:
            self.scene.known[consumer.attachment.consumer_id] = consumer

    def _judge(self) -> None:
        scene, judge = self.scene, self.scene.judge
        self._note_ids()
        scene.model.latest_ms = max(scene.model.latest_ms, scene.now_ms())
        self._blame(scene.problems)
        self._blame(judge.after(scene.known, scene.views))
        for consumer in scene.consumers:
            self._blame(judge.wrong_queue(consumer))
        if not self.setup.is_shared:
            if scene.got is not None:
                self._blame(judge.wrong_sequence(scene.got, scene.views))
            self._blame(judge.wrong_active(scene.consumers, scene.got))
        if self.steps % 7 == 0:
            self._blame(audit.wrong_snapshot(judge.state, scene.log, self.setup.is_ordered))
        scene.views, scene.got, scene.problems = [], None, []

    def _blame(self, problems: Iterable[str]) -> None:
        self.violations += [f"step {self.steps}, {self.history[-1]}: {one}" for one in problems]

    # -- replicas, and the end ---------------------------------------------------------------------

    def compare(self) -> None:
        """All replicas are alike, byte by byte."""
        scene = self.scene
        found = set()
        for process in scene.running():
            scene.world.acting = process
            found.add(process.shared.transact(encode_snapshot))
            if process.shared.divergences:
                scene.problems.append(f"{process.uuid[0]} was built anew, as it disagreed")
        found.add(encode_snapshot(scene.judge.state))
        if len(found) > 1:
            scene.problems.append("replicas differ")
        if scene.world.damage:
            scene.problems.append(f"damage: {scene.world.damage[0]}")

    def drain(self) -> None:
        """Everybody receives and acknowledges until nothing is left."""
        scene = self.scene
        scene.go_on()
        scene.let_time_pass(_LONG_S)
        self._judge()  # whoever was taken for dead now forgets what it had when it joins again
        self.answers.end_all()
        for consumer in scene.consumers:
            consumer.is_willing = True
            consumer.wake()
        left = self._receive_everything()
        is_covered = self.setup.kind not in ("key-shared-sticky", "exclusive") and scene.consumers
        if left and is_covered and not self.violations:
            scene.problems.append(f"{left[0]} is stranded: {scene.judge.seen}")
            return
        if is_covered and not self.violations:
            damaged = [one.position for one in scene.log.entries if one.is_damaged and one.count]
            kept = [one for one in damaged if one in scene.judge.seen.owners]
            scene.problems += [f"{one} is damaged, and nobody found out: {scene.judge.seen}" for one in kept]
        if not left or self.violations:
            return
        for consumer in scene.consumers:
            self.scene.judge.closed.add(consumer.attachment.consumer_id)
            scene.world.acting = consumer.process
            consumer.attachment.detach()
        scene.consumers = []
        self._judge()
        self._add_last()
        left = self._receive_everything()
        if left and not self.violations:
            scene.problems.append(f"{left[0]} is lost: {scene.judge.seen}")

    def _add_last(self) -> None:
        scene = self.scene
        process = scene.world.acting = scene.running()[0]
        for other in list(scene.world.processes.values()):
            other.subscription.detach_dead()
        attachment = process.subscription.attach(
            "last", self.setup.consumer_type, receiver_queue_size=9, chunks=CHUNKS
        )
        scene.consumers = [VirtualConsumer(process, scene.log, attachment, 9)]

    def _receive_everything(self) -> list[Position]:
        scene = self.scene
        for _ in range(_ROUNDS):
            scene.tell_of_deaths()
            scene.receive_all()
            if self.violations:
                break
            held = [one for one in scene.consumers if one.held]
            for consumer in held:
                scene.world.acting = consumer.process
                self.answers.acknowledge_all(consumer)
                self._judge()
            # Whoever was stopped when another joined and died learns of both in its first look.
            if held or any(process.mailbox.notices for process in scene.running()):
                continue
            if not scene.model.unacked() or not self._wait_for_delayed():
                break
        return [one.position for one in scene.model.unacked()]

    def _wait_for_delayed(self) -> bool:
        """Whether there is anything to wait for."""
        due = self.scene.judge.state.dispatch.delayed.next_due()
        if due is None:
            return self._wait_for_parts()
        late_s = (due - self.scene.now_ms()) / 1000
        self.scene.world.clock.advance(max(late_s, 0.001))
        self.scene.world.run_timers(self._chance)
        return True

    def _wait_for_parts(self) -> bool:
        """Parts of messages that do not come hold back newcomers, by the classic rule, until they expire."""
        self._waits += 1
        if self._waits > _MOST_WAITS or not self.scene.judge.state.dispatch.pending.parts():
            return False
        self.scene.world.clock.advance(CHUNKS.expire_ms / 1000 + 1)
        self.scene.world.run_timers(self._chance)
        self._judge()
        return True


def _set_limits(look_ahead: int, checkpoint_every: int) -> None:
    setattr(dispatchers, "LOOK_AHEAD_PER_CONSUMER", look_ahead)
    setattr(shared_state, "CHECKPOINT_EVERY", checkpoint_every)
