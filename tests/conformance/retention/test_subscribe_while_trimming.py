"""Whoever subscribes, or goes back, while another process trims, gets all he was promised."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Client, InitialPosition, MessageId
from embeddedpulsar._engine.platform import failpoints
from tests.conformance.manual_time import ManualTime
from tests.conformance.retention_site import TOPIC, acknowledge, ledgers, publish, read_all, store_with

EARLIEST = InitialPosition.Earliest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return store_with(tmp_path / "store")


@pytest.fixture
def time(path: Path) -> Iterator[ManualTime]:
    made = ManualTime(path)
    yield made
    made.close()


def between(time: ManualTime, monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Do something once, after whoever trims has looked at the subscriptions and before he decides."""
    trimming: Any = time.client._core.store.use_topic(TOPIC).topic._trimming  # type: ignore[union-attr]
    look, actions = trimming._marks, [action]

    def look_and_act() -> Any:
        found = look()
        while actions:
            actions.pop()()
        return found

    monkeypatch.setattr(trimming, "_marks", look_and_act)


def test_a_new_subscription_from_the_earliest_message(
    time: ManualTime, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What there was when subscribe() returned is delivered."""
    ids = publish(time, 35)
    new: list[Any] = []
    between(
        time,
        monkeypatch,
        lambda: new.append(time.client.subscribe(TOPIC, "new", initial_position=EARLIEST)),
    )
    time.pass_ms(200_000)
    assert len(new) == 1 and len(ledgers(path)) == 4
    assert acknowledge(new[0], 35) == ids
    time.pass_ms(200_000)
    assert len(ledgers(path)) == 1


@pytest.mark.parametrize("is_by_time", [False, True])
def test_going_back(time: ManualTime, path: Path, monkeypatch: pytest.MonkeyPatch, is_by_time: bool) -> None:
    """What there was when seek() returned comes again."""
    consumer = time.client.subscribe(TOPIC, "s", initial_position=EARLIEST, ack_group_time_ms=0)
    ids = publish(time, 35)
    acknowledge(consumer, 35)
    between(time, monkeypatch, lambda: consumer.seek(1 if is_by_time else MessageId.earliest))
    time.pass_ms(200_000)
    assert len(ledgers(path)) == 4
    assert acknowledge(consumer, 35) == ids


def test_going_back_to_what_is_gone(time: ManualTime, path: Path) -> None:
    """Seeking a message that was trimmed goes to the first that is there."""
    consumer = time.client.subscribe(TOPIC, "s", initial_position=EARLIEST)
    ids = publish(time, 35)
    acknowledge(consumer, 35)
    time.pass_ms(200)
    consumer.seek(ids[3])
    assert acknowledge(consumer, 5) == ids[30:]
    assert consumer.receive_nowait() is None


def test_subscribing_after_all_was_trimmed(time: ManualTime, path: Path) -> None:
    """Earliest means the first message that is retained."""
    publish(time, 30)
    more = publish(time, 5)
    time.pass_ms(200)
    assert acknowledge(time.client.subscribe(TOPIC, "s", initial_position=EARLIEST), 5) == more


@pytest.mark.parametrize("point", ["journal:body_done", "journal:word_stored", "subscription:published"])
def test_who_goes_back_and_dies(path: Path, point: str) -> None:
    """A process is killed in the middle of a seek: what it committed counts, though it told nobody."""
    with Client(path) as client:
        with client.create_producer(TOPIC) as producer:
            client.subscribe(TOPIC, "other", initial_position=EARLIEST)
            with client.subscribe(TOPIC, "s", initial_position=EARLIEST) as consumer:
                ids = [producer.send(b"%d" % number) for number in range(35)]
                acknowledge(consumer, 35)
    _in_a_child_that_is_killed(lambda: _seek_and_die(path, point))
    with Client(path) as client:
        client.subscribe(TOPIC, "other").unsubscribe()
        client._core.store.trim_topic(TOPIC)  # type: ignore[union-attr]
        again = client.subscribe(TOPIC, "s")
        if point == "journal:body_done":  # nothing was committed
            assert again.receive_nowait() is None
        else:
            assert len(ledgers(path)) == 4
            assert acknowledge(again, 35) == ids


def _seek_and_die(path: Path, point: str) -> None:
    client = Client(path)
    consumer = client.subscribe(TOPIC, "s")
    failpoints.set(point, "kill")
    consumer.seek(MessageId.earliest)


def _in_a_child_that_is_killed(action: Callable[[], object]) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            action()
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL


def test_a_subscription_nobody_can_read_holds_everything_back(
    time: ManualTime, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is trimmed while it cannot be told how far it has come; that is reported once."""
    consumer = time.client.subscribe(TOPIC, "s", initial_position=EARLIEST)
    ids = publish(time, 35)
    acknowledge(consumer, 35)
    consumer.close()
    time.client.shutdown()
    (directory,) = path.glob("topics/*/subscriptions/*")
    for file in directory.iterdir():
        if file.name == "ctl":
            file.unlink()
        elif file.name.startswith("journal."):
            file.write_bytes(b"\xff" * file.stat().st_size)
    time.reopen()
    time.client.create_producer(TOPIC)
    time.pass_ms(1_000_000)
    assert read_all(time) == ids
    assert [
        record.message for record in caplog.records if "nothing of the topic is trimmed" in record.message
    ]
    assert acknowledge(time.client.subscribe(TOPIC, "s"), 35) == ids
    time.pass_ms(200_000)
    assert len(ledgers(path)) == 1
