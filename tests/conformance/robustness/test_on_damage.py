"""What is found damaged reaches the application: each place once, as one value, under no lock."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Admin, Client, ConsumerType, Damage, InitialPosition, MessageId
from embeddedpulsar._engine.platform import timing
from embeddedpulsar._engine.store.store import Store
from embeddedpulsar.testing.trial_store import check_store

TOPIC = "persistent://public/default/orders"


def flip(path: Path, offset: int) -> None:
    """Change one byte."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)


def only(root: Path, pattern: str) -> Path:
    (found,) = root.glob(pattern)
    return found


def filled(root: Path) -> None:
    """A topic of ten messages with a subscription that acknowledged one of them."""
    with Client(root) as client:
        consumer = client.subscribe("orders", "s", initial_position=InitialPosition.Earliest)
        producer = client.create_producer("orders", batching_enabled=False)
        for number in range(10):
            producer.send(b"%03d" % number * 100)
        consumer.acknowledge(consumer.receive())
        consumer.close()


def damaged_entry(root: Path) -> None:
    """One byte in the body of entry 4."""
    log = only(root, "topics/*/*.log")
    flip(log, log.read_bytes().index(b"004004004"))


def read_all(client: Client) -> int:
    reader = client.create_reader("orders", MessageId.earliest)
    count = 0
    while reader.has_message_available():
        reader.read_next()
        count += 1
    return count


def test_an_entry_that_is_skipped(tmp_path: Path):
    """With the place, what was done, and what can be done; once, however many readers meet it."""
    filled(tmp_path)
    damaged_entry(tmp_path)
    found: list[Damage] = []
    with Client(tmp_path, on_damage=found.append) as client:
        assert read_all(client) == read_all(client) == 9
    (damage,) = found
    assert (damage.kind, damage.topic, damage.subscription) == ("hole", TOPIC, "")
    assert (damage.first_entry, damage.last_entry) == (4, 4) and damage.offset > 0
    assert damage.path == str(only(tmp_path, "topics/*/*.log"))
    assert damage.done == "these entries are skipped" and "backup" in damage.remedy
    assert all(part in str(damage) for part in (TOPIC, "entries 4 to 4", damage.done, damage.remedy))
    with pytest.raises(AttributeError):
        damage.kind = "index"  # type: ignore[misc]


def test_a_journal_whose_commands_are_lost(tmp_path: Path):
    """It names the subscription."""
    filled(tmp_path)
    flip(only(tmp_path, "topics/*/subscriptions/*/journal.*"), 80)
    found: list[Damage] = []
    with Client(tmp_path, on_damage=found.append) as client:
        client.subscribe("orders", "s", ConsumerType.Shared).close()
    assert {(one.kind, one.topic, one.subscription) for one in found} == {("journal", TOPIC, "s")}


def test_the_journal_of_the_producers(tmp_path: Path):
    """The topic alone is concerned."""
    filled(tmp_path)
    flip(only(tmp_path, "topics/*/journal.*"), 80)
    found: list[Damage] = []
    with Client(tmp_path, on_damage=found.append) as client:
        client.create_producer("orders").close()
    assert {(one.kind, one.topic, one.subscription) for one in found} == {("journal", TOPIC, "")}


@pytest.mark.parametrize("where", ["in place", "in a copy"])
@pytest.mark.parametrize("left", [b"", bytes(400)], ids=["empty", "zeros"])
def test_a_journal_of_the_producers_of_which_nothing_is_left(tmp_path: Path, left: bytes, where: str):
    """The check finds it, and the application is told."""
    root = tmp_path / "store"
    filled(root)
    if where == "in a copy":
        root = Path(shutil.copytree(root, tmp_path / "copy"))
    journal = only(root, "topics/*/journal.*")
    journal.write_bytes(left)
    assert [one.path for one in check_store(root).damage] == [str(journal)]
    found: list[Damage] = []
    with Client(root, on_damage=found.append) as client:
        client.create_producer("orders").close()
        assert read_all(client) == 10
    assert {(one.kind, one.topic, one.subscription) for one in found} == {("journal", TOPIC, "")}
    assert check_store(root).damage == []


@pytest.mark.parametrize("level", ["topic", "subscription", "store"])
def test_words_that_are_derived_again(tmp_path: Path, level: str):
    """Nothing is lost, and the report says so."""
    filled(tmp_path)
    pattern = {"topic": "topics/*/ctl", "subscription": "topics/*/subscriptions/*/ctl", "store": "store.ctl"}
    flip(only(tmp_path, pattern[level]), 20)
    found: list[Damage] = []
    with Client(tmp_path, on_damage=found.append) as client:
        consumer = client.subscribe("orders", "s")
        assert consumer.receive().data()[:3] == b"001"
        consumer.close()
    (damage,) = found
    assert damage.kind == "control file" and damage.remedy == "nothing needs to be done"
    assert check_store(tmp_path).damage == []


