"""The producers' state machine: access modes as in Pulsar."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddedpulsar._engine.format.journal_record import (
    REASON_CLOSED,
    REASON_DEAD,
    DetachProducer,
    decode_command,
    encode_command,
)
from embeddedpulsar._engine.store.topic_journal import ProducerRequest, ProducerTable
from embeddedpulsar.enums import ProducerAccessMode as Mode
from embeddedpulsar.exceptions import CorruptionError, ProducerBusy, ProducerFenced

A, B, C = (bytes([n]) * 16 for n in range(3))


class Scene:
    """A table with a short way to ask for things."""

    def __init__(self) -> None:
        self.table = ProducerTable()

    def ask(self, name: str, mode: Mode = Mode.Shared, uuid: bytes = A, most: int = 0) -> int:
        commands = self.table.admit(ProducerRequest(uuid, mode.value, True, name), most)
        self.apply(commands)
        return commands[-1].producer_id

    def apply(self, commands) -> None:
        for command in commands:
            self.table.apply(decode_command(*encode_command(command)))

    def leave(self, number: int) -> None:
        self.apply([DetachProducer(number, REASON_CLOSED)])
        self.apply(self.table.promote())

    @property
    def connected(self) -> list[str]:
        return [one.name for one in self.table.connected.values()]


def test_shared_producers_share():
    """Any number, each under its own name."""
    scene = Scene()
    for name in "abc":
        scene.ask(name)
    assert scene.connected == ["a", "b", "c"] and scene.table.epoch == 0
    with pytest.raises(ProducerBusy, match="'b' is connected"):
        scene.ask("b", uuid=B)
    scene.leave(2)
    assert scene.ask("b", uuid=B) == 4


def test_the_number_of_producers_may_be_limited():
    """maxProducersPerTopic."""
    scene = Scene()
    scene.ask("a", most=2)
    scene.ask("b", most=2)
    with pytest.raises(ProducerBusy, match="maxProducersPerTopic"):
        scene.ask("c", most=2)


def test_exclusive_needs_the_topic_for_itself():
    """Refused at once beside anybody; once granted, nobody else comes in. The epoch rises with each grant."""
    scene = Scene()
    first = scene.ask("a")
    with pytest.raises(ProducerFenced):
        scene.ask("x", Mode.Exclusive)
    scene.leave(first)
    granted = scene.ask("x", Mode.Exclusive)
    assert scene.table.connected[granted].epoch == 1
    with pytest.raises(ProducerBusy):
        scene.ask("a")
    with pytest.raises(ProducerFenced):
        scene.ask("y", Mode.Exclusive)
    scene.leave(granted)
    assert scene.table.connected == {}
    assert scene.table.connected.get(scene.ask("y", Mode.Exclusive)).epoch == 2


def test_those_who_wait_are_served_in_order():
    """WaitForExclusive: first come, first served; a shared producer cannot slip in between."""
    scene = Scene()
    holder = scene.ask("a")
    second, third = scene.ask("b", Mode.WaitForExclusive), scene.ask("c", Mode.WaitForExclusive)
    assert scene.connected == ["a"]
    with pytest.raises(ProducerBusy):
        scene.ask("d")
    with pytest.raises(ProducerFenced):
        scene.ask("e", Mode.Exclusive)
    scene.leave(holder)
    assert scene.connected == ["b"] and scene.table.connected[second].epoch == 1
    scene.leave(third)
    scene.leave(second)
    assert scene.connected == [] and not scene.table.waiting


def test_fencing_puts_everybody_out():
    """ExclusiveWithFencing: the connected and the waiting are fenced and marked so; the new one has the
    topic."""
    scene = Scene()
    holder = scene.ask("a", uuid=A)
    waiter = scene.ask("b", Mode.WaitForExclusive, uuid=B)
    scene.ask("a", Mode.ExclusiveWithFencing, uuid=C)
    assert scene.connected == ["a"] and not scene.table.waiting
    assert scene.table.fenced == {holder: A, waiter: B}
    scene.leave(holder)
    assert scene.table.fenced == {waiter: B}, "one who was fenced leaves for good when he closes"


def test_the_dead_go_with_all_they_had():
    """Departures name everybody of a client: connected, waiting, fenced."""
    scene = Scene()
    scene.ask("a", uuid=A)
    scene.ask("b", Mode.WaitForExclusive, uuid=B)
    assert scene.table.clients() == {A, B}
    scene.apply(scene.table.detach_commands({A}, REASON_DEAD))
    assert scene.connected == []
    scene.apply(scene.table.promote())
    assert scene.connected == ["b"]
    scene.ask("c", Mode.ExclusiveWithFencing, uuid=C)
    assert scene.table.clients() == {B, C}
    scene.apply(scene.table.detach_commands({B}, REASON_DEAD))
    assert scene.table.clients() == {C}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(list(Mode)), st.sampled_from("abc"), st.sampled_from([A, B, C]), st.booleans()
        )
    )
)
def test_invariants_hold_under_any_requests(steps):
    """At most one exclusive producer, and then alone; ids and epoch rise; a snapshot gives the same state."""
    scene = Scene()
    epoch = refused = 0
    for mode, name, uuid, leave in steps:
        if leave and scene.table.connected:
            scene.leave(next(iter(scene.table.connected)))
        try:
            scene.ask(name, mode, uuid)
        except (ProducerBusy, ProducerFenced):
            refused += 1
        exclusive = [one for one in scene.table.connected.values() if one.access_mode != 0]
        assert not exclusive or len(scene.table.connected) == 1
        assert not scene.table.waiting or scene.table.connected
        assert scene.table.epoch >= epoch
        epoch = scene.table.epoch
        names = [one.name for one in scene.table.everybody()]
        assert len(names) == len(set(names))
    assert refused < max(1, len(steps)), "whoever comes first is let in"
    copy = ProducerTable.from_fields(scene.table.to_fields())
    assert copy.to_fields() == scene.table.to_fields()


@pytest.mark.parametrize("fields", [{}, {"connected": 1}, {"connected": [[1]], "waiting": [], "fenced": []}])
def test_a_snapshot_that_is_none_is_corruption(fields):
    """Nothing but CorruptionError comes out of a bad document."""
    with pytest.raises(CorruptionError):
        ProducerTable.from_fields(fields)
