"""A store for one test."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, MessageId, TopicNotFound
from embeddedpulsar.testing import trial_store


def test_a_store_in_memory_lasts_as_long_as_the_statement():
    """Also while no client has it open; afterwards it is gone."""
    with trial_store() as store:
        with Client(store) as client:
            client.create_producer("orders").send(b"soup")
        with Client(store) as client:
            assert client.create_reader("orders", MessageId.earliest).has_message_available()
    with Admin(store) as admin:
        assert admin.topics().get_list() == []


def test_settings(tmp_path: Path):
    """They are the content of its broker.conf."""
    with trial_store(tmp_path / "store", maxMessageSize=1024, allowAutoTopicCreation=False):
        assert (tmp_path / "store" / "broker.conf").read_text() == (
            "maxMessageSize=1024\nallowAutoTopicCreation=false\n"
        )
    with trial_store(maxMessageSize=1024, allowAutoTopicCreation=False) as store, Admin(store) as admin:
        assert admin.brokers().get_runtime_configuration()["maxMessageSize"] == "1024"
        with pytest.raises(TopicNotFound), Client(store) as client:
            client.create_producer("topic")


@pytest.mark.parametrize("is_directory", [False, True])
def test_what_the_test_left_open_is_closed(tmp_path: Path, is_directory: bool):
    """Clients, with their producers and consumers, in the order in which the test made them."""
    with trial_store(tmp_path / "store" if is_directory else None) as store:
        client = Client(store)
        producer = client.create_producer("orders")
        consumer = Client(store).subscribe("orders", "kitchen")
    assert not producer.is_connected()
    assert not consumer.is_connected()


def test_a_client_that_cannot_be_closed_keeps_nothing_else_open(monkeypatch: pytest.MonkeyPatch):
    """Its error comes out; the other clients and the store are closed."""

    def fail() -> None:
        raise TimeoutError("busy")

    trial = trial_store()
    store = trial.__enter__()
    failing, other = Client(store), Client(store)
    monkeypatch.setattr(failing._core, "close", fail)
    with pytest.raises(TimeoutError, match="busy"):
        trial.__exit__(None, None, None)
    assert other._core.is_closed
    monkeypatch.undo()
    failing.close()


def test_damage_fails_the_test(tmp_path: Path):
    """A directory is read after the last client, and its problems are those of the test."""
    store = trial_store(tmp_path / "store")
    with Client(store.__enter__()) as client:
        client.create_producer("orders").send(b"soup" * 100)
    (segment,) = [path for path in (tmp_path / "store").rglob("*") if b"soupsoup" in _bytes(path)]
    segment.write_bytes(_bytes(segment).replace(b"soupsoup", b"soupsalt"))
    with pytest.raises(AssertionError, match="orders"):
        store.__exit__(None, None, None)


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""
