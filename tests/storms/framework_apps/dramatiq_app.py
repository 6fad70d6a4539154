"""A program of a user of dramatiq."""

from __future__ import annotations

from collections.abc import Callable

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


@dramatiq.actor(queue_name="urgent", store_results=True, priority=1)
def pass_on(number: int) -> int:
    """The end of a pipeline."""
    return number


def mixed(count: int, timeout_s: float) -> list[int]:
    """Send messages to two queues with delays: alone, in groups and in pipelines."""
    timeout = int(timeout_s * 1000)
    try:
        values: list[Callable[[], list[int]]] = []
        for begin in range(0, count, 10):
            messages = [
                double.message_with_options(args=(number,)).copy(queue_name=("default", "urgent")[number % 2])
                for number in range(begin, min(begin + 10, count))
            ]
            kind = begin // 10 % 3
            if kind == 0:
                sent = [broker.enqueue(message, delay=300 * (n % 3)) for n, message in enumerate(messages)]
                values.append(lambda sent=sent: [m.get_result(block=True, timeout=timeout) for m in sent])
            elif kind == 1:
                group = dramatiq.group(messages).run(delay=200)
                values.append(lambda group=group: list(group.get_results(block=True, timeout=timeout)))
            else:
                pipelines = [(message | pass_on.message()).run() for message in messages]
                values.append(
                    lambda sent=pipelines: [m.get_result(block=True, timeout=timeout) for m in sent]
                )
        return [number for value in values for number in value()]
    finally:
        results.close()
        broker.close()
