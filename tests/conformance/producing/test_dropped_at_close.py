"""What close() drops is said."""

from __future__ import annotations

import logging

import pytest


def test_close_says_what_it_drops(topic, caplog: pytest.LogCaptureFixture):
    """One warning with the number and the topic; what close() does is Pulsar's."""
    producer = topic.producer(batching_enabled=True, batching_max_publish_delay_ms=60_000)
    for number in range(10):
        producer.send_async(b"%d" % number, None)
    with caplog.at_level(logging.WARNING, "embeddedpulsar"):
        producer.close()
    (record,) = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert "10 messages" in record.getMessage()
    assert "persistent://public/default/topic" in record.getMessage()


def test_closing_the_client_says_it_too(topic, caplog: pytest.LogCaptureFixture):
    """Client.close() does not flush either."""
    topic.producer(batching_enabled=True, batching_max_publish_delay_ms=60_000).send_async(b"x", None)
    with caplog.at_level(logging.WARNING, "embeddedpulsar"):
        topic.client.close()
    assert "1 messages" in caplog.text


def test_a_flushed_producer_closes_silently(topic, caplog: pytest.LogCaptureFixture):
    """Nothing is dropped, so nothing is said."""
    producer = topic.producer(batching_enabled=True)
    producer.send_async(b"x", None)
    producer.flush()
    with caplog.at_level(logging.WARNING, "embeddedpulsar"):
        producer.close()
    assert caplog.records == []
