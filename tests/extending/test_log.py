"""A kind of log is one module and one line of `LOGS`."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddedpulsar import Client, MessageId
from embeddedpulsar.managed_ledger.memory_log import MemoryLog
from embeddedpulsar.topic.logs import LOGS, MEMORY
from embeddedpulsar.topic_name import PERSISTENT


def test_topics_get_the_log_that_is_registered_for_their_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Here topics of a directory are kept in memory, as those of another domain could be."""
    monkeypatch.setitem(LOGS, PERSISTENT, LOGS[MEMORY])
    with Client(tmp_path / "store") as client:
        with client.create_producer("orders") as producer:
            producer.send(b"two coffees")
        assert isinstance(client._core.store.use_topic("orders").topic.ledger, MemoryLog)
        with client.create_reader("orders", MessageId.earliest) as reader:
            assert [message.data() for message in reader] == [b"two coffees"]
        assert not list(tmp_path.rglob("*.log"))
