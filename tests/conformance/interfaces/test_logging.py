"""What is logged when all is well: what came, what went, and what was done in the background."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import embeddedpulsar.asyncio
from embeddedpulsar import (
    Admin,
    Client,
    ConsoleLogger,
    ConsumerDeadLetterPolicy,
    ConsumerType,
    InitialPosition,
    LoggerLevel,
    MessageId,
)
from embeddedpulsar.testing.trial_store import assert_clean

SHARED = ConsumerType.Shared


class Listed(logging.Handler):
    """Keeps the texts of its records, and calls ``then`` for each."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.then: Any = None

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(f"{record.levelname} {record.getMessage()}")
        if self.then is not None:
            self.then()


@pytest.fixture
def listed() -> Listed:
    """A handler."""
    return Listed()


@pytest.fixture
def logger(listed: Listed) -> logging.Logger:
    """A logger of an application, at level INFO."""
    made = logging.Logger("application", logging.INFO)  # noqa: LOG001 - outside the tree
    made.addHandler(listed)
    return made


def use(client: Client) -> None:
    """Make one of everything."""
    with client.create_producer("orders", "till-1") as producer:
        producer.send(b"soup")
    client.subscribe("orders", "kitchen", consumer_name="cook").close()
    client.create_reader("orders", MessageId.earliest, reader_name="look")


TOPIC = "persistent://public/default/orders"
LIFE = [
    "INFO Connected to the store {path}",
    f"INFO Created producer till-1 on {TOPIC}",
    f"INFO Closed producer till-1 on {TOPIC}",
    f"INFO Subscribed: Consumer cook of 'kitchen' on {TOPIC}",
    f"INFO Closed Consumer cook of 'kitchen' on {TOPIC}",
    f"INFO Created Reader look on {TOPIC}",
    "INFO Closing the client of {path}",
    f"INFO Closed Reader look on {TOPIC}",
    "INFO Closed the client of {path}",
]


def test_the_logger_of_a_client_gets_its_life(store_path: Path, logger: logging.Logger, listed: Listed):
    """Connecting, creating, subscribing and closing are INFO records of the `logger` argument."""
    with Client(store_path, logger=logger) as client:
        use(client)
    assert listed.texts == [text.format(path=store_path) for text in LIFE]
    assert_clean(store_path)


def test_the_logger_of_the_package_gets_it_otherwise(store_path: Path, caplog: pytest.LogCaptureFixture):
    """Without the argument the logger `embeddedpulsar` does, where its level lets it."""
    with Client(store_path) as client:
        use(client)
    assert not caplog.messages
    with caplog.at_level(logging.INFO, "embeddedpulsar"), Client(store_path) as client:
        use(client)
    assert [f"INFO {text}" for text in caplog.messages] == [text.format(path=store_path) for text in LIFE]


def test_a_console_logger_prints_it(store_path: Path, capsys: pytest.CaptureFixture[str]):
    """`ConsoleLogger` has its own level."""
    Client(store_path, logger=ConsoleLogger(LoggerLevel.Warn)).close()
    assert capsys.readouterr().err == ""
    Client(store_path, logger=ConsoleLogger(LoggerLevel.Info)).close()
    assert f"INFO  embeddedpulsar | Connected to the store {store_path}\n" in capsys.readouterr().err


def test_clients_of_coroutines_log_the_same(store_path: Path, logger: logging.Logger, listed: Listed):
    """`embeddedpulsar.asyncio.Client` hands the logger on."""
    embeddedpulsar.asyncio.Client(store_path, logger=logger).shutdown()
    assert listed.texts[0] == f"INFO Connected to the store {store_path}"


def test_a_take_over_is_logged(client: Client, caplog: pytest.LogCaptureFixture):
    """When a standby of a Failover subscription becomes the active consumer."""
    one = client.subscribe("orders", "kitchen", ConsumerType.Failover, consumer_name="one")
    two = client.subscribe("orders", "kitchen", ConsumerType.Failover, consumer_name="two")
    client.create_producer("orders").send(b"soup")
    with caplog.at_level(logging.INFO, "embeddedpulsar"):
        one.close()
        assert two.receive(1000).data() == b"soup"
    assert [text for text in caplog.messages if text.endswith("consumer two takes over")]


