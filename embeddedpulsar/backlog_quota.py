"""Backlog quotas: how much a subscription may leave unacknowledged, and what happens beyond that."""

from __future__ import annotations

from typing import Any, Final

from embeddedpulsar.error_text import naming_fields
from embeddedpulsar.exceptions import InvalidConfiguration, LockTimeout
from embeddedpulsar.policies import Retention
from embeddedpulsar.records import NamedTuple

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
