"""Deduplication: what was stored once under a producer's name and sequence id is not stored again."""

from __future__ import annotations

import pytest

from embeddedpulsar import Client, Interrupted, MessageId, ProducerAccessMode, Result
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.store.policies.admitting import DEDUPLICATION
from embeddedpulsar.exceptions import TopicNotFound

DUPLICATE = (-1, -1, -1, -1)


@pytest.fixture
def store_path(tmp_path):
    """The directory of a store that drops duplicates."""
    path = tmp_path / "store"
    path.mkdir()
    (path / "broker.conf").write_text("brokerDeduplicationEnabled=true\n")
    return path


def parts(message_id: MessageId) -> tuple[int, int, int, int]:
    """What an id is made of."""
    return (
        message_id.ledger_id(),
        message_id.entry_id(),
        message_id.partition(),
        message_id.batch_index(),
    )


def stored(topic) -> list[bytes]:
    """All payloads in the topic."""
    reader = topic.client.create_reader(topic.name, MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(1000).data())
    reader.close()
    return found


@pytest.mark.in_memory
def test_a_sequence_id_is_stored_once(topic):
    """Repeated ids are answered as stored, with no place, and are not delivered."""
    producer = topic.producer(producer_name="p")
    assert producer.last_sequence_id() == -1
    for number in range(3):
        producer.send(b"%d" % number, sequence_id=number)
        assert producer.last_sequence_id() == number
    for number in (1, 2):
        assert parts(producer.send(b"again", sequence_id=number)) == DUPLICATE
        assert producer.last_sequence_id() == number
    assert parts(producer.send(b"3", sequence_id=3))[1] == 3
    assert stored(topic) == [b"0", b"1", b"2", b"3"]


def test_ids_of_another_name_do_not_count(topic):
    """Two producers may use the same sequence ids."""
    one, other = topic.producer(producer_name="one"), topic.producer(producer_name="other")
    assert one.send(b"a", sequence_id=7) < other.send(b"b", sequence_id=7)
    assert stored(topic) == [b"a", b"b"]


def test_ids_may_have_gaps_but_not_fall(topic):
    """A lower id that was never used is taken for a duplicate all the same."""
    producer = topic.producer(producer_name="p")
    producer.send(b"10", sequence_id=10)
    assert parts(producer.send(b"5", sequence_id=5)) == DUPLICATE
    producer.send(b"20", sequence_id=20)
    assert stored(topic) == [b"10", b"20"]


def test_automatic_ids_below_explicit_ones(topic):
    """An explicit id does not move the automatic ones: below it they are duplicates."""
    producer = topic.producer(producer_name="p")
    producer.send(b"far", sequence_id=2)
    results = [parts(producer.send(b"auto %d" % number)) for number in range(4)]
    assert [result == DUPLICATE for result in results] == [True, True, True, False]
    assert stored(topic) == [b"far", b"auto 3"]


def test_an_initial_id_below_what_is_stored(topic):
    """Automatic ids that begin too low are duplicates until they are high enough."""
    with topic.producer(producer_name="p") as producer:
        for number in range(5):
            producer.send(b"%d" % number)
    producer = topic.producer(producer_name="p", initial_sequence_id=2)
    assert producer.last_sequence_id() == 2
    assert [parts(producer.send(b"%d" % number)) == DUPLICATE for number in (3, 4, 5)] == [True, True, False]
    assert stored(topic) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_the_initial_id_is_the_last_until_something_is_answered(topic):
    """Even if that is a duplicate of what was stored last; -1 asks what that is."""
    with topic.producer(producer_name="p") as producer:
        producer.send(b"x", sequence_id=4)
    with topic.producer(producer_name="p", initial_sequence_id=9) as producer:
        assert producer.last_sequence_id() == 9
        assert parts(producer.send(b"x", sequence_id=4)) == DUPLICATE
        assert producer.last_sequence_id() == 4
    with topic.producer(producer_name="p", initial_sequence_id=-1) as producer:
        assert producer.last_sequence_id() == 4
        producer.send(b"y")
        assert producer.last_sequence_id() == 5
    assert stored(topic) == [b"x", b"y"]


