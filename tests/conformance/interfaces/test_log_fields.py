"""What a log record is about stands in attributes of the record, for handlers that write JSON for example."""

from __future__ import annotations

import logging
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import (
    Admin,
    Client,
    ConsumerDeadLetterPolicy,
    ConsumerInterceptor,
    ConsumerType,
    InitialPosition,
    MessageId,
)
from embeddedpulsar._engine.platform.package_log import Note, info, warning
from embeddedpulsar.functions import FunctionConfig, LocalRunner
from embeddedpulsar.testing.trial_store import assert_clean

ORDERS = "persistent://public/default/orders"


def fields(record: logging.LogRecord) -> dict[str, Any]:
    """The attributes of this package."""
    return {name: value for name, value in vars(record).items() if name.startswith("ep_")}


def said(caplog: pytest.LogCaptureFixture, start: str) -> dict[str, Any]:
    """The fields of the last record whose text has this start."""
    return fields([record for record in caplog.records if record.getMessage().startswith(start)][-1])


def test_life_of_producers_consumers_and_readers(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Topic and name; of a consumer the subscription as well, and nothing that there is none of."""
    with caplog.at_level(logging.INFO, "embeddedpulsar"), Client(tmp_path) as client:
        with client.create_producer("orders", "till-1"):
            assert said(caplog, "Created producer") == {"ep_topic": ORDERS, "ep_producer": "till-1"}
        assert said(caplog, "Closed producer") == {"ep_topic": ORDERS, "ep_producer": "till-1"}
        consumer = client.subscribe("orders", "kitchen", consumer_name="cook")
        about = {"ep_topic": ORDERS, "ep_subscription": "kitchen", "ep_consumer": "cook"}
        assert said(caplog, "Subscribed") == about
        consumer.close()
        assert said(caplog, "Closed Consumer") == about
        client.create_reader("orders", MessageId.earliest).close()
        assert said(caplog, "Closed Reader") == {"ep_topic": ORDERS}
    assert said(caplog, "Closing the client") == {}
    assert_clean(tmp_path)


def test_a_listener_and_an_interceptor_that_fail(client: Client, caplog: pytest.LogCaptureFixture):
    """The record says which message it was, and of which consumer."""

    class Wrong(ConsumerInterceptor):
        def before_consume(self, consumer: Any, message: Any) -> Any:
            raise RuntimeError("no")

    consumer = client.subscribe("orders", "kitchen", consumer_name="cook", interceptors=[Wrong()])
    message_id = client.create_producer("orders").send(b"tea")
    consumer.receive()
    assert said(caplog, "before_consume") == {"ep_topic": ORDERS, "ep_message_id": str(message_id)}
    heard = threading.Semaphore(0)

    def listen(consumer: Any, message: Any) -> None:
        heard.release()
        raise RuntimeError("no")

    listening = client.subscribe(
        "orders",
        "desk",
        consumer_name="clerk",
        message_listener=listen,
        initial_position=InitialPosition.Earliest,
    )
    # The second message is delivered when the first has been logged, by the same thread.
    client.create_producer("orders").send(b"cake")
    assert heard.acquire(timeout=10)
    assert heard.acquire(timeout=10)
    assert listening.is_connected()
    first = next(record for record in caplog.records if record.getMessage().startswith("The listener"))
    assert fields(first) == {
        "ep_topic": ORDERS,
        "ep_subscription": "desk",
        "ep_consumer": "clerk",
        "ep_message_id": str(message_id),
    }


def test_dead_letters(client: Client, caplog: pytest.LogCaptureFixture):
    """Which consumer of which subscription moved messages away."""
    consumer = client.subscribe(
        "orders",
        "kitchen",
        ConsumerType.Shared,
        consumer_name="cook",
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=ConsumerDeadLetterPolicy(1, "dead", "look"),
    )
    dead = client.subscribe("dead", "look", initial_position=InitialPosition.Earliest)
    client.create_producer("orders").send(b"tea")
    with caplog.at_level(logging.INFO, "embeddedpulsar"):
        for _ in range(2):
            consumer.negative_acknowledge(consumer.receive(5000))
        dead.receive(5000)
        consumer.close()
    about = {"ep_topic": ORDERS, "ep_subscription": "kitchen", "ep_consumer": "cook"}
    assert said(caplog, "1 entries of") == about


def test_acknowledgements_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Which consumer they are of; the flush timer of the consumer says so, as the store was removed."""
    is_said = threading.Event()

    def note(record: logging.LogRecord) -> bool:
        if record.getMessage().startswith("Acknowledgements could not be written"):
            is_said.set()
        return True

    with caplog.at_level(logging.WARNING, "embeddedpulsar"), Client(tmp_path / "store") as client:
        consumer = client.subscribe("orders", "kitchen", consumer_name="cook")
        client.create_producer("orders").send(b"tea")
        message = consumer.receive(5000)
        caplog.handler.addFilter(note)
        shutil.rmtree(tmp_path / "store")
        consumer.acknowledge(message)
        assert is_said.wait(20)
        caplog.handler.removeFilter(note)
    about = {"ep_topic": ORDERS, "ep_subscription": "kitchen", "ep_consumer": "cook"}
    assert said(caplog, "Acknowledgements could not be written") == about
    assert not [record for record in caplog.records if "a timer failed" in record.getMessage()]


def test_functions(client: Client, caplog: pytest.LogCaptureFixture):
    """A function that raises is named with its instance and the message."""

    def fails(value: str) -> None:
        raise RuntimeError(value)

    message_id = client.create_producer("orders").send(b"tea")
    config = FunctionConfig(name="fails", inputs=["orders"], subscription_position=InitialPosition.Earliest)
    runner = LocalRunner(config, fails, client=client)
    runner.run_until_idle()
    runner.stop()
    assert said(caplog, "public/default/fails raised") == {
        "ep_topic": ORDERS,
        "ep_message_id": str(message_id),
        "ep_function": "public/default/fails",
        "ep_instance": "0",
    }


def test_compaction_and_what_the_background_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """The layers below the client, which have no producer and no consumer, name the topic as well."""
    with (
        caplog.at_level(logging.INFO, "embeddedpulsar"),
        Client(tmp_path) as client,
        Admin(tmp_path) as admin,
    ):
        client.create_producer("orders").send(b"tea", partition_key="table-7")
        admin.topics().compact("orders")
        while admin.topics().compaction_status("orders").status == "RUNNING":
            pass
        assert said(caplog, f"{ORDERS}: compacted") == {"ep_topic": ORDERS}
        info("its consumer is gone", topic=ORDERS, subscription="kitchen")
        assert said(caplog, "its consumer") == {"ep_topic": ORDERS, "ep_subscription": "kitchen"}
        warning(Note("100 % full", topic=ORDERS))
        assert said(caplog, "100 % full") == {"ep_topic": ORDERS}
        info(Note("100 % free"))
        assert said(caplog, "100 % free") == {}
    assert_clean(tmp_path)
