"""An Admin looks at dead letters, publishes them again, and gives them up."""

from __future__ import annotations

import pytest

from embeddedpulsar import (
    Client,
    ConsumerDeadLetterPolicy,
    ConsumerType,
    InitialPosition,
    MessageId,
    NotAllowedError,
    TopicNotFound,
    TopicTerminated,
)
from embeddedpulsar._engine.platform import failpoints
from tests.conformance.chunks import payload
from tests.conformance.conftest import receive_all
from tests.support.key_files import key_files

DLQ = "persistent://public/default/topic-sub-DLQ"
EARLIEST = InitialPosition.Earliest


def bury(client: Client) -> None:
    """Have everything in the topic retried until it is dead."""
    with client.subscribe(
        "topic",
        "sub",
        ConsumerType.Shared,
        initial_position=EARLIEST,
        enable_retry=True,
        dead_letter_policy=ConsumerDeadLetterPolicy(1),
    ) as consumer:
        while messages := receive_all(consumer):
            for message in messages:
                consumer.reconsume_later(message, 0)


def data(letters: list) -> list[bytes]:
    """What messages hold."""
    return [message.data() for message in letters]


def test_dead_letters_are_listed(admin, client):
    """With where they come from; a look changes nothing."""
    with client.create_producer("topic") as producer:
        ids = [producer.send(b"%d" % number, {"till": "1"}) for number in range(3)]
    letters = admin.dead_letters("topic", "sub")
    assert letters.topic == DLQ and repr(letters) == f"<DeadLetters {DLQ}>"
    assert letters.list() == [] == letters.peek() and (letters.replay_all(), letters.purge()) == (0, 0)
    bury(client)
    for _ in range(2):
        found = letters.list()
        assert [letter.origin_message_id for letter in found] == list(map(str, ids))
        assert {letter.origin_topic for letter in found} == {"persistent://public/default/topic"}
        assert [(letter.size, letter.properties["till"]) for letter in found] == [(1, "1")] * 3
        assert data(letters.peek(2)) == [b"0", b"1"] and letters.list(1) == found[:1]
        assert len(admin.topics().get_list()) == 3  # with the retry letter topic
    assert [message.message_id() for message in letters.peek(9)] == [letter.message_id for letter in found]
    for number in (0, True, "2"):
        with pytest.raises(ValueError, match="is an integer from 1 on"):
            letters.list(number)
        with pytest.raises(ValueError, match="is an integer from 1 on"):
            letters.peek(number)


@pytest.mark.in_memory
def test_a_replayed_message_is_as_it_was(admin, client):
    """But for its id and publish time; null and empty stay apart."""
    options = {"partition_key": "k", "ordering_key": "o", "event_timestamp": 17, "properties": {"a": "b"}}
    with client.create_producer("topic") as producer:
        producer.send(b"full", **options)
        producer.send(b"")
        producer.send(None)
    bury(client)
    letters = admin.dead_letters("topic", "sub")
    with client.subscribe("topic", "other") as other:
        assert letters.replay_all() == 3
        full, empty, null = receive_all(other)
    assert (full.data(), full.partition_key(), full.ordering_key()) == (b"full", "k", "o")
    assert (full.event_timestamp(), full.properties()) == (17, {"a": "b"})
    assert (empty.data(), empty.has_null_value()) == (b"", False)
    assert (null.data(), null.has_null_value(), null.properties()) == (b"", True, {})
    assert letters.list() == [] and letters.replay_all() == 0


def test_one_is_replayed(admin, client):
    """The others stay, in their order; each only once. Also out of the middle of a batch."""
    with client.create_producer(DLQ, batching_enabled=True, batching_max_publish_delay_ms=60_000) as producer:
        for number in range(4):
            producer.send_async(b"%d" % number, None)
    letters = admin.dead_letters("topic", "sub")
    consumer = client.subscribe("topic", "sub")
    second = letters.list()[1].message_id
    letters.replay(second)
    assert data(receive_all(consumer)) == [b"1"]
    assert data(letters.peek(9)) == [b"0", b"2", b"3"]
    for missing in (second, MessageId(-1, 99, 0)):
        with pytest.raises(NotAllowedError, match=r"topic-sub-DLQ has no dead letter \("):
            letters.replay(missing)
    assert letters.replay_all() == 3
    assert data(receive_all(consumer)) == [b"0", b"2", b"3"]


