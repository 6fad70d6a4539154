"""A location that is slow: it delays those that need it, and nothing else; each message comes once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Consumer, ConsumerType, InitialPosition, Timeout
from embeddedpulsar._engine.cold import fetching
from embeddedpulsar.arrow import read_topic
from embeddedpulsar.testing import assert_clean
from embeddedpulsar.testing.manual_clock import ManualClock
from tests.conformance.ledgers.faulty_location import Faulty, faulty
from tests.conformance.offloading import PER_LEDGER, TOPIC, Site, finished

assert faulty  # the fixture
_TEST_S = 20.0


class Gate:
    """Operations of a location that take as long as the test says.

    Args:
        location: the location.
        operation: which of its operations are slow.
    """

    def __init__(self, location: Faulty, operation: str) -> None:
        self._operation = operation
        self._reached, self._open = threading.Event(), threading.Event()
        location.fails = self._at

    def _at(self, operation: str, path: str) -> None:
        if operation == self._operation:
            self._reached.set()
            assert self._open.wait(_TEST_S)

    def wait(self) -> None:
        """Until an operation is under way."""
        assert self._reached.wait(_TEST_S)

    def let_go(self) -> None:
        """It ends."""
        self._open.set()


class Beside:
    """A call in a thread."""

    def __init__(self, call: Any) -> None:
        self.found: list[Any] = []
        self._thread = threading.Thread(target=lambda: self.found.append(call()), daemon=True)
        self._thread.start()

    def result(self) -> Any:
        """What it returned."""
        self._thread.join(_TEST_S)
        (found,) = self.found
        return found


@pytest.fixture
def site(tmp_path: Path, faulty: Faulty) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    faulty.fails = lambda operation, path: None
    made.close()
    assert_clean(made.root)


def receive_all(consumer: Consumer, count: int) -> list[Any]:
    """Ids of messages, each acknowledged."""
    found = []
    for _ in range(count):
        message = consumer.receive(5000)
        found.append(message.message_id())
        consumer.acknowledge(message)
    return found


def use_the_topic(site: Site, name: str) -> list[Any]:
    """What others do with a topic meanwhile; returns the ids of what was sent."""
    with site.client.subscribe(TOPIC, name) as consumer:
        ids = site.publish(3)
        assert receive_all(consumer, 3) == ids
    stats = site.admin.topics().get_stats(TOPIC)
    assert stats.storage_size > 0 and stats.subscriptions[name].msg_backlog == 0
    assert site.admin.topics().peek_messages(TOPIC, name, 1) == []
    site.admin.topics().reset_cursor(TOPIC, name, ids[-1])
    assert site.admin.topics().trim_topic(TOPIC) == 0
    assert site.admin.why_kept(TOPIC).ledgers
    return ids


@pytest.mark.parametrize("operation", ["write", "read"])
def test_a_slow_upload(site: Site, faulty: Faulty, operation: str) -> None:
    """Producers, consumers, readers and Admin go on, while it writes and while it verifies."""
    ids = site.publish(25)
    gate = Gate(faulty, operation)
    site.admin.topics().offload(TOPIC)
    gate.wait()
    ids += use_the_topic(site, "s")
    assert [found for found, _ in site.read_all()] == ids
    assert len(read_topic(site.root, TOPIC)) == len(ids)
    assert site.admin.topics().offload_status(TOPIC).status == "RUNNING"
    assert len(site.logs()) == 3
    assert finished(site.admin, TOPIC, gate.let_go) == ""
    assert len(site.logs()) == 1
    assert [found for found, _ in site.read_all()] == ids


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.KeyShared])
def test_a_slow_fetch(site: Site, faulty: Faulty, kind: ConsumerType) -> None:
    """The consumer that needs the ledger waits for it, whatever the timeout of the call. Others go on, those
    of its subscription as well; time passes, and it gets every message once."""
    with ManualClock() as clock:
        site.reopen()
        ids = site.publish(PER_LEDGER + 5)
        assert site.offload() == ""
        start = {"consumer_type": kind, "initial_position": InitialPosition.Earliest}
        slow = site.client.subscribe(TOPIC, "s", receiver_queue_size=PER_LEDGER, **start)
        gate = Gate(faulty, "read")
        beside = Beside(lambda: slow.receive(1000).message_id())
        gate.wait()
        new = use_the_topic(site, "other")
        for _ in range(10):
            clock.advance(15)
        found = []
        if kind is ConsumerType.Shared:  # with keys, they would wait for what comes before
            second = site.client.subscribe(TOPIC, "s", **start)
            more = site.publish(6)
            while True:
                try:
                    message = second.receive(200)
                except Timeout:
                    break
                found.append(message.message_id())
                second.acknowledge(message)
            assert found == [*ids[PER_LEDGER:], *new, *more]
            new += more
            second.close()
        gate.let_go()
        first = beside.result()
        slow.acknowledge(first)
        found += [first, *receive_all(slow, len(ids) + len(new) - len(found) - 1)]
        assert sorted(found) == sorted(ids + new)
        with pytest.raises(Timeout):
            slow.receive(10)
        slow.close()
        site.close()


def test_the_log_says_how_far_a_fetch_is(
    tmp_path: Path, faulty: Faulty, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it begins and ends, and between after a second, two more, and so on."""
    caplog.set_level("INFO", "embeddedpulsar")
    monkeypatch.setattr(fetching, "_TOGETHER", 1)
    with ManualClock() as clock:
        site = Site(tmp_path)
        site.publish(PER_LEDGER + 5)
        assert site.offload() == ""
        pieces = fetching.log_of

        def slow(note: Any) -> Any:
            for piece in pieces(note):
                clock.advance(0.4)
                yield piece

        monkeypatch.setattr(fetching, "log_of", slow)
        caplog.clear()
        assert len(site.read_all()) == PER_LEDGER + 5
        of_ledger = [text.partition("ledger 1 ")[2] for text in caplog.messages if "ledger 1 " in text]
        found = [text.partition(" from")[0] for text in of_ledger]
        assert found == ["back", "back: 0 of 0 MiB", "back: 0 of 0 MiB", "was fetched back"]
        site.close()
    assert_clean(site.root)


def test_a_ledger_that_is_passed_is_not_fetched(site: Site, faulty: Faulty) -> None:
    """A consumer that stands at the end of an offloaded ledger goes on to the next one."""
    ids = site.publish(PER_LEDGER + 5)
    kinds = (ConsumerType.Exclusive, ConsumerType.Shared)
    for kind in kinds:
        with site.client.subscribe(
            TOPIC, kind.name, consumer_type=kind, initial_position=InitialPosition.Earliest
        ) as consumer:
            receive_all(consumer, PER_LEDGER)
    assert site.offload() == ""
    faulty.fails = lambda operation, path: pytest.fail(path)
    for kind in kinds:
        with site.client.subscribe(TOPIC, kind.name, consumer_type=kind) as consumer:
            assert receive_all(consumer, 5) == ids[PER_LEDGER:]


def test_a_slow_read_of_a_whole_topic(site: Site, faulty: Faulty) -> None:
    """It reads what was there when it was planned."""
    site.publish(25)
    assert site.offload() == ""
    gate = Gate(faulty, "read")
    beside = Beside(lambda: len(read_topic(site.root, TOPIC)))
    gate.wait()
    use_the_topic(site, "s")
    gate.let_go()
    assert beside.result() == 25
