"""Ctrl-C inside an acknowledgement: what was acknowledged before stays acknowledged."""

from __future__ import annotations

import contextlib
import itertools

import embeddedpulsar as pulsar
from tests import strikes


def _interrupt() -> None:
    raise KeyboardInterrupt


def test_an_interrupt_at_any_instruction_forgets_no_earlier_message_of_the_batch():
    """The first message of a batch is acknowledged; the acknowledgement of the second is interrupted."""
    with pulsar.Client("memory://") as client:
        producer = client.create_producer("orders", batching_enabled=True)
        consumer = client.subscribe("orders", "billing", batch_index_ack_enabled=True)
        for index in itertools.count():
            for text in (b"first", b"second"):
                producer.send_async(text, None)
            producer.flush()
            messages = [consumer.receive(1000), consumer.receive(1000)]
            consumer.acknowledge(messages[0])

            def acknowledge(message: pulsar.Message = messages[1]) -> None:
                with contextlib.suppress(KeyboardInterrupt):
                    consumer.acknowledge(message)

            was_struck = strikes.strike(acknowledge, _interrupt, index)
            consumer.redeliver_unacknowledged_messages()
            with contextlib.suppress(pulsar.Timeout):
                message = consumer.receive(1)
                assert message.data() == b"second", f"interrupted at instruction {index}"
                consumer.acknowledge(message)
            if not was_struck:
                assert index > 50
                break
