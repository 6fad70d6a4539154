"""The three ways to divide the keys of a Key_Shared subscription, with the numbers of the documents."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddedpulsar._engine.format.entry import sticky_key_hash
from embeddedpulsar._engine.subscription.state.sticky_key_selector import (
    CONSISTENT_HASHING,
    HASH_RANGE,
    SLOTS,
    STICKY,
    HashRangeSelector,
    StickyKeySelector,
    StickyRangeSelector,
    make_selector,
    selector_of,
)

ORDER = "Order-3459134"
HASHES = st.integers(0, 2**31 - 1)
# Joining (True) or leaving of one of a few consumers.
CHANGES = st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=40)
KINDS = [HASH_RANGE, CONSISTENT_HASHING, STICKY]


def ranges_of(selector, consumer_id: int) -> list[tuple[int, int]]:
    """The slots of a consumer as inclusive ranges, by what its selector packs."""
    if isinstance(selector, StickyRangeSelector):
        return [tuple(one) for each, _, ranges in selector.pack() if each == consumer_id for one in ranges]
    first = 0
    for bound, owner in selector.pack() if isinstance(selector, HashRangeSelector) else ():
        if owner == consumer_id:
            return [(first, min(bound, SLOTS - 1))]
        first = bound + 1
    return []


def filled(kind: int, *joined: int, points: int = 100) -> StickyKeySelector:
    """A selector that the consumers ``C<id>`` joined in this order; STICKY in ranges of 7000 slots."""
    selector = make_selector(kind, points)
    for each in joined:
        selector.add(each, f"C{each}", [(7000 * (each - 1), 7000 * each - 1)])
    return selector


def repacked(kind: int, selector: StickyKeySelector) -> StickyKeySelector:
    """The selector, by way of its serialised form."""
    return selector_of(kind, msgpack.unpackb(msgpack.packb(selector.pack())))


class HashRangeModel:
    """Every slot and its owner, one by one."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, list[int]]] = []

    def add(self, consumer_id: int) -> None:
        if not self.ranges:
            self.ranges.append((consumer_id, list(range(SLOTS + 1))))
            return
        # Slot 0 is nobody's in the arithmetic of (low, high], and the first range's in fact.
        at = max(range(len(self.ranges)), key=lambda i: (len(self.ranges[i][1]) - (i == 0), -i))
        owner, slots = self.ranges[at]
        low = slots[0] + (at == 0) - 1
        middle = slots[-1] - (slots[-1] - low) // 2
        lower, upper = [s for s in slots if s <= middle], [s for s in slots if s > middle]
        self.ranges[at : at + 1] = [(consumer_id, lower), (owner, upper)]

    def remove(self, consumer_id: int) -> None:
        at = next(i for i, (owner, _) in enumerate(self.ranges) if owner == consumer_id)
        _, slots = self.ranges.pop(at)
        if at < len(self.ranges):
            self.ranges[at] = (self.ranges[at][0], slots + self.ranges[at][1])
        elif self.ranges:
            self.ranges[-1] = (self.ranges[-1][0], self.ranges[-1][1] + slots)


# -- hash range --------------------------------------------------------------------------------------


def test_the_slot_of_the_documented_key():
    """murmur32("Order-3459134") is 3112179635; without its sign bit 964695987; slot 6067 either way."""
    assert sticky_key_hash(ORDER) == 964695987 == 3112179635 & 0x7FFFFFFF
    assert sticky_key_hash(ORDER) % SLOTS == 3112179635 % SLOTS == 6067


@pytest.mark.parametrize(
    ("joined", "expected"),
    [
        ([1], [[65536, 1]]),
        ([1, 2], [[32768, 2], [65536, 1]]),
        ([1, 2, 3], [[16384, 3], [32768, 2], [65536, 1]]),
        ([1, 2, 3, 4], [[16384, 3], [32768, 2], [49152, 4], [65536, 1]]),
        ([1, 2, 3, 4, 5], [[8192, 5], [16384, 3], [32768, 2], [49152, 4], [65536, 1]]),
    ],
)
def test_a_newcomer_takes_the_lower_half_of_the_largest_range(joined: list[int], expected: list[Any]):
    """C1 has all; C2, C3 and C4 split as drawn in the documents; C5 takes the first of equal ranges."""
    assert filled(HASH_RANGE, *joined).pack() == expected


