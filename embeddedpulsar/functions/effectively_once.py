"""Messages that are counted as processed together, each once."""

from __future__ import annotations

from typing import Any, Final

from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar.functions.inputs import Taken
from embeddedpulsar.functions.instance_context import notify
from embeddedpulsar.functions.outputs import Draft, OutputProducers
from embeddedpulsar.functions.state_log import StateLog
from embeddedpulsar.functions.state_table import (
    Changes,
    Pending,
    Place,
    Record,
    pending_record,
    place_of_message,
    position_record,
)
from embeddedpulsar.message import Message
from embeddedpulsar.message_id import MessageId

# A death behind `processed` loses the run, which is processed again. Behind `committed`, the outputs are
# published by the next instance that commits, and the messages are left out when they are delivered again;
# behind `published` none of them is stored twice; behind `settled` and `acknowledged` nothing is left to do.
failpoints.declare(
    "function:processed",
    "function:committed",
    "function:published",
    "function:settled",
    "function:acknowledged",
)


class Run:
    """Messages that one instance has processed since its last commit, with what came of them.

    Attributes:
        taken: the messages, in the order in which they were processed.
        changes: of the state, by all of them.
        drafts: what is to be published.
        size: bytes of the changes and drafts, about.
    """

    def __init__(self) -> None:
        self.taken: list[Taken] = []
        self.changes = Changes()
        self.drafts: list[Draft] = []
        self.size = 0
        self._places: dict[str, list[Place]] = {}

    def add(self, taken: Taken, changes: Changes, drafts: list[Draft]) -> None:
        """A message was processed."""
        self.taken.append(taken)
        self.changes.merge(changes)
        self.drafts += drafts
        self.size += self.size_of(changes, drafts)
        topic, place = taken.message.topic_name(), place_of_message(taken.message)
        self._places.setdefault(topic, []).append(place)

    @staticmethod
    def size_of(changes: Changes, drafts: list[Draft]) -> int:
        """Bytes that the outcome of a message takes in a commit, about."""
        return changes.size() + sum(draft.size() for draft in drafts)

    def is_new_to(self, positions: dict[str, Place]) -> bool:
        """Whether none of the messages is counted as processed yet."""
        return all(
            topic not in positions or positions[topic] < min(places) for topic, places in self._places.items()
        )

    def positions(self) -> list[Record]:
        """The records that count them as processed."""
        return [position_record(topic, max(places)) for topic, places in self._places.items()]


class Committer:
    """Commits the runs of one instance.

    Role: the steps of `commit`, in this order: 1. one entry with the positions of the inputs, the changes of
    the state and the outputs; 2. the outputs are published, under sequence ids that the entry has; 3. a note
    that they are; 4. the messages are acknowledged. 1 to 3 are one locked section: so what a dead instance
    left between 1 and 3 is known to the next that commits, whatever it processes, and is settled first.
    Invariants: a run is committed only if none of its messages is counted as processed. An instance that was
    stopped while another took its messages over throws its own run away.
    Callers: one thread. After an exception the instance is closed, and another one is made.
    """

    def __init__(self, state: StateLog, outputs: OutputProducers) -> None:
        self._state: Final = state
        self._outputs: Final = outputs

    def is_done(self, message: Message[Any]) -> bool:
        """Whether a message is counted as processed, as far as the state was followed."""
        position = self._state.table.positions.get(message.topic_name())
        return position is not None and place_of_message(message) <= position

    def commit(self, run: Run, more: list[Record]) -> bool:
        """Count the messages of a run as processed.

        Args:
            run: with at least one message.
            more: further records.

        Returns:
            False if another instance has processed some of them: then nothing is committed.

        Raises:
            PulsarException: see `StateLog.commit` and `OutputProducers.publish`.
        """
        if failpoints.ACTIVE:
            failpoints.hit("function:processed")
        try:
            self._state.acquire()
            self._settle()
            if not run.is_new_to(self._state.table.positions):
                return False
            ids = self._store(run, more)
        finally:
            self._state.release()
        for taken in run.taken:
            taken.acknowledge()
        if failpoints.ACTIVE:
            failpoints.hit("function:acknowledged")
        for draft, message_id in zip(run.drafts, ids, strict=True):
            notify(draft, message_id)
        return True

    def _store(self, run: Run, more: list[Record]) -> list[MessageId]:
        state, outputs = self._state, self._outputs
        records = [*run.positions(), *state.table.records_of(run.changes), *more]
        if not run.drafts:
            state.commit(records)
            return []
        pending = Pending(outputs.name, [outputs.number(draft) for draft in run.drafts])
        state.commit([*records, pending_record(pending)])
        if failpoints.ACTIVE:
            failpoints.hit("function:committed")
        ids = outputs.publish(pending)
        if failpoints.ACTIVE:
            failpoints.hit("function:published")
        state.commit([pending_record(None)])
        if failpoints.ACTIVE:
            failpoints.hit("function:settled")
        return ids

    def settle(self) -> None:
        """Publish what an instance left that died in the middle of a commit, if any."""
        self._state.catch_up()
        if self._state.table.pending is None:
            return
        try:
            self._state.acquire()
            self._settle()
        finally:
            self._state.release()

    def _settle(self) -> None:
        self._state.catch_up()
        pending = self._state.table.pending
        if pending is not None:
            self._outputs.settle(pending)
            self._state.commit([pending_record(None)])
