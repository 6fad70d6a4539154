"""Consumers that a subscription refuses leave the others alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embeddedpulsar as pulsar
from embeddedpulsar._engine.subscription.liveness_monitor import KeepAlives


def test_one_that_attaches_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A consumer that attaches right after another was refused gets the id that this one would have had."""
    real = KeepAlives.patiently
    next_ones: list[pulsar.Consumer[bytes]] = []

    def patiently(self: KeepAlives, attempt: Callable[[], Any], look: Callable[[], object]) -> Any:
        try:
            return real(self, attempt, look)
        except pulsar.ConsumerBusy:
            next_ones.append(client.subscribe("t", "s", pulsar.ConsumerType.Shared, consumer_name="second"))
            raise

    with pulsar.Client(tmp_path) as client:
        client.create_producer("t").close()
        client.subscribe("t", "s", pulsar.ConsumerType.Shared, consumer_name="first")
        monkeypatch.setattr(KeepAlives, "patiently", patiently)
        with pytest.raises(pulsar.ConsumerBusy, match="different type"):
            client.subscribe("t", "s", pulsar.ConsumerType.Exclusive)
        assert len(next_ones) == 1
        use = client._core.store.use_topic("t")
        try:
            assert use.topic.consumers() == ["first", "second"]
        finally:
            use.release()