def test_batches_are_dropped_as_a_whole(topic):
    """A batch is a duplicate if its highest id is stored; its callbacks say so."""
    options = {"producer_name": "p", "batching_enabled": True, "batching_max_publish_delay_ms": 60_000}
    producer = topic.producer(**options)
    told = []

    def send(*ids):
        for one in ids:
            producer.send_async(b"%d" % one, lambda *answer: told.append(answer), sequence_id=one)
        producer.flush()

    send(1, 2, 3)
    send(1, 2, 3)
    assert {result for result, _ in told} == {Result.Ok}
    assert [parts(place)[3] for _, place in told] == [0, 1, 2, -1, -1, -1]
    assert [parts(place) == DUPLICATE for _, place in told] == [False] * 3 + [True] * 3
    send(3, 4)  # one of them is new: both are stored
    send(4, 3)
    assert stored(topic) == [b"1", b"2", b"3", b"3", b"4"]
    assert parts(producer.send(b"x", sequence_id=4)) == DUPLICATE


def test_chunky_payloads_and_properties_are_checked_too(topic):
    """Whatever way a message takes into the topic."""
    producer = topic.producer(producer_name="p")
    for _ in range(2):
        producer.send(b"a", partition_key="key", properties={"a": "b"}, sequence_id=1)
        producer.send_async(b"b", None, sequence_id=2)
        producer.send(None, sequence_id=3)
        producer.send(b"c", deliver_at=1, sequence_id=4)
    assert len(stored(topic)) == 4


@pytest.mark.in_memory
@pytest.mark.parametrize("durability", ["interval", "flush"])
def test_at_every_level(topic, durability):
    """Durability changes nothing about what is a duplicate."""
    for _ in range(2):
        with topic.producer(producer_name="p", durability=durability) as producer:
            for number in (1, 2, 3):
                producer.send(b"%d" % number, sequence_id=number)
    assert stored(topic) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("point", ["append:tail_stored", "append:unlocked", "append:body_done"])
@pytest.mark.parametrize("is_plain", [True, False])
def test_an_interrupted_send_is_repeated(topic, point, is_plain):
    """Ctrl-C in a send: nobody knows whether it was stored, and sending it again with its id is safe."""
    producer = topic.producer(producer_name="p")
    producer.send(b"0")
    options = {} if is_plain else {"properties": {"a": "b"}}
    failpoints.set(point, "raise:KeyboardInterrupt")
    try:
        with pytest.raises(Interrupted):
            producer.send(b"1", **options)
    finally:
        failpoints.clear()
    producer.send(b"1", sequence_id=1, **options)
    producer.send(b"2")
    assert stored(topic) == [b"0", b"1", b"2"]
    assert producer.last_sequence_id() == 2


def test_an_interrupted_send_and_a_new_producer(topic):
    """What was stored without an answer is remembered for the next producer of the name."""
    producer = topic.producer(producer_name="p")
    failpoints.set("append:unlocked", "raise:KeyboardInterrupt")
    try:
        with pytest.raises(Interrupted):
            producer.send(b"0")
    finally:
        failpoints.clear()
    producer.close()
    producer = topic.producer(producer_name="p")
    assert producer.last_sequence_id() == 0
    producer.send(b"1")
    assert parts(producer.send(b"1", sequence_id=1)) == DUPLICATE
    assert stored(topic) == [b"0", b"1"]


def test_without_deduplication_nothing_is_remembered(tmp_path):
    """The default: ids are stored as they are given, and start again with every producer."""
    with Client(tmp_path / "plain") as client:
        for _ in range(2):
            producer = client.create_producer("topic", "p")
            assert producer.last_sequence_id() == -1
            for number in (1, 2):
                assert producer.send(b"x", sequence_id=number).entry_id() >= 0
            producer.close()
        reader = client.create_reader("topic", MessageId.earliest)
        assert [reader.read_next(1000).data() for _ in range(4)] == [b"x"] * 4


def test_fencing_a_producer_of_the_same_name(topic):
    """The new one knows what the one it threw out stored."""
    first = topic.producer(producer_name="p", access_mode=ProducerAccessMode.Exclusive)
    for number in range(3):
        first.send(b"%d" % number)
    second = topic.producer(producer_name="p", access_mode=ProducerAccessMode.ExclusiveWithFencing)
    assert second.last_sequence_id() == 2
    second.send(b"3")
    first.close()
    second.close()
    assert topic.producer(producer_name="p").last_sequence_id() == 3


# -- the switch ------------------------------------


def test_a_topic_may_say_otherwise_than_the_store(topic):
    """Topic before namespace before broker.conf; producers that are there notice with their next message."""
    store = topic.client._core.store
    producer = topic.producer(producer_name="p")
    producer.send(b"0", sequence_id=5)
    store.set_policy("topic", DEDUPLICATION, False)
    producer.send(b"1", sequence_id=5)
    store.set_policy("public/default", DEDUPLICATION, True)
    producer.send(b"2", sequence_id=5)
    store.set_policy("topic", DEDUPLICATION, None)
    assert parts(producer.send(b"no", sequence_id=5)) == DUPLICATE
    store.set_policy("public/default", DEDUPLICATION, False)
    producer.send(b"3", sequence_id=4)
    producer.send(b"4")
    store.set_policy("public/default", DEDUPLICATION, None)
    assert parts(producer.send(b"no", sequence_id=5)) == DUPLICATE
    producer.send(b"5", sequence_id=6)
    assert stored(topic) == [b"%d" % number for number in range(6)]