def test_what_dies_again_is_not_replayed_again(admin, client):
    """In the same call: it ends with what was there when it began."""
    with client.create_producer("topic") as producer:
        for number in range(3):
            producer.send(b"%d" % number)
    letters = admin.dead_letters("topic", "sub")
    for _ in range(2):
        bury(client)
        assert letters.replay_all() == 3
    bury(client)
    assert data(letters.peek(9)) == [b"0", b"1", b"2"]


def test_purging_gives_up_what_is_there(admin, client):
    """For the operator alone: another subscription of the dead letter topic keeps its own."""
    with client.create_producer("topic") as producer:
        for number in range(3):
            producer.send(b"%d" % number)
    admin.topics().create_subscription(DLQ, "undertaker", MessageId.earliest)
    bury(client)
    letters = admin.dead_letters("topic", "sub")
    assert letters.purge() == 3 and letters.purge() == 0 and letters.list() == []
    assert len(admin.topics().peek_messages(DLQ, "undertaker", 9)) == 3
    with client.create_producer("topic") as producer:
        producer.send(b"3")
    bury(client)
    assert data(letters.peek(9)) == [b"3"]


def test_letters_of_partitions_go_back_to_them(admin, client):
    """Whether the dead letter topic has partitions or not."""
    admin.topics().create_partitioned_topic("topic", 2)
    admin.topics().create_partitioned_topic(DLQ, 2)
    names = client.get_topic_partitions("topic")
    for name in names:
        with client.create_producer(name) as producer:
            producer.send(name[-1].encode())
    bury(client)
    letters = admin.dead_letters(names[1], "sub")
    found = letters.list()
    assert sorted(letter.origin_topic for letter in found) == names
    letters.replay(next(letter.message_id for letter in found if letter.origin_topic == names[1]))
    assert [data(admin.topics().peek_messages(name, "sub", 9)) for name in names] == [[], [b"1"]]
    assert letters.replay_all() == 1
    assert [data(admin.topics().peek_messages(name, "sub", 9)) for name in names] == [[b"0"], [b"1"]]


def test_another_dead_letter_topic(admin, client):
    """As the policy of the consumer names it; letters that say nothing go to the topic itself."""
    with client.create_producer("graves") as producer:
        producer.send(payload(20_000))
    letters = admin.dead_letters("topic", "sub", dead_letter_topic="graves")
    assert letters.topic == "persistent://public/default/graves"
    assert letters.list()[0].origin_topic == "persistent://public/default/topic"
    with pytest.raises(TopicNotFound, match="does not exist any more; create it, or purge"):
        letters.replay_all()
    admin.topics().create_subscription("topic", "sub")
    assert letters.replay_all() == 1
    assert data(admin.topics().peek_messages("topic", "sub", 9)) == [payload(20_000)]
    with pytest.raises(
        TopicNotFound, match=r"there is neither .*public/default/missing nor .*missing-sub-DLQ"
    ):
        admin.dead_letters("missing", "sub").list()


def test_a_letter_that_cannot_be_published_stays(admin, client):
    """With those behind it."""
    with client.create_producer("topic") as producer:
        for number in range(3):
            producer.send(b"%d" % number)
    bury(client)
    admin.topics().terminate_topic("topic")
    letters = admin.dead_letters("topic", "sub")
    with pytest.raises(TopicTerminated):
        letters.replay_all()
    assert data(letters.peek(9)) == [b"0", b"1", b"2"]


def test_an_encrypted_letter_is_not_published_as_it_is(store_path, tmp_path, admin, client):
    """No key is at hand: the ciphertext would be stored as plain text."""
    options = {"encryption_key": "key", "crypto_key_reader": key_files(tmp_path)}
    with client.create_producer(DLQ, **options) as producer:
        producer.send(b"secret")
    client.create_producer("topic").close()
    letters = admin.dead_letters("topic", "sub")
    assert letters.list()[0].origin_topic == "persistent://public/default/topic"
    assert letters.peek()[0].encryption_context() is not None
    with pytest.raises(NotAllowedError, match="is encrypted; receive it with a consumer that has the key"):
        letters.replay_all()
    assert letters.purge() == 1


