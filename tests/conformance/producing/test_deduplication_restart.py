"""Deduplication over restarts: what is remembered, for how long, and what a power loss makes of it."""

from __future__ import annotations

import pytest

from embeddedpulsar import Client, MessageId
from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.platform.timing import boot_id
from embeddedpulsar._engine.store.store import REGISTRY
from tests.conformance.manual_time import ManualTime
from tests.support.process_state import reboot

SETTINGS = "brokerDeduplicationEnabled=true\n"


@pytest.fixture
def store_path(tmp_path):
    """The directory of a store that drops duplicates."""
    path = tmp_path / "store"
    path.mkdir()
    (path / "broker.conf").write_text(SETTINGS)
    return path


def publish(client: Client, name: str, count: int, **options) -> None:
    """Publish so many messages behind the last one the topic remembers."""
    with client.create_producer("topic", name, **options) as producer:
        for _ in range(count):
            producer.send(b"x")


def remembered(client: Client, name: str) -> int:
    """What a new producer of the name is told."""
    with client.create_producer("topic", name) as producer:
        return producer.last_sequence_id()


def log_of(client: Client):
    """The log of the topic."""
    return client._core.store.use_topic("topic").topic.ledger


def table_of(client: Client):
    """What the journal of the topic knows, now."""
    topic = client._core.store.use_topic("topic").topic
    topic.producers()
    return topic._producers.get()._table.sequences


def payloads(client: Client) -> int:
    """How many messages there are."""
    reader = client.create_reader("topic", MessageId.earliest)
    count = 0
    while reader.has_message_available():
        reader.read_next(1000)
        count += 1
    return count


def test_ids_outlive_producer_client_and_store(store_path):
    """Each new producer of a name goes on where the last one stopped."""
    for life in range(3):
        with Client(store_path) as client:
            with client.create_producer("topic", "p") as producer:
                assert producer.last_sequence_id() == 10 * life - 1
                for number in range(10 * life, 10 * life + 10):
                    producer.send(b"x")
                    assert producer.last_sequence_id() == number
                    assert not number or producer.send(b"x", sequence_id=number).entry_id() == -1
    with Client(store_path) as client:
        assert payloads(client) == 30


def test_the_name_of_a_dead_producer(store_path):
    """Its process was killed: the next producer of the name reads the log, and knows all it stored."""
    dead = Client(store_path)
    producer = dead.create_producer("topic", "p")
    for _ in range(5):
        producer.send(b"x")
    for name in ("other", "another"):
        publish(dead, name, 7)
    producer.send(b"x")
    REGISTRY.stores.clear()
    with Client(store_path) as client:
        dead._core.store.mailbox.close()  # as the kernel does it with a killed process
        assert remembered(client, "p") == 5
        assert remembered(client, "other") == 6
        assert table_of(client).names["p"].final
    del producer
    dead.shutdown()


@pytest.mark.parametrize("point", ["dedup:scanned", "dedup:remembered", "journal:body_done"])
def test_an_interrupt_while_a_name_is_accounted_for(store_path, point):
    """Whatever the instruction, the next attempt finds the same."""
    dead = Client(store_path)
    producer = dead.create_producer("topic", "p")
    producer.send(b"x")
    publish(dead, "other", 1)
    REGISTRY.stores.clear()
    with Client(store_path) as client:
        dead._core.store.mailbox.close()
        failpoints.set(point, "raise:KeyboardInterrupt")
        try:
            with pytest.raises(KeyboardInterrupt):
                client.create_producer("topic", "p")
        finally:
            failpoints.clear()
        assert remembered(client, "p") == 0
    del producer
    dead.shutdown()


def test_a_trim_does_not_forget(store_path):
    """Ids in ledgers that are removed are remembered: of the living, the dead and the gone."""
    dead = Client(store_path)
    lost = dead.create_producer("topic", "dead")
    lost.send(b"x", sequence_id=17)
    REGISTRY.stores.clear()
    with Client(store_path) as client:
        publish(client, "gone", 3)
        alive = client.create_producer("topic", "alive")
        alive.send(b"x", sequence_id=4)
        dead._core.store.mailbox.close()
        log = log_of(client)
        log.roll()
        publish(client, "later", 1)
        assert log.trim_before(log.tail >> 32) == 1
        answers = [alive.send(b"x", sequence_id=4).entry_id(), remembered(client, "dead")]
        assert answers == [-1, 17]
        assert (remembered(client, "gone"), remembered(client, "later")) == (2, 0)
        alive.close()
        assert remembered(client, "alive") == 4
    del lost
    dead.shutdown()


