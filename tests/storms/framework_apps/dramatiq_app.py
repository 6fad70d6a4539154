"""A program of a user of dramatiq."""

from __future__ import annotations

import dramatiq
from dramatiq.results import Results

from embeddedpulsar.frameworks.dramatiq import EmbeddedPulsarBackend, EmbeddedPulsarBroker
from tests.storms.framework_apps import STORE, work

broker = EmbeddedPulsarBroker(STORE)
results = EmbeddedPulsarBackend(STORE)
broker.add_middleware(Results(backend=results))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True)
def double(number: int) -> int:
    """A task that a thread of the worker runs."""
    return work(number)


def session(count: int, timeout_s: float) -> list[int]:
    """Send tasks and return their results."""
    try:
        messages = [double.send(number) for number in range(count)]
        return [message.get_result(block=True, timeout=int(timeout_s * 1000)) for message in messages]
    finally:
        results.close()
        broker.close()
