"""Readers of files alone, in a container that shows another boot id than the processes of the store."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path

import pytest

import embeddedpulsar as pulsar
from embeddedpulsar._engine.log.topic_control import TopicControl, is_of_this_boot
from embeddedpulsar._engine.platform import timing


def is_believed(directory: Path) -> bool:
    """Whether a reader takes the words of a topic for true."""
    with closing(TopicControl.open(str(directory))) as control:
        assert control.header is not None
        return is_of_this_boot(control.header, str(directory))


def test_words_of_another_boot_id_are_true_while_a_process_of_theirs_lives(tmp_path: Path, monkeypatch):
    """A reader believes them until the last one has closed the store; a copy elsewhere it never does."""
    client = pulsar.Client(tmp_path / "store")
    client.create_producer("jobs").send(b"m")
    (topic,) = (tmp_path / "store" / "topics").iterdir()
    copy = tmp_path / "topic"
    shutil.copytree(topic, copy)
    assert is_believed(topic)
    monkeypatch.setattr(timing, "_boot_id", os.urandom(16))
    assert is_believed(topic) and not is_believed(copy)
    client.close()
    assert not is_believed(topic)


def test_words_of_subscriptions_of_many_topics_are_true_as_well(tmp_path: Path, monkeypatch):
    """Topics beyond the first thousand lie one level deeper, and so do their subscriptions."""
    with pulsar.Client(tmp_path / "store") as client:
        client.create_producer("jobs").send(b"m")
        (topic,) = (tmp_path / "store" / "topics").iterdir()
        with closing(TopicControl.open(str(topic))) as control:
            header = control.header
        assert header is not None
        monkeypatch.setattr(timing, "_boot_id", os.urandom(16))
        deep = tmp_path / "store" / "topics" / "ab" / topic.name / "subscriptions" / "s"
        assert is_of_this_boot(header, str(deep))


@pytest.mark.parametrize("damage", [b"", b"x" * 200])
def test_nothing_is_believed_without_the_words_of_the_store(tmp_path: Path, monkeypatch, damage: bytes):
    """Damaged or cut, they do not say of which boot the living processes are."""
    with pulsar.Client(tmp_path / "store") as client:
        client.create_producer("jobs").send(b"m")
        (topic,) = (tmp_path / "store" / "topics").iterdir()
    (tmp_path / "store" / "store.ctl").write_bytes(damage)
    assert is_believed(topic)
    monkeypatch.setattr(timing, "_boot_id", os.urandom(16))
    assert not is_believed(topic)