# -- notes while a producer is there ---------------


@pytest.fixture
def time(store_path):
    """A store whose time passes when the test says so."""
    made = ManualTime(store_path)
    yield made
    made.close()


def test_a_crash_between_saving_and_trimming(time):
    """The ids are saved before anything is removed. No subscription needs the closed ledger: it would be
    removed in the background, if time passed."""
    producer = time.client.create_producer("topic", "p")
    producer.send(b"x", sequence_id=9)
    log = log_of(time.client)
    log.roll()
    producer.send(b"x", sequence_id=10)
    failpoints.set("dedup:saved_before_trim", "raise:KeyboardInterrupt")
    try:
        with pytest.raises(KeyboardInterrupt):
            log.trim_before(log.tail >> 32)
    finally:
        failpoints.clear()
    assert len(log.segments()) == 2
    assert table_of(time.client).names["p"].highest == 10


def test_a_producer_notes_how_far_it_is(store_path, time):
    """After brokerDeduplicationEntriesInterval messages, looked at once a second; else after the interval."""
    producer = time.client.create_producer("topic", "p")
    for _ in range(999):
        producer.send(b"x")
    time.pass_ms(2000)
    assert table_of(time.client).names["p"].highest == -1
    producer.send(b"x")
    time.pass_ms(17_000)
    assert table_of(time.client).names["p"].highest == 999
    producer.send(b"x")
    time.pass_ms(140_000)
    assert table_of(time.client).names["p"].highest == 1000
    assert table_of(time.client).base == log_of(time.client).tail


def test_an_inactive_name_is_forgotten(store_path, time):
    """Six hours after its producer left; while it is there it is never forgotten."""
    publish(time.client, "p", 3)
    stays = time.client.create_producer("topic", "stays")
    stays.send(b"x", sequence_id=7)
    time.pass_ms(359 * 60_000)
    assert remembered(time.client, "p") == 2
    time.pass_ms(365 * 60_000)
    assert "p" not in table_of(time.client).names, "taken out with a note of another producer"
    assert remembered(time.client, "p") == -1
    assert stays.send(b"x", sequence_id=7).entry_id() == -1


def test_only_so_many_names_are_remembered(store_path, time):
    """The ones that were not heard of for longest go first."""
    time.close()
    (store_path / "broker.conf").write_text(SETTINGS + "brokerDeduplicationMaxNumberOfProducers=5\n")
    time = ManualTime(store_path)
    for number in range(8):
        publish(time.client, f"p{number}", 2)
        time.pass_ms(1000)
    stays = time.client.create_producer("topic", "stays")
    time.pass_ms(130_000)
    stays.close()
    assert sorted(table_of(time.client).names) == ["p4", "p5", "p6", "p7", "stays"]
    time.close()


# -- another boot ----------------------------------


def test_a_reboot_reads_the_log_again(store_path, monkeypatch):
    """Names the journal lost are found, as are ids it does not know."""
    with Client(store_path) as client:
        publish(client, "p", 3)
        table = table_of(client)
        assert table.is_on(boot_id())
    journal = max((store_path / "topics").glob("*/journal.*"))
    journal.unlink()
    reboot(monkeypatch)
    with Client(store_path) as client:
        publish(client, "q", 1)
        assert remembered(client, "p") == 2
        assert table_of(client).is_on(boot_id())


def test_what_the_log_lost_is_not_remembered(store_path, monkeypatch, caplog):
    """A power loss took the end of the log, and not that of the journal: the lost can be sent again."""
    with Client(store_path) as client:
        publish(client, "p", 5)
        log = log_of(client)
        third = log.cursor(log.first_position(), inclusive=True)
        ledger_id = log.tail >> 32
        offset = log.view.offset_of(ledger_id, 3)
        publish(client, "p", 5)
        assert third.read(1, 1, 100)
        path = max((store_path / "topics").glob("*/*.log"))
    with open(path, "r+b") as file:  # what a lost write-back leaves of the last pages
        file.seek(offset)
        file.write(bytes(1 << 16))
    reboot(monkeypatch)
    with Client(store_path) as client:
        assert remembered(client, "p") == 2
        producer = client.create_producer("topic", "p")
        assert producer.send(b"again", sequence_id=3).entry_id() == 0
        assert producer.send(b"again", sequence_id=3).entry_id() == -1
        assert log_of(client).words[TopicWord.TAIL] >> 32 > ledger_id
