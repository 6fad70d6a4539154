"""Ctrl-C inside `Client.close`, and closing again."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import embeddedpulsar as pulsar
from embeddedpulsar._engine.store.store import Store
from embeddedpulsar._engine.subscription import liveness_monitor
from embeddedpulsar._engine.subscription.attachment.active_attachment import ActiveAttachment
from embeddedpulsar._engine.subscription.attachment.attachment import Attachment


class TooLate(Exception):
    """What the alarm of an application raises."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, TooLate])
@pytest.mark.parametrize("is_released", [False, True])
def test_a_close_that_was_interrupted_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_released: bool, error: type[BaseException]
):
    """The handler strikes around the release of the store; another client of the process keeps its own."""
    real, strikes = Store.release, [signal.SIGALRM]

    def release(store: Store, reference: list[Store]) -> None:
        if is_released or not strikes:
            real(store, reference)
        if strikes:
            signal.raise_signal(strikes.pop())

    def handle(number: int, frame: object) -> None:
        raise error

    before = signal.signal(signal.SIGALRM, handle)
    first, other = pulsar.Client(tmp_path), pulsar.Client(tmp_path)
    first.create_producer("t").send(b"1")
    with monkeypatch.context() as patched:
        patched.setattr(Store, "release", release)
        with pytest.raises(pulsar.Interrupted if error is KeyboardInterrupt else error):
            first.close()
        signal.signal(signal.SIGALRM, before)
        first.close()
    with pytest.raises(pulsar.AlreadyClosed):
        first.close()
    producer = other.create_producer("t")
    producer.send(b"2")
    other.close()
    again = pulsar.Client(tmp_path)
    reader = again.create_reader("t", pulsar.MessageId.earliest)
    assert [reader.read_next(1000).data() for _ in range(2)] == [b"1", b"2"]
    again.close()


@pytest.mark.parametrize("is_reader", [False, True])
def test_the_parts_of_a_group_follow_it_when_its_close_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_reader: bool
):
    """The interrupt strikes between two partitions; nothing stays attached although the process runs on."""
    with pulsar.Client(tmp_path) as client, pulsar.Admin(tmp_path) as admin:
        admin.topics().create_partitioned_topic("t", 3)
        made: Any
        if is_reader:
            made = client.create_reader("t", pulsar.MessageId.earliest)
        else:
            made = client.subscribe("t", "s", pulsar.ConsumerType.Shared)
        core: Any = client._core
        parts = list(made._core._group.members.values())
        closing = type(parts[1]).close

        def close(part: Any) -> None:
            if part is parts[1]:
                raise KeyboardInterrupt
            closing(part)

        with monkeypatch.context() as patched:
            patched.setattr(type(parts[1]), "close", close)
            with pytest.raises(pulsar.Interrupted):
                made.close()
        with pytest.raises(pulsar.AlreadyClosed):
            made.close()
        core._close_abandoned()
        assert all(part.delivery.closed_text for part in parts)
        for number in range(3):
            use = core.store.use_topic(f"t-partition-{number}")
            assert use.topic.consumers() == []
            use.release()


def test_an_attachment_that_is_interrupted_twice_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The first interrupt strikes behind the attachment, the second while it is taken back."""
    real, strikes, was_detached = liveness_monitor.detach, [KeyboardInterrupt], threading.Event()

    def detach(*arguments: Any) -> None:
        if strikes:
            raise strikes.pop()
        real(*arguments)
        was_detached.set()

    def prepare(self: Attachment) -> None:
        raise KeyboardInterrupt

    with pulsar.Client(tmp_path) as client:
        core: Any = client._core
        monkeypatch.setattr(liveness_monitor, "detach", detach)
        with monkeypatch.context() as patched:
            patched.setattr(ActiveAttachment, "prepare", prepare)
            with pytest.raises(pulsar.Interrupted):
                client.subscribe("t", "s")
        assert not strikes
        use = core.store.use_topic("t")
        assert was_detached.wait(10)
        assert use.topic.consumers() == []
        use.release()
