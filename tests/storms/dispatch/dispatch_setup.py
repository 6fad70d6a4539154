"""What one simulated subscription is like: drawn from a seed."""

from __future__ import annotations

import random
from typing import NamedTuple

from embeddedpulsar.enums import ConsumerType, KeySharedMode
from embeddedpulsar.policies import KeySharedPolicy
from embeddedpulsar.settings import BrokerSettings

_QUARTER = 16384
KINDS = (
    "shared",
    "key-shared",
    "key-shared-ring",
    "key-shared-sticky",
    "key-shared-unordered",
    "key-shared-classic",
    "failover",
    "failover-partition",
    "exclusive",
)
_WEIGHTS = (6, 6, 2, 2, 1, 2, 3, 1, 1)


class DispatchSetup(NamedTuple):
    """The fixed facts of a schedule.

    Attributes:
        kind: one of `KINDS`.
        most: messages a consumer may hold; 0 for any number.
        most_in_all: the same for all together.
        keys: hashes of the keys that are used.
        batch: most messages of an entry.
        delays: how many of ten entries are delayed.
        chunks: how many of ten times that something is published, it is parts of a chunked message.
        look_ahead: entries held back per consumer.
        compact_bytes: when a journal is replaced by a snapshot.
        consumers: most consumers at once.
        steps: how many.
        changes_limits: whether the limits of unacknowledged messages change.
        transactions: most transactions that are open at once; 0 for none.
    """

    kind: str
    most: int
    most_in_all: int
    keys: tuple[int, ...]
    batch: int
    delays: int
    chunks: int
    look_ahead: int
    compact_bytes: int
    consumers: int
    steps: int
    changes_limits: bool
    transactions: int = 0

    @classmethod
    def draw(cls, chance: random.Random) -> DispatchSetup:
        """A setup by chance."""
        keys = [chance.randrange(1, 1 << 31) for _ in range(chance.choice((1, 2, 4, 9)))]
        keys += [one ^ 0x10000 for one in keys[:1]]  # another key of the same slot
        return cls(
            kind=chance.choices(KINDS, _WEIGHTS)[0],
            most=chance.choice((0, 0, 1, 3, 8)),
            most_in_all=chance.choice((0, 0, 0, 5, 12)),
            keys=(0, *keys),
            batch=chance.choice((1, 1, 3)),
            delays=chance.choice((0, 0, 2, 6)),
            chunks=_copied(chance).choice((0, 0, 4)),
            look_ahead=chance.choice((1, 3, 2000)),
            compact_bytes=chance.choice((600, 4000, 1 << 20)),
            consumers=chance.randrange(2, 7),
            steps=chance.choice((40, 80, 160)),
            changes_limits=_copied(chance).random() < 0.5,
            transactions=_copied(chance).choices((0, 1, 4), (3, 1, 1), k=3)[2],
        )

    @property
    def consumer_type(self) -> ConsumerType:
        """Of the subscription."""
        if self.kind.startswith("key"):
            return ConsumerType.KeyShared
        first = self.kind.split("-")[0]
        types = {"shared": ConsumerType.Shared, "failover": ConsumerType.Failover}
        return types.get(first, ConsumerType.Exclusive)

    @property
    def is_shared(self) -> bool:
        """Whether entries go to consumers singly."""
        return self.consumer_type in (ConsumerType.Shared, ConsumerType.KeyShared)

    @property
    def is_ordered(self) -> bool:
        """Whether the order of each key is promised."""
        return self.kind in ("key-shared", "key-shared-ring", "key-shared-classic")

    @property
    def is_classic(self) -> bool:
        """Whether newcomers wait until what was there before is acknowledged."""
        return self.kind == "key-shared-classic"

    @property
    def partition(self) -> int:
        """Of the topic."""
        return 3 if self.kind == "failover-partition" else -1

    def settings(self) -> BrokerSettings:
        """Those of the store."""
        return BrokerSettings(
            maxUnackedMessagesPerConsumer=self.most,
            maxUnackedMessagesPerSubscription=self.most_in_all,
            subscriptionKeySharedUseConsistentHashing=self.kind == "key-shared-ring",
            subscriptionKeySharedUseClassicPersistentImplementation=self.is_classic,
            subscriptionKeySharedConsistentHashingReplicaPoints=5,
        )

    def policy(self, chance: random.Random) -> KeySharedPolicy | None:
        """What a newcomer asks for."""
        if self.consumer_type != ConsumerType.KeyShared:
            return None
        if self.kind == "key-shared-sticky":
            first = chance.randrange(4)
            last = chance.randrange(first, 4)
            ranges = [(first * _QUARTER, (last + 1) * _QUARTER - 1)]
            return KeySharedPolicy().set_key_shared_mode(KeySharedMode.Sticky).set_sticky_ranges(ranges)
        return KeySharedPolicy().set_allow_out_of_order_delivery(self.kind == "key-shared-unordered")


def _copied(chance: random.Random) -> random.Random:
    """The same dice: what is thrown with them changes nothing for the others."""
    other = random.Random()
    other.setstate(chance.getstate())
    return other
