"""flush() waits for what was sent before; close() does not, and leaves nobody without an answer."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from embeddedpulsar import AlreadyClosed, Client, PulsarException, Result, StorageFullError
from embeddedpulsar.client.producer.log_writer import Completions
from tests.children import ForkedChild
from tests.conformance.held import Answers, entries, held, payloads


@pytest.mark.parametrize("batching", [False, True])
def test_flush_waits_for_a_locked_topic(topic, batching):
    """When flush() returns, everything sent before is stored and answered."""
    answers = Answers()
    producer = topic.producer(batching_enabled=batching)
    done = threading.Event()
    with held(topic.client):
        for number in range(100):
            producer.send_async(b"%d" % number, answers.of(number))
        flusher = threading.Thread(target=lambda: (producer.flush(), done.set()))
        flusher.start()
        assert not done.wait(0.05)
        assert answers == []
    assert done.wait(10)
    flusher.join()
    assert answers.results == [(number, Result.Ok) for number in range(100)]


@pytest.mark.parametrize("batching", [False, True])
def test_closing_while_messages_wait(store_url, batching):
    """What waits for a locked topic when the client closes fails with AlreadyClosed, and is not stored."""
    answers = Answers()
    client = Client(store_url)
    producer = client.create_producer("topic", batching_enabled=batching)
    producer.send(b"first")
    with held(client):
        for number in range(100):
            producer.send_async(b"%d" % number, answers.of(number))
        closer = threading.Thread(target=client.close)
        closer.start()
        closer.join(0.05)
    closer.join(20)
    assert answers.results == [(number, Result.AlreadyClosed) for number in range(100)]
    with Client(store_url) as again:
        assert entries(again) == [[b"first"]]


@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize("attempt", range(3))
def test_two_send_while_a_third_closes(topic, batching, attempt):
    """Every message has one answer; those with Ok are stored, once and in order, the others are not."""
    answers = [Answers(), Answers()]
    producer = topic.producer(batching_enabled=batching, batching_max_messages=10, max_pending_messages=0)
    sent = [0, 0]
    enough = threading.Barrier(3)

    def send(who: int) -> None:
        for number in range(2000):
            try:
                producer.send_async(b"%d %d" % (who, number), answers[who].of(number))
            except PulsarException:
                return
            sent[who] += 1
            if number == 100 * (attempt + 1):
                enough.wait(60)

    senders = [threading.Thread(target=send, args=(who,)) for who in (0, 1)]
    for sender in senders:
        sender.start()
    enough.wait(60)
    producer.close()
    for sender in senders:
        sender.join()
    topic.producer().send_async(b"last", None)
    topic.client._core.callbacks.wait_done()
    stored = payloads(topic.client)
    for who in (0, 1):
        assert [name for name, _ in answers[who].results] == list(range(sent[who]))
        ok = [b"%d %d" % (who, name) for name, result in answers[who].results if result == Result.Ok]
        assert [one for one in stored if one.startswith(b"%d " % who)] == ok
        assert {result for _, result in answers[who].results} <= {Result.Ok, Result.AlreadyClosed}


def test_a_message_that_met_the_close_is_answered_in_its_turn(topic):
    """A thread that had looked at the batch before the close, and appended after it, is answered before the
    messages that were sent afterwards."""
    answers = Answers()
    producer = topic.producer(batching_enabled=True)
    producer.send(b"first")
    producer.close()
    producer._publisher.queue.items.append((b"met", answers.of(0)))
    producer.send_async(b"after", answers.of(1))
    topic.client._core.callbacks.wait_done()
    assert answers.results == [(0, Result.AlreadyClosed), (1, Result.AlreadyClosed)]


def test_a_send_during_the_close_is_answered_in_its_turn(topic, monkeypatch):
    """Another thread sends while the close answers the queued messages: its own is answered after them."""
    answers = Answers()
    producer = topic.producer()
    queue = producer._publisher.queue
    queue.singles.extend((b"met %d" % number, answers.of(number)) for number in range(2))
    late = threading.Thread(target=lambda: producer.send_async(b"late", answers.of(2)))
    hand_over = Completions.hand_over

    def during(completions: Completions, out: Any) -> None:
        if not late.ident:
            late.start()
            late.join(0.1)  # waits for the lock
        hand_over(completions, out)

    monkeypatch.setattr(Completions, "hand_over", during)
    producer.close()
    late.join()
    topic.client._core.callbacks.wait_done()
    assert answers.results == [(number, Result.AlreadyClosed) for number in range(3)]


def test_a_full_disk_fails_what_waited(topic, monkeypatch):
    """When there is no room for what waited, its callbacks say so, and later messages are stored."""
    answers = Answers()
    producer = topic.producer()
    producer.send(b"first")
    ledger = topic.client._core.store.use_topic("topic").topic.ledger
    append, left = ledger.append_nowait, [3]

    def full(*arguments):
        if left[0]:
            left[0] -= 1
            raise StorageFullError("no room")
        return append(*arguments)

    def full_run(entries, hold, stored):
        for entry in entries:
            ledger_id, entry_id, _, word = full(entry, None, None, hold)
            stored.append((ledger_id, entry_id, word))

    with held(topic.client):
        for number in range(5):
            producer.send_async(b"%d" % number, answers.of(number))
        monkeypatch.setattr(ledger, "append_nowait", full)
        monkeypatch.setattr(ledger, "append_run", full_run)
    producer.flush()
    failed = Result.BrokerPersistenceError
    assert answers.results == [(0, failed), (1, failed), (2, failed), (3, Result.Ok), (4, Result.Ok)]
    assert entries(topic.client) == [[b"first"], [b"3"], [b"4"]]


@pytest.mark.parametrize("batching", [False, True])
def test_a_fork_while_messages_wait(topic, batching):
    """What waits is the parent's: it is stored once, and the child sends under a fresh name."""
    answers = Answers()
    producer = topic.producer(batching_enabled=batching)
    producer.send(b"first")

    def child() -> str:
        producer.send_async(b"child", None)
        producer.flush()
        return producer.producer_name()

    with held(topic.client):
        for number in range(3):
            producer.send_async(b"%d" % number, answers.of(number))
        forked = ForkedChild(child)
    producer.flush()
    name = forked.ready()
    forked.end()
    assert name != producer.producer_name()
    assert answers.results == [(number, Result.Ok) for number in range(3)]
    stored = payloads(topic.client)
    assert [one for one in stored if one != b"child"] == [b"first", b"0", b"1", b"2"]
    assert stored.count(b"child") == 1


def test_flush_of_a_closed_producer(topic):
    """flush() after close() raises AlreadyClosed."""
    producer = topic.producer()
    producer.close()
    with pytest.raises(AlreadyClosed):
        producer.flush()
