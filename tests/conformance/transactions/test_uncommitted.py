"""Readers that look on: they get messages of open transactions as well."""

from __future__ import annotations

import pytest

from embeddedpulsar import InvalidConfiguration, MessageId, NotAllowedError


def test_messages_of_open_transactions(client, topic):
    """Those of one that is aborted by then are left out; plain ones behind an open one are not held back."""
    topic.consumer().close()
    producer = topic.producer()
    aborted, open_one = client.new_transaction(), client.new_transaction()
    producer.send(b"aborted", txn=aborted)
    aborted.abort()
    producer.send(b"open", txn=open_one)
    producer.send(b"plain")
    reader = client.create_reader("topic", MessageId.earliest, isolation="read_uncommitted")
    assert reader.has_message_available()
    assert [reader.read_next(1000).data() for _ in range(2)] == [b"open", b"plain"]
    assert not reader.has_message_available()
    committed = client.create_reader("topic", MessageId.earliest)
    assert not committed.has_message_available()
    open_one.commit()
    assert [committed.read_next(1000).data() for _ in range(2)] == [b"open", b"plain"]
    assert not reader.has_message_available()
    reader.seek(MessageId.earliest)
    assert reader.read_next(1000).data() == b"open"
    with pytest.raises(NotAllowedError):
        reader.to_arrow()


def test_wrong_isolations(client):
    """Another word, and compacted topics, of which everything is committed."""
    with pytest.raises(InvalidConfiguration, match="isolation"):
        client.create_reader("topic", MessageId.earliest, isolation="dirty")
    with pytest.raises(InvalidConfiguration, match="is_read_compacted"):
        client.create_reader(
            "topic", MessageId.earliest, is_read_compacted=True, isolation="read_uncommitted"
        )
