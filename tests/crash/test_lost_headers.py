"""Segments whose header is gone, both copies of it: any ledger, with and without index, and after a reboot.

With an intact first frame (or an index that knows one of the next) nothing is lost. Without, that ledger is
skipped and reported, and the topic goes on: everything else is read, acknowledged, searched and appended to.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

import embeddedpulsar as pulsar
from embeddedpulsar._engine.filenames import index_path, ledgers_of, log_path
from embeddedpulsar._engine.format.control import (
    CONTROL_HEADER_SIZE,
    pack_control_header,
    parse_control_header,
)
from embeddedpulsar._engine.store.store import Store
from embeddedpulsar.message_id import Position
from tests.support.ledger_files import OTHER_BOOT

SENT = [b"%d" % n for n in range(35)]
AFTER = [b"after %d" % n for n in range(15)]
SETTINGS = (
    "managedLedgerMaxEntriesPerLedger=10\ndefaultRetentionTimeInMinutes=-1\ndefaultRetentionSizeInMB=-1\n"
)
HEADERS, AND_FIRST_FRAME = 1024, 4140


def built(root: Path) -> str:
    """Four ledgers of up to ten entries, a subscription that acknowledged three. Returns the topic's path."""
    (root / "broker.conf").write_text(SETTINGS, encoding="utf-8")
    client = pulsar.Client(str(root))
    consumer = client.subscribe("t", "sub")
    producer = client.create_producer("t")
    for payload in SENT:
        producer.send(payload)
    for _ in range(3):
        consumer.acknowledge(consumer.receive(2000))
    client.close()
    (topic,) = (root / "topics").iterdir()
    return str(topic)


def damage(topic: str, which: int, size: int, *, with_index: bool) -> int:
    """Overwrite the first bytes of one segment; with its index, of that too. Returns the ledger."""
    ledger = ledgers_of(os.listdir(topic))[which]
    with open(log_path(topic, ledger), "r+b") as file:
        file.write(b"\xee" * size)
    if with_index:
        with open(index_path(topic, ledger), "r+b") as file:
            file.write(b"\xee" * 8192)
    return ledger


def reboot(root: Path) -> None:
    """Let every control word be of an earlier boot."""
    for path in (*root.rglob("ctl"), root / "store.ctl"):
        with open(path, "r+b") as file:
            header = parse_control_header(file.read(CONTROL_HEADER_SIZE))
            file.seek(0)
            file.write(pack_control_header(header._replace(boot_id=OTHER_BOOT)))


def use(root: Path, expected: list[bytes]) -> None:
    """Send, receive and acknowledge what can be, and let nothing hold the subscription back."""
    client = pulsar.Client(str(root))
    producer = client.create_producer("t")
    for payload in AFTER:
        producer.send(payload)
    consumer = client.subscribe("t", "sub")
    for payload in (payload for payload in [*expected, *AFTER] if payload not in SENT[:3]):
        message = consumer.receive(2000)
        assert message.data() == payload
        consumer.acknowledge(message)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(50)
    assert read(client) == [*expected, *AFTER]
    last = consumer.get_last_message_id()
    client.close()
    store = Store.open(root)
    topic = store.use_topic("t").topic
    assert topic.subscription("sub").mark_delete == Position(last.ledger_id(), last.entry_id())
    assert topic.ledger.segments() and topic.ledger.statistics().ledgers >= 4
    store.release()
    seek(root, expected)


def seek(root: Path, expected: list[bytes]) -> None:
    """To the beginning, by time, and to the end."""
    client = pulsar.Client(str(root))
    consumer = client.subscribe("t", "sub")
    for place in (pulsar.MessageId.earliest, 1):
        consumer.seek(place)
        assert consumer.receive(2000).data() == expected[0]
    consumer.seek(consumer.get_last_message_id())
    with pytest.raises(pulsar.Timeout):
        consumer.receive(50)
    client.close()


def read(client: pulsar.Client) -> list[bytes]:
    """Everything, by a reader."""
    reader = client.create_reader("t", pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(2000).data())
    reader.close()
    return found


@pytest.mark.parametrize("is_rebooted", [False, True])
@pytest.mark.parametrize("with_index", [False, True])
@pytest.mark.parametrize("which", [0, 1, -1])
def test_nothing_is_lost_with_a_header(
    workspace: Path, caplog: pytest.LogCaptureFixture, which: int, with_index: bool, is_rebooted: bool
):
    """First, middle and active segment: derived, reported once, and read to the last entry."""
    topic = built(workspace)
    ledger = damage(topic, which, HEADERS, with_index=with_index)
    if is_rebooted:
        reboot(workspace)
    with caplog.at_level(logging.WARNING, "embeddedpulsar"):
        use(workspace, SENT)
    assert log_path(topic, ledger) in caplog.text and "derived from the frames" in caplog.text
    use_again(workspace, [*SENT, *AFTER])


def use_again(root: Path, expected: list[bytes]) -> None:
    """Another client, another subscription: it reads the same."""
    client = pulsar.Client(str(root))
    consumer = client.subscribe("t", "other", initial_position=pulsar.InitialPosition.Earliest)
    assert [consumer.receive(2000).data() for _ in expected] == expected
    client.close()


@pytest.mark.parametrize("is_rebooted", [False, True])
@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_ledger_that_nothing_tells_of_is_skipped(
    workspace: Path, caplog: pytest.LogCaptureFixture, which: int, is_rebooted: bool
):
    """Header, first frame and index gone: that ledger is left out; a report names file and remedy."""
    topic = built(workspace)
    ledger = damage(topic, which, AND_FIRST_FRAME, with_index=True)
    if is_rebooted:
        reboot(workspace)
    lost = SENT[30:] if which < 0 else SENT[10 * which : 10 * which + 10]
    left = [payload for payload in SENT if payload not in lost]
    with caplog.at_level(logging.WARNING, "embeddedpulsar"):
        use(workspace, left)
    assert log_path(topic, ledger) in caplog.text and "put " in caplog.text
    assert os.path.getsize(log_path(topic, ledger)) > AND_FIRST_FRAME, "the file stays where it is"
    use_again(workspace, [*left, *AFTER])


@pytest.mark.parametrize("is_rebooted", [False, True])
def test_the_index_vouches_where_the_first_frame_is_gone(workspace: Path, is_rebooted: bool):
    """Header and first frame of the active segment: one entry is lost, the others are read by the index."""
    topic = built(workspace)
    damage(topic, -1, AND_FIRST_FRAME, with_index=False)
    if is_rebooted:
        reboot(workspace)
    use(workspace, SENT[:30] + SENT[31:])


@pytest.mark.parametrize("size", [HEADERS, AND_FIRST_FRAME])
def test_a_process_that_has_it_open_goes_on(workspace: Path, size: int):
    """Who had mapped the segment before may finish it; others start the next, and both see everything."""
    topic = built(workspace)
    client = pulsar.Client(str(workspace))
    producer = client.create_producer("t")
    producer.send(b"before")
    damage(topic, -1, size, with_index=False)
    producer.send(b"behind")
    found = read(client)
    client.close()
    expected = [payload for payload in SENT if size == HEADERS or payload != SENT[30]] + [
        b"before",
        b"behind",
    ]
    assert found == expected
    use(workspace, expected)
