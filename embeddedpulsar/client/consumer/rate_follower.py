"""Dispatch rates of a consumer or reader, which follow the policies of its topic."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from embeddedpulsar._engine.store.policies.rate_policy import dispatch_limiter

if TYPE_CHECKING:
    from embeddedpulsar._engine.platform.clock import Clock
    from embeddedpulsar._engine.store.policies.resource_groups import Lock
    from embeddedpulsar._engine.store.topic import Topic
    from embeddedpulsar.client.consumer.delivery import Delivery
    from embeddedpulsar.client.consumer.receiver_queue import ReceiverQueue

CallLater = Callable[[float, Callable[[], object]], object]


def rate_follower(
    topic: Topic,
    clock: Clock,
    subscription: tuple[memoryview, Lock] | None,
    queue: ReceiverQueue,
    delivery: Delivery,
    call_later: CallLater,
) -> Callable[[], object]:
    """Have a queue keep the dispatch rates of a topic. Returns the listener of the topic's policies.

    Args:
        topic, clock: what it reads.
        subscription: see `dispatch_limiter`.
        queue: keeps the rates.
        delivery: looks again after a change.
        call_later: runs that, because the listener may be called under a lock.
    """
    # Weak, because the policies live as long as the topic is open: a consumer that was dropped or interrupted
    # before its caller had it, is collected, and that detaches it.
    queues, deliveries = weakref.ref(queue), weakref.ref(delivery)

    def follow() -> None:
        queue, delivery = queues(), deliveries()
        if queue is None or delivery is None:
            topic.policies.unlisten(follow)
            return
        before, limiter = queue.limiter, dispatch_limiter(topic, clock, subscription)
        if before is not None or limiter is not None:
            queue.limit_by(limiter)
            with contextlib.suppress(RuntimeError):  # the store is being closed
                call_later(0.0, delivery.renew)

    topic.policies.listen(follow)
    limiter = dispatch_limiter(topic, clock, subscription)
    if limiter is not None:
        queue.limit_by(limiter)
    return follow
