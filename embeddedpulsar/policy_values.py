"""Values of policies for topics and namespaces, with the fields that Pulsar has."""

from __future__ import annotations

from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.error_text import naming_fields
from embeddedpulsar.exceptions import CorruptionError, InvalidConfiguration
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from typing import Any, Final

NON_PARTITIONED = "non-partitioned"
PARTITIONED = "partitioned"
MOST_PARTITIONS = 10_000
UNLIMITED = -1
DELETE_WHEN_NO_SUBSCRIPTIONS = "delete_when_no_subscriptions"
DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP = "delete_when_subscriptions_caught_up"
SUBSCRIPTION_TYPE_NAMES: Final = {
    "Exclusive": ConsumerType.Exclusive,
    "Failover": ConsumerType.Failover,
    "Shared": ConsumerType.Shared,
    "Key_Shared": ConsumerType.KeyShared,
}
"""The types of subscriptions by the names that Pulsar's documents have."""
# JSON of other languages has exact integers up to here.
_HIGHEST = 1 << 53
_FLAGS = ("relative_to_publish_rate", "active")
_DELETE_MODES = (DELETE_WHEN_NO_SUBSCRIPTIONS, DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP)


@naming_fields
class PublishRate(NamedTuple):
    """How much may be published in a second. A batch counts its messages.

    Attributes:
        publish_throttling_rate_in_msg: messages; 0 or -1 for no limit.
        publish_throttling_rate_in_byte: bytes of entries; 0 or -1 for no limit.

    Example:
        >>> PublishRate(1000).is_unlimited, PublishRate(-1, -1).is_unlimited
        (False, True)
    """

    publish_throttling_rate_in_msg: int = UNLIMITED
    publish_throttling_rate_in_byte: int = UNLIMITED

    def check(self) -> PublishRate:
        """Return this value if it is valid.

        Raises:
            InvalidConfiguration: a field is not a number from -1.
        """
        return _with_numbers(self)

    @property
    def is_unlimited(self) -> bool:
        """Whether nothing is limited."""
        return max(self) <= 0


@naming_fields
class DispatchRate(NamedTuple):
    """How much may be delivered in a period. A batch counts its messages.

    Attributes:
        dispatch_throttling_rate_in_msg: messages; 0 or -1 for no limit.
        dispatch_throttling_rate_in_byte: bytes of entries; 0 or -1 for no limit.
        rate_period_in_second: the period, from 1 on.
        relative_to_publish_rate: whether what is published counts in addition: then the backlog shrinks by
            this rate.

    Example:
        >>> DispatchRate(100, rate_period_in_second=10).check().is_unlimited
        False
    """

    dispatch_throttling_rate_in_msg: int = UNLIMITED
    dispatch_throttling_rate_in_byte: int = UNLIMITED
    rate_period_in_second: int = 1
    relative_to_publish_rate: bool = False

    def check(self) -> DispatchRate:
        """Return this value if it is valid.

        Raises:
            InvalidConfiguration: a rate is not a number from -1, or the period is below 1.
        """
        _with_flag(self.relative_to_publish_rate, "relative_to_publish_rate")
        return _with_numbers(self, rate_period_in_second=1)

    @property
    def is_unlimited(self) -> bool:
        """Whether nothing is limited."""
        return self.dispatch_throttling_rate_in_msg <= 0 and self.dispatch_throttling_rate_in_byte <= 0


@naming_fields
class SubscribeRate(NamedTuple):
    """How often a consumer may subscribe to a topic.

    Attributes:
        subscribe_throttling_rate_per_consumer: times in a period; 0 or -1 for no limit.
        rate_period_in_second: the period, from 1 on.

    Example:
        >>> SubscribeRate(5).check().rate_period_in_second
        30
    """

    subscribe_throttling_rate_per_consumer: int = UNLIMITED
    rate_period_in_second: int = 30

    def check(self) -> SubscribeRate:
        """Return this value if it is valid.

        Raises:
            InvalidConfiguration: the rate is not a number from -1, or the period is below 1.
        """
        return _with_numbers(self, rate_period_in_second=1)


@naming_fields
class ResourceGroup(NamedTuple):
    """How much the topics of a group may publish and deliver in a second, together. A batch counts its
    messages.

    Attributes:
        publish_rate_in_msgs: messages; 0 or -1 for no limit.
        publish_rate_in_bytes: bytes of entries; 0 or -1 for no limit.
        dispatch_rate_in_msgs: messages; 0 or -1 for no limit.
        dispatch_rate_in_bytes: bytes of payloads; 0 or -1 for no limit.

    Example:
        >>> ResourceGroup(publish_rate_in_msgs=1000).check().dispatch_rate_in_msgs
        -1
    """

    publish_rate_in_msgs: int = UNLIMITED
    publish_rate_in_bytes: int = UNLIMITED
    dispatch_rate_in_msgs: int = UNLIMITED
    dispatch_rate_in_bytes: int = UNLIMITED

    def check(self) -> ResourceGroup:
        """Return this value if it is valid.

        Raises:
            InvalidConfiguration: a field is not a number from -1.
        """
        return _with_numbers(self)


