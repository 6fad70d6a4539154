"""The consumers attached to a subscription, as every replica knows them."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable

from embeddedpulsar._engine.format.subscription_record import NO_RULES, ConsumerRules
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.subscription.state.entry_states import FIRST_OWNER, LAST_OWNER


class Consumer(NamedTuple):
    """One attached consumer.

    Attributes:
        epoch: what its acknowledgements must carry to count.
        code: marks its entries (`entry_states`), and its slot in the ctl.
        rules: what it asks of dispatch.
    """

    consumer_id: int
    name: str
    consumer_type: int
    priority_level: int
    client_uuid: bytes
    attached_ms: int
    epoch: int
    code: int = 0
    rules: ConsumerRules = NO_RULES


class ConsumerRegistry:
    """Attached consumers by id, in order of attachment.

    Role: part of the replicated state; pure, guarded by the subscription's lock. Invariants: all consumers
    have the same type; ids are never used twice in the life of the subscription.

    >>> registry = ConsumerRegistry()
    >>> registry.add(Consumer(1, "c", 0, 0, bytes(16), 0, epoch=4))
    >>> registry.raise_epochs(5)
    >>> registry.is_current(1, 4), registry.is_current(1, 5)
    (False, True)

    Attributes:
        limits: most unacknowledged messages of each consumer that has a limit, by id.
        least_limit: the lowest of them; 0 if there is none.
        levels: priority levels, the best first.
    """

    __slots__ = ("_by_id", "least_limit", "levels", "limits")

    def __init__(self) -> None:
        self._by_id: dict[int, Consumer] = {}
        self.limits: dict[int, int] = {}
        self.least_limit = 0
        self.levels: list[int] = []

    def __len__(self) -> int:
        return len(self._by_id)

    def all(self) -> list[Consumer]:
        """The attached consumers, the longest attached first."""
        return list(self._by_id.values())

    def each(self) -> Iterable[Consumer]:
        """The same, to be looked through before anything changes."""
        return self._by_id.values()

    def get(self, consumer_id: int) -> Consumer | None:
        return self._by_id.get(consumer_id)

    def is_current(self, consumer_id: int, epoch: int) -> bool:
        """Whether a command of that consumer and epoch still counts."""
        consumer = self._by_id.get(consumer_id)
        return consumer is not None and consumer.epoch == epoch

    @property
    def consumer_type(self) -> int | None:
        """Type of the attached consumers; None without any: then the next may have any type."""
        for consumer in self._by_id.values():
            return consumer.consumer_type
        return None

    def free_code(self) -> int:
        """The code the next consumer gets; 0 if there are as many as a subscription can have."""
        used = {consumer.code for consumer in self._by_id.values()}
        return next((code for code in range(FIRST_OWNER, LAST_OWNER + 1) if code not in used), 0)

    def add(self, consumer: Consumer) -> None:
        self._by_id[consumer.consumer_id] = consumer
        if consumer.priority_level not in self.levels:
            insort(self.levels, consumer.priority_level)
        limit = consumer.rules.max_unacked
        if limit:
            self.limits[consumer.consumer_id] = limit
            self.least_limit = min(self.least_limit or limit, limit)

    def remove(self, consumer_id: int) -> bool:
        """Remove a consumer that left; False if it was not attached."""
        consumer = self._by_id.pop(consumer_id, None)
        if consumer is None:
            return False
        self.levels = sorted({one.priority_level for one in self._by_id.values()})
        if self.limits.pop(consumer_id, 0):
            self.least_limit = min(self.limits.values(), default=0)
        return True

    def limit(self, most: int) -> None:
        """Give all consumers the same limit of unacknowledged messages; 0 for none."""
        self._by_id = {
            each: consumer._replace(rules=consumer.rules._replace(max_unacked=most))
            for each, consumer in self._by_id.items()
        }
        self.limits = dict.fromkeys(self._by_id, most) if most else {}
        self.least_limit = most if self._by_id else 0

    def raise_epochs(self, epoch: int) -> None:
        """Void what all consumers were handed before: their commands count again from ``epoch`` on."""
        self._by_id = {each: consumer._replace(epoch=epoch) for each, consumer in self._by_id.items()}
