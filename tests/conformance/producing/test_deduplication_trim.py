"""What a trim in another process may do while a dead producer's name is being read."""

from __future__ import annotations

import pytest

from embeddedpulsar import Client
from embeddedpulsar._engine.log import log_survey
from embeddedpulsar._engine.log.log_survey import SequenceScan
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.store.store import REGISTRY


@pytest.fixture
def store_path(tmp_path):
    """The directory of a store that drops duplicates, with ledgers of two entries, which only tests trim."""
    path = tmp_path / "store"
    path.mkdir()
    (path / "broker.conf").write_text(
        "brokerDeduplicationEnabled=true\nmanagedLedgerMaxEntriesPerLedger=2\n"
        "defaultRetentionTimeInMinutes=-1\ndefaultRetentionSizeInMB=-1\n"
    )
    return path


@pytest.fixture
def processes(store_path):
    """Clients that know nothing of each other, as in so many processes; those that are left are closed."""
    made: list[Client] = []

    def start() -> Client:
        REGISTRY.stores.clear()
        made.append(Client(store_path))
        return made[-1]

    yield start
    for client in made:
        client.shutdown()


def die(client: Client) -> None:
    """What the kernel does with a killed process: its lease is free, and nothing was said to anybody."""
    client._core.store.mailbox.close()


def leave_behind(client: Client, *ids: int):
    """Messages of a producer named "p", whose process dies; those of others fill the ledgers behind them."""
    producer = client.create_producer("topic", "p")
    for one in ids:
        producer.send(b"x", sequence_id=one)
    with client.create_producer("topic", "other") as other:
        for _ in range(6):
            other.send(b"x")
    die(client)
    return producer


def trim(client: Client) -> int:
    """Remove all closed ledgers."""
    log = client._core.store.use_topic("topic").topic.ledger
    return log.trim_before(log.tail >> 32)


@pytest.mark.parametrize("opens_before", [True, False])
def test_a_trim_between_looking_and_reading(processes, monkeypatch, opens_before: bool):
    """The ledgers with the ids go after it was settled where to read, and before that is done."""
    dead = leave_behind(processes(), 16, 17)
    trimming, asking = processes(), processes()
    trimmed = []

    class LateScan(SequenceScan):
        def run(self, end_word: int, floor_word: int) -> dict[str, int]:
            monkeypatch.undo()
            if opens_before:  # the files are mapped before they are removed
                ledger = asking._core.store.use_topic("topic").topic.ledger
                ledger.view.segment(ledger.first_position().ledger_id)
            trimmed.append(trim(trimming))
            return super().run(end_word, floor_word)

    monkeypatch.setattr(log_survey, "SequenceScan", LateScan)
    producer = asking.create_producer("topic", "p")
    assert trimmed[0] >= 3
    assert producer.last_sequence_id() == 17
    assert producer.send(b"x", sequence_id=17).entry_id() == -1
    assert producer.send(b"x", sequence_id=18).entry_id() >= 0
    assert dead.last_sequence_id() == 17


def test_a_trim_between_reading_and_noting(processes):
    """Both note what they found, and neither takes anything from the other."""
    dead = leave_behind(processes(), 16, 17)
    trimming, asking = processes(), processes()
    trimmed = []
    failpoints.set("dedup:scanned", lambda: trimmed.append(trim(trimming)))
    try:
        producer = asking.create_producer("topic", "p")
    finally:
        failpoints.clear()
    assert trimmed[0] >= 3
    assert producer.last_sequence_id() == 17
    producer.close()
    assert trimming.create_producer("topic", "p").last_sequence_id() == 17
    assert dead.last_sequence_id() == 17


def test_the_name_is_taken_while_it_is_read_for_a_trim(processes, monkeypatch):
    """Whoever trims has read up to some place; what the new owner stores behind that counts too."""
    dead = leave_behind(processes(), 16, 17)
    trimming, asking = processes(), processes()
    told = []

    class EarlyScan(SequenceScan):
        def run(self, end_word: int, floor_word: int) -> dict[str, int]:
            monkeypatch.undo()
            found = super().run(end_word, floor_word)
            with asking.create_producer("topic", "p") as producer:
                told.append(producer.last_sequence_id())
                producer.send(b"x", sequence_id=30)
            return found

    monkeypatch.setattr(log_survey, "SequenceScan", EarlyScan)
    assert trim(trimming) >= 3
    assert told == [17]
    assert processes().create_producer("topic", "p").last_sequence_id() == 30
    assert dead.last_sequence_id() == 17