@naming_fields
class AutoTopicCreationOverride(NamedTuple):
    """Whether topics are created when they are first used, and of which kind.

    Attributes:
        allow_auto_topic_creation: whether they are.
        topic_type: ``non-partitioned`` or ``partitioned``.
        default_num_partitions: the number of partitions; None unless they are partitioned.

    Example:
        >>> AutoTopicCreationOverride(True, "partitioned", 4).check().default_num_partitions
        4
    """

    allow_auto_topic_creation: bool
    topic_type: str = NON_PARTITIONED
    default_num_partitions: int | None = None

    def check(self) -> AutoTopicCreationOverride:
        """Return this value if it is valid.

        Raises:
            InvalidConfiguration: a field is wrong, or the number of partitions does not fit the type.
        """
        _with_flag(self.allow_auto_topic_creation, "allow_auto_topic_creation")
        if self.topic_type not in (NON_PARTITIONED, PARTITIONED):
            # The number belongs to one of the two types: with the other it would be stored and ignored.
            raise InvalidConfiguration(f"topic_type is {NON_PARTITIONED} or {PARTITIONED}: {self}")
        partitions = self.default_num_partitions
        if self.topic_type == NON_PARTITIONED:
            if partitions is not None:
                raise InvalidConfiguration(f"default_num_partitions needs the type {PARTITIONED}: {self}")
        elif not _is_number(partitions, 1) or int(partitions or 0) > MOST_PARTITIONS:
            raise InvalidConfiguration(f"default_num_partitions is 1 to {MOST_PARTITIONS}: {self}")
        return self


@naming_fields
class AutoSubscriptionCreationOverride(NamedTuple):
    """Whether durable subscriptions are created by their first consumer.

    Attributes:
        allow_auto_subscription_creation: whether they are.

    Example:
        >>> AutoSubscriptionCreationOverride(False).check().allow_auto_subscription_creation
        False
    """

    allow_auto_subscription_creation: bool

    def check(self) -> AutoSubscriptionCreationOverride:
        """Return this value if it is valid.

        Raises:
            InvalidConfiguration: it is neither True nor False.
        """
        _with_flag(self.allow_auto_subscription_creation, "allow_auto_subscription_creation")
        return self


@naming_fields
class DelayedDeliveryPolicies(NamedTuple):
    """Whether messages are delayed that were sent with a delay, and how precisely.

    Attributes:
        active: whether they are; otherwise they are delivered at once.
        tick_time: milliseconds by which a message may be early, unless
            ``isDelayedDeliveryDeliverAtTimeStrict`` is set, which is the default.

    Example:
        >>> DelayedDeliveryPolicies(False).check().tick_time
        1000
    """

    active: bool = True
    tick_time: int = 1000

    def check(self) -> DelayedDeliveryPolicies:
        """Return this value if it is valid.

        Raises:
            InvalidConfiguration: ``active`` is no bool, or the time is below 1.
        """
        _with_flag(self.active, "active")
        return _with_numbers(self, tick_time=1)


@naming_fields
class InactiveTopicPolicies(NamedTuple):
    """Whether a topic is deleted that has not been used for some time.

    Attributes:
        inactive_topic_delete_mode: ``delete_when_no_subscriptions``: topics that have no subscription;
            ``delete_when_subscriptions_caught_up``: also those whose subscriptions have acknowledged
            everything.
        max_inactive_duration_seconds: for how long it had no producers and no consumers; from 1 on.
        delete_while_inactive: whether it is deleted at all.

    Example:
        >>> InactiveTopicPolicies(max_inactive_duration_seconds=3600).check().delete_while_inactive
        True
    """

    inactive_topic_delete_mode: str = DELETE_WHEN_NO_SUBSCRIPTIONS
    max_inactive_duration_seconds: int = 60
    delete_while_inactive: bool = True

    def check(self) -> InactiveTopicPolicies:
        """Return this value if it is valid.

        Raises:
            InvalidConfiguration: the mode is none, the time is below 1, or the switch is no bool.
        """
        if self.inactive_topic_delete_mode not in _DELETE_MODES:
            modes = " or ".join(_DELETE_MODES)
            raise InvalidConfiguration(f"inactive_topic_delete_mode is {modes}: {self}")
        if not _is_number(self.max_inactive_duration_seconds, 1):
            raise InvalidConfiguration(f"max_inactive_duration_seconds is a number from 1: {self}")
        _with_flag(self.delete_while_inactive, "delete_while_inactive")
        return self


