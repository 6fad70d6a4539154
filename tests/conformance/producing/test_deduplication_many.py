"""`send_many` where duplicates are dropped: the same call again stores nothing."""

from __future__ import annotations

import pytest

from embeddedpulsar import Client, MessageId

ROWS = 2500
ENTRY = 1000


@pytest.fixture
def store_path(tmp_path):
    """The directory of a store that drops duplicates."""
    path = tmp_path / "store"
    path.mkdir()
    (path / "broker.conf").write_text("brokerDeduplicationEnabled=true\n")
    return path


def send(producer, rows=range(ROWS)):
    """Rows whose numbers are their sequence ids."""
    rows = list(rows)
    return producer.send_many([b"%d" % row for row in rows], sequence_ids=rows, batching_max_messages=ENTRY)


def stored(client: Client) -> list[int]:
    """All there is."""
    with client.create_reader("topic", MessageId.earliest) as reader:
        found = []
        while reader.has_message_available():
            found.append(int(reader.read_next(1000).data()))
        return found


def places(sent) -> set[tuple[int, int]]:
    """Ledger and entry of all ids."""
    return {(one.ledger_id(), one.entry_id()) for one in sent}


def test_the_same_call_again(topic):
    """All of it are duplicates, and it says so by the ids."""
    producer = topic.producer(producer_name="p")
    first = send(producer)
    assert len(places(first)) == 3 and min(entry for _, entry in places(first)) == 0
    tail = topic.client._core.store.use_topic("topic").topic.ledger.tail
    again = send(producer)
    assert len(again) == ROWS
    assert places(again) == {(-1, -1)}
    assert topic.client._core.store.use_topic("topic").topic.ledger.tail == tail
    assert stored(topic.client) == list(range(ROWS))
    assert producer.last_sequence_id() == ROWS - 1


def test_the_same_call_of_the_next_process(store_path):
    """The program that does not know how far it came repeats all of it."""
    for _ in range(2):
        with Client(store_path) as client, client.create_producer("topic", "p") as producer:
            sent = send(producer)
    assert places(sent) == {(-1, -1)}
    with Client(store_path) as client:
        assert stored(client) == list(range(ROWS))


def test_a_call_that_was_cut_off(topic):
    """Whole entries were stored; the same call stores the others."""
    producer = topic.producer(producer_name="p")
    send(producer, range(2 * ENTRY))
    again = send(producer)
    assert [one.entry_id() for one in again[: 2 * ENTRY]] == [-1] * 2 * ENTRY
    assert {one.entry_id() for one in again[2 * ENTRY :]} == {2}
    assert stored(topic.client) == list(range(ROWS))


def test_of_another_name_it_is_no_duplicate(topic):
    """As everywhere, ids count by name."""
    send(topic.producer(producer_name="p"), range(10))
    assert (-1, -1) not in places(send(topic.producer(producer_name="q"), range(10)))
    assert stored(topic.client) == [*range(10), *range(10)]