def test_what_a_thread_finds_while_the_store_is_being_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The threads of a store begin before its client exists; the client's function is called all the same."""
    early = Damage("ctl", 0, -1, -1, 0, 0, "found by the housekeeping", "control file")
    begin = Store._begin

    def begin_and_find(store: Store, *arguments: Any) -> None:
        begin(store, *arguments)
        thread = threading.Thread(target=store.damage.report, args=[early])
        thread.start()
        thread.join()

    monkeypatch.setattr(Store, "_begin", begin_and_find)
    found: list[Damage] = []
    with Client(tmp_path, on_damage=found.append):
        pass
    assert found == [early]


def test_what_is_repaired_when_the_store_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Found before the client exists, and told all the same: the catalog, and a directory without a name."""
    filled(tmp_path)
    flip(tmp_path / "catalog", 20)
    (tmp_path / "topics" / "t-unknown").mkdir()
    monkeypatch.setattr(timing, "_boot_id", os.urandom(16))
    found: list[Damage] = []
    with Client(tmp_path, on_damage=found.append) as client:
        assert read_all(client) == 10
    assert [one.kind for one in found] == ["catalog", "topic files", "catalog"]
    assert found[2].topic == TOPIC and found[2].done == "it was added again"


def test_a_description_that_is_written_again(tmp_path: Path):
    """When the topic is opened."""
    filled(tmp_path)
    only(tmp_path, "topics/*/topic.meta").unlink()
    found: list[Damage] = []
    with Client(tmp_path, on_damage=found.append) as client:
        assert read_all(client) == 10
    (damage,) = found
    assert (damage.kind, damage.topic) == ("topic files", TOPIC)
    assert damage.done == "it was written again from the catalog"


def test_the_admin_is_told_too(tmp_path: Path):
    """Beside a client of the same process, which gets the same."""
    filled(tmp_path)
    damaged_entry(tmp_path)
    by_admin: list[Damage] = []
    by_client: list[Damage] = []
    with Admin(tmp_path, on_damage=by_admin.append), Client(tmp_path, on_damage=by_client.append) as client:
        read_all(client)
    assert by_admin == by_client and len(by_admin) == 1


def test_the_log_is_the_default(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """One warning, however many clients there are; none if the application is told."""
    filled(tmp_path)
    damaged_entry(tmp_path)
    with Client(tmp_path) as client, Client(tmp_path), Admin(tmp_path):
        read_all(client)
    (record,) = [one for one in caplog.records if "hole" in one.getMessage()]
    assert record.name == "embeddedpulsar" and record.levelname == "WARNING"
    assert vars(record)["ep_topic"] == "persistent://public/default/orders"
    caplog.clear()
    with Client(tmp_path, on_damage=lambda damage: None) as client:
        read_all(client)
    assert not caplog.records


def test_an_error_of_the_application_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """And neither the reader nor the next report suffers."""
    filled(tmp_path)
    damaged_entry(tmp_path)
    flip(only(tmp_path, "topics/*/subscriptions/*/journal.*"), 80)
    found: list[Damage] = []

    def fail(damage: Damage) -> None:
        found.append(damage)
        raise RuntimeError("the pager is broken")

    with Client(tmp_path, on_damage=fail) as client:
        assert read_all(client) == 9
        client.subscribe("orders", "s").close()
    assert {one.kind for one in found} == {"hole", "journal"}
    assert "the pager is broken" in caplog.text and "on_damage failed" in caplog.text


def test_the_application_may_use_the_client_meanwhile(tmp_path: Path):
    """It is called under no lock: it may read the very topic, and close what it reads with."""
    filled(tmp_path)
    damaged_entry(tmp_path)
    counts: list[int] = []
    with Client(tmp_path, on_damage=lambda damage: counts.append(read_all(client))) as client:
        assert read_all(client) == 9
    assert counts == [9]


def test_it_is_checked_and_pickled(tmp_path: Path):
    """As the other options."""
    with pytest.raises(ValueError, match="on_damage is expected to be callable"):
        Client(tmp_path, on_damage="a text")  # type: ignore[arg-type]
    with Client(tmp_path, on_damage=print) as client, pickle.loads(pickle.dumps(client)) as again:
        assert again._core.config.on_damage is print


def test_a_forked_child_is_told(tmp_path: Path):
    """With its own copy of the callback."""
    filled(tmp_path)
    damaged_entry(tmp_path)
    script = """
import os, sys
from embeddedpulsar import Client, MessageId
found = []
client = Client(sys.argv[1], on_damage=found.append)
pid = os.fork()
if pid:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
reader = client.create_reader("orders", MessageId.earliest)
while reader.has_message_available():
    reader.read_next()
client.close()
os._exit(10 + len(found))
"""
    assert subprocess.run([sys.executable, "-c", script, os.fspath(tmp_path)], check=False).returncode == 11