@naming_fields
class OffloadPolicies(NamedTuple):
    """Where closed ledgers of topics are moved, and when. Fields that are None are taken from the policies of
    their own (`set_offload_threshold` and others), the location from ``broker.conf``.

    Attributes:
        offload_location: a directory or a URI: ``s3://bucket/path``, ``hdfs://host/path``. In place of
            Pulsar's driver, bucket and endpoint.
        offload_threshold_in_bytes: bytes of a topic that stay; older ledgers are moved. 0 for each ledger as
            soon as it is closed, -1 for never.
        offload_threshold_in_seconds: ledgers that ended so long ago are moved; -1 for never.
        offload_deletion_lag_in_millis: how long the log of a moved ledger stays in the store.

    Example:
        >>> OffloadPolicies("/mnt/cold", 0).check().offload_threshold_in_bytes
        0
    """

    offload_location: str | None = None
    offload_threshold_in_bytes: int | None = None
    offload_threshold_in_seconds: int | None = None
    offload_deletion_lag_in_millis: int | None = None

    def check(self) -> OffloadPolicies:
        """Return this value if it is valid.

        Raises:
            InvalidConfiguration: the location is no text, or a field is not a number from -1.
        """
        location = self.offload_location
        if location is not None and (not isinstance(location, str) or not location):
            raise InvalidConfiguration(f"offload_location is a path or a URI: {self}")
        for name, number in zip(self._fields[1:], self[1:], strict=True):
            # A lag of -1 would mean that the log never goes, which is said by the threshold.
            lowest = 0 if name == "offload_deletion_lag_in_millis" else UNLIMITED
            if number is not None and not _is_number(number, lowest):
                raise InvalidConfiguration(f"{name} is a number from {lowest}, not {number!r}")
        return self


def to_fields(value: Any) -> dict[str, Any]:
    """The fields of a value with Pulsar's names, as a document stores them.

    Example:
        >>> to_fields(PublishRate(5))
        {'publishThrottlingRateInMsg': 5, 'publishThrottlingRateInByte': -1}
    """
    # What is stored is valid: a value is checked when it is set, and not where it holds.
    value.check()
    return {
        # None is "not set", and leaves the field to the next level.
        camel_case(name): field
        for name, field in zip(value._fields, value, strict=True)
        if field is not None
    }


def from_fields(kind: type[Any], fields: Any) -> Any:
    """The value of such fields. Fields of a later release are ignored.

    Raises:
        CorruptionError: they are not those of this kind.

    Example:
        >>> from_fields(PublishRate, {"publishThrottlingRateInMsg": 5})
        PublishRate(publish_throttling_rate_in_msg=5, publish_throttling_rate_in_byte=-1)
    """
    try:
        # Names that are not known are of a later release, and what they would limit is not limited by this
        # one.
        given = {name: fields[camel_case(name)] for name in kind._fields if camel_case(name) in fields}
        return kind(**given).check()
    except (TypeError, KeyError, InvalidConfiguration) as e:
        raise CorruptionError(reason=f"a policy document with a {kind.__name__} that is none: {e!r}") from e


Numbers = TypeVar("Numbers", PublishRate, DispatchRate, SubscribeRate, ResourceGroup, DelayedDeliveryPolicies)


def _with_numbers(value: Numbers, **least: int) -> Numbers:
    for name, number in zip(value._fields, value, strict=True):
        lowest = least.get(name, UNLIMITED)
        if name not in _FLAGS and not _is_number(number, lowest):
            raise InvalidConfiguration(f"{name} is a number from {lowest}, not {number!r}")
    return value


def _is_number(value: object, lowest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and lowest <= value <= _HIGHEST


def _with_flag(value: object, name: str) -> None:
    if not isinstance(value, bool):
        raise InvalidConfiguration(f"{name} is True or False, not {value!r}")


def camel_case(name: str) -> str:
    """Return the name of a field in Pulsar's JSON.

    Example:
        >>> camel_case("tick_time")
        'tickTime'
    """
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def json_form(value: Any) -> Any:
    """The value as dicts, lists, strings and numbers. Fields that are None are left out.

    >>> from typing import NamedTuple
    >>> class Size(NamedTuple):
    ...     storage_size: int
    ...     offload: int | None = None
    >>> json_form({"a": [Size(7)]})
    {'a': [{'storageSize': 7}]}
    """
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {
            camel_case(name): json_form(field)
            for name, field in zip(value._fields, value, strict=True)
            if field is not None
        }
    if isinstance(value, dict):
        return {key: json_form(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [json_form(element) for element in value]
    return value
