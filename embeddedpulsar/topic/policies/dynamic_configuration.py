"""Settings that can be changed while a store is in use: they hold in place of those of ``broker.conf``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from embeddedpulsar.exceptions import CorruptionError, InvalidConfiguration
from embeddedpulsar.settings import BrokerSettings, read_setting, write_setting
from embeddedpulsar.topic.policies.topic_policy import TopicPolicy

OWNER: Final = "pulsar/system"
"""The namespace whose document has them."""
_PREFIX: Final = "dynamicConfiguration."

NAMES: Final = (
    "allowAutoSubscriptionCreation",
    "allowAutoTopicCreation",
    "allowAutoTopicCreationType",
    "defaultNumPartitions",
    "dispatchThrottlingRatePerSubscriptionInByte",
    "dispatchThrottlingRatePerSubscriptionInMsg",
    "dispatchThrottlingRatePerTopicInByte",
    "dispatchThrottlingRatePerTopicInMsg",
    "dispatchThrottlingRateRelativeToPublishRate",
    "maxPublishRatePerTopicInBytes",
    "maxPublishRatePerTopicInMessages",
    "subscribeRatePeriodPerConsumerInSecond",
    "subscribeThrottlingRatePerConsumer",
)
"""The settings that Pulsar lets change, as far as they are here."""


def _setting(name: str) -> TopicPolicy[str]:
    default = BrokerSettings._field_defaults[name]

    def pack(value: str) -> str:
        if not isinstance(value, str):
            raise InvalidConfiguration(f"{name}: the value is a str, as in broker.conf, not {value!r}")
        return write_setting(read_setting(f"update of {name}", name, value.strip(), default))

    return TopicPolicy(
        f"{_PREFIX}{name}", lambda settings, own: write_setting(getattr(settings, name)), pack, str
    )


SETTINGS: Final = {name: _setting(name) for name in NAMES}
"""Each of them as a policy of `OWNER`."""


def stored_in(policies: Mapping[str, Any]) -> dict[str, Any]:
    """Those that the policies of `OWNER` have, by their keys there."""
    return {key: value for key, value in policies.items() if key.startswith(_PREFIX)}


def applied_to(settings: BrokerSettings, stored: Mapping[str, Any]) -> BrokerSettings:
    """The settings with the stored ones in their places. Names of a later release are ignored.

    Raises:
        CorruptionError: a value is none.
    """
    values = {key.removeprefix(_PREFIX): value for key, value in stored.items()}
    try:
        found: dict[str, Any] = {
            name: read_setting("the store", name, str(value), BrokerSettings._field_defaults[name])
            for name, value in values.items()
            if name in SETTINGS
        }
    except InvalidConfiguration as e:
        raise CorruptionError(reason=f"a policy document with a setting that is none: {e}") from e
    return settings._replace(**found)
