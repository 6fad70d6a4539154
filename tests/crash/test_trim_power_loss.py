"""A power loss takes acknowledgements of what was removed since, or brings removed ledgers back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import embeddedpulsar as pulsar
from embeddedpulsar.testing.trial_store import check_store
from tests.crash.test_lost_headers import reboot

SENT = [b"%d" % number for number in range(35)]
EARLIEST = pulsar.InitialPosition.Earliest


def trim(client: pulsar.Client) -> int:
    """How many ledgers went."""
    return client._core.store.trim_topic("t")  # type: ignore[union-attr]


def ledgers(root: Path) -> int:
    """Segments there are."""
    return len(list(root.glob("topics/*/*.log")))


def published(root: Path, kind: pulsar.ConsumerType) -> None:
    """Four ledgers, and a subscription that acknowledged two messages."""
    settings = "managedLedgerMaxEntriesPerLedger=10\n"
    (root / "broker.conf").write_text(settings, encoding="utf-8")
    with pulsar.Client(root) as client:
        consumer = client.subscribe("t", "s", kind)
        with client.create_producer("t") as producer:
            for payload in SENT:
                producer.send(payload)
        for _ in range(2):
            consumer.acknowledge(consumer.receive(2000))


def received(consumer: pulsar.Consumer) -> list[bytes]:
    """Everything it gets, acknowledged."""
    found = []
    while (message := consumer.receive_nowait()) is not None:
        found.append(message.data())
        consumer.acknowledge(message)
    return found


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared])
def test_a_subscription_that_forgot_acknowledgements_jumps(tmp_path: Path, kind: pulsar.ConsumerType) -> None:
    """It goes on at the first message that is there, and nothing is left over in its backlog."""
    root = tmp_path / "store"
    root.mkdir(mode=0o700)
    published(root, kind)
    (subscription,) = root.glob("topics/*/subscriptions/*")
    shutil.copytree(subscription, tmp_path / "before")
    with pulsar.Client(root) as client:
        assert received(client.subscribe("t", "s", kind)) == SENT[2:]
    with pulsar.Client(root) as client:
        trim(client)
        assert ledgers(root) == 1
    shutil.rmtree(subscription)
    shutil.copytree(tmp_path / "before", subscription)
    reboot(root)
    with pulsar.Client(root) as client:
        consumer = client.subscribe("t", "s", kind)
        with client.create_producer("t") as producer:
            producer.send(b"more")
        assert received(consumer) == [*SENT[30:], b"more"]
    with pulsar.Client(root) as client:
        consumer = client.subscribe("t", "s", kind)
        attachment = consumer._core.session.attachment  # type: ignore[union-attr]
        assert attachment.backlog() == 0
        trim(client)
        assert ledgers(root) == 1
    assert not check_store(str(root)).problems


@pytest.mark.parametrize("is_opened", [False, True])
def test_a_subscription_nobody_opened_since_the_reboot_counts(tmp_path: Path, is_opened: bool) -> None:
    """Its journal is read; it holds back what it has not acknowledged, and no more."""
    root = tmp_path / "store"
    root.mkdir(mode=0o700)
    published(root, pulsar.ConsumerType.Exclusive)
    with pulsar.Client(root) as client:
        consumer = client.subscribe("t", "s")
        for _ in range(13):
            consumer.acknowledge(consumer.receive(2000))
    reboot(root)
    with pulsar.Client(root) as client:
        if is_opened:
            client.subscribe("t", "s").close()
        trim(client)
        assert ledgers(root) == 3
        with client.create_reader("t", pulsar.MessageId.earliest) as reader:
            assert [message.data() for message in reader] == SENT[10:]
    with pulsar.Client(root) as client:
        assert received(client.subscribe("t", "s")) == SENT[15:]


def test_files_that_come_back_go_again(tmp_path: Path) -> None:
    """Unlinking is not flushed: what is back belongs to the topic again, and goes when it is looked at."""
    root = tmp_path / "store"
    root.mkdir(mode=0o700)
    published(root, pulsar.ConsumerType.Exclusive)
    (topic,) = root.glob("topics/*")
    shutil.copytree(topic, tmp_path / "before")
    with pulsar.Client(root) as client:
        received(client.subscribe("t", "s"))
    with pulsar.Client(root) as client:
        trim(client)
        assert ledgers(root) == 1
    for file in sorted((tmp_path / "before").glob("*.[li]*"))[2:6]:
        shutil.copy(file, topic)
    reboot(root)
    with pulsar.Client(root) as client:
        trim(client)
        assert ledgers(root) == 1
        assert received(client.subscribe("t", "s")) == []
    assert not check_store(str(root)).problems


@pytest.mark.parametrize("is_trimmed", [False, True])
@pytest.mark.parametrize("leaves_names", [False, True])
@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared])
def test_the_newest_ledgers_never_reached_the_disk(
    tmp_path: Path, kind: pulsar.ConsumerType, leaves_names: bool, is_trimmed: bool
) -> None:
    """At level "process" they may go, names and all, although what they held was acknowledged and the ledgers
    before them are trimmed: ids go on, and everything that is sent then is received."""
    root = tmp_path / "store"
    root.mkdir(mode=0o700)
    published(root, kind)
    with pulsar.Client(root) as client:
        assert received(client.subscribe("t", "s", kind)) == SENT[2:]
        with client.create_producer("t") as producer:
            highest = producer.send(b"lost")
    if is_trimmed:
        with pulsar.Client(root) as client:
            trim(client)
        assert ledgers(root) == 1
    for log in sorted(root.glob("topics/*/*.log"))[-2:]:
        for file in (log, log.with_suffix(".idx")):
            size = file.stat().st_size
            file.unlink()
            if leaves_names:
                file.write_bytes(bytes(size))
    reboot(root)
    more = [b"more %d" % number for number in range(25)]
    with pulsar.Client(root) as client:
        consumer = client.subscribe("t", "s", kind)
        with client.create_producer("t") as producer:
            assert min([producer.send(payload) for payload in more]) > highest
        assert received(consumer) == more
    with pulsar.Client(root) as client:
        assert received(client.subscribe("t", "s", kind)) == []
