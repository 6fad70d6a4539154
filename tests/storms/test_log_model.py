"""The judge of the storms judges right."""

from __future__ import annotations

import pytest

from tests.storms.log_model import LogModel, Seen


def seen(*entries: tuple[int, int, bytes]) -> list[Seen]:
    """Entries as read, at rising times."""
    return [Seen((ledger, entry), (payload,), n) for n, (ledger, entry, payload) in enumerate(entries)]


@pytest.fixture
def model() -> LogModel:
    """Two durable entries, one that is not, one whose append failed just now, one whose place was taken."""
    model = LogModel()
    model.pending.append((b"ghost",))
    model.commit((1, 0), (b"a",))
    model.settle([])
    model.commit((1, 1), (b"b",))
    model.sync()
    model.commit((1, 2), (b"c",))
    model.pending.append((b"maybe",))
    return model


def test_what_is_allowed(model: LogModel):
    """Unflushed entries and failed appends may be there or not."""
    assert not model.violations(seen((1, 0, b"a"), (1, 1, b"b")))
    assert not model.violations(seen((1, 0, b"a"), (1, 1, b"b"), (1, 2, b"c")))
    assert not model.violations(seen((1, 0, b"a"), (1, 1, b"b"), (1, 2, b"c"), (1, 3, b"maybe")))


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        (seen((1, 0, b"a")), "durable entry (1, 1) is gone"),
        (seen((1, 0, b"a"), (1, 1, b"x")), "instead of"),
        (seen((1, 0, b"a"), (1, 1, b"b"), (1, 2, b"ghost")), "is a ghost"),
        (seen((1, 1, b"b"), (1, 0, b"a")), "after"),
        (seen((1, 0, b"a"), (1, 1, b"b"), (2, 0, b"new")), "never appended"),
        (seen((1, 0, b"a"), (1, 1, b"b"), (1, 2, b"maybe"), (1, 3, b"maybe")), "instead of"),
        (list(reversed(seen((1, 1, b"b"), (1, 0, b"a")))), "publish time"),
    ],
)
def test_what_is_not(model: LogModel, entries: list[Seen], text: str):
    """Loss, change, ghosts, disorder, inventions."""
    assert any(text in line for line in model.violations(entries))


def test_trimmed_entries_may_be_gone_or_not(model: LogModel):
    """A file below the trim point may come back after a power loss."""
    model.trimmed_below = 2
    assert not model.violations([])
    assert not model.violations(seen((1, 0, b"a"), (1, 1, b"b")))


def test_entries_behind_a_failed_flush_may_be_durable(model: LogModel):
    """The append that met the failure begins a new ledger, and the flush of that covers it alone."""
    model.commit((2, 0), (b"d",))
    model.poison(last_ledger=1)
    model.sync()
    found = model.violations(seen((1, 0, b"a"), (1, 1, b"b")))
    assert found == ["durable entry (2, 0) is gone"]


def test_poisoned_entries_are_never_durable(model: LogModel):
    """A later flush that succeeds does not help them."""
    model.poison()
    model.sync()
    assert not model.violations(seen((1, 0, b"a"), (1, 1, b"b")))


def test_a_failed_flush_excuses_the_ghost_it_should_have_cleared():
    """What was just buried may come back, at a place of its own."""
    model = LogModel()
    model.pending.append((b"ghost",))
    model.settle([])
    model.poison()
    model.commit((2, 0), (b"a",))
    assert not model.violations(seen((1, 0, b"ghost"), (2, 0, b"a")))
    assert model.violations(seen((2, 0, b"ghost")))
    after = model.after_recovery(seen((1, 0, b"ghost"), (2, 0, b"a")))  # an entry like others from then on
    assert not after.violations(seen((1, 0, b"ghost"), (2, 0, b"a")))
    assert after.violations(seen((2, 0, b"a")))


def test_after_a_recovery(model: LogModel):
    """What was seen is durable, what was not never comes back."""
    after = model.after_recovery(seen((1, 0, b"a"), (1, 1, b"b")))
    assert after.violations(seen((1, 0, b"a")))
    assert any(
        "came back" in line for line in after.violations(seen((1, 0, b"a"), (1, 1, b"b"), (1, 2, b"c")))
    )
    assert any(
        "ghost" in line for line in after.violations(seen((1, 0, b"a"), (1, 1, b"b"), (1, 3, b"maybe")))
    )
    with pytest.raises(AssertionError, match="given out"):
        after.commit((1, 2), (b"again",))


def test_copies_are_independent(model: LogModel):
    """A moment keeps what was known then."""
    copy = model.copy()
    model.sync()
    model.commit((1, 3), (b"d",))
    assert not copy.violations(seen((1, 0, b"a"), (1, 1, b"b")))
    assert model.violations(seen((1, 0, b"a"), (1, 1, b"b")))