def test_who_leaves_gives_his_range_to_the_right():
    """C4 leaves and C1 is its right neighbour; then C1, which is the last, leaves and C2 gets the end."""
    selector = filled(HASH_RANGE, 1, 2, 3, 4)
    selector.remove(4)
    assert selector.pack() == [[16384, 3], [32768, 2], [65536, 1]]
    selector.remove(1)
    assert selector.pack() == [[16384, 3], [65536, 2]]


def test_the_same_with_a_fifth_consumer():
    """C5 splits C3's range, and the two departures leave it alone."""
    selector = filled(HASH_RANGE, 1, 2, 3, 4, 5)
    selector.remove(4)
    assert selector.pack() == [[8192, 5], [16384, 3], [32768, 2], [65536, 1]]
    selector.remove(1)
    assert selector.pack() == [[8192, 5], [16384, 3], [65536, 2]]


def test_the_documented_key_goes_to_the_third_of_four_consumers():
    """Slot 6067 lies in C3's quarter."""
    assert filled(HASH_RANGE, 1, 2, 3, 4).select(sticky_key_hash(ORDER)) == 3


def test_upper_bounds_belong_to_their_range():
    """C3 has 0..16384, C2 starts at 16385, and C1 ends with the last slot."""
    selector = filled(HASH_RANGE, 1, 2, 3, 4)
    assert [ranges_of(selector, each) for each in (3, 2, 4, 1)] == [
        [(0, 16384)],
        [(16385, 32768)],
        [(32769, 49152)],
        [(49153, 65535)],
    ]
    slots = [0, 16384, 16385, 32768, 32769, 49152, 49153, 65535]
    assert [selector.select(slot) for slot in slots] == [3, 3, 2, 2, 4, 4, 1, 1]
    assert [selector.select(slot + 5 * SLOTS) for slot in slots] == [3, 3, 2, 2, 4, 4, 1, 1]


@given(CHANGES, st.lists(st.integers(0, SLOTS - 1), max_size=5))
def test_ranges_cover_every_slot_once(changes: list[tuple[bool, int]], slots: list[int]):
    """However consumers come and go, against a list of all slots."""
    selector, model = make_selector(HASH_RANGE), HashRangeModel()
    for joins, each in changes:
        if joins and not any(owner == each for owner, _ in model.ranges):
            selector.add(each, "", [])
            model.add(each)
        elif not joins and any(owner == each for owner, _ in model.ranges):
            selector.remove(each)
            model.remove(each)
    for owner, own in model.ranges:
        assert ranges_of(selector, owner) == [(own[0], min(own[-1], SLOTS - 1))]
    for slot in slots:
        expected = next((owner for owner, own in model.ranges if slot in own), None)
        assert selector.select(slot) == expected


def test_a_slot_is_the_least_a_consumer_has():
    """65536 consumers have one slot each (the first of them two); another one is refused."""
    full = [[bound, bound] for bound in range(1, SLOTS + 1)]
    selector = selector_of(HASH_RANGE, full)
    with pytest.raises(ValueError, match="no range of slots is left for consumer 'late': 65536 consumers"):
        selector.add(SLOTS + 1, "late", [])
    assert selector.pack() == full
    selector.remove(40)
    assert ranges_of(selector, 41) == [(40, 41)]
    selector.add(SLOTS + 1, "late", [])
    assert ranges_of(selector, SLOTS + 1) == [(40, 40)]


# -- consistent hashing ------------------------------------------------------------------------------


def test_the_documented_points():
    """The three points the documents work out for one consumer are the ends of its shares."""
    name = "orders-aggregator-pod-2345-consumer"
    selector = make_selector(CONSISTENT_HASHING)
    selector.add(1, name, [])
    selector.add(2, "other", [])
    numbers = {1: 1003084738, 2: 373317202, 100: 320276078}
    for number, point in numbers.items():
        assert sticky_key_hash(f"{name}{number}") == point
        assert selector.select(point) == 1
    assert {sticky_key_hash(f"{name}{n}") for n in (0, 101)}.isdisjoint(numbers.values())


