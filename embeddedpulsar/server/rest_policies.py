"""A request to the REST interface, taken apart; and the requests for policies of topics and namespaces."""

from __future__ import annotations

import email
import email.message
import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.policies import BacklogQuota
from embeddedpulsar.policy_values import (
    AutoSubscriptionCreationOverride,
    AutoTopicCreationOverride,
    DelayedDeliveryPolicies,
    DispatchRate,
    InactiveTopicPolicies,
    OffloadPolicies,
    PublishRate,
    SubscribeRate,
    json_form,
)
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from embeddedpulsar.admin.admin import Admin

CLUSTER: Final = "standalone"
"""The name of the cluster that a store is."""
_LATEST: Final = (1 << 63) - 1
TOPIC: Final = "/{domain}/{tenant}/{namespace}/{topic}"
NAMESPACE: Final = "/namespaces/{tenant}/{namespace}"


class Refusal(Exception):
    """A request that cannot be answered.

    Args:
        status: of the answer.
        reason: its text.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Call:
    """A request, taken apart.

    Args:
        admin: of the store.
        path: the variables in its path, by name.
        query: those behind the question mark.
        content: its body.
    """

    def __init__(self, admin: Admin, path: dict[str, str], query: dict[str, str], content: bytes) -> None:
        self.admin, self.path, self.query, self._content = admin, path, query, content

    @property
    def namespace(self) -> str:
        """``tenant/namespace``."""
        return f"{self.path['tenant']}/{self.path['namespace']}"

    @property
    def topic(self) -> str:
        """The full name of the topic."""
        return f"{self.path.get('domain', 'persistent')}://{self.namespace}/{self.path['topic']}"

    def flag(self, name: str, default: bool = False) -> bool:
        """A variable of the query that is true or false."""
        return self.query[name].lower() == "true" if name in self.query else default

    def number(self, name: str) -> int:
        """A number in the path."""
        try:
            return int(self.path[name])
        except ValueError:
            raise Refusal(404, f"{name} is a number, not {self.path[name]!r}") from None

    def body(self, kind: type | tuple[type, ...] = object, default: Any = None) -> Any:
        """The body as JSON."""
        if not self._content.strip():
            value = default
        else:
            try:
                value = json.loads(self._content)
            except ValueError:
                raise Refusal(400, "the body of the request is no JSON") from None
        # A number is no boolean, and a boolean no number.
        if not isinstance(value, kind) or (isinstance(value, bool) and bool not in _kinds(kind)):
            names = " or ".join(each.__name__ for each in _kinds(kind))
            raise Refusal(400, f"the body of the request is {names}, not {value!r:.100}")
        return value

    def parts(self) -> dict[str, str]:
        """The body as a form of several parts, by their names; JSON alone is the part ``functionConfig``."""
        boundary, _, _ = self._content.partition(b"\r\n")
        if not boundary.startswith(b"--"):
            return {"functionConfig": self._content.decode("utf-8", "replace")}
        head = b'Content-Type: multipart/form-data; boundary="' + boundary[2:] + b'"\r\n\r\n'
        parts = email.message_from_bytes(head + self._content)
        if not parts.is_multipart():
            raise Refusal(400, "the body of the request is no form")
        named: dict[str, str] = {}
        for part in parts.get_payload():
            assert isinstance(part, email.message.Message)
            name = part.get_param("name", header="content-disposition")
            content = part.get_payload(decode=True)
            named[str(name)] = content.decode("utf-8", "replace") if isinstance(content, bytes) else ""
        return named

    def record(self, kind: Any, names: Mapping[str, str] | None = None) -> Any:
        """The body as a policy: an object with the fields of a named tuple, in camel case."""
        value, fields = self.body(dict), {}
        for field in kind._fields:
            head, *rest = field.split("_")
            name = (names or {}).get(field, head + "".join(word.capitalize() for word in rest))
            if value.get(name) is not None:
                fields[field] = value[name]
        try:
            return kind(**fields)
        except TypeError as e:
            raise Refusal(400, f"the body of the request: {e}") from None

    def position(self, default: MessageId = MessageId.latest) -> MessageId:
        """The body as the id of a message."""
        value = self.body((dict, str, type(None)))
        if value is None:
            return default
        if isinstance(value, str):
            if value not in ("earliest", "latest"):
                raise Refusal(400, f"a position is an id, earliest or latest, not {value!r}")
            return MessageId.earliest if value == "earliest" else MessageId.latest
        try:
            ledger, entry = int(value["ledgerId"]), int(value["entryId"])
            partition, index = int(value.get("partitionIndex", -1)), int(value.get("batchIndex", -1))
        except (KeyError, TypeError, ValueError):
            raise Refusal(400, "the id of a message has ledgerId and entryId") from None
        if ledger < 0:
            return MessageId.earliest
        if ledger >= _LATEST:
            return MessageId.latest
        return MessageId(partition, ledger, entry + bool(value.get("isExcluded")), index)


def _kinds(kind: type | tuple[type, ...]) -> tuple[type, ...]:
    return kind if isinstance(kind, tuple) else (kind,) if kind is not object else (object, bool)


class Row(NamedTuple):
    """A kind of request.

    Attributes:
        method, path: of it, with variables in braces.
        answer: makes the content of the answer: None for none, a response of Starlette, or what JSON can say.
        status: of an answer without content: 200 or 204.
        refused: the status where a method says `NotAllowedError`; likewise ``invalid``, of
            `InvalidConfiguration`.
        looks_only: whether it changes nothing, whatever its method.
    """

    method: str
    path: str
    answer: Callable[[Call], Any]
    status: int = 204
    refused: int = 409
    invalid: int = 412
    looks_only: bool = False


class Policy(NamedTuple):
    """A policy that topics and namespaces have under similar names.

    Attributes:
        topic, namespace: the last part of the path; empty where there is none.
        name: behind ``set_``, ``get_`` and ``remove_`` in the methods of `Topics` and `Namespaces`.
        namespace_name: if it has another one there.
        value: reads the body.
        setting: the HTTP method that sets the policy of a namespace.
        unset: what a namespace answers without the policy.
        empty: the status of a topic without it.
        field: its name in the policies of a namespace.
        show: makes the content of what is set.
    """

    topic: str
    namespace: str
    name: str
    value: Callable[[Call], Any]
    namespace_name: str = ""
    setting: str = "POST"
    unset: Any = None
    empty: int = 200
    field: str = ""
    show: Callable[[Any], Any] = json_form


def _number(call: Call) -> Any:
    return call.body(int)


def _boolean(call: Call) -> Any:
    return call.body(bool)


def _text(call: Call) -> Any:
    return call.body(str)


def _of(kind: Any, names: Mapping[str, str] | None = None) -> Callable[[Call], Any]:
    return lambda call: call.record(kind, names)


_OFFLOAD_NAMES: Final = {
    "offload_threshold_in_bytes": "managedLedgerOffloadThresholdInBytes",
    "offload_threshold_in_seconds": "managedLedgerOffloadThresholdInSeconds",
    "offload_deletion_lag_in_millis": "managedLedgerOffloadDeletionLagInMillis",
    "offload_location": "offloadLocation",
}


def _types(call: Call) -> set[Any]:
    kinds = {"Exclusive": ConsumerType.Exclusive, "Shared": ConsumerType.Shared}
    kinds |= {"Failover": ConsumerType.Failover, "Key_Shared": ConsumerType.KeyShared}
    names = call.body(list)
    if not set(names) <= kinds.keys():
        raise Refusal(400, f"the types of subscriptions are {', '.join(kinds)}")
    return {kinds[name] for name in names}


def _type_names(types: Any) -> list[str]:
    return sorted("Key_Shared" if kind.name == "KeyShared" else kind.name for kind in types or ())


def _offload(policies: Any) -> dict[str, Any]:
    return {
        name: getattr(policies, field)
        for field, name in _OFFLOAD_NAMES.items()
        if getattr(policies, field) is not None
    }


def _ttl(call: Call) -> int:
    text = call.query.get("messageTTL")
    try:
        seconds = int(text) if text is not None else call.body(int)
    except ValueError:
        raise Refusal(400, f"messageTTL is a number of seconds, not {text!r}") from None
    if seconds < 0:
        raise Refusal(412, "Invalid value for message TTL, message TTL must >= 0")
    return int(seconds)


def _limit(call: Call) -> int:
    limit = int(call.body(int))
    if limit < 0:
        raise Refusal(412, f"{call.path['policy']} must be 0 or more")
    return limit


def _strategy(value: Any) -> Any:
    return getattr(value, "name", value)


POLICIES: Final = (
    Policy("messageTTL", "messageTTL", "message_ttl", _ttl, field="message_ttl_in_seconds"),
    Policy("deduplicationEnabled", "deduplication", "deduplication_status", _boolean,
           field="deduplicationEnabled"),
    Policy("", "subscriptionExpirationTime", "subscription_expiration_time", _number,
           field="subscription_expiration_time_minutes"),
    Policy("", "autoTopicCreation", "auto_topic_creation", _of(AutoTopicCreationOverride),
           field="autoTopicCreationOverride"),
    Policy("autoSubscriptionCreation", "autoSubscriptionCreation", "auto_subscription_creation",
           _of(AutoSubscriptionCreationOverride), field="autoSubscriptionCreationOverride"),
    Policy("publishRate", "publishRate", "publish_rate", _of(PublishRate), empty=204),
    Policy("dispatchRate", "dispatchRate", "dispatch_rate", _of(DispatchRate)),
    Policy("subscriptionDispatchRate", "subscriptionDispatchRate", "subscription_dispatch_rate",
           _of(DispatchRate)),
    Policy("subscribeRate", "subscribeRate", "subscribe_rate", _of(SubscribeRate)),
    Policy("delayedDelivery", "delayedDelivery", "delayed_delivery_policy", _of(DelayedDeliveryPolicies),
           "delayed_delivery_messages", field="delayed_delivery_policies"),
    Policy("inactiveTopicPolicies", "inactiveTopicPolicies", "inactive_topic_policies",
           _of(InactiveTopicPolicies), field="inactive_topic_policies"),
    Policy("maxProducers", "maxProducersPerTopic", "max_producers", _limit, "max_producers_per_topic",
           field="max_producers_per_topic"),
    Policy("maxConsumers", "maxConsumersPerTopic", "max_consumers", _limit, "max_consumers_per_topic",
           field="max_consumers_per_topic"),
    Policy("maxConsumersPerSubscription", "maxConsumersPerSubscription", "max_consumers_per_subscription",
           _limit, empty=204, field="max_consumers_per_subscription"),
    Policy("maxSubscriptionsPerTopic", "maxSubscriptionsPerTopic", "max_subscriptions_per_topic", _limit,
           empty=204, field="max_subscriptions_per_topic"),
    Policy("", "maxTopicsPerNamespace", "max_topics_per_namespace", _limit, unset=0,
           field="max_topics_per_namespace"),
    Policy("maxUnackedMessagesOnConsumer", "maxUnackedMessagesPerConsumer",
           "max_unacked_messages_on_consumer", _limit,
           "max_unacked_messages_per_consumer", field="max_unacked_messages_per_consumer"),
    Policy("maxUnackedMessagesOnSubscription", "maxUnackedMessagesPerSubscription",
           "max_unacked_messages_on_subscription", _limit, "max_unacked_messages_per_subscription",
           field="max_unacked_messages_per_subscription"),
    Policy("maxMessageSize", "", "max_message_size", _limit, empty=204),
    Policy("compactionThreshold", "compactionThreshold", "compaction_threshold", _number, setting="PUT",
           field="compaction_threshold"),
    Policy("", "encryptionRequired", "encryption_required_status", _boolean, unset=False,
           field="encryption_required"),
    Policy("", "isAllowAutoUpdateSchema", "is_allow_auto_update_schema", _boolean, unset=True,
           field="is_allow_auto_update_schema"),
    Policy("schemaValidationEnforced", "schemaValidationEnforced", "schema_validation_enforced", _boolean,
           unset=False, field="schema_validation_enforced"),
    Policy("subscriptionTypesEnabled", "subscriptionTypesEnabled", "subscription_types_enabled", _types,
           unset=(), field="subscription_types_enabled", show=_type_names),
    Policy("", "offloadThreshold", "offload_threshold", _number, setting="PUT", unset=-1),
    Policy("", "offloadThresholdInSeconds", "offload_threshold_in_seconds", _number, setting="PUT", unset=-1),
    Policy("", "offloadDeletionLagMs", "offload_deletion_lag", _number, setting="PUT"),
    Policy("offloadPolicies", "offloadPolicies", "offload_policies", _of(OffloadPolicies, _OFFLOAD_NAMES),
           field="offload_policies", show=_offload),
)  # fmt: skip


def _policy_rows(policy: Policy) -> Iterator[Row]:
    if policy.topic:
        yield from _rows_of_policy(policy, f"{TOPIC}/{policy.topic}", is_namespace=False)
    if policy.namespace:
        yield from _rows_of_policy(policy, f"{NAMESPACE}/{policy.namespace}", is_namespace=True)


def _rows_of_policy(policy: Policy, path: str, *, is_namespace: bool) -> Iterator[Row]:
    name = policy.namespace_name or policy.name if is_namespace else policy.name
    # The only topic policies that answer without one as a namespace does.
    unset = policy.unset if is_namespace or policy.unset in (False, ()) else None

    def methods(call: Call) -> tuple[Any, str]:
        call.path["policy"] = path.rpartition("/")[2]
        return (
            (call.admin.namespaces(), call.namespace) if is_namespace else (call.admin.topics(), call.topic)
        )

    def get(call: Call) -> Any:
        owner, of = methods(call)
        get_policy = getattr(owner, f"get_{name}")
        # Those without another level to look at have no such parameter.
        if call.flag("applied") and "applied" in get_policy.__code__.co_varnames:
            value = get_policy(of, applied=True)
        else:
            value = get_policy(of)
        return policy.show(unset if value is None else value) if (value, unset) != (None, None) else None

    def set_(call: Call) -> None:
        owner, of = methods(call)
        getattr(owner, f"set_{name}")(of, policy.value(call))

    def remove(call: Call) -> None:
        owner, of = methods(call)
        getattr(owner, f"remove_{name}")(of)

    yield Row("GET", path, get, policy.empty if not is_namespace else 200)
    yield Row(policy.setting if is_namespace else "POST", path, set_)
    yield Row("DELETE", path, remove)


# -- policies that are not a single value -------------------------------------------------------------------


def _both(call: Call) -> tuple[Any, str]:
    return (
        (call.admin.topics(), call.topic)
        if "topic" in call.path
        else (call.admin.namespaces(), call.namespace)
    )


def _get_retention(call: Call) -> Any:
    owner, name = _both(call)
    return _retention_form(owner.get_retention(name))


def _retention_form(retention: Any) -> dict[str, int] | None:
    if retention is None:
        return None
    return {"retentionTimeInMinutes": retention.time_minutes, "retentionSizeInMB": retention.size_mb}


def _set_retention(call: Call) -> None:
    owner, name = _both(call)
    value = call.body(dict)
    minutes, size = value.get("retentionTimeInMinutes", 0), value.get("retentionSizeInMB", 0)
    owner.set_retention(name, minutes, size)


def _remove_retention(call: Call) -> None:
    owner, name = _both(call)
    owner.remove_retention(name)


def _quota_form(quota: BacklogQuota) -> dict[str, Any]:
    return {"limit": quota.limit_size, **json_form(quota)}


def _get_quotas(call: Call) -> Any:
    owner, name = _both(call)
    quotas = owner.get_backlog_quota_map(name, call.flag("applied"))
    return {kind: _quota_form(quota) for kind, quota in quotas.items()}


def _set_quota(call: Call) -> None:
    owner, name = _both(call)
    value = call.body(dict)
    size = value.get("limitSize", value.get("limit", -1))
    quota = BacklogQuota(size, value.get("limitTime", -1), value.get("policy", "producer_request_hold"))
    owner.set_backlog_quota(name, quota, call.query.get("backlogQuotaType", "destination_storage"))


def _remove_quota(call: Call) -> None:
    owner, name = _both(call)
    owner.remove_backlog_quota(name, call.query.get("backlogQuotaType", "destination_storage"))


def _both_rows(topic: str, method: str, answer: Callable[[Call], Any], invalid: int = 412) -> Iterator[Row]:
    status = 200 if method == "GET" else 204
    for base in (TOPIC, NAMESPACE):
        yield Row(method, f"{base}/{topic}", answer, status, invalid=invalid)


def _get_strategy(call: Call) -> Any:
    owner, name = _both(call)
    value = owner.get_schema_compatibility_strategy(name, call.flag("applied"))
    if value is None:
        return None if "topic" in call.path else "UNDEFINED"
    return _strategy(value)


def _set_strategy(call: Call) -> None:
    owner, name = _both(call)
    owner.set_schema_compatibility_strategy(name, _text(call))


def _remove_strategy(call: Call) -> None:
    owner, name = _both(call)
    owner.remove_schema_compatibility_strategy(name)


def namespace_policies(call: Call) -> dict[str, Any]:
    """All policies that are set for a namespace, under their names in Pulsar."""
    namespaces, name = call.admin.namespaces(), call.namespace
    shown: dict[str, Any] = {
        "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
        "replication_clusters": [CLUSTER],
        "bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1},
        "backlog_quota_map": _get_quotas(call),
        "deleted": False,
    }
    retention = _retention_form(namespaces.get_retention(name))
    if retention is not None:
        shown["retention_policies"] = retention
    for policy in POLICIES:
        value = None
        if policy.field:
            value = getattr(namespaces, f"get_{policy.namespace_name or policy.name}")(name)
        if value is not None:
            shown[policy.field] = policy.show(value)
    for field, method in (
        ("publishMaxMessageRate", namespaces.get_publish_rate),
        ("topicDispatchRate", namespaces.get_dispatch_rate),
        ("subscriptionDispatchRate", namespaces.get_subscription_dispatch_rate),
        ("clusterSubscribeRate", namespaces.get_subscribe_rate),
    ):
        rate = method(name)
        shown[field] = {} if rate is None else {CLUSTER: json_form(rate)}
    return shown


POLICY_ROWS: Final = (
    *(row for policy in POLICIES for row in _policy_rows(policy)),
    *_both_rows("retention", "GET", _get_retention),
    *_both_rows("retention", "POST", _set_retention, invalid=400),
    *_both_rows("retention", "DELETE", _remove_retention),
    *_both_rows("backlogQuotaMap", "GET", _get_quotas),
    *_both_rows("backlogQuota", "POST", _set_quota),
    *_both_rows("backlogQuota", "DELETE", _remove_quota),
    *_both_rows("schemaCompatibilityStrategy", "GET", _get_strategy),
    *_both_rows("schemaCompatibilityStrategy", "PUT", _set_strategy),
    *_both_rows("schemaCompatibilityStrategy", "DELETE", _remove_strategy),
)
"""The requests for policies."""


# -- the policies of a topic for programs that have no request -----------------------------------------------

COPIED: Final = (
    "retention",
    *(policy.topic for policy in POLICIES if policy.topic not in ("", "offloadPolicies")),
    "backlogQuota",
    "schemaCompatibilityStrategy",
)
"""The last parts of the paths of policies that another topic may have as well. Where ledgers are offloaded to
concerns one store alone: two would write to the same place."""


def shown(name: str) -> str:
    """The last part of the path that says what is set."""
    return "backlogQuotaMap" if name == "backlogQuota" else name


def topic_policy(admin: Admin, topic: str, path: str, method: str = "GET", body: Any = None) -> Any:
    """What the interface answers for a policy of a topic.

    Raises:
        InvalidConfiguration: it is refused.
        PulsarException: as the method of `Topics`.

    Example:
        >>> from embeddedpulsar import Admin
        >>> with Admin("./data") as admin:
        ...     admin.topics().create_non_partitioned_topic("maps")
        ...     for method, path, body in requests_of("messageTTL", 60):
        ...         topic_policy(admin, "maps", path, method, body)
        ...     topic_policy(admin, "maps", "messageTTL"), topic_policy(admin, "maps", "maxProducers")
        (60, None)
    """
    name = TopicName.parse(topic)
    tenant, _, namespace = name.namespace_name.partition("/")
    local = name.full.removeprefix(f"persistent://{name.namespace_name}/")
    parts = {"domain": "persistent", "tenant": tenant, "namespace": namespace, "topic": local}
    path, _, query = (shown(path) if method == "GET" else path).partition("?")
    (answer,) = [row.answer for row in POLICY_ROWS if (row.method, row.path) == (method, f"{TOPIC}/{path}")]
    content = b"" if body is None else json.dumps(body).encode()
    try:
        return answer(Call(admin, parts, dict(parse_qsl(query)), content))
    except Refusal as e:
        raise InvalidConfiguration(str(e)) from e


def requests_of(name: str, value: Any) -> Iterator[tuple[str, str, Any]]:
    """The method, the last part of the path and the body of the requests that set a policy of a topic.

    Example:
        >>> list(requests_of("messageTTL", 60)), list(requests_of("maxProducers", 3))
        ([('POST', 'messageTTL?messageTTL=60', None)], [('POST', 'maxProducers', 3)])
    """
    if name == "backlogQuota":
        for kind, quota in value.items():
            yield "POST", f"{name}?backlogQuotaType={kind}", quota
    elif name == "messageTTL":
        yield "POST", f"{name}?messageTTL={value}", None
    else:
        yield "PUT" if name == "schemaCompatibilityStrategy" else "POST", name, value


def set_among(answers: dict[str, Any]) -> dict[str, Any]:
    """The policies that are set, of the answers for all of them: those of no policy are empty."""
    return {
        name: value
        for name, value in answers.items()
        if value not in (None, [], {}, "") and (name, value) != ("schemaValidationEnforced", False)
    }
