"""Arguments that a call does not have: the error names the nearest one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import embeddedpulsar as pulsar
from embeddedpulsar import arrow, policies, policy_values
from embeddedpulsar.error_text import naming_arguments
from embeddedpulsar.functions import FunctionConfig, WindowConfig
from embeddedpulsar.policies import BacklogQuota

CALLS: list[tuple[Callable[..., Any], str]] = [
    (pulsar.Admin, "on_damage"),
    (policies.BatchReceivePolicy, "timeout_ms"),
    (policies.ConsumerBatchReceivePolicy, "timeout_ms"),
    (policies.ConsumerKeySharedPolicy, "key_shared_mode"),
    (policies.ConsumerDeadLetterPolicy, "dead_letter_topic"),
    (policies.Retention, "time_minutes"),
    (pulsar.MultiplierRedeliveryBackoff, "max_delay_ms"),
    (BacklogQuota, "limit_size"),
    (policy_values.PublishRate, "publish_throttling_rate_in_msg"),
    (policy_values.DispatchRate, "rate_period_in_second"),
    (policy_values.SubscribeRate, "rate_period_in_second"),
    (policy_values.ResourceGroup, "publish_rate_in_msgs"),
    (policy_values.InactiveTopicPolicies, "delete_while_inactive"),
    (policy_values.OffloadPolicies, "offload_location"),
    (FunctionConfig, "receiver_queue_size"),
    (WindowConfig, "window_length_count"),
    (arrow.read_topic, "decode"),
    (arrow.scan_topic, "decode"),
    (arrow.dataset, "decode"),
]


@pytest.mark.parametrize(("call", "name"), CALLS)
def test_the_nearest_argument_is_named(call: Callable[..., Any], name: str):
    """For an argument with a letter too many, whether it is a method or a class."""
    assert name in inspect.signature(call).parameters, inspect.signature(call)
    with pytest.raises(
        TypeError, match=rf"got an unexpected keyword argument '{name}x'; did you mean '{name}'\?$"
    ):
        call(**{f"{name}x": 1})


def test_calls_of_an_admin():
    """All of its methods, of topics and namespaces too."""
    with pulsar.Admin("memory://wrong-arguments") as admin:
        with pytest.raises(TypeError, match="did you mean 'retention_time_in_minutes'"):
            admin.topics().set_retention("t", retention_time_minutes=3)
        with pytest.raises(TypeError, match=r"'polices'; there are namespace$"):
            admin.namespaces().create_namespace("public/x", polices=3)


def test_a_file_of_a_function():
    """The fields of ``--function-config-file``."""
    with pytest.raises(pulsar.InvalidConfiguration, match=r"subNam is unknown here; did you mean subName\?$"):
        FunctionConfig.from_json({"className": "a.B", "subNam": "x"})
    with pytest.raises(pulsar.InvalidConfiguration, match="xyz is unknown here; there are className"):
        FunctionConfig.from_json({"className": "a.B", "xyz": True})


@naming_arguments
def outer(*, names: list[str]) -> None:
    """Calls another function with a wrong argument."""
    inner(name=names)  # type: ignore[call-arg]


def inner(*, names: list[str]) -> None:
    """Has an argument with the same name."""


def test_an_error_of_another_call_is_left_alone():
    """What the application's own function or ours calls wrongly is no argument of this call."""
    with pytest.raises(TypeError, match=r"inner\(\) got an unexpected keyword argument 'name'(\.|$)"):
        outer(names=[])
    with pytest.raises(TypeError, match=r"missing 1 required keyword-only argument: 'names'$"):
        outer()  # type: ignore[call-arg]