class RingModel:
    """All points of all consumers as pairs, searched one by one."""

    def __init__(self, points: int) -> None:
        self.points = points
        self.consumers: dict[int, str] = {}

    def select(self, hash31: int) -> int | None:
        pairs = {
            (sticky_key_hash(f"{name}{number}"), name, each)
            for each, name in self.consumers.items()
            for number in range(1, self.points + 1)
        }
        if not pairs:
            return None
        ahead = [pair for pair in pairs if pair[0] >= hash31] or list(pairs)
        point = min(ahead)[0]
        sharers = [each for where, _, each in sorted(pairs) if where == point]
        return sharers[hash31 % len(sharers)]


@given(CHANGES, st.lists(HASHES, max_size=5), st.integers(1, 7))
def test_a_key_goes_to_the_next_point_on_the_ring(
    changes: list[tuple[bool, int]], hashes: list[int], points: int
):
    """Against a search through all points; some consumers have a name in common, and so their points."""
    selector, model = make_selector(CONSISTENT_HASHING, points), RingModel(points)
    for joins, each in changes:
        if joins and each not in model.consumers:
            model.consumers[each] = f"name-{each // 2}"
            selector.add(each, model.consumers[each], [])
        elif not joins:
            model.consumers.pop(each, None)
            selector.remove(each)
    ends = [sticky_key_hash(f"{name}1") for name in model.consumers.values()]
    for hash31 in [*hashes, *ends, *(end + 1 for end in ends), 0, 2**31 - 1]:
        assert selector.select(hash31) == model.select(hash31)


def test_behind_the_last_point_the_ring_begins_again():
    """A hash beyond every point belongs to the owner of the first one."""
    selector = filled(CONSISTENT_HASHING, 1, 2, points=3)
    owners = {sticky_key_hash(f"C{each}{n}"): each for each in (1, 2) for n in (1, 2, 3)}
    assert selector.select(max(owners) + 1) == owners[min(owners)] == selector.select(0)
    assert selector.select(max(owners)) == owners[max(owners)]


def test_consumers_of_one_name_share_all_points():
    """The hash modulo their number picks one of them, whoever came first."""
    for order in ([5, 3], [3, 5]):
        selector = make_selector(CONSISTENT_HASHING)
        for each in order:
            selector.add(each, "twin", [])
        assert [selector.select(hash31) for hash31 in (10, 11, 12, 13)] == [3, 5, 3, 5]
        selector.remove(3)
        assert {selector.select(hash31) for hash31 in (10, 11)} == {5}


def test_shares_of_a_hundred_points_are_alike():
    """Of 10 consumers none has less than half or more than double of its share."""
    selector = filled(CONSISTENT_HASHING, *range(1, 11))
    draw = random.Random(11)
    counts = dict.fromkeys(range(1, 11), 0)
    for _ in range(20_000):
        owner = selector.select(draw.getrandbits(31))
        assert owner is not None
        counts[owner] += 1
    assert 1000 < min(counts.values()) <= max(counts.values()) < 4000


@pytest.mark.parametrize("points", [0, -1, 10_001])
def test_the_number_of_points_is_checked(points: int):
    """None, or so many that adding a consumer would take seconds, is refused."""
    with pytest.raises(ValueError, match=f"{points} points for each consumer, where 1 to 10000"):
        make_selector(CONSISTENT_HASHING, points)


def test_the_number_of_points_is_kept():
    """A rebuilt selector gives newcomers as many points as the others have."""
    selector = repacked(CONSISTENT_HASHING, filled(CONSISTENT_HASHING, 1, points=3))
    selector.add(2, "C2", [])
    assert selector.pack() == filled(CONSISTENT_HASHING, 1, 2, points=3).pack() == [3, [[1, "C1"], [2, "C2"]]]


# -- sticky ------------------------------------------------------------------------------------------

QUARTERS = {1: [(0, 16383), (32768, 49151)], 2: [(16384, 32767), (49152, 65535)]}


def quarters() -> StickyKeySelector:
    """The two consumers of the documents: C1 [0, 16384), [32768, 49152), C2 the other quarters."""
    selector = make_selector(STICKY)
    for each, ranges in QUARTERS.items():
        selector.add(each, f"C{each}", ranges)
    return selector