def test_dead_letters_are_logged(client: Client, caplog: pytest.LogCaptureFixture):
    """How many, from which topic, after how many deliveries, and where they went."""
    consumer = client.subscribe(
        "orders",
        "kitchen",
        SHARED,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=ConsumerDeadLetterPolicy(1, "dead", "look"),
    )
    dead = client.subscribe("dead", "look", initial_position=InitialPosition.Earliest)
    client.create_producer("orders").send(b"soup")
    with caplog.at_level(logging.INFO, "embeddedpulsar"):
        for _ in range(2):
            consumer.negative_acknowledge(consumer.receive(5000))
        assert dead.receive(5000).data() == b"soup"
        consumer.close()
    (text,) = [text for text in caplog.messages if "without success" in text]
    assert text.startswith(f"1 entries of {TOPIC}, from (")
    assert text.endswith("were delivered 2 times without success and moved to dead")


def test_trimming_is_logged(store_path: Path, caplog: pytest.LogCaptureFixture):
    """How many ledgers of which topic went."""
    store_path.mkdir()
    (store_path / "broker.conf").write_text("managedLedgerMaxEntriesPerLedger=10\n")
    with Client(store_path) as client, Admin(store_path) as admin:
        consumer = client.subscribe("orders", "kitchen", ack_group_time_ms=0)
        with client.create_producer("orders") as producer:
            for _ in range(35):
                last = producer.send(b"soup")
        with caplog.at_level(logging.INFO, "embeddedpulsar"):
            consumer.acknowledge_cumulative(last)
            admin.topics().trim_topic("orders")
            client.shutdown()
        texts = [text for text in caplog.messages if "ledgers that nothing needs" in text]
        assert sum(int(text.split()[1]) for text in texts) == 3
        assert texts[0].startswith(f"{TOPIC}: ")
        trimmed = [record for record in caplog.records if record.getMessage() in texts]
        assert {vars(record)["ep_topic"] for record in trimmed} == {TOPIC}


def test_a_handler_may_use_the_store(store_path: Path, logger: logging.Logger, listed: Listed, caplog: Any):
    """Nothing is logged under a lock: a handler that sends to the topic it hears of stores its message."""
    with Client(store_path) as other:
        producer = other.create_producer("orders")
        listed.then = lambda: producer.send(b"logged")
        package = logging.getLogger("embeddedpulsar")
        with Client(store_path, logger=logger) as client:
            use(client)
            one = client.subscribe("orders", "standby", ConsumerType.Failover, consumer_name="one")
            two = client.subscribe("orders", "standby", ConsumerType.Failover, consumer_name="two")
            package.addHandler(listed)
            try:
                with caplog.at_level(logging.INFO, "embeddedpulsar"):
                    one.close()
                    two.receive(1000)
            finally:
                package.removeHandler(listed)
        assert [text for text in listed.texts if text.endswith("takes over")]
        with other.create_reader("orders", MessageId.earliest) as reader:
            assert [one.data() for one in reader].count(b"logged") == len(listed.texts)
    assert_clean(store_path)


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover])
def test_a_dead_letter_policy_without_effect_warns(
    client: Client, kind: ConsumerType, caplog: pytest.LogCaptureFixture
):
    """Redeliveries are not counted there; with retries the policy has an effect, and nothing is said."""
    policy = ConsumerDeadLetterPolicy(3)
    client.subscribe("orders", "kitchen", kind, dead_letter_policy=policy).close()
    (text,) = caplog.messages
    assert text.startswith("The dead_letter_policy of subscription kitchen has no effect")
    assert f"this one is {kind.name}" in text
    caplog.clear()
    client.subscribe("orders", "again", kind, dead_letter_policy=policy, enable_retry=True).close()
    client.subscribe("orders", "shared", SHARED, dead_letter_policy=policy).close()
    assert not caplog.messages
