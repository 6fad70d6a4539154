"""Batches and the queue of a producer against simple models, over random programs."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from embeddedpulsar.client.producer.producer import Producer
from embeddedpulsar.results import Result
from tests.unit.client.fakes import FakeSession, make_producer

DELAY_MS = 10


class Send(NamedTuple):
    """A message of some bytes; ``key`` may be None."""

    size: int
    key: str | None
    is_delayed: bool


sends = st.builds(
    Send,
    st.sampled_from([0, 1, 9, 10, 11, 30, 31, 99, 100, 101, 250]),
    st.sampled_from([None, "a", "b"]),
    st.sampled_from([False] * 9 + [True]),
)
free_programs = st.lists(st.one_of(sends, sends, sends, st.sampled_from(["flush", "wait"])), max_size=40)
held_programs = st.lists(
    st.one_of(sends, sends, st.sampled_from(["flush", "wait", "hold", "let go", "retry", "long"])),
    max_size=60,
)


class Model:
    """What a producer does whose topic is free: the rules, and nothing of how they are kept."""

    def __init__(self, most: int, most_bytes: int, is_keyed: bool) -> None:
        self.most, self.most_bytes, self.is_keyed = most, most_bytes, is_keyed
        self.batch: list[tuple[int, Send]] = []
        self.entries: list[list[int]] = []

    def send(self, number: int, message: Send) -> None:
        """Delayed messages go at once; others when the batch is full, or the next does not fit."""
        if message.is_delayed:
            self.entries.append([number])
            return
        if self.batch and self._bytes() + message.size > self.most_bytes:
            self.emit()
        self.batch.append((number, message))
        if len(self.batch) >= self.most or self._bytes() >= self.most_bytes:
            self.emit()

    def _bytes(self) -> int:
        return sum(message.size for _, message in self.batch)

    def emit(self) -> None:
        """The batch is one entry, or one per key in the order of their first messages."""
        groups: dict[str | None, list[int]] = {}
        for number, message in self.batch:
            groups.setdefault(message.key if self.is_keyed else None, []).append(number)
        self.entries += groups.values()
        self.batch = []


class Program:
    """A producer on fakes, and the answers it gave."""

    def __init__(self, **options: Any) -> None:
        self.producer: Producer[Any]
        self.producer, self.session, self.ledger = make_producer(FakeSession(), **options)
        self.answers: list[tuple[int, Result]] = []
        self.sent: list[Send] = []

    def send(self, message: Send) -> None:
        number = len(self.sent)
        self.sent.append(message)
        self.producer.send_async(
            b"%d:" % number + b"x" * (message.size - len(b"%d:" % number)),
            lambda result, _: self.answers.append((number, result)),
            properties={"n": str(number)},
            partition_key=message.key,
            deliver_at=1 if message.is_delayed else None,
        )

    def wait(self, milliseconds: int) -> None:
        self.session.clock.advance(milliseconds / 1000)
        self.session.scheduler.run_due()

    def entries(self) -> list[list[int]]:
        """The numbers of the stored messages, entry by entry."""
        return [[int(view.properties(i)["n"]) for i in range(view.count)] for view in self.ledger.views]

    def finish(self) -> None:
        self.session.callbacks.run()


@settings(max_examples=300, deadline=None)
@given(free_programs, st.sampled_from([2, 3, 7]), st.sampled_from([30, 100]), st.booleans())
def test_containers_follow_their_rules(program: list[Any], most: int, most_bytes: int, is_keyed: bool):
    """The entries of a topic nobody else uses are those of the model, at every step."""
    run = Program(
        batching=True,
        batching_max_messages=most,
        batching_max_bytes=most_bytes,
        batching_max_delay_ms=DELAY_MS,
        key_based=is_keyed,
    )
    model = Model(most, most_bytes, is_keyed)
    for step in program:
        if isinstance(step, Send):
            # A payload carries its number, so the smallest are a little larger.
            step = step._replace(size=max(step.size, len(b"%d:" % len(run.sent))))
            model.send(len(run.sent), step)
            run.send(step)
        elif step == "flush":
            model.emit()
            run.producer.flush()
        else:
            model.emit()
            run.wait(DELAY_MS)
        assert run.entries() == model.entries
    waiting = [number for number, _ in model.batch]
    run.producer.close()
    run.finish()
    stored = [number for entry in model.entries for number in entry]
    assert [number for number, result in run.answers if result == Result.Ok] == stored
    assert [number for number, result in run.answers if result == Result.AlreadyClosed] == waiting
    assert len(run.answers) == len(run.sent)


@settings(max_examples=300, deadline=None)
@given(held_programs, st.booleans(), st.booleans(), st.sampled_from([0, 5]), st.booleans())
def test_a_topic_that_is_locked_now_and_then(
    program: list[Any], is_batching: bool, is_keyed: bool, limit: int, is_closed_held: bool
):
    """Each message has one answer and is stored if that is Ok, once; order, ids and limits hold."""
    run = Program(
        batching=is_batching,
        batching_max_messages=3,
        batching_max_bytes=100,
        batching_max_delay_ms=DELAY_MS,
        key_based=is_keyed,
        max_pending_messages=limit,
        send_timeout_ms=1000,
    )
    lock = run.ledger.lock
    for step in program:
        before = len(run.ledger.views)
        was_held = not lock.is_free
        if isinstance(step, Send):
            run.send(step._replace(size=max(step.size, 4)))
        elif step == "flush":
            run.producer.flush()
        elif step == "retry":
            run.session.flusher.run()
        elif step in ("hold", "let go"):
            lock.is_free = step == "let go"
        else:
            run.wait(DELAY_MS)
            if step == "long":
                run.wait(1001)  # from the moment when what waited could not be stored
            run.finish()
            if step == "long" and was_held:
                assert len(run.producer._publisher.queue) == 0
        assert not (was_held and len(run.ledger.views) > before)
        if limit:
            assert len(run.producer._publisher.queue) <= limit
    lock.is_free = not is_closed_held
    run.producer.close()
    run.finish()
    check(run, is_keyed and is_batching)


def check(run: Program, is_keyed: bool) -> None:
    """What holds whatever happened."""
    entries = run.entries()
    stored = [number for entry in entries for number in entry]
    answered = [number for number, _ in run.answers]
    ok = [number for number, result in run.answers if result == Result.Ok]
    assert sorted(answered) == list(range(len(run.sent)))
    assert ok == stored
    in_batches = [number for number in stored if not run.sent[number].is_delayed]
    if is_keyed:
        for key in ("a", "b", None):
            of_key = [number for number in in_batches if run.sent[number].key == key]
            assert of_key == sorted(of_key)
    else:
        assert in_batches == sorted(in_batches)
    for view, entry in zip(run.ledger.views, entries, strict=True):
        sizes = [run.sent[number].size for number in entry]
        assert len(entry) <= 3
        assert len(entry) == 1 or sum(sizes) <= 100
        assert not (len(entry) > 1 and any(run.sent[number].is_delayed for number in entry))
        assert not run.sent[entry[0]].is_delayed or not view.batched
    if not is_keyed:
        ids = [view.first_sequence_id for view in run.ledger.views]
        assert ids == sorted(set(ids))