def test_the_documented_key_goes_to_whom_asked_for_its_slot():
    """Slot 6067 lies in [0, 16384), which is C1's."""
    assert quarters().select(sticky_key_hash(ORDER)) == 1


def test_both_ends_of_a_sticky_range_belong_to_it():
    """The ends of all four quarters."""
    selector = quarters()
    slots = [0, 16383, 16384, 32767, 32768, 49151, 49152, 65535]
    assert [selector.select(slot) for slot in slots] == [1, 1, 2, 2, 1, 1, 2, 2]
    assert {each: ranges_of(selector, each) for each in (1, 2)} == QUARTERS


def test_keys_nobody_asked_for_have_no_consumer():
    """A gap, and what a consumer that left had."""
    selector = make_selector(STICKY)
    selector.add(1, "a", [(100, 199)])
    selector.add(2, "b", [(300, 300)])
    assert [selector.select(slot) for slot in (99, 100, 199, 200, 299, 300, 301)] == [
        None,
        1,
        1,
        None,
        None,
        2,
        None,
    ]
    selector.remove(1)
    assert selector.select(150) is None
    assert ranges_of(selector, 1) == []


@pytest.mark.parametrize(
    ("ranges", "refusal"),
    [
        ([], "consumer 'late' is sticky and names no ranges of slots; give it some"),
        ([(5, 4)], "5..4 of consumer 'late' is no range within 0..65535"),
        ([(-1, 4)], "-1..4 of consumer 'late' is no range within 0..65535"),
        ([(0, 65536)], "0..65536 of consumer 'late' is no range within 0..65535"),
        ([(2, 9), (0, 2)], "0..2 and 2..9 of consumer 'late' overlap"),
        (
            [(500, 600), (0, 100)],
            "0..100 of consumer 'late' overlaps 100..199 of 'a'; give it free slots, or",
        ),
        ([(199, 199)], "199..199 of consumer 'late' overlaps 100..199 of 'a'"),
        ([(150, 160)], "150..160 of consumer 'late' overlaps 100..199 of 'a'"),
        ([(0, 65535)], "0..65535 of consumer 'late' overlaps 300..300 of 'b'"),
    ],
)
def test_ranges_that_are_refused(ranges: list[tuple[int, int]], refusal: str):
    """The text names both sides, and nothing has changed."""
    selector = make_selector(STICKY)
    selector.add(1, "a", [(100, 199)])
    selector.add(2, "b", [(300, 300)])
    before = selector.pack()
    with pytest.raises(ValueError) as caught:
        selector.add(3, "late", ranges)
    assert str(caught.value).startswith(refusal)
    assert selector.pack() == before
    selector.add(3, "late", [(200, 299)])
    assert selector.select(250) == 3


def test_a_range_named_twice_overlaps_itself():
    """The policy lets identical ranges pass; the subscription does not."""
    selector = make_selector(STICKY)
    with pytest.raises(ValueError, match="overlap"):
        selector.add(1, "a", [(7, 9), (0, 3), (7, 9)])
    assert ranges_of(selector, 1) == []


@given(
    st.lists(
        st.tuples(
            st.integers(1, 6),
            st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=3),
        ),
        max_size=15,
    )
)
def test_sticky_ranges_against_a_list_of_slots(steps: list[tuple[int, list[tuple[int, int]]]]):
    """Who is there leaves, who is not asks for ranges, which are given exactly if all of them are free."""
    selector = make_selector(STICKY)
    owners: dict[int, int] = {}
    for each, ranges in steps:
        if each in owners.values():
            selector.remove(each)
            owners = {slot: owner for slot, owner in owners.items() if owner != each}
            continue
        slots = [slot for start, end in set(ranges) for slot in range(start, end + 1)]
        is_valid = bool(ranges) and all(start <= end for start, end in ranges)
        if is_valid and len(set(slots)) == len(slots) and owners.keys().isdisjoint(slots):
            selector.add(each, "", ranges)
            owners.update(dict.fromkeys(slots, each))
        else:
            with pytest.raises(ValueError):
                selector.add(each, "", ranges)
    assert [selector.select(slot) for slot in range(42)] == [owners.get(slot) for slot in range(42)]


