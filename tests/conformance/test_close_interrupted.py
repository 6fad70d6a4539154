"""Ctrl-C inside `Client.close`, and closing again."""

from __future__ import annotations

from pathlib import Path

import pytest

import embeddedpulsar as pulsar
from embeddedpulsar.topic.store import Store


@pytest.mark.parametrize("is_released", [False, True])
def test_a_close_that_was_interrupted_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_released: bool
):
    """The interrupt strikes around the release of the store; another client of the process keeps its own."""
    real, strikes = Store.release, [KeyboardInterrupt]

    def release(store: Store, reference: list[Store]) -> None:
        if is_released or not strikes:
            real(store, reference)
        if strikes:
            raise strikes.pop()

    first, other = pulsar.Client(tmp_path), pulsar.Client(tmp_path)
    first.create_producer("t").send(b"1")
    with monkeypatch.context() as patched:
        patched.setattr(Store, "release", release)
        with pytest.raises(pulsar.Interrupted):
            first.close()
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
