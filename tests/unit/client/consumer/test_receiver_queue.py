"""The receiver queue: what is fetched ahead, and what is left out."""

from __future__ import annotations

import sys
from itertools import count as count_up
from typing import Any

import pytest

from embeddedpulsar._engine.format.entry import ProducerPrefix, encode_plain, encode_single
from embeddedpulsar.client.consumer.delivery import VOID, ReceiverQueue
from embeddedpulsar.message import MessageOrigin, is_skipped
from embeddedpulsar.schema import BytesSchema
from tests.unit.client.fakes import view_of

ORIGIN = MessageOrigin("persistent://public/default/t", BytesSchema())
PREFIX = ProducerPrefix("p")


class Log:
    """Entries to fetch, one or more at a time."""

    def __init__(self, *counts: int) -> None:
        self.views = []
        self.asked: list[int] = []
        for entry, count in enumerate(counts):
            values = [b"%d.%d" % (entry, index) for index in range(count)]
            encoded = encode_plain(values, 0, PREFIX) if count > 1 else encode_single(values[0], 0, PREFIX)
            self.views.append(view_of(encoded, 7, entry))

    def fetch(self, most: int, most_bytes: int) -> list:
        self.asked.append(most)
        return [self.views.pop(0)] if self.views else []


def drain(queue: ReceiverQueue) -> list[bytes]:
    """Every message, in order."""
    found = []
    while queue.fill():
        found.append(queue.pop_message().data())
    return found


def test_batches_are_fetched_whole_and_in_order():
    """Entries of one and of many messages come as their messages, in order."""
    queue = ReceiverQueue(Log(1, 3, 1).fetch, 10, ORIGIN)
    assert drain(queue) == [b"0.0", b"1.0", b"1.1", b"1.2", b"2.0"]


def test_no_more_is_fetched_than_there_is_room():
    """The queue asks for what it has room for, and for nothing while it has messages."""
    log = Log(2, 2, 2)
    queue = ReceiverQueue(log.fetch, 3, ORIGIN)
    assert queue.fill()
    assert queue.fill()
    assert len(queue) == 2
    assert log.asked == [3]


def test_size_0_fetches_one_entry_at_a_time():
    """A queue without room still has to fetch something."""
    log = Log(1)
    assert ReceiverQueue(log.fetch, 0, ORIGIN).fill()
    assert log.asked == [1]


@pytest.mark.parametrize("skip", [0b101, bytearray([1, 0, 1])])
def test_messages_acknowledged_before_are_left_out(skip):
    """Of a partly acknowledged batch only the rest is delivered."""
    log = Log(3)
    log.views[0].skip = skip
    assert drain(ReceiverQueue(log.fetch, 10, ORIGIN)) == [b"0.1"]


def test_reading_may_start_within_a_batch():
    """Messages before the start are left out, and count as acknowledged for their batch."""
    log = Log(4, 2)
    views = list(log.views)
    for view in views:
        view.acked = bytearray(view.count)
    queue = ReceiverQueue(log.fetch, 10, ORIGIN)
    queue.start_within(7, 0, 3)
    assert drain(queue) == [b"0.3", b"1.0", b"1.1"]
    assert views[0].acked == bytearray([1, 1, 1, 0])


def test_a_start_that_is_not_there_is_forgotten():
    """If the first entry fetched is another one, nothing is left out."""
    queue = ReceiverQueue(Log(2).fetch, 10, ORIGIN)
    queue.start_within(6, 9, 1)
    assert drain(queue) == [b"0.0", b"0.1"]


def test_clearing_drops_what_was_fetched():
    """After a rewind nothing from before is delivered."""
    queue = ReceiverQueue(Log(3, 1).fetch, 10, ORIGIN)
    queue.fill()
    queue.clear()
    assert drain(queue) == [b"1.0"]


def many(*counts: int) -> tuple[Log, ReceiverQueue]:
    """A queue that fetches all entries at once, and has done so."""
    log = Log(*counts)
    queue = ReceiverQueue(
        lambda most, most_bytes: [log.views.pop(0) for _ in list(log.views)], 10_000, ORIGIN
    )
    assert queue.fill()
    return log, queue


