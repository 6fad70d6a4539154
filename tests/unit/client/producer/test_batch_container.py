"""The container of a batch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from embeddedpulsar.client.arguments import DELIVER_AT, NO_OPTIONS
from embeddedpulsar.client.producer.pending_entry import SHUT, BatchContainer


def test_small_messages_need_no_accounting():
    """Up to the fair share of the byte limit, the number of messages alone decides."""
    box = BatchContainer(10, 1000)
    assert box.share == 100
    assert not any(box.add(b"x" * 100, 100) for _ in range(9))
    assert box.share == 100
    assert box.add(b"x" * 100, 100)


def test_a_large_message_is_measured():
    """From the first message above the share, bytes are counted, those before it included."""
    box = BatchContainer(10, 1000)
    box.items.extend([b"x" * 100] * 3)  # appended without the lock, as a producer does
    assert box.has_room(600)
    assert not box.add(b"x" * 600, 600)
    assert box.has_room(100)
    assert not box.has_room(101)
    assert box.add(b"x" * 100, 100)


def test_the_share_follows_the_sizes_and_the_room_that_is_left():
    """A few messages of a batch take the lock, not all; small ones later make the share small again."""
    box = BatchContainer(1000, 128 << 10)
    assert box.share == 131
    box.add(b"x" * 800, 800)
    assert box.share == 900
    assert box.trigger == 1 + (131_072 - 800) // 900
    box.items.extend([b"x" * 800] * (box.trigger - 1))
    assert not box.is_full()
    assert box.share == 900
    for _ in range(4):
        del box.items[:]
        box.share = box.limit
        box.begin_next()
        box.items.extend([b"x" * 50] * 10)
        assert not box.is_full()
    assert box.share == 131
    assert box.trigger == 1000


def test_flushing_opens_the_path():
    """After a flush small messages are free again."""
    box = BatchContainer(10, 1000)
    box.add(b"x" * 600, 600)
    del box.items[:]
    box.share = box.limit
    box.begin_next()
    assert box.share == 100
    assert box.has_room(1000)


def batches_of(sizes: list[int], max_messages: int, max_bytes: int) -> list[list[int]]:
    """What one sender makes of messages: the steps of `Producer.send_async` and of its slow path."""
    box = BatchContainer(max_messages, max_bytes)
    batches: list[list[int]] = []

    def flush() -> None:
        assert box.cut(0) == len(box.items)
        batches.append([len(item) for item in box.items])
        del box.items[:]
        box.share = box.limit
        box.begin_next()

    for size in sizes:
        if size <= box.share:
            box.items.append(bytes(size))
            is_full = len(box.items) >= box.trigger and (len(box.items) >= max_messages or box.is_full())
        else:
            if not box.has_room(size):
                flush()
            is_full = box.add(bytes(size), size)
        if is_full:
            flush()
    if box.items:
        flush()
    return batches


@given(
    st.lists(st.integers(0, 40) | st.integers(0, 400) | st.just(33), max_size=300),
    st.integers(1, 40),
    st.integers(1, 500),
)
def test_the_limits_are_exact_for_one_sender(sizes: list[int], max_messages: int, max_bytes: int):
    """A batch ends where the next message would not fit, or when it is full; nowhere else."""
    expected: list[list[int]] = []
    batch: list[int] = []
    for size in sizes:
        if batch and sum(batch) + size > max_bytes:
            expected.append(batch)
            batch = []
        batch.append(size)
        if sum(batch) >= max_bytes or len(batch) >= max_messages:
            expected.append(batch)
            batch = []
    assert batches_of(sizes, max_messages, max_bytes) == expected + [batch] * bool(batch)


def test_one_oversized_message_is_its_own_batch():
    """A message larger than a batch may be goes alone."""
    box = BatchContainer(10, 1000)
    assert box.has_room(5000)
    assert box.add(b"x" * 5000, 5000)


def test_a_narrowed_path_stays_closed():
    """Later messages find no fast path, also not after a flush."""
    box = BatchContainer(10, 1000)
    box.share = box.limit = SHUT
    box.add(b"x" * 600, 600)
    del box.items[:]
    box.begin_next()
    assert (box.share, box.limit) == (SHUT, SHUT)


def test_a_path_that_is_shut_is_opened_by_the_queue_alone():
    """While messages cannot be stored there is no fast path, whatever is measured."""
    box = BatchContainer(10, 1000)
    box.share = SHUT
    box.add(b"x" * 600, 600)
    assert box.share == SHUT
    del box.items[:]
    box.begin_next()
    assert (box.share, box.limit) == (SHUT, 100)


def test_a_batch_is_cut_where_the_next_message_would_not_fit():
    """Count and bytes both end a batch, wherever it begins; a message larger than a batch is one."""
    box = BatchContainer(3, 100)
    for size in (40, 60, 1, 200, 10, 10, 10, 10):
        box.add(b"x" * size, size)
    cuts, start = [], 0
    while start < len(box.items):
        cuts.append(box.cut(start))
        start += cuts[-1]
    assert cuts == [2, 1, 1, 3, 1]


def test_a_loner_is_noticed_whatever_another_thread_does_before_its_append():
    """A sender sets the flag and appends, without the lock; a batch may leave between the two."""
    box = BatchContainer(10, 1000)
    unbatchable = (b"x", None, *(NO_OPTIONS[:DELIVER_AT]), 1, *NO_OPTIONS[DELIVER_AT + 1 :])

    class Items(list):
        def append(self, item):
            box.begin_next()
            super().append(item)

    box.items = Items([b"small"])
    box.add_unbatchable(unbatchable)
    assert box.cut(0) == 1
    assert box.cut(1) == 1
