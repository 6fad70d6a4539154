"""The methods of `Topics` and `Namespaces` for rates."""

from __future__ import annotations

from embeddedpulsar.admin.value_calls import value_calls
from embeddedpulsar.topic.policies import rate_policy


class RateCalls:
    """See `PolicyCalls`, which it is a part of, for levels and errors."""

    set_publish_rate, get_publish_rate, remove_publish_rate = value_calls(
        rate_policy.PUBLISH_RATE,
        "publish_rate",
        "how much the producers of a topic or partition may publish together. Further sends wait",
        "PublishRate(1000, 1 << 20)",
    )
    set_dispatch_rate, get_dispatch_rate, remove_dispatch_rate = value_calls(
        rate_policy.DISPATCH_RATE,
        "dispatch_rate",
        "how much the consumers and readers of a topic or partition receive together",
        "DispatchRate(1000)",
    )
    set_subscription_dispatch_rate, get_subscription_dispatch_rate, remove_subscription_dispatch_rate = (
        value_calls(
            rate_policy.SUBSCRIPTION_DISPATCH_RATE,
            "subscription_dispatch_rate",
            "how much the consumers of each subscription of a topic or partition receive together",
            "DispatchRate(-1, 1 << 20)",
        )
    )
    set_subscribe_rate, get_subscribe_rate, remove_subscribe_rate = value_calls(
        rate_policy.SUBSCRIBE_RATE,
        "subscribe_rate",
        "how often a consumer, known by its name, may subscribe to a topic or partition. Beyond that "
        "`NotAllowedError` is raised",
        "SubscribeRate(10, 60)",
    )