def test_few_messages_of_batches_exist_at_a_time():
    """A batch of any size is delivered whole and in order, although its messages are made bit by bit."""
    counts = (300, 1, 2, 1000, 1, 1, 255)
    log, queue = many(*counts)
    expected = [b"%d.%d" % (entry, index) for entry, count in enumerate(counts) for index in range(count)]
    found: list[bytes] = []
    while queue.fill():
        assert len(queue.messages) <= 256
        assert len(queue) == queue.ahead == len(expected) - len(found)
        assert queue.fetched - len(queue.messages) == len(found)
        assert not queue.is_dry
        found.append(queue.pop_message().data())
    assert found == expected
    assert queue.is_dry
    assert (queue.fetched, queue.fetched_bytes) == (len(expected), sum(map(len, expected)))
    assert log.asked == []


def test_a_batch_may_be_made_by_parts_after_others_of_which_some_is_acknowledged():
    """Messages that were acknowledged before are left out, wherever the parts begin."""
    log = Log(2, 400, 3)
    log.views[1].skip = 0b11
    log.views[2].skip = bytearray([0, 1, 0])
    views = list(log.views)
    queue = ReceiverQueue(lambda most, most_bytes: [views.pop(0) for _ in list(views)], 1000, ORIGIN)
    assert queue.fill()
    assert len(queue) == queue.ahead == 2 + 398 + 2
    assert drain(queue) == [b"0.0", b"0.1", *(b"1.%d" % i for i in range(2, 400)), b"2.0", b"2.2"]


@pytest.mark.parametrize("dropped", range(4))
def test_dropping_an_entry_drops_messages_that_are_not_made(dropped):
    """Of a dropped entry, the messages that exist are void and the others are never made."""
    counts = (200, 300, 2, 1)
    _, queue = many(*counts)
    for _ in range(150):
        queue.pop_message()
    queue.drop({(7, dropped)})
    left = [(entry, i) for entry, count in enumerate(counts) for i in range(count)][150:]
    expected = [b"%d.%d" % (entry, i) for entry, i in left if entry != dropped]
    assert queue.ahead == len(expected)
    found: list[bytes] = []
    while queue.fill():
        message = queue.pop_message()
        if message._entry.number != VOID:
            found.append(message.data())
    assert found == expected
    assert queue.fetched == 150 + len(expected)
    assert queue.fetched_bytes == sum(map(len, expected)) + sum(len(b"0.%d" % i) for i in range(150))


def test_clearing_drops_batches_whose_messages_are_not_made():
    """After a rewind nothing is left of a batch that was made in part."""
    _, queue = many(200, 300)
    queue.pop_message()
    queue.clear()
    assert queue.is_dry
    assert len(queue) == 0
    assert not queue.fill()
    assert queue.fetched == 1


def test_an_interrupt_while_messages_are_made_leaves_out_none():
    """Ctrl-C at any line: every message is delivered, in order, although some may be delivered twice."""
    counts = (300, 2, 400)
    expected = [b"%d.%d" % (entry, index) for entry, count in enumerate(counts) for index in range(count)]
    strikes = 0
    for strike in count_up(1):
        _, queue = many(*counts)
        left = strike

        def trace(frame: Any, event: str, _: object) -> Any:
            nonlocal left
            if frame.f_code is not ReceiverQueue._make.__code__:
                return None
            left -= event == "line"
            if not left:
                raise KeyboardInterrupt
            return trace

        found: list[bytes] = []
        while True:
            try:
                sys.settrace(trace if left > 0 else None)
                is_filled = queue.fill()
            except KeyboardInterrupt:
                strikes += 1
                continue
            finally:
                sys.settrace(None)
            if not is_filled:
                break
            found.append(queue.pop_message().data())
        assert list(dict.fromkeys(found)) == expected
        if left > 0:
            break
    assert strikes == strike - 1 > 20


def test_a_forked_child_has_no_batches():
    """The fetched entries belong to the parent."""
    _, queue = many(200, 300)
    queue.after_fork_in_child()
    assert queue.is_dry
    assert not queue.fill()


def test_bits_and_bytes():
    """Acknowledged indexes come as a bit set or as bytes."""
    assert [is_skipped(0b10, i) for i in range(3)] == [False, True, False]
    assert [is_skipped(bytearray([0, 1]), i) for i in range(2)] == [False, True]