def test_switching_under_a_producer_of_automatic_ids(topic):
    """Nothing is lost, doubled or numbered anew when it is switched under the hot path."""
    store = topic.client._core.store
    producer = topic.producer(producer_name="p")
    callbacks = []
    for number in range(20):
        store.set_policy("topic", DEDUPLICATION, bool(number % 2))
        if number % 3:
            producer.send(b"%d" % number)
        else:
            producer.send_async(b"%d" % number, lambda result, _: callbacks.append(result))
        assert producer.last_sequence_id() == number
    producer.flush()
    assert set(callbacks) == {Result.Ok}
    assert stored(topic) == [b"%d" % number for number in range(20)]


def test_switched_on_it_knows_what_is_there(tmp_path):
    """A topic with data: the ids in it count, also those of producers that are gone."""
    with Client(tmp_path / "plain") as client:
        with client.create_producer("topic", "gone") as producer:
            for number in range(1500):
                producer.send(b"%d" % number)
        with client.create_producer("topic", "batches", batching_enabled=True) as producer:
            for number in (5, 9, 7):
                producer.send_async(b"x", None, sequence_id=number)
        stays = client.create_producer("topic", "stays")
        stays.send(b"x", sequence_id=41)
        client._core.store.set_policy("topic", DEDUPLICATION, True)
        assert parts(stays.send(b"x", sequence_id=41)) == DUPLICATE
        assert client.create_producer("topic", "gone").last_sequence_id() == 1499
        assert client.create_producer("topic", "batches").last_sequence_id() == 9
        assert client.create_producer("topic", "new").last_sequence_id() == -1


def test_switched_off_and_on_again(topic):
    """What was stored meanwhile counts; what was known before is not forgotten."""
    store = topic.client._core.store
    with topic.producer(producer_name="before") as producer:
        producer.send(b"x", sequence_id=9)
    store.set_policy("topic", DEDUPLICATION, False)
    with topic.producer(producer_name="between") as producer:
        producer.send(b"x", sequence_id=7)
        producer.send(b"x", sequence_id=3)
    with topic.producer(producer_name="before") as producer:
        assert producer.last_sequence_id() == -1
        producer.send(b"x", sequence_id=4)
    store.set_policy("topic", DEDUPLICATION, True)
    assert topic.producer(producer_name="before").last_sequence_id() == 9
    assert topic.producer(producer_name="between").last_sequence_id() == 7


def test_a_switch_needs_something_to_switch(topic):
    """Topics and namespaces that do not exist are refused."""
    store = topic.client._core.store
    for name in ("nobody/nothing", "nothing"):
        with pytest.raises(TopicNotFound):
            store.set_policy(name, DEDUPLICATION, True)


# -- other ways into the topic ---------------------


def test_messages_in_several_parts(topic):
    """A message over the limit is a duplicate as a whole, and one whose last part is missing is none."""
    producer = topic.producer(producer_name="p", chunking_enabled=True)
    big = bytes(6 << 20)
    for number in (1, 2):
        assert producer.send(big, sequence_id=number).entry_id() > 0
        assert parts(producer.send(big, sequence_id=number)) == DUPLICATE
    failpoints.set("chunk:part_stored", "raise:KeyboardInterrupt")
    try:
        with pytest.raises(Interrupted):
            producer.send(big, sequence_id=3)
    finally:
        failpoints.clear()
    assert producer.send(big, sequence_id=3).entry_id() > 0
    producer.close()
    assert topic.producer(producer_name="p").last_sequence_id() == 3
    assert len(stored(topic)) == 3


def test_many_at_once(topic):
    """`send_many` goes by the same rules."""
    producer = topic.producer(producer_name="p")
    producer.send_many([b"1", b"2"], sequence_ids=[1, 2])
    again = producer.send_many([b"1", b"2"], sequence_ids=[1, 2])
    assert [parts(one)[:2] for one in again] == [(-1, -1)] * 2
    producer.send_many([b"3", b"4"], sequence_ids=[3, 4])
    assert stored(topic) == [b"1", b"2", b"3", b"4"]