# -- all ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_without_consumers_nobody_is_selected(kind: int):
    """At first, and after the last has left."""
    selector = make_selector(kind)
    assert selector.select(5) is None
    selector.add(1, "C1", [(0, 65535)])
    assert selector.select(5) == 1
    selector.remove(1)
    assert selector.select(5) is None
    assert selector.pack() == make_selector(kind).pack()


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_joins_twice_and_strangers_may_leave(kind: int):
    """A consumer that is there is refused; the departure of one that is not there changes nothing."""
    selector = filled(kind, 1, 2)
    before = selector.pack()
    with pytest.raises(ValueError, match=r"consumer 2 has .* already"):
        selector.add(2, "C2", [(60_000, 60_001)])
    selector.remove(7)
    assert ranges_of(selector, 7) == []
    assert selector.pack() == before


@pytest.mark.parametrize("kind", KINDS)
@given(changes=CHANGES, hashes=st.lists(HASHES, max_size=20))
def test_a_packed_selector_goes_on_like_the_original(
    kind: int, changes: list[tuple[bool, int]], hashes: list[int]
):
    """At any moment the packed state rebuilds a selector that answers, and changes, alike."""
    selector = filled(kind, points=5)
    present: set[int] = set()
    copy = repacked(kind, selector)
    for at, (joins, each) in enumerate(changes):
        if joins and each not in present:
            present.add(each)
            for one in (selector, copy):
                one.add(each, f"C{each}", [(7000 * (each - 1), 7000 * each - 1)])
        elif not joins:
            present.discard(each)
            for one in (selector, copy):
                one.remove(each)
        if at % 5 == 0:
            copy = repacked(kind, copy)
    assert copy.pack() == selector.pack()
    assert [copy.select(hash31) for hash31 in hashes] == [selector.select(hash31) for hash31 in hashes]
    assert [ranges_of(copy, each) for each in present] == [ranges_of(selector, each) for each in present]


@pytest.mark.parametrize("kind", [CONSISTENT_HASHING, STICKY])
@given(order=st.permutations(range(1, 7)), gone=st.sets(st.integers(1, 6), max_size=3))
def test_the_way_to_a_state_leaves_no_trace(kind: int, order: list[int], gone: set[int]):
    """Whoever came first, and whoever was there in between: the same consumers pack alike."""
    selector = filled(kind, *order, points=5)
    for each in gone:
        selector.remove(each)
    other = filled(kind, *(each for each in range(1, 7) if each not in gone), points=5)
    assert selector.pack() == other.pack()
    assert all(selector.select(h) == other.select(h) for h in range(0, 2**31, 2**25))


@pytest.mark.parametrize(
    ("kind", "packed"),
    [
        (HASH_RANGE, [[65535, 1]]),
        (HASH_RANGE, [[9, 1], [9, 2], [65536, 3]]),
        (HASH_RANGE, [[0, 1], [65536, 2]]),
        (HASH_RANGE, [[9, 1], [65536, 1]]),
        (HASH_RANGE, [[65536, "1"]]),
        (HASH_RANGE, [[65536]]),
        (HASH_RANGE, [7]),
        (CONSISTENT_HASHING, []),
        (CONSISTENT_HASHING, [0, []]),
        (CONSISTENT_HASHING, ["5", []]),
        (CONSISTENT_HASHING, [5, [[1, "a"], [1, "b"]]]),
        (CONSISTENT_HASHING, [5, [[1, b"a"]]]),
        (STICKY, [[1, "a", []]]),
        (STICKY, [[1, "a", [[0, 5]]], [2, "b", [[5, 6]]]]),
        (STICKY, [[1, "a", [[0, 5.5]]]]),
        (STICKY, [[None, "a", [[0, 5]]]]),
        (STICKY, 5),
        (4, []),
    ],
)
def test_what_no_selector_packs_is_refused(kind: int, packed: Sequence[Any]):
    """Broken orders, doubles and wrong types are errors, never a selector that answers nonsense."""
    with pytest.raises((ValueError, TypeError)):
        selector_of(kind, packed)


def test_kinds_are_persistent():
    """Their numbers are stored, and there is no other."""
    assert (HASH_RANGE, CONSISTENT_HASHING, STICKY) == (1, 2, 3)
    with pytest.raises(ValueError, match="9 is no kind of sticky key selector"):
        make_selector(9)
