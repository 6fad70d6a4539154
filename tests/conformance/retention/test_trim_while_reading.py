"""Readers of a ledger that goes read on as long as they have it, then jump; nothing is torn or repeated."""

from __future__ import annotations

from pathlib import Path

from embeddedpulsar import InitialPosition, MessageId
from tests.conformance.manual_time import ManualTime
from tests.conformance.retention_site import TOPIC, ledgers, publish, read_all, store_with


def test_a_reader_at_every_place(tmp_path: Path) -> None:
    """Wherever a reader stood: in order, no message twice, everything that is retained."""
    path = store_with(tmp_path / "s")
    time = ManualTime(path)
    client = time.client
    keeper = client.subscribe(TOPIC, "keeper", initial_position=InitialPosition.Earliest)
    ids = publish(time, 45)
    readers = [
        client.create_reader(TOPIC, one, receiver_queue_size=1, start_message_id_inclusive=True)
        for one in ids
    ]
    fresh = client.create_reader(TOPIC, MessageId.earliest, receiver_queue_size=1)
    begun = [reader.read_next(1000).message_id() for reader in readers[::2]]
    assert begun == ids[::2]
    keeper.unsubscribe()
    time.pass_ms(200)
    assert ledgers(path) == [ids[-1].ledger_id()]
    for number, reader in enumerate((*readers, fresh)):
        got = []
        while reader.has_message_available():
            got.append(reader.read_next(1000).message_id())
        places = [ids.index(one) for one in got]
        assert places == sorted(set(places))
        retained = range(max(40, number + (number % 2 == 0)), 45) if number < 45 else range(40, 45)
        assert set(retained) <= set(places)
        reader.close()
    time.close()


def test_times_and_ids_that_are_gone(tmp_path: Path) -> None:
    """A reader that starts at what was trimmed starts at what is there."""
    path = store_with(tmp_path / "s")
    time = ManualTime(path)
    ids = publish(time, 35)
    time.pass_ms(200)
    for start in (MessageId.earliest, ids[0], ids[29]):
        with time.client.create_reader(TOPIC, start) as reader:
            assert reader.read_next(1000).message_id() == ids[30]
    with time.client.create_reader(TOPIC, MessageId.latest) as reader:
        reader.seek(1)
        assert reader.read_next(1000).message_id() == ids[30]
    assert read_all(time) == ids[30:]
    time.close()


def test_a_topic_whose_messages_are_all_gone(tmp_path: Path) -> None:
    """It is empty, knows its last id, and goes on with ids that were never used."""
    path = store_with(tmp_path / "s")
    time = ManualTime(path)
    ids = publish(time, 30)
    time.client._core.store.use_topic(TOPIC).topic.ledger.roll()  # type: ignore[union-attr]
    time.pass_ms(200)
    assert len(ledgers(path)) == 1
    assert read_all(time) == []
    with time.client.subscribe(TOPIC, "s", initial_position=InitialPosition.Earliest) as consumer:
        assert consumer.get_last_message_id().ledger_id() == ids[-1].ledger_id()
    (new,) = publish(time, 1)
    assert new.ledger_id() > ids[-1].ledger_id()
    assert read_all(time) == [new]
    time.close()
