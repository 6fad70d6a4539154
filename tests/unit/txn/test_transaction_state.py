"""The life of a transaction as a pure machine: any order of intents, deaths and reboots, step by step."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from embeddedpulsar._engine.format import transaction_record as record
from embeddedpulsar._engine.format.transaction_record import RECORDS, SUBSCRIPTION, TOPIC, ParticipantFacts
from embeddedpulsar._engine.txn.transaction_state import (
    Decisions,
    Intent,
    Outcome,
    SlotState,
    Standing,
    Step,
    after,
    next_step,
)
from embeddedpulsar.exceptions import CorruptionError, UnsupportedFormatVersion

FINAL = (Outcome.COMMITTED, Outcome.ABORTED)


def alike(first: Standing, second: Standing) -> bool:
    """Whether both lead to the same steps: durability is of no account where nothing needs it."""
    if SlotState.FREE in (first.state, second.state):
        first, second = first._replace(is_durable=True), second._replace(is_durable=True)
    if first.state not in (SlotState.DECIDED, SlotState.PREPARED):
        first, second = first._replace(is_durable=True), second._replace(is_durable=True)
    return first == second


class Stored:
    """What is stored of one transaction, and the steps that change it, as the log makes them."""

    def __init__(self, *, is_flushed: bool) -> None:
        self.is_flushed = is_flushed
        self.slot = SlotState.OPEN
        self.byte = Outcome.UNDECIDED
        self.journal: list[str] = []
        self.durable = 0
        self.decided = 0
        self.is_joined = False
        self.deadline_passed = False
        self.owner_lives = True

    @property
    def is_committed(self) -> bool:
        return "commit" in self.journal

    @property
    def is_prepared(self) -> bool:
        return bool(self.journal) and self.journal[-1] == "prepare"

    def standing(self, is_own: bool) -> Standing:
        return Standing(
            self.slot,
            self.byte,
            self.is_committed,
            self.is_prepared,
            self.is_joined,
            self.slot is SlotState.FREE or self.durable >= self.decided,
            self.deadline_passed,
            is_own or self.owner_lives,
        )

    def take(self, step: Step, is_own: bool = True) -> None:
        before = self.standing(is_own)
        if step in (Step.APPEND_COMMIT, Step.APPEND_PREPARE, Step.APPEND_ABORT):
            self.journal.append(step.value.removeprefix("append "))
            self.is_joined = False
            if step is Step.APPEND_PREPARE:
                self.deadline_passed = False
        elif step is Step.FLUSH:
            self.durable = len(self.journal)
            return
        elif step is Step.FREE_SLOT:
            self.slot = SlotState.FREE
        elif step is Step.MOVE_DECIDED:
            self.decided = len(self.journal) if self.is_flushed else 0
            self.slot = SlotState.DECIDED
        elif step is Step.MOVE_PREPARED:
            self.decided = len(self.journal)
            self.slot = SlotState.PREPARED
        elif step is Step.MOVE_ENDING:
            self.slot = SlotState.ENDING
        else:
            self.byte = Outcome[step.value.removeprefix("show ").upper()]
        assert alike(after(step, before, must_flush=self.is_flushed), self.standing(is_own))

    def reboot(self, kept: int) -> None:
        """Words and bytes are derived from what the journal kept."""
        self.journal = self.journal[: max(kept, self.durable)]
        self.durable = len(self.journal)
        self.is_joined = False
        self.decided = 0
        self.slot = SlotState.PREPARED if self.is_prepared else SlotState.FREE
        if self.is_committed:
            self.byte = Outcome.COMMITTED
        else:
            self.byte = Outcome.PREPARED if self.is_prepared else Outcome.ABORTED


class LifeOfOne(RuleBasedStateMachine):
    """One transaction; actors that may stop for ever between any two steps."""

    @initialize(is_flushed=st.booleans())
    def begin(self, is_flushed: bool) -> None:
        self.stored = Stored(is_flushed=is_flushed)
        self.promised: Outcome | None = None
        self.seen: Outcome | None = None
        self.prepared_answered = False

    @rule(intent=st.sampled_from(Intent), most_steps=st.integers(0, 8), is_own=st.booleans())
    def act(self, intent: Intent, most_steps: int, is_own: bool) -> None:
        """Follow an intent, and die after some steps; the next one goes on from there."""
        stored = self.stored
        if not stored.owner_lives:
            is_own = False
        if not is_own and intent in (Intent.STOP, Intent.PREPARE):
            return
        if intent is Intent.COMMIT and not is_own and not stored.is_prepared:
            return  # only the owner commits, and whoever resumes
        for _ in range(most_steps):
            step = next_step(intent, stored.standing(is_own))
            if step.is_last:
                self.note_answer(intent, step)
                return
            stored.take(step)
            self.look()

    def note_answer(self, intent: Intent, step: Step) -> None:
        if intent is Intent.JOIN and step is Step.DONE:
            self.stored.is_joined = True
        if step is Step.DONE and intent is Intent.PREPARE:
            self.prepared_answered = True
        if step is Step.DONE and intent in (Intent.COMMIT, Intent.ABORT):
            answer = Outcome.COMMITTED if intent is Intent.COMMIT else Outcome.ABORTED
            assert self.promised in (None, answer)
            self.promised = answer
            assert self.stored.byte is answer
        if step is Step.REFUSED_COMMITTED:
            assert self.stored.is_committed
        if step in (Step.REFUSED_ABORTED, Step.REFUSED_LATE):
            assert self.stored.byte is Outcome.ABORTED

    def look(self) -> None:
        """A reader looks: what is final stays."""
        byte = self.stored.byte
        if self.seen is not None:
            assert byte is self.seen
        elif byte in FINAL:
            self.seen = byte
            if byte is Outcome.COMMITTED:
                assert self.stored.is_committed

    @rule()
    def let_time_pass(self) -> None:
        self.stored.deadline_passed = True

    @rule()
    def owner_dies(self) -> None:
        self.stored.owner_lives = False

    @rule(kept=st.integers(0, 4))
    def lose_power(self, kept: int) -> None:
        """What was not flushed may be lost: then a commit below level "flush" may be undone, as a whole."""
        stored = self.stored
        before = stored.is_committed
        was_shown = stored.byte is Outcome.COMMITTED
        stored.owner_lives = False
        stored.reboot(kept)
        if stored.is_flushed and was_shown and stored.slot is not SlotState.FREE:
            assert stored.is_committed
        if (before and not stored.is_committed) or (self.seen and self.seen is not stored.byte):
            assert not stored.is_flushed or self.seen is not Outcome.COMMITTED
            self.promised = self.seen = None
        if self.prepared_answered and not stored.is_committed and "abort" not in stored.journal:
            assert stored.is_prepared or self.promised is Outcome.ABORTED

    @invariant()
    def tending_ends(self) -> None:
        """Whatever was left: a few steps of anyone, and the standing answers for itself."""
        stored = clone(self.stored)
        for _ in range(10):
            step = next_step(Intent.TEND, stored.standing(is_own=False))
            if step.is_last:
                break
            stored.take(step)
        assert step.is_last
        if stored.slot is SlotState.FREE:
            assert stored.byte in FINAL
        elif not stored.owner_lives or stored.deadline_passed:
            assert stored.is_prepared and not stored.deadline_passed


def clone(stored: Stored) -> Stored:
    copied = Stored(is_flushed=stored.is_flushed)
    copied.__dict__.update(stored.__dict__, journal=list(stored.journal))
    return copied


LifeOfOne.TestCase.settings = settings(max_examples=100, stateful_step_count=15, deadline=None)
TestLifeOfOne = LifeOfOne.TestCase


def test_every_standing_has_an_end() -> None:
    """Each combination of what may be stored, each intent: a few steps, none of which repeats."""
    for slot, byte, committed, prepared, joined, late, owned in itertools.product(
        SlotState, list(Outcome)[:4], *[(False, True)] * 5
    ):
        for intent in Intent:
            stored = Stored(is_flushed=True)
            stored.slot, stored.byte, stored.is_joined = slot, byte, joined
            stored.deadline_passed, stored.owner_lives = late, owned
            stored.journal = ["prepare"] * prepared + ["commit"] * committed
            if committed and byte is Outcome.ABORTED:
                continue  # cannot come to be
            taken = []
            while not (step := next_step(intent, stored.standing(is_own=False))).is_last:
                assert step not in taken, (intent, taken)
                taken.append(step)
                stored.take(step)
            if byte in FINAL:
                assert stored.byte is byte
            if committed:
                assert stored.byte is Outcome.COMMITTED and stored.slot is SlotState.FREE


FACTS = st.builds(
    ParticipantFacts,
    st.sampled_from([TOPIC, SUBSCRIPTION]),
    st.integers(0, 2**64 - 1),
    st.text(max_size=40),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
)
IDS = st.integers(1, record.MAX_TXN_ID)
COMMANDS = st.one_of(
    st.builds(record.Reserve, IDS),
    st.builds(record.Commit, IDS, st.lists(FACTS, max_size=4).map(tuple)),
    st.builds(
        record.Prepare,
        IDS,
        st.integers(0, 2**63),
        st.text(max_size=100),
        st.lists(FACTS, max_size=3).map(tuple),
    ),
    st.builds(record.Abort, IDS),
    st.builds(record.Join, IDS, FACTS),
    st.builds(record.RaiseLowest, IDS),
)


@given(COMMANDS)
def test_records_round_trip(command: record.Decision) -> None:
    """And a shortened payload is refused, or another command of fewer participants."""
    kind, payload = RECORDS.encode(command)
    assert RECORDS.decode(kind, payload) == command
    if len(payload) > 8 and not isinstance(command, record.Commit):
        with pytest.raises(CorruptionError):
            RECORDS.decode(kind, payload[:-1] if len(payload) % 40 else payload[:-39])


SMALL_IDS = st.integers(1, 9).map(lambda number: number * 30_000)
PROGRAMS = st.lists(
    st.one_of(
        st.builds(record.Commit, SMALL_IDS, st.lists(FACTS, max_size=1).map(tuple)),
        st.builds(record.Prepare, SMALL_IDS, st.just(0), st.text(max_size=5), st.lists(FACTS).map(tuple)),
        st.builds(record.Abort, SMALL_IDS),
        st.builds(record.Join, SMALL_IDS, FACTS),
        st.builds(record.RaiseLowest, SMALL_IDS),
        st.builds(record.Reserve, SMALL_IDS),
    ),
    max_size=20,
)


@given(PROGRAMS, PROGRAMS)
def test_replicas_agree(first: list[record.Decision], second: list[record.Decision]) -> None:
    """One that follows all, and one that starts from a snapshot in the middle, have equal bytes."""
    whole, resumed = Decisions(), Decisions()
    for command in first:
        whole.replay(*RECORDS.encode(command), 7)
    resumed.reset(whole.snapshot())
    assert resumed.snapshot() == whole.snapshot()
    for command in second:
        whole.replay(*RECORDS.encode(command), 8)
        resumed.replay(*RECORDS.encode(command), 8)
    assert resumed.snapshot() == whole.snapshot()
    assert resumed.prepared == whole.prepared and resumed.joined == whole.joined
    resumed.reset(None)
    assert resumed.snapshot() == Decisions().snapshot()


def test_outcomes_of_a_table() -> None:
    """As if nothing were open."""
    decisions = Decisions()
    decisions.note_committed(65_536)
    decisions.note_committed(65_545)
    decisions.replay(*RECORDS.encode(record.Prepare(65_540)), 1)
    outcomes = decisions.outcomes_of(1)
    assert len(outcomes) == 65_536
    assert [at for at, byte in enumerate(outcomes) if byte == Outcome.COMMITTED] == [0, 9]
    assert [at for at, byte in enumerate(outcomes) if byte == Outcome.PREPARED] == [4]
    assert set(decisions.outcomes_of(0)) == {Outcome.ABORTED}


def test_what_is_no_record_is_refused() -> None:
    """A newer release's by its number; a short one by its length."""
    with pytest.raises(UnsupportedFormatVersion, match="type 99"):
        Decisions().replay(99, b"", 0)
    for kind in (record.COMMIT, record.ABORT, record.PREPARE, record.JOIN):
        with pytest.raises(CorruptionError):
            Decisions().replay(kind, b"short", 0)


@pytest.mark.parametrize("token", [b"", bytes(40), b"EPTX" + bytes(36)])
def test_noise_is_no_token(token: bytes) -> None:
    """By length, magic or version."""
    assert record.parse_token(token) is None
