"""Unit tests of embeddedpulsar.policies, beside pulsar-client."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest

import embeddedpulsar
from embeddedpulsar import KeySharedMode
from embeddedpulsar.policies import DeadLetterPolicyBuilder


def outcome(package: Any, name: str, *arguments: Any, **keywords: Any) -> Any:
    """What making a policy gives: its attributes, or the error's class and text."""
    try:
        policy = getattr(package, name)(*arguments, **keywords)
    except (ValueError, TypeError) as error:
        return type(error), str(error) if isinstance(error, ValueError) else ""
    if name == "ConsumerBatchReceivePolicy":
        raw = policy.policy()
        return raw.getMaxNumMessages(), raw.getMaxNumBytes(), raw.getTimeoutMs()
    names = [one for one in vars(type(policy)) if not one.startswith("_") and one != "policy"]
    values = {one: getattr(policy, one) for one in names}
    return {one: int(value) if one == "key_shared_mode" else value for one, value in values.items()}


@pytest.mark.parametrize(
    "arguments",
    [(0, 0, 0), (-1, -1, -1), (0, 0, 10), (5, -3, 10), (5, 0, 0), (0, 7, 0), (True, 0, 10), ("a", 0, 1)],
)
def test_batch_receive_policy(arguments: tuple):
    """Limits, their defaults and their errors are those of pulsar-client."""
    name = "ConsumerBatchReceivePolicy"
    assert outcome(embeddedpulsar, name, *arguments) == outcome(pulsar, name, *arguments)


@pytest.mark.parametrize(
    "ranges",
    [
        *(None, [], [(0, 65535)], [(0, 65536)], [(-1, 5)], [(0, 100), (50, 150)], [(0, 10), (10, 20)]),
        *([(0, 10), (11, 20)], [(0, 10), (0, 10)], [(10, 0), (3, 4)], [(0, 10), (0, 5)], ((1, 2),)),
        *([(20, 30), (0, 25)], [(0, 100), (5, 6), (20, 30)], [(1,)], [(1, 2, 3)], [("a", "b")]),
    ],
)
@pytest.mark.parametrize("mode", ["AutoSplit", "Sticky"])
def test_sticky_ranges(mode: str, ranges: Any):
    """Every list of ranges is taken or refused with pulsar-client's text, quirks included."""
    ours = outcome(
        embeddedpulsar, "ConsumerKeySharedPolicy", embeddedpulsar.KeySharedMode[mode], False, ranges
    )
    theirs = outcome(pulsar, "ConsumerKeySharedPolicy", getattr(pulsar.KeySharedMode, mode), False, ranges)
    assert ours == theirs


def test_key_shared_mode_must_be_one():
    """A number is no mode."""
    with pytest.raises(TypeError, match="KeySharedMode"):
        embeddedpulsar.ConsumerKeySharedPolicy(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments",
    [(0,), (None,), (-1,), (3,), (1, "dead"), (2, "dead", "sub"), (2.5,), ("a",), (1, 5), (1, "d", 5)],
)
def test_dead_letter_policy(arguments: tuple):
    """Counts, names and errors are those of pulsar-client."""
    name = "ConsumerDeadLetterPolicy"
    assert outcome(embeddedpulsar, name, *arguments) == outcome(pulsar, name, *arguments)


def test_policies_say_what_they_are():
    """One-line reprs that can be read in a log."""
    key_shared = embeddedpulsar.ConsumerKeySharedPolicy(KeySharedMode.Sticky, sticky_ranges=[(0, 9)])
    assert repr(key_shared) == (
        "ConsumerKeySharedPolicy(KeySharedMode.Sticky, "
        "allow_out_of_order_delivery=False, sticky_ranges=[(0, 9)])"
    )
    assert repr(embeddedpulsar.ConsumerBatchReceivePolicy(1, 2, 3).policy()) == (
        "<BatchReceivePolicy 1 messages, 2 bytes, 3 ms>"
    )


def test_builder():
    """The builder makes the same policy as the constructor, and checks the same."""
    policy = DeadLetterPolicyBuilder().maxRedeliverCount(2).initialSubscriptionName("s").build().policy()
    assert (policy.max_redeliver_count, policy.initial_subscription_name) == (2, "s")
    with pytest.raises(ValueError, match="greater than 0"):
        DeadLetterPolicyBuilder().build()
