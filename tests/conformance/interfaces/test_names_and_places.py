"""What names a store, a topic or a setting: forms that work everywhere, and errors that name the nearest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, InvalidTopicName, TopicNotFound
from embeddedpulsar._engine.store import store_root, topic_list
from embeddedpulsar._engine.store.store_root import directory_of
from embeddedpulsar.arrow import dataset, export, read_topic, scan_topic
from embeddedpulsar.cli import check
from embeddedpulsar.settings import BrokerSettings

INVISIBLE = {
    "zero width space": "\u200b",
    "zero width joiner": "\u200d",
    "mark from right to left": "\u200f",
    "override of direction": "\u202e",
    "isolate": "\u2066",
    "word joiner": "\u2060",
    "mark of the byte order": "\ufeff",
    "soft hyphen": "\u00ad",
    "filler of Hangul": "\u3164",
    "selector of a variation": "\ufe0f",
    "line separator": "\u2028",
    "tag": "\U000e0041",
    "joiner of graphemes": "\u034f",
}


@pytest.mark.parametrize("name", INVISIBLE)
def test_invisible_characters_in_new_names(client, store_url, name):
    """Are refused with their code point, however the topic is made; nothing is made."""
    topic = f"orders{INVISIBLE[name]}-eu"
    point = rf"U\+{ord(INVISIBLE[name]):04X}"
    with Admin(store_url) as admin:
        for call in (
            lambda: client.create_producer(topic),
            lambda: client.subscribe(topic, "s"),
            lambda: admin.topics().create_non_partitioned_topic(topic),
            lambda: admin.topics().create_partitioned_topic(topic, 2),
        ):
            with pytest.raises(InvalidTopicName, match=point):
                call()
        assert admin.topics().get_list("public/default") == []


def test_topics_that_exist_with_such_names(client, store_url, monkeypatch):
    """Those of an earlier release can be read, written to and deleted."""
    topic = "orders\u200b"
    with monkeypatch.context() as earlier:
        earlier.setattr(topic_list, "check_visible", lambda name: None)
        client.create_producer(topic).send(b"tea")
    client.create_producer(topic).send(b"soup")
    with Admin(store_url) as admin, client.create_reader(topic, client_start()) as reader:
        assert [message.data() for message in reader] == [b"tea", b"soup"]
        assert admin.topics().get_list("public/default") == [f"persistent://public/default/{topic}"]
        reader.close()
        admin.topics().delete(topic, force=True)
        assert admin.topics().get_list("public/default") == []


def client_start():
    """The id of the earliest message."""
    from embeddedpulsar import MessageId

    return MessageId.earliest


def test_a_visible_name_of_any_alphabet(client):
    """Letters, combining marks that are part of them, and emoji without joiners."""
    for topic in ("bücher", "注文", "заказы", "क्षेत्र", "orders-\U0001f375"):
        client.create_producer(topic).send(b"x")


def test_a_file_url_wherever_a_store_is_named(tmp_path: Path, capsys):
    """Percent signs are decoded; another host is refused."""
    root = tmp_path / "my data%"
    url = f"file://{tmp_path}/my%20data%25"
    with Client(url) as client:
        client.create_producer("t").send(b"tea")
    with Admin(url) as admin:
        assert admin.topics().get_list("public/default") == ["persistent://public/default/t"]
        admin.backup(f"file://{tmp_path}/copy")
    Admin.restore(f"file://localhost{tmp_path}/copy", f"file://{tmp_path}/restored")
    for place in (root, url, f"file://{tmp_path}/restored"):
        assert read_topic(place, "t", ["value"]).column(0).to_pylist() == [b"tea"]
        assert scan_topic(place, "t", ["value"]).read_all().num_rows == 1
        assert dataset(place, "t", ["value"]).to_table().num_rows == 1
    assert export(url, "t", f"file://{tmp_path}/out", ["value"]).rows == 1
    assert (tmp_path / "out").is_dir()
    assert check.main([url]) == 0
    assert str(root) in capsys.readouterr().out
    for call in (
        lambda: Client("file://server/data"),
        lambda: Admin("file://server/data"),
        lambda: read_topic("file://server/data", "t"),
        lambda: Admin.restore("file://server/data", tmp_path / "x"),
    ):
        with pytest.raises(ValueError, match="names the host 'server'"):
            call()
    with pytest.raises(ValueError, match="NUL"):
        Client("file:///srv/a%00b")
    assert not os.path.exists("file:")


def test_a_home_that_is_not_known(tmp_path: Path, monkeypatch):
    """A path that begins with ~ is refused, not taken for a directory of that name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(store_root.os.path, "expanduser", lambda path: path)
    for call in (lambda: Client("~/data"), lambda: Client(Path("~/data")), lambda: directory_of("~/data")):
        with pytest.raises(ValueError, match="this user has no home; write the path without ~"):
            call()
    with pytest.raises(ValueError, match="there is no user 'nobody-such'"):
        Client("~nobody-such/data")
    assert not list(tmp_path.iterdir())


def test_a_mark_of_the_byte_order_in_the_settings(tmp_path: Path):
    """That an editor wrote before the first line."""
    tmp_path.joinpath("broker.conf").write_bytes(
        b"\xef\xbb\xbfmaxMessageSize=2000\nallowAutoTopicCreation=false\n"
    )
    with Client(tmp_path) as client:
        assert client._core.store.settings.maxMessageSize == 2000
    assert BrokerSettings.parse("\ufeffmaxMessageSize=2000").unknown == ()


def test_the_nearest_name_is_named(client, store_url):
    """Of topics, schemes and methods."""
    client.create_producer("orders").close()
    with Admin(store_url) as admin:
        for call in (
            lambda: admin.topics().get_stats("order"),
            lambda: admin.topics().delete("Orders"),
            lambda: admin.topics().get_stats("oders"),
        ):
            with pytest.raises(TopicNotFound, match=r"did you mean persistent://public/default/orders\?"):
                call()
        with pytest.raises(TopicNotFound) as info:
            admin.topics().get_stats("something else")
        assert "did you mean" not in str(info.value)
        with pytest.raises(AttributeError, match=r"did you mean get_list\(\)\?"):
            admin.topics().list  # noqa: B018 - the error is the test
    for url, text in (
        ("redis://x", "redis://x is not a store; write a directory as ./data"),
        ("flie:///data", "did you mean file://"),
        ("memroy://x", "did you mean memory://"),
    ):
        with pytest.raises(ValueError, match=text):
            Client(url)
