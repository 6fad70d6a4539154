"""Waiter words and slot tables."""

from __future__ import annotations

import os

import pytest

from embeddedpulsar.format.control import CONTROL_SIZE, UUID_TABLE_OFFSET, WAITERS_OTHERS_BIT, TopicWord
from embeddedpulsar.storage.waiter_slots import OTHERS, SLOTS, WaiterSlots


class Census:
    """Stands in for the peers: everybody lives but the dead."""

    def __init__(self) -> None:
        self.dead: set[bytes] = set()
        self.probes = 0

    def is_alive(self, uuid: bytes) -> bool:
        self.probes += 1
        return uuid not in self.dead


def table() -> tuple[WaiterSlots, memoryview, Census]:
    """Slots over a fresh ctl."""
    view, census = memoryview(bytearray(CONTROL_SIZE)), Census()
    words = view.cast("Q")
    slots = WaiterSlots(words, view, TopicWord.WAITERS, UUID_TABLE_OFFSET, census)  # type: ignore[arg-type]
    return slots, words, census


def test_whoever_armed_is_taken_once():
    """`take` returns everybody who announced himself, and clears the word."""
    slots, words, _ = table()
    uuids = [os.urandom(16) for _ in range(5)]
    for uuid in uuids:
        slots.arm(slots.claim(uuid))
    slots.disarm(slots.claim(uuids[1]))
    assert words[TopicWord.WAITERS] == 0b11101
    assert slots.take() == [uuids[0], *uuids[2:]]
    assert words[TopicWord.WAITERS] == 0 and slots.take() == []


def test_a_process_keeps_its_slot():
    """Claiming again, with or without the hint, gives the same slot; the table stays in the ctl for
    others."""
    slots, words, census = table()
    first, second = os.urandom(16), os.urandom(16)
    assert [slots.claim(first), slots.claim(second), slots.claim(first), slots.claim(second, 1)] == [
        0,
        1,
        0,
        1,
    ]
    view = memoryview(bytearray(words.cast("B"))).cast("B")
    words = view.cast("Q")
    copy = WaiterSlots(words, view, TopicWord.WAITERS, UUID_TABLE_OFFSET, census)  # type: ignore[arg-type]
    assert copy.claim(second) == 1
    assert view[UUID_TABLE_OFFSET + 16 : UUID_TABLE_OFFSET + 32] == second


def test_a_slot_given_back_is_used_again():
    """`forget` frees slot and bit."""
    slots, words, _ = table()
    first, second = os.urandom(16), os.urandom(16)
    slots.arm(slots.claim(first))
    slots.forget(first)
    slots.forget(os.urandom(16))
    assert words[TopicWord.WAITERS] == 0 and slots.take() == []
    assert slots.claim(second) == 0


def test_more_processes_than_slots_share_the_bit_of_the_others():
    """The 64th process gets no slot; its announcement wakes nobody by name, and costs the sender no
    search."""
    slots, words, _ = table()
    uuids = [os.urandom(16) for _ in range(SLOTS)]
    assert [slots.claim(uuid) for uuid in uuids] == list(range(SLOTS))
    crowd = slots.claim(os.urandom(16))
    assert crowd == OTHERS
    slots.arm(crowd)
    assert words[TopicWord.WAITERS] == WAITERS_OTHERS_BIT
    slots.disarm(crowd)
    assert words[TopicWord.WAITERS] == WAITERS_OTHERS_BIT, "it is not one process's to clear"
    slots.arm(3)
    assert slots.take() == [uuids[3]]
    assert words[TopicWord.WAITERS] == 0


def test_a_full_table_gives_the_slots_of_the_dead_away():
    """When no slot is free the leases are probed, but not at every claim."""
    slots, words, census = table()
    uuids = [os.urandom(16) for _ in range(SLOTS)]
    for uuid in uuids:
        slots.arm(slots.claim(uuid))
    newcomer = os.urandom(16)
    assert slots.claim(newcomer) == OTHERS and census.probes == SLOTS
    assert slots.claim(newcomer) == OTHERS and census.probes == SLOTS
    census.dead.add(uuids[40])
    claims = [slots.claim(newcomer) for _ in range(64)]
    assert 40 in claims and claims[0] == OTHERS
    assert not words[TopicWord.WAITERS] >> 40 & 1, "what the dead waited for is nobody's business"
    assert slots.claim(newcomer, OTHERS) == 40


def test_taking_one_goes_round():
    """`take_one` picks the next armed slot after the last one, and leaves the others armed."""
    slots, _, _ = table()
    uuids = [os.urandom(16) for _ in range(4)]
    for uuid in uuids:
        slots.arm(slots.claim(uuid))
    slots.disarm(2)
    order = [slots.take_one(0), slots.take_one(1), slots.take_one(3), slots.take_one(0)]
    assert order == [uuids[1], uuids[3], uuids[0], None]


def test_a_table_that_does_not_fit_is_refused():
    """The constructor checks where the table lies."""
    view = memoryview(bytearray(1024))
    with pytest.raises(ValueError, match="does not fit"):
        WaiterSlots(view.cast("Q"), view, 8, 512, Census())  # type: ignore[arg-type]