def test_a_failure_after_publishing_repeats(admin, client):
    """The letters are in both topics then, and none is lost."""
    with client.create_producer("topic") as producer:
        for number in range(3):
            producer.send(b"%d" % number)
    bury(client)
    letters = admin.dead_letters("topic", "sub")
    failpoints.set("replay:published", "raise")
    try:
        with pytest.raises(failpoints.InjectedFailure):
            letters.replay_all()
    finally:
        failpoints.clear()
    assert data(letters.peek(9)) == [b"0", b"1", b"2"]
    assert letters.replay_all() == 3
    found = data(admin.topics().peek_messages("topic", "sub", 99))
    assert found == [b"0", b"1", b"2"] * 2


@pytest.mark.in_memory
def test_a_message_is_moved_to_the_dead_letters(admin, client):
    """With keys, properties, event time and the reason. It is not delivered any more until it is replayed."""
    consumer = client.subscribe("topic", "sub", ConsumerType.Shared, initial_position=EARLIEST)
    with client.create_producer("topic") as producer:
        ids = [
            producer.send(b"%d" % number, {"till": "1"}, partition_key="k", event_timestamp=7)
            for number in range(3)
        ]
    letters = admin.dead_letters("topic", "sub")
    held = consumer.receive(1000)
    letters.add(ids[1], "no price")
    letters.add(held.message_id())
    (second, first) = letters.list()
    assert (second.origin_message_id, second.reason) == (str(ids[1]), "no price")
    assert (first.origin_message_id, first.reason) == (str(ids[0]), "")
    (message, _) = letters.peek(2)
    assert (message.data(), message.partition_key(), message.event_timestamp()) == (b"1", "k", 7)
    assert message.properties()["till"] == "1"
    consumer.close()
    with client.subscribe("topic", "sub", ConsumerType.Shared) as later:
        assert data(receive_all(later)) == [b"2"]
        for wrong in (ids[1], MessageId(-1, 77, 0)):
            with pytest.raises(NotAllowedError, match="has no message"):
                letters.add(wrong)
        with pytest.raises(ValueError, match="reason is a text"):
            letters.add(ids[2], OSError())  # type: ignore[arg-type]
        letters.replay_all()
        again = receive_all(later)
        assert data(again) == [b"1", b"0"]
        assert again[0].properties() == {"till": "1"}


def test_messages_of_a_batch_are_moved_one_by_one(admin, client):
    """Or the whole entry by its id."""
    admin.topics().create_subscription("topic", "sub", MessageId.earliest)
    with client.create_producer("topic", batching_enabled=True) as producer:
        for number in range(4):
            producer.send_async(b"%d" % number, None)
        producer.flush()
    ids = [message.message_id() for message in admin.topics().peek_messages("topic", "sub", 9)]
    letters = admin.dead_letters("topic", "sub")
    letters.add(ids[2])
    assert data(admin.topics().peek_messages("topic", "sub", 9)) == [b"0", b"1", b"3"]
    letters.add(MessageId(-1, ids[0].ledger_id(), ids[0].entry_id()))
    assert data(letters.peek(9)) == [b"2", b"0", b"1", b"3"]
    assert admin.topics().get_stats("topic").subscriptions["sub"].msg_backlog == 0


def test_an_encrypted_message_is_not_moved(admin, client, tmp_path):
    """Its copy would be ciphertext that no consumer could read."""
    pytest.importorskip("cryptography", reason="the extra is not installed")
    reader = key_files(tmp_path)
    admin.topics().create_subscription("topic", "sub", MessageId.earliest)
    with client.create_producer("topic", encryption_key="key", crypto_key_reader=reader) as producer:
        message_id = producer.send(b"secret")
    with pytest.raises(NotAllowedError, match="is encrypted"):
        admin.dead_letters("topic", "sub").add(message_id)
    assert admin.topics().get_stats("topic").subscriptions["sub"].msg_backlog == 1
    admin.topics().skip_message("topic", "sub", message_id)
    assert admin.topics().get_stats("topic").subscriptions["sub"].msg_backlog == 0
