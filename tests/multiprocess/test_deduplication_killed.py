"""Whoever accounts for sequence ids dies at any step: what is stored is stored once, and nothing is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from embeddedpulsar import Client, MessageId, Producer
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.store.policies.admitting import DEDUPLICATION
from embeddedpulsar._engine.store.store import Store

ON = "brokerDeduplicationEnabled=true\n"
LEDGERS = (
    "managedLedgerMaxEntriesPerLedger=2\n"
    "defaultRetentionTimeInMinutes=-1\ndefaultRetentionSizeInMB=-1\n"  # only the test trims
)
HIGHEST = 5
KEPT: list[object] = []  # a client that is dropped closes itself
TESTED = {"dedup:scanned", "dedup:remembered", "dedup:switched", "dedup:saved_before_trim"}


def killed(action: Callable[[], object], step: str = "", nth: int = 1) -> None:
    """Run ``action`` in a child that is killed at a step, or after it."""
    pid = os.fork()
    if pid == 0:
        try:
            if step:
                failpoints.set(step, "kill", nth=nth)
            KEPT.append(action())
            if not step:
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def root_with(tmp_path: Path, settings: str) -> Path:
    """A directory with settings."""
    root = tmp_path / "store"
    root.mkdir()
    (root / "broker.conf").write_text(settings, "utf-8")
    return root


def publish(root: Path) -> Producer[bytes]:
    """The messages up to `HIGHEST`; neither producer nor client is closed, so the caller is to be killed."""
    producer = Client(root).create_producer("topic", "p")
    for number in range(1, HIGHEST + 1):
        producer.send(b"%d" % number, sequence_id=number)
    return producer


def check(root: Path) -> None:
    """Everything is there once; the next producer of the name knows, and goes on."""
    with Client(root) as client:
        with client.create_producer("topic", "p") as producer:
            assert producer.last_sequence_id() == HIGHEST
            for number in range(1, HIGHEST + 3):
                is_duplicate = producer.send(b"%d" % number, sequence_id=number).entry_id() == -1
                assert is_duplicate == (number <= HIGHEST)
        with client.create_reader("topic", MessageId.earliest) as reader:
            found = []
            while reader.has_message_available():
                found.append(int(reader.read_next(5000).data()))
        assert found == list(range(1, HIGHEST + 3))


def test_every_step_is_tested():
    """Whoever adds one adds a test here."""
    assert {name for name in failpoints.names() if name.startswith("dedup:")} == TESTED


@pytest.mark.parametrize(
    ("step", "lives"),
    [("dedup:scanned", 1), ("dedup:scanned", 2), ("dedup:remembered", 1), ("journal:body_done", 2)],
)
def test_reading_what_the_dead_left(tmp_path: Path, step: str, lives: int):
    """Whoever takes the name of a dead producer, and dies with what he found, leaves it to the next."""
    root = root_with(tmp_path, ON)
    killed(lambda: publish(root))
    for _ in range(lives):
        killed(lambda: Client(root).create_producer("topic", "p"), step)
    check(root)


@pytest.mark.parametrize("step", ["dedup:remembered", "journal:body_done"])
def test_noting_how_far_a_producer_is(tmp_path: Path, step: str):
    """He notes it now and then while he publishes."""
    root = root_with(tmp_path, ON)

    def note() -> None:
        client = Client(root)
        producer = client.create_producer("topic", "p")
        for number in range(1, HIGHEST + 1):
            producer.send(b"%d" % number, sequence_id=number)
        memory = client._core.store.use_topic("topic").topic._producers.get().memory
        failpoints.set(step, "kill")
        memory.remember("p", HIGHEST, durable=False)

    killed(note, "never")
    check(root)


@pytest.mark.parametrize(
    ("step", "nth"), [("dedup:switched", 1), ("journal:body_done", 1), ("journal:word_stored", 1)]
)
@pytest.mark.parametrize("by", ["policy", "producer"])
def test_switching_it_on(tmp_path: Path, step: str, nth: int, by: str):
    """By a policy, or by the first producer after it was turned on in broker.conf: what the log holds counts,
    whoever completes the change; and a producer that was there all along learns of it."""
    root = root_with(tmp_path, "")
    killed(lambda: publish(root))
    with Client(root) as client:
        present = client.create_producer("topic", "present")
        present.send(b"5", sequence_id=5)
        if by == "policy":
            killed(lambda: Store.open(root).set_policy("topic", DEDUPLICATION, True), step, nth)
        else:
            store = Store.open(root)
            store.set_policy("public/default", DEDUPLICATION, True)
            store.set_policy("topic", DEDUPLICATION, False)
            session, name = store._session, "persistent://public/default/topic"
            session.control.change_policies(
                lambda: session.policies.change_topic(name, {"deduplicationEnabled": None}, durable=False)
            )
            store.release()
            killed(lambda: Client(root).create_producer("topic", "p"), step, nth)
        with client.create_producer("topic", "p") as producer:
            assert producer.last_sequence_id() == HIGHEST
            assert producer.send(b"again", sequence_id=HIGHEST).entry_id() == -1
        assert present.send(b"again", sequence_id=5).entry_id() == -1
        assert present.send(b"6", sequence_id=6).entry_id() >= 0


@pytest.mark.parametrize("step", ["dedup:saved_before_trim", "journal:body_done"])
def test_saving_before_a_trim(tmp_path: Path, step: str):
    """Nothing is removed before what it says is saved, and it may be saved twice."""
    root = root_with(tmp_path, ON + LEDGERS)
    killed(lambda: publish(root))

    def trim() -> None:
        log = Store.open(root).use_topic("topic").topic.ledger
        failpoints.set(step, "kill")
        log.trim_before(log.tail >> 32)

    killed(trim, "never")
    assert len(list(root.glob("topics/*/*.log"))) == 3
    check(root)
    with Client(root) as client:
        log = client._core.store.use_topic("topic").topic.ledger
        assert log.trim_before(log.tail >> 32) >= 2
        assert client.create_producer("topic", "p").last_sequence_id() == HIGHEST + 2
