"""embeddedpulsar: a store in a directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import embeddedpulsar
from embeddedpulsar import Admin, Client, ConsumerType, MessageId
from embeddedpulsar.policies import BacklogQuota, Retention
from embeddedpulsar.policy_values import (
    AutoSubscriptionCreationOverride,
    AutoTopicCreationOverride,
    DelayedDeliveryPolicies,
    DispatchRate,
    PublishRate,
    from_fields,
)
from tests.beside_pulsar.side import Refused, Side, wait_for

SETTINGS = "backlogQuotaCheckIntervalInSeconds=1\n"
VALUES: dict[str, type[Any]] = {
    "autoSubscriptionCreation": AutoSubscriptionCreationOverride,
    "autoTopicCreation": AutoTopicCreationOverride,
    "delayedDelivery": DelayedDeliveryPolicies,
    "dispatchRate": DispatchRate,
    "publishRate": PublishRate,
    "subscriptionDispatchRate": DispatchRate,
}
METHODS = {  # those that are not the name of the path in snake case
    "messageTTL": "message_ttl",
    "deduplication": "deduplication_status",
    "deduplicationEnabled": "deduplication_status",
    "maxUnackedMessagesOnConsumer": "max_unacked_messages_on_consumer",
}
OF_TOPICS = {"delayedDelivery": "delayed_delivery_policy"}
OF_NAMESPACES = {"delayedDelivery": "delayed_delivery_messages"}


class StoreAdministration:
    """The `Admin` of a store, with the values of Pulsar's JSON.

    Args:
        admin: the Admin.
    """

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._topics = admin.topics()

    def create_namespace(self, namespace: str) -> None:
        _do(self._admin.namespaces().create_namespace, namespace)

    def topics(self, namespace: str) -> list[str]:
        return list(_do(self._admin.namespaces().get_topics, namespace))

    def create_topic(self, topic: str, partitions: int = 0) -> None:
        if partitions:
            _do(self._topics.create_partitioned_topic, topic, partitions)
        else:
            _do(self._topics.create_non_partitioned_topic, topic)

    def delete_topic(self, topic: str, force: bool = False) -> None:
        _do(self._topics.delete, topic, force)

    def terminate(self, topic: str) -> None:
        _do(self._topics.terminate_topic, topic)

    def stats(self, topic: str) -> dict[str, Any]:
        return dict(_do(self._topics.get_stats, topic).json())

    def partitioned_stats(self, topic: str) -> dict[str, Any]:
        return dict(_do(self._topics.get_partitioned_stats, topic).json())

    def internal_stats(self, topic: str) -> dict[str, Any]:
        return dict(_do(self._topics.get_internal_stats, topic).json())

    def create_subscription(self, topic: str, name: str) -> None:
        _do(self._topics.create_subscription, topic, name, MessageId.earliest)

    def delete_subscription(self, topic: str, name: str, force: bool = False) -> None:
        _do(self._topics.delete_subscription, topic, name, force)

    def skip(self, topic: str, name: str, count: int) -> None:
        _do(self._topics.skip_messages, topic, name, count)

    def skip_all(self, topic: str, name: str) -> None:
        _do(self._topics.skip_all_messages, topic, name)

    def expire(self, topic: str, name: str, seconds: int) -> None:
        _do(self._topics.expire_messages, topic, name, seconds)

    def reset_to_time(self, topic: str, name: str, timestamp: int) -> None:
        _do(self._topics.reset_cursor, topic, name, timestamp)

    def peek(self, topic: str, name: str, number: int) -> bytes:
        found = _do(self._topics.peek_messages, topic, name, number)
        if len(found) < number:
            raise Refused("missing")
        return bytes(found[number - 1].data())

    def examine(self, topic: str, end: str, number: int) -> bytes:
        return bytes(_do(self._topics.examine_message, topic, end, number).data())

    def id_by_time(self, topic: str, timestamp: int) -> tuple[int, int]:
        found = _do(self._topics.get_message_id_by_timestamp, topic, timestamp)
        return found.ledger_id(), found.entry_id()

    def compact(self, topic: str) -> None:
        _do(self._topics.compact, topic)
        assert wait_for(lambda: self._topics.compaction_status(topic).status == "SUCCESS")

    def set_policy(self, owner: str, name: str, value: Any) -> None:
        kind = VALUES.get(name)
        if name == "retention":
            _do(self._of("set", owner, name), owner, *value.values())
        elif name == "backlogQuota":
            quota = BacklogQuota(value.get("limitSize", -1), value.get("limitTime", -1), value["policy"])
            _do(self._of("set", owner, name), owner, quota)
        elif name == "subscriptionTypesEnabled":
            _do(self._of("set", owner, name), owner, {ConsumerType[one] for one in value})
        else:
            _do(self._of("set", owner, name), owner, value if kind is None else from_fields(kind, value))

    def get_policy(self, owner: str, name: str) -> Any:
        if name == "backlogQuota":
            quotas = _do(self._of("get", owner, "backlogQuotaMap"), owner)
            return {kind: quota.json() for kind, quota in quotas.items()}
        found = _do(self._of("get", owner, name), owner)
        return _as_json(found)

    def remove_policy(self, owner: str, name: str) -> None:
        _do(self._of("remove", owner, name), owner)

    def close(self) -> None:
        """Close the Admin."""
        self._admin.close()

    def _of(self, verb: str, owner: str, name: str) -> Callable[..., Any]:
        of_topic = "://" in owner
        methods = METHODS | (OF_TOPICS if of_topic else OF_NAMESPACES)
        snake = "".join("_" + letter.lower() if letter.isupper() else letter for letter in name)
        place = self._topics if of_topic else self._admin.namespaces()
        call: Callable[..., Any] = getattr(place, f"{verb}_{methods.get(name, snake)}")
        return call


def store_side(directory: Path, namespace: str) -> Side:
    """A client of a new store, and a namespace there."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "broker.conf").write_text(SETTINGS)
    client = Client(str(directory), operation_timeout_seconds=10)
    admin = StoreAdministration(Admin(str(directory)))
    admin.create_namespace(namespace)
    return Side(embeddedpulsar, client, admin, namespace)


def _as_json(value: Any) -> Any:
    if isinstance(value, Retention):
        return {"retentionTimeInMinutes": value.time_minutes, "retentionSizeInMB": value.size_mb}
    if isinstance(value, set | frozenset):
        return sorted(getattr(one, "name", str(one)) for one in value)
    if hasattr(value, "_fields"):
        from embeddedpulsar.policy_values import to_fields

        return to_fields(value)
    return value


def _do(call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args)
    except LookupError as error:
        raise Refused("missing") from error
    except (embeddedpulsar.PulsarException, ValueError) as error:
        raise Refused("refused") from error
