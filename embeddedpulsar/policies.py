"""Policies of consumers (batch receive, Key_Shared, dead letters) and of topics (retention, backlog quotas).

A backlog quota says how much a subscription may leave unacknowledged, and what happens beyond that.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from embeddedpulsar.enums import KeySharedMode
from embeddedpulsar.error_text import naming_arguments, naming_fields
from embeddedpulsar.exceptions import InvalidConfiguration, LockTimeout
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any, Final

# The limit that Pulsar's clients have where none is given.
_DEFAULT_BATCH_BYTES = 10 * 1024 * 1024
# Key_Shared divides the hashes of keys into 65,536 slots.
_LAST_SLOT = 65535


class BatchReceivePolicy:
    """The limits of `Consumer.batch_receive`, as ``ConsumerBatchReceivePolicy.policy()`` returns them.

    Example:
        >>> policy = BatchReceivePolicy(100, 0, 10)
        >>> policy.getMaxNumMessages(), policy.getMaxNumBytes(), policy.getTimeoutMs()
        (100, 0, 10)
    """

    __slots__ = ("_max_bytes", "_max_messages", "_timeout_ms")

    @naming_arguments
    def __init__(
        self, max_num_messages: int = -1, max_num_bytes: int = _DEFAULT_BATCH_BYTES, timeout_ms: int = 100
    ) -> None:
        # The texts are those of pulsar-client, on which programs may rely.
        if max_num_messages <= 0 and max_num_bytes <= 0 and timeout_ms <= 0:
            raise ValueError("At least one of maxNumMessages, maxNumBytes and timeoutMs must be specified.")
        # With a timeout alone, the default limit of bytes holds as well, as in Pulsar's C++ client.
        if max_num_messages <= 0 and max_num_bytes <= 0:
            max_num_messages, max_num_bytes = -1, _DEFAULT_BATCH_BYTES
        self._max_messages = max_num_messages
        self._max_bytes = max_num_bytes
        self._timeout_ms = timeout_ms

    def getMaxNumMessages(self) -> int:
        """Return the most messages of one batch; no limit if not positive."""
        return self._max_messages

    def getMaxNumBytes(self) -> int:
        """Return the most payload bytes of one batch; no limit if not positive."""
        return self._max_bytes

    def getTimeoutMs(self) -> int:
        """Return how long to wait for a full batch; no limit if not positive."""
        return self._timeout_ms

    def __repr__(self) -> str:
        limits = f"{self._max_messages} messages, {self._max_bytes} bytes, {self._timeout_ms} ms"
        return f"<BatchReceivePolicy {limits}>"


class ConsumerBatchReceivePolicy:
    """When `Consumer.batch_receive` returns: at a number of messages, a number of bytes, or a time.

    Args:
        max_num_message: most messages of one batch; no limit if not positive.
        max_num_bytes: most payload bytes of one batch; no limit if not positive. Without either limit,
            10 MiB is used.
        timeout_ms: longest wait for a full batch; no limit if not positive.

    Raises:
        ValueError: none of the three is positive.

    Example:
        >>> ConsumerBatchReceivePolicy(100, -1, 50)
        ConsumerBatchReceivePolicy(max_num_message=100, max_num_bytes=-1, timeout_ms=50)
        >>> ConsumerBatchReceivePolicy(100, -1, 50).policy()
        <BatchReceivePolicy 100 messages, -1 bytes, 50 ms>
    """

    @naming_arguments
    def __init__(self, max_num_message: int, max_num_bytes: int, timeout_ms: int) -> None:
        self._policy = BatchReceivePolicy(
            _int("max_num_message", max_num_message),
            _int("max_num_bytes", max_num_bytes),
            _int("timeout_ms", timeout_ms),
        )

    def policy(self) -> BatchReceivePolicy:
        """Return the limits, with the default limit if none is given."""
        return self._policy

    def __repr__(self) -> str:
        policy = self._policy
        return (
            f"ConsumerBatchReceivePolicy(max_num_message={policy.getMaxNumMessages()}, "
            f"max_num_bytes={policy.getMaxNumBytes()}, timeout_ms={policy.getTimeoutMs()})"
        )


class KeySharedPolicy:
    """A Key_Shared policy, as ``ConsumerKeySharedPolicy.policy()`` returns it, with setters.

    Example:
        >>> KeySharedPolicy().set_sticky_ranges([(0, 99)]).get_sticky_ranges()
        [(0, 99)]
        >>> policy = KeySharedPolicy().set_key_shared_mode(KeySharedMode.AutoSplit)
        >>> policy = policy.set_allow_out_of_order_delivery(True)
        >>> policy.get_key_shared_mode(), policy.is_allow_out_of_order_delivery()
        (<KeySharedMode.AutoSplit: 0>, True)
    """

    __slots__ = ("_allow_out_of_order", "_mode", "_ranges")

    def __init__(self) -> None:
        self._mode = KeySharedMode.AutoSplit
        self._allow_out_of_order = False
        self._ranges: list[tuple[int, int]] = []

    def set_key_shared_mode(self, mode: KeySharedMode) -> KeySharedPolicy:
        """Set how the hash range is divided, and return this policy."""
        # Checked here and not when the consumer is made: the mistake is in this call.
        if not isinstance(mode, KeySharedMode):
            text = f"key_shared_mode must be a KeySharedMode, not {type(mode).__name__}"
            raise TypeError(f"{text}; {KeySharedMode.choices()}")
        self._mode = mode
        return self

    def get_key_shared_mode(self) -> KeySharedMode:
        """Return how the hash range is divided."""
        return self._mode

    def set_allow_out_of_order_delivery(self, allow: bool) -> KeySharedPolicy:
        """Set whether order may be lost when consumers join and leave, and return this policy."""
        self._allow_out_of_order = bool(allow)
        return self

    def is_allow_out_of_order_delivery(self) -> bool:
        """Return whether order may be lost when consumers join and leave."""
        return self._allow_out_of_order

    def set_sticky_ranges(self, ranges: Sequence[tuple[int, int]]) -> KeySharedPolicy:
        """Set the hash ranges this consumer takes, both ends included, and return this policy."""
        self._ranges = _checked_ranges(ranges)
        return self

    def get_sticky_ranges(self) -> list[tuple[int, int]]:
        """Return the hash ranges this consumer takes."""
        return list(self._ranges)


class ConsumerKeySharedPolicy:
    """How the consumers of a Key_Shared subscription divide the keys.

    Args:
        key_shared_mode: ``AutoSplit``: the store divides the hash range. ``Sticky``: each consumer gives its
            ranges.
        allow_out_of_order_delivery: with ``AutoSplit``, deliver a key to its new consumer even while its
            previous consumer has unacknowledged messages of it.
        sticky_ranges: ranges of slots 0..65535, both ends included; required with ``Sticky``.

    Raises:
        ValueError: the ranges are missing, empty, outside 0..65535, or overlap each other.

    Example:
        >>> policy = ConsumerKeySharedPolicy(KeySharedMode.Sticky, sticky_ranges=[(0, 32767)])
        >>> policy.key_shared_mode, policy.allow_out_of_order_delivery, policy.sticky_ranges
        (<KeySharedMode.Sticky: 1>, False, [(0, 32767)])
        >>> policy.policy().get_sticky_ranges()
        [(0, 32767)]
    """

    @naming_arguments
    def __init__(
        self,
        key_shared_mode: KeySharedMode = KeySharedMode.AutoSplit,
        allow_out_of_order_delivery: bool = False,
        sticky_ranges: list[tuple[int, int]] | None = None,
    ) -> None:
        self._policy = KeySharedPolicy().set_key_shared_mode(key_shared_mode)
        if key_shared_mode == KeySharedMode.Sticky and sticky_ranges is None:
            raise ValueError(
                "When using key_shared_mode = KeySharedMode.Sticky you must also provide sticky_ranges"
            )
        self._policy.set_allow_out_of_order_delivery(allow_out_of_order_delivery)
        if sticky_ranges is not None:
            self._policy.set_sticky_ranges(sticky_ranges)

    @property
    def key_shared_mode(self) -> KeySharedMode:
        """How the hash range is divided."""
        return self._policy.get_key_shared_mode()

    @property
    def allow_out_of_order_delivery(self) -> bool:
        """Whether order may be lost when consumers join and leave."""
        return self._policy.is_allow_out_of_order_delivery()

    @property
    def sticky_ranges(self) -> list[tuple[int, int]]:
        """The hash ranges this consumer takes; empty with ``AutoSplit``."""
        return self._policy.get_sticky_ranges()

    def policy(self) -> KeySharedPolicy:
        """Return the policy in the form that the client uses."""
        return self._policy

    def __repr__(self) -> str:
        return (
            f"ConsumerKeySharedPolicy({self.key_shared_mode}, "
            f"allow_out_of_order_delivery={self.allow_out_of_order_delivery}, "
            f"sticky_ranges={self.sticky_ranges})"
        )


class DeadLetterPolicyBuilder:
    """Builds a `ConsumerDeadLetterPolicy` by setters, for code written against that name.

    Example:
        >>> DeadLetterPolicyBuilder().maxRedeliverCount(3).deadLetterTopic("dead").build()
        ConsumerDeadLetterPolicy(3, dead_letter_topic='dead', initial_subscription_name='')
        >>> DeadLetterPolicyBuilder().maxRedeliverCount(3).initialSubscriptionName("undertaker").build()
        ConsumerDeadLetterPolicy(3, dead_letter_topic='', initial_subscription_name='undertaker')
    """

    def __init__(self) -> None:
        self._count = 0
        self._topic = ""
        self._subscription = ""

    def maxRedeliverCount(self, count: int) -> DeadLetterPolicyBuilder:
        """Set the number of redeliveries after which a message moves."""
        self._count = _int("max_redeliver_count", count)
        return self

    def deadLetterTopic(self, topic: str) -> DeadLetterPolicyBuilder:
        """Set the dead letter topic."""
        self._topic = _text("dead_letter_topic", topic)
        return self

    def initialSubscriptionName(self, name: str) -> DeadLetterPolicyBuilder:
        """Set the subscription to create with that topic."""
        self._subscription = _text("initial_subscription_name", name)
        return self

    def build(self) -> ConsumerDeadLetterPolicy:
        """Return the policy."""
        # "" stands for "not set" in the setters of pulsar-client; the policy takes None.
        return ConsumerDeadLetterPolicy(self._count, self._topic or None, self._subscription or None)


class ConsumerDeadLetterPolicy:
    """When a message that is redelivered too often moves to another topic. Shared and Key_Shared only.

    Args:
        max_redeliver_count: number of redeliveries; the application gets a message once more than that.
        dead_letter_topic: its name; default ``<topic>-<subscription>-DLQ``.
        initial_subscription_name: subscription created with the dead letter topic, so that no message sent
            there is removed.

    Raises:
        ValueError: ``max_redeliver_count`` is None or below 1.

    Example:
        >>> policy = ConsumerDeadLetterPolicy(3, "dead", "undertaker")
        >>> policy.max_redeliver_count, policy.dead_letter_topic, policy.initial_subscription_name
        (3, 'dead', 'undertaker')
        >>> policy.policy() is policy
        True
    """

    @naming_arguments
    def __init__(
        self,
        max_redeliver_count: int,
        dead_letter_topic: str | None = None,
        initial_subscription_name: str | None = None,
    ) -> None:
        if max_redeliver_count is None or max_redeliver_count < 1:
            raise ValueError("max_redeliver_count must be greater than 0")
        self._max_redeliver_count = _int("max_redeliver_count", max_redeliver_count)
        self._topic = _text("dead_letter_topic", dead_letter_topic or "")
        self._subscription = _text("initial_subscription_name", initial_subscription_name or "")

    @property
    def max_redeliver_count(self) -> int:
        """Number of redeliveries, which excludes the first delivery."""
        return self._max_redeliver_count

    @property
    def dead_letter_topic(self) -> str:
        """The dead letter topic; ``""`` for the default name."""
        return self._topic

    @property
    def initial_subscription_name(self) -> str:
        """The subscription created with the dead letter topic; ``""`` for none."""
        return self._subscription

    def policy(self) -> ConsumerDeadLetterPolicy:
        """Return this policy."""
        return self

    def __repr__(self) -> str:
        return (
            f"ConsumerDeadLetterPolicy({self._max_redeliver_count}, dead_letter_topic={self._topic!r}, "
            f"initial_subscription_name={self._subscription!r})"
        )


def _int(name: str, value: object) -> int:
    # True is an int in Python, and pulsar-client takes it for 1.
    if not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    return int(value)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    return value


def _checked_ranges(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    if not ranges:
        raise ValueError("Ranges for KeyShared policy must not be empty.")
    checked: list[tuple[int, int]] = []
    for pair in ranges:
        if len(pair) != 2:
            raise TypeError(f"a sticky range is a pair (first, last), not {pair!r}")
        start, end = _int("sticky_ranges", pair[0]), _int("sticky_ranges", pair[1])
        if start < 0 or end > _LAST_SLOT:
            raise ValueError("KeySharedPolicy Exception: Ranges must be [0, 65535].")
        checked.append((start, end))
    # Equal and inverted pairs are accepted here, as in pulsar-client; the subscription refuses them.
    for range_before, range_after in pairwise(sorted(set(checked))):
        # Sorted by their starts, so only neighbours can overlap.
        if range_after[0] <= range_before[1]:
            raise ValueError("Ranges for KeyShared policy with overlap.")
    return checked


UNLIMITED = -1


@naming_fields
class Retention(NamedTuple):
    """A retention policy, by Pulsar's rules. Unacknowledged messages are always kept.

    Attributes:
        time_minutes: age of the last entry from which on a closed ledger may be removed; -1 for no limit by
            age.
        size_mb: size in MiB of the other entries from which on it may be removed; -1 for no limit by size.

    With both above 0, either condition suffices. With 0 and 0 nothing is retained.

    Example:
        >>> Retention(0, 0).is_none, Retention(-1, -1).is_unlimited
        (True, True)
    """

    time_minutes: int = 0
    size_mb: int = 0

    def check(self, where: str = "retention") -> Retention:
        """Return this policy if it is valid.

        Raises:
            InvalidConfiguration: exactly one of the two is 0, or one is below -1.

        Example:
            >>> Retention(10, 0).check()
            Traceback (most recent call last):
            embeddedpulsar.exceptions.InvalidConfiguration: Pulsar error: ...
        """
        if self.time_minutes < UNLIMITED or self.size_mb < UNLIMITED:
            raise InvalidConfiguration(
                f"{where}: {self.time_minutes} minutes and {self.size_mb} MB; use -1 for no limit"
            )
        if (self.time_minutes == 0) != (self.size_mb == 0):
            raise InvalidConfiguration(
                f"{where}: {self.time_minutes} minutes and {self.size_mb} MB; if one of the two is 0 the "
                "other must be 0 too (nothing is retained); use -1 for no limit"
            )
        return self

    @property
    def is_none(self) -> bool:
        """Whether all acknowledged ledgers are removed."""
        return self.time_minutes == 0 and self.size_mb == 0

    @property
    def is_unlimited(self) -> bool:
        """Whether no ledger is ever removed."""
        return self.time_minutes == UNLIMITED and self.size_mb == UNLIMITED

    def is_over_time(self, age_ms: int) -> bool:
        """Whether a ledger of this age may be removed.

        Example:
            >>> Retention(1, -1).is_over_time(60_000), Retention(1, -1).is_over_time(60_001)
            (False, True)
        """
        return self.time_minutes >= 0 and age_ms > self.time_minutes * 60_000

    def is_over_size(self, left: int) -> bool:
        """Whether a ledger may be removed if this number of bytes remains without it.

        Example:
            >>> Retention(-1, 1).is_over_size((1 << 20) - 1), Retention(-1, 1).is_over_size(1 << 20)
            (False, True)
        """
        return self.size_mb >= 0 and left >= self.size_mb << 20


DESTINATION_STORAGE: Final = "destination_storage"
MESSAGE_AGE: Final = "message_age"
BACKLOG_QUOTA_TYPES: Final = (DESTINATION_STORAGE, MESSAGE_AGE)

PRODUCER_REQUEST_HOLD: Final = "producer_request_hold"
PRODUCER_EXCEPTION: Final = "producer_exception"
CONSUMER_BACKLOG_EVICTION: Final = "consumer_backlog_eviction"
BACKLOG_QUOTA_POLICIES: Final = (PRODUCER_REQUEST_HOLD, PRODUCER_EXCEPTION, CONSUMER_BACKLOG_EVICTION)


class TopicHeld(LockTimeout):
    """An append found the topic held back by its quota, and stored nothing. Internal."""


@naming_fields
class BacklogQuota(NamedTuple):
    """A limit for the backlog of the subscription that is furthest behind.

    Attributes:
        limit_size: bytes; -1 for none. Counts for a quota of type ``destination_storage``.
        limit_time: age of the oldest unacknowledged message in seconds; -1 for none. Counts for a quota of
            type ``message_age``.
        policy: ``producer_request_hold``: sends wait; ``producer_exception``: sends fail;
            ``consumer_backlog_eviction``: the oldest messages count as acknowledged.

    Example:
        >>> BacklogQuota(limit_size=1 << 30).json()
        {'limitSize': 1073741824, 'limitTime': -1, 'policy': 'producer_request_hold'}
    """

    limit_size: int = -1
    limit_time: int = -1
    policy: str = PRODUCER_REQUEST_HOLD

    def check(self) -> BacklogQuota:
        """Return this quota if it is valid.

        Raises:
            InvalidConfiguration: a limit is no integer from -1 on, or the policy is unknown.

        Example:
            >>> BacklogQuota(policy="drop").check()
            Traceback (most recent call last):
            embeddedpulsar.exceptions.InvalidConfiguration: Pulsar error: ...
        """
        for name, limit in (("limit_size", self.limit_size), ("limit_time", self.limit_time)):
            # True is an int in Python, and no limit.
            if isinstance(limit, bool) or not isinstance(limit, int) or limit < -1:
                raise InvalidConfiguration(f"{name} is an integer from -1, which means none, not {limit!r}")
        if self.policy not in BACKLOG_QUOTA_POLICIES:
            raise InvalidConfiguration(
                f"the policy of a backlog quota is {', '.join(BACKLOG_QUOTA_POLICIES)}, not {self.policy!r}"
            )
        return self

    def check_beside(self, retention: Retention) -> None:
        """Refuse a quota that is not smaller than what is retained, as Pulsar does.

        Raises:
            InvalidConfiguration: the retention has two limits, and one is not above that of the quota.

        Example:
            >>> BacklogQuota(limit_size=1 << 20).check_beside(Retention(10, 1))
            Traceback (most recent call last):
            embeddedpulsar.exceptions.InvalidConfiguration: Pulsar error: ...
        """
        # Only a retention with both limits drops messages by age or size on its own.
        if retention.time_minutes <= 0 or retention.size_mb <= 0:
            return
        # MB and minutes here, bytes and seconds in the quota.
        size, seconds = retention.size_mb << 20, retention.time_minutes * 60
        if self.limit_size >= size or self.limit_time >= seconds:
            raise InvalidConfiguration(
                f"the retention ({seconds} s, {size} bytes) must exceed the backlog quota "
                f"({self.limit_time} s, {self.limit_size} bytes)"
            )

    def json(self) -> dict[str, Any]:
        """Return the fields with Pulsar's names.

        Example:
            >>> BacklogQuota(limit_time=60).json()["limitTime"]
            60
        """
        return {"limitSize": self.limit_size, "limitTime": self.limit_time, "policy": self.policy}
