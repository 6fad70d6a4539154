"""Waiter words, slot tables and groups."""

from __future__ import annotations

import os

import pytest

from embeddedpulsar._engine.format.control import (
    CONTROL_SIZE,
    GROUPS,
    UUID_SLOTS,
    UUID_TABLE_OFFSET,
    TopicWord,
)
from embeddedpulsar._engine.log.waiter_slots import EACH, OTHERS, WaiterSlots

KEY = 77


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
    words, census = memoryview(bytearray(CONTROL_SIZE)).cast("Q"), Census()
    return WaiterSlots(words, TopicWord.WAITERS, census), words, census  # type: ignore[arg-type]


def processes(count: int) -> list[bytes]:
    return [os.urandom(16) for _ in range(count)]


def test_everybody_of_no_group_is_taken_once():
    """`take` returns all that announced themselves, and clears the word."""
    slots, words, _ = table()
    uuids = processes(130)
    for uuid in uuids:
        slots.announce(slots.claim(uuid), EACH)
    assert slots.withdraw(slots.claim(uuids[1]), EACH) and not slots.withdraw(1, EACH)
    assert words[TopicWord.WAITERS] == 1 << EACH
    assert slots.take_all() == [uuids[0], *uuids[2:]]
    assert words[TopicWord.WAITERS] == 0 and slots.take_all() == []


def test_all_of_one_group_are_taken():
    """With those of no group; the members of other groups go on waiting."""
    slots, words, _ = table()
    uuids, reader, other = processes(3), os.urandom(16), os.urandom(16)
    assert slots.take_all_of(KEY) == []
    group, another = slots.group_of(KEY), slots.group_of(KEY + 1)
    for uuid in uuids:
        slots.announce(slots.claim(uuid), group)
    slots.announce(slots.claim(reader), EACH)
    slots.announce(slots.claim(other), another)
    assert sorted(slots.take_all_of(KEY)) == sorted([*uuids, reader])
    assert words[TopicWord.WAITERS] == 1 << another
    assert slots.take_all_of(KEY) == [] and slots.take_all_of(KEY + 1) == [other]
    assert words[TopicWord.WAITERS] == 0


def test_one_of_a_group_is_taken_for_each_append():
    """The lowest slot first, so that a process that comes back at once is chosen again; others of no group
    are all rung beside it."""
    slots, words, _ = table()
    uuids, reader = processes(3), os.urandom(16)
    group = slots.group_of(KEY)
    for uuid in uuids:
        slots.announce(slots.claim(uuid), group)
    slots.announce(slots.claim(reader), EACH)
    assert sorted(slots.take_all()) == sorted([reader, uuids[0]])
    assert slots.take_all() == [uuids[1]]
    slots.announce(slots.claim(uuids[0]), group)
    assert slots.take_all() == [uuids[0]] and words[TopicWord.WAITERS] == 1 << group
    assert slots.take_all() == [uuids[2]] and slots.take_all() == [] and not words[TopicWord.WAITERS]


def test_groups_are_known_by_their_keys():
    """In every process the same; one that nobody waits in is given to the next that needs one, and when all
    are in use each waiter is rung."""
    slots, words, census = table()
    groups = [slots.group_of(key) for key in range(1, GROUPS)]
    assert groups == list(range(1, GROUPS))
    copy = WaiterSlots(words, TopicWord.WAITERS, census)  # type: ignore[arg-type]
    assert copy.group_of(5) == 5 and copy.group_of(5, 5) == 5 and copy.group_of(0, 9) == EACH
    uuid = os.urandom(16)
    slot = slots.claim(uuid)
    for group in groups:
        slots.announce(slot, group)
    assert slots.group_of(1000) == EACH
    assert slots.withdraw(slot, 7) and slots.group_of(1000) == 7
    assert not slots.is_of(7, 7) and slots.is_of(7, 1000)


def test_an_announcement_is_seen_without_the_lock():
    """It is gone when the bit was taken, the group has another key, or the slot another owner."""
    slots, _, _ = table()
    uuid = os.urandom(16)
    slot, group = slots.claim(uuid), slots.group_of(KEY)
    assert not slots.is_announced(slot, group, KEY, uuid)
    slots.announce(slot, group)
    assert slots.is_announced(slot, group, KEY, uuid)
    assert not slots.is_announced(slot, group, KEY + 1, uuid)
    assert not slots.is_announced(slot, group, KEY, os.urandom(16))
    assert not slots.is_announced(OTHERS, group, KEY, uuid)
    assert slots.take_one(group) == uuid and slots.take_one(group) is None
    assert not slots.is_announced(slot, group, KEY, uuid)


def test_a_process_keeps_its_slot():
    """Claiming again, with or without the hint, gives the same slot; the table is in the ctl for others."""
    slots, words, census = table()
    first, second = processes(2)
    claims = [slots.claim(first), slots.claim(second), slots.claim(first), slots.claim(second, 1)]
    assert claims == [0, 1, 0, 1]
    copy = WaiterSlots(words, TopicWord.WAITERS, census)  # type: ignore[arg-type]
    assert copy.claim(second) == 1
    at = UUID_TABLE_OFFSET + 16
    assert bytes(words.cast("B")[at : at + 16]) == second


def test_a_slot_given_back_is_used_again():
    """`free_slot` frees slot and bits."""
    slots, words, _ = table()
    first, second = processes(2)
    group = slots.group_of(KEY)
    slots.announce(slots.claim(first), group)
    slots.free_slot(first)
    slots.free_slot(os.urandom(16))
    assert slots.take_all() == [] and words[TopicWord.WAITERS] == 0
    assert slots.claim(second) == 0


def test_a_full_table_gives_away_the_slots_of_those_that_do_not_wait():
    """A process needs a slot only while it sleeps."""
    slots, _, census = table()
    uuids = processes(UUID_SLOTS)
    for uuid in uuids:
        slots.announce(slots.claim(uuid), EACH)
    assert slots.withdraw(40, EACH)
    newcomer = os.urandom(16)
    assert slots.claim(newcomer) == 40 and not census.probes
    assert slots.claim(newcomer, 40) == 40


def test_a_full_table_gives_away_the_slots_of_the_dead():
    """When everybody waits the leases are probed, but not at every claim; who finds no slot looks for
    itself."""
    slots, _, census = table()
    uuids = processes(UUID_SLOTS)
    group = slots.group_of(KEY)
    for uuid in uuids:
        slots.announce(slots.claim(uuid), group)
    newcomer = os.urandom(16)
    assert slots.claim(newcomer) == OTHERS and census.probes == UUID_SLOTS
    assert slots.claim(newcomer) == OTHERS and census.probes == UUID_SLOTS
    slots.announce(OTHERS, group)
    assert slots.withdraw(OTHERS, group)
    census.dead.add(uuids[40])
    claims = [slots.claim(newcomer) for _ in range(64)]
    assert 40 in claims and claims[0] == OTHERS
    slots.take_one(group)
    assert uuids[40] not in [slots.take_one(group) for _ in range(UUID_SLOTS)], (
        "it waits for nothing any more"
    )
    assert slots.claim(newcomer, OTHERS) == 40


def test_a_ctl_that_is_too_short_is_refused():
    """The constructor checks that the tables fit."""
    with pytest.raises(ValueError, match="do not fit"):
        WaiterSlots(memoryview(bytearray(4096)).cast("Q"), 8, Census())  # type: ignore[arg-type]
