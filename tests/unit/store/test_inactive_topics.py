"""Unit tests of embeddedpulsar._engine.store.inactive_topics: what is noted of the topics that
this process uses."""

from __future__ import annotations

from pathlib import Path

from embeddedpulsar import Client
from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.store.inactive_topics import InactiveTopics
from embeddedpulsar.testing.trial_store import assert_clean


def test_a_topic_that_is_closed_meanwhile(tmp_path: Path) -> None:
    """The use of the others is noted all the same: a topic with nothing but a reader would be deleted."""
    root = tmp_path / "store"
    with Client(root) as client:
        store = client._core.store
        uses = [store.use_topic(name) for name in ("first", "second")]
        first, second = (use.topic for use in uses)
        words = second.ledger.words
        words[TopicWord.SEEN_ACTIVE_MS] = 0
        first.ledger.close()
        InactiveTopics(store._current(), lambda: [first, second], store.use_topic, store.clock)._note_own()
        assert abs(words[TopicWord.SEEN_ACTIVE_MS] - store.clock.wall_ms()) < 60_000
        for use in uses:
            use.release()
    assert_clean(root)
