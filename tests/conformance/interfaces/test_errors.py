"""Errors: the same classes and texts as pulsar-client, and what is closed stays closed."""

from __future__ import annotations

import pulsar
import pytest

import embeddedpulsar
from embeddedpulsar import Admin, AlreadyClosed, Client, MessageId, exceptions


@pytest.mark.parametrize("name", ["a/b", "", "a/b/c/d", "/a", "persistent://a/b", "other://a/b/c"])
def test_invalid_topic_names(client, name):
    """A text that names no topic is refused by every way to a topic."""
    for use in (
        lambda: client.create_producer(name),
        lambda: client.subscribe(name, "s"),
        lambda: client.create_reader(name, MessageId.earliest),
        lambda: client.get_topic_partitions(name),
    ):
        with pytest.raises(exceptions.InvalidTopicName):
            use()


def test_unknown_namespaces(client):
    """A topic of a namespace that does not exist is not found, which is a LookupError of Python too."""
    for use in (
        lambda: client.create_producer("tenant/ns/topic"),
        lambda: client.subscribe("tenant/ns/topic", "s"),
    ):
        with pytest.raises(exceptions.TopicNotFound):
            use()
        with pytest.raises(LookupError):
            use()


def test_a_topic_with_a_slash(client):
    """Pulsar reads its beginning as a namespace of its old kind, which nobody has to make."""
    name = "persistent://public/default/orders/eu"
    producer = client.create_producer(name)
    sent = producer.send(b"tea")
    assert producer.topic() == name
    message = client.create_reader(name, MessageId.earliest).read_next(1000)
    assert (message.data(), message.topic_name(), message.message_id()) == (b"tea", name, sent)
    assert client.get_topic_partitions(name) == [name]


def test_topics_are_not_created_against_the_settings(store_path):
    """With allowAutoTopicCreation=false a missing topic is not found."""
    store_path.mkdir(mode=0o700)
    (store_path / "broker.conf").write_text("allowAutoTopicCreation=false\n")
    with (
        Client(store_path) as client,
        pytest.raises(exceptions.TopicNotFound, match="allowAutoTopicCreation"),
    ):
        client.create_producer("topic")


def test_subscriptions_are_not_created_against_the_settings(store_path):
    """With allowAutoSubscriptionCreation=false a missing subscription is not found."""
    store_path.mkdir(mode=0o700)
    (store_path / "broker.conf").write_text("allowAutoSubscriptionCreation=false\n")
    with Client(store_path) as client, pytest.raises(exceptions.SubscriptionNotFound):
        client.subscribe("topic", "sub")


def test_a_closed_client(store_url):
    """After close everything raises AlreadyClosed, close itself too; shutdown may be repeated."""
    client = Client(store_url)
    producer = client.create_producer("topic")
    consumer = client.subscribe("topic", "sub")
    reader = client.create_reader("topic", MessageId.earliest)
    client.close()
    for use in (
        lambda: client.create_producer("topic"),
        lambda: client.subscribe("topic", "sub"),
        lambda: client.create_reader("topic", MessageId.earliest),
        lambda: client.get_topic_partitions("topic"),
        client.close,
        lambda: producer.send(b"x"),
        producer.flush,
        consumer.receive,
        lambda: consumer.receive(10),
        consumer.unsubscribe,
        lambda: consumer.seek(MessageId.earliest),
        lambda: consumer.acknowledge(MessageId(-1, 1, 1)),
        lambda: consumer.acknowledge_cumulative(MessageId(-1, 1, 1)),
        consumer.get_last_message_id,
        reader.read_next,
        producer.close,
    ):
        with pytest.raises(AlreadyClosed):
            use()
    client.shutdown()
    assert not producer.is_connected()
    assert not consumer.is_connected()
    assert not reader.is_connected()


def test_a_client_may_be_closed_once_after_its_shutdown(store_url):
    """As in pulsar-client, in which the two do not know of each other."""
    client = Client(store_url)
    client.shutdown()
    client.shutdown()
    client.close()
    with pytest.raises(AlreadyClosed):
        client.close()


@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("end", ["close", "shutdown"])
def test_closing_behind_the_client(store_url, partitions, end):
    """Consumers and readers may be closed after their client, in any order of tidying up; once."""
    if partitions:
        with Admin(store_url) as admin:
            admin.topics().create_partitioned_topic("topic", partitions)
    client = Client(store_url)
    consumer = client.subscribe("topic", "sub")
    reader = client.create_reader("topic", MessageId.earliest)
    getattr(client, end)()
    for one in (consumer, reader):
        one.close()
        with pytest.raises(AlreadyClosed):
            one.close()


def test_closing_wakes_a_waiting_receive(topic):
    """A receive that waits when its consumer is closed raises AlreadyClosed."""
    import threading

    consumer = topic.consumer()
    errors = []

    def receive() -> None:
        try:
            consumer.receive()
        except AlreadyClosed as error:
            errors.append(error)

    thread = threading.Thread(target=receive)
    thread.start()
    consumer.close()
    thread.join(10)
    assert len(errors) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.create_producer(5),
        lambda client: client.create_producer("t", 5),
        lambda client: client.create_producer("t", batching_max_messages=1),
        lambda client: client.subscribe(5, "s"),
        lambda client: client.subscribe("t", 5),
        lambda client: client.create_reader("t", None),
        lambda client: client.create_reader(["t"], None),
        lambda client: client.create_table_view(5),
        lambda client: client.get_topic_partitions(5),
    ],
)
def test_wrong_arguments_have_the_texts_of_pulsar_client(client, call):
    """Through the public methods too, wrong arguments are answered in the words of pulsar-client first."""
    other = pulsar.Client("pulsar://localhost:1", operation_timeout_seconds=1)
    with pytest.raises(ValueError) as theirs:
        call(other)
    with pytest.raises(ValueError) as ours:
        call(client)
    other.close()
    assert str(ours.value).startswith(str(theirs.value))


def test_wrong_timeouts(topic):
    """A timeout is an int."""
    consumer = topic.consumer()
    reader = topic.client.create_reader("topic", MessageId.earliest)
    for call in (consumer.receive, reader.read_next):
        with pytest.raises(ValueError, match="Argument timeout_millis is expected to be of type 'int'"):
            call("10")


def test_service_info_and_repr(client, store_path):
    """A client shows where its store is."""
    assert client.get_service_info().service_url == str(store_path)
    assert not client.get_service_info().use_tls
    assert repr(client) == f"<Client {store_path}>"
    assert client.get_topic_partitions("t") == ["persistent://public/default/t"]


def test_a_queue_of_size_0_takes_no_timeout(topic):
    """With receiver_queue_size=0, receive(timeout) is refused, as in pulsar-client."""
    consumer = topic.consumer(receiver_queue_size=0)
    with pytest.raises(embeddedpulsar.InvalidConfiguration):
        consumer.receive(10)


def test_closing_a_client_closes_what_it_made(store_url):
    """Nothing stays behind: another client may take the names and the subscription at once."""
    with Client(store_url) as client:
        client.create_producer("topic", producer_name="me")
        client.subscribe("topic", "sub", message_listener=lambda consumer, message: None)
    with Client(store_url) as client:
        assert client.create_producer("topic", producer_name="me").is_connected()
        assert client.subscribe("topic", "sub").is_connected()


def test_with_flushes_batches(store_url):
    """At the end of a with block of the client, what waits in batches is stored."""
    with Client(store_url) as client:
        client.create_producer("topic", batching_enabled=True).send_async(b"x", None)
    with Client(store_url) as client:
        assert [m.data() for m in client.create_reader("topic", MessageId.earliest)] == [b"x"]
