"""Pulsar's REST interface for administrators, over the methods of `Admin`: one table of requests."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote

from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from embeddedpulsar import __version__, exceptions
from embeddedpulsar.functions.function_config import FunctionConfig
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.policy_values import ResourceGroup, json_form
from embeddedpulsar.server.rest_policies import (
    CLUSTER,
    NAMESPACE,
    POLICIES,
    POLICY_ROWS,
    TOPIC,
    Call,
    Refusal,
    Row,
    namespace_policies,
)

if TYPE_CHECKING:
    from starlette.requests import Request

    from embeddedpulsar.message import Message
    from embeddedpulsar.server.served import Served

_MOST_BODY: Final = 1 << 20


# -- tenants and namespaces ---------------------------------------------------------------------------------


def _check_tenant(call: Call, *, is_there: bool) -> str:
    tenant = call.path["tenant"]
    if (tenant in call.admin.tenants().get_tenants()) is not is_there:
        raise Refusal(404 if is_there else 409, f"Tenant {'does not' if is_there else 'already'} exist")
    return tenant


def _check_info(call: Call) -> None:
    """Refuse what a tenant of a store cannot have."""
    info = call.body((dict, type(None))) or {}
    if any(info.get("adminRoles") or ()):  # pulsarctl sends an empty text for none
        raise Refusal(412, "a store has no roles: who may write to its directory may do everything")
    if set(info.get("allowedClusters") or [CLUSTER]) != {CLUSTER}:
        raise Refusal(412, f"Clusters do not exist: there is {CLUSTER} alone")


def _get_tenant(call: Call) -> Any:
    _check_tenant(call, is_there=True)
    return {"adminRoles": [], "allowedClusters": [CLUSTER]}


def _put_tenant(call: Call) -> None:
    _check_info(call)
    call.admin.tenants().create_tenant(_check_tenant(call, is_there=False))


def _post_tenant(call: Call) -> None:
    _check_tenant(call, is_there=True)
    _check_info(call)


def _delete_tenant(call: Call) -> None:
    call.admin.tenants().delete_tenant(_check_tenant(call, is_there=True), call.flag("force"))


_CARRIED: Final = {policy.field for policy in POLICIES if policy.field} - {"is_allow_auto_update_schema"} | {
    *("backlog_quota_map", "retention_policies", "publishMaxMessageRate", "topicDispatchRate"),
    *("subscriptionDispatchRate", "clusterSubscribeRate"),
}
_UNSET: Final[tuple[Any, ...]] = (None, 0, -1, "", [], {})


def _put_namespace(call: Call) -> None:
    _check_tenant(call, is_there=True)
    given = call.body((dict, type(None))) or {}
    # Clients send all policies of a namespace, most of them unset: what is set would be lost here. What a
    # store has nothing of, such as the bundles that divide topics among brokers, has no effect.
    lost = [name for name in sorted(_CARRIED & given.keys()) if given[name] not in _UNSET]
    lost += [name for name, roles in (given.get("auth_policies") or {}).items() if roles]
    if set(given.get("replication_clusters") or [CLUSTER]) != {CLUSTER}:
        lost.append("replication_clusters")
    if lost:
        raise Refusal(412, f"{', '.join(lost)}: set policies by requests of their own")
    call.admin.namespaces().create_namespace(call.namespace)


def _namespaces_of(call: Call) -> list[str]:
    return call.admin.namespaces().get_namespaces(_check_tenant(call, is_there=True))


def _topics_of(call: Call) -> list[str]:
    return call.admin.namespaces().get_topics(call.namespace, call.query.get("mode", "PERSISTENT"))


def _list(call: Call) -> list[str]:
    topics = call.admin.topics().get_list(
        call.namespace, include_system_topic=call.flag("includeSystemTopic")
    )
    return [topic for topic in topics if topic.startswith(f"{call.path['domain']}://")]


def _partitioned_list(call: Call) -> list[str]:
    topics = call.admin.topics().get_partitioned_topic_list(call.namespace)
    return [topic for topic in topics if topic.startswith(f"{call.path['domain']}://")]


_CONTAINERS: Final = (
    Row("GET", "/clusters", lambda call: [CLUSTER]),
    Row("GET", "/tenants", lambda call: call.admin.tenants().get_tenants()),
    Row("GET", "/tenants/{tenant}", _get_tenant),
    Row("PUT", "/tenants/{tenant}", _put_tenant),
    Row("POST", "/tenants/{tenant}", _post_tenant),
    Row("DELETE", "/tenants/{tenant}", _delete_tenant),
    Row("GET", "/namespaces/{tenant}", _namespaces_of),
    Row("GET", NAMESPACE, namespace_policies),
    Row("PUT", NAMESPACE, _put_namespace),
    Row("DELETE", NAMESPACE,
        lambda call: call.admin.namespaces().delete_namespace(call.namespace, call.flag("force"))),
    Row("GET", f"{NAMESPACE}/topics", _topics_of),
    Row("GET", f"{NAMESPACE}/permissions", lambda call: {}),
    Row("GET", f"{NAMESPACE}/replication", lambda call: [CLUSTER]),
    Row("GET", f"{NAMESPACE}/resourcegroup",
        lambda call: call.admin.namespaces().get_namespace_resource_group(call.namespace), 200),
    Row("POST", f"{NAMESPACE}/resourcegroup/{{group}}",
        lambda call: call.admin.namespaces().set_namespace_resource_group(
            call.namespace, call.path["group"])),
    Row("DELETE", f"{NAMESPACE}/resourcegroup",
        lambda call: call.admin.namespaces().remove_namespace_resource_group(call.namespace)),
    Row("DELETE", f"{NAMESPACE}/removeOffloadPolicies",
        lambda call: call.admin.namespaces().remove_offload_policies(call.namespace)),
    Row("GET", "/{domain}/{tenant}/{namespace}", _list),
    Row("GET", "/{domain}/{tenant}/{namespace}/partitioned", _partitioned_list),
)  # fmt: skip


# -- topics and subscriptions -------------------------------------------------------------------------------


def _partition_total(call: Call) -> int:
    value = call.body((int, dict))
    total = value.get("partitions") if isinstance(value, dict) else value
    if not isinstance(total, int) or total < 1:
        raise Refusal(406, "Number of partitions should be more than 0")
    return total


def _grow(call: Call) -> None:
    total, topics = _partition_total(call), call.admin.topics()
    now = topics.get_partitioned_topic_metadata(call.topic).partitions
    if now and total < now:
        raise Refusal(422, f"Desired partitions {total} can't be less than the current partitions {now}.")
    topics.update_partitioned_topic(call.topic, total)


def _metadata(call: Call) -> dict[str, Any]:
    return {**call.admin.topics().get_partitioned_topic_metadata(call.topic).json(), "deleted": False}


def _id_form(message_id: MessageId) -> dict[str, int]:
    return {
        "ledgerId": message_id.ledger_id(),
        "entryId": message_id.entry_id(),
        "partitionIndex": message_id.partition(),
        "batchIndex": message_id.batch_index(),
        "batchSize": 0,
    }


def _terminate_all(call: Call) -> dict[str, Any]:
    ids = call.admin.topics().terminate_partitioned_topic(call.topic)
    return {str(number): _id_form(message_id) for number, message_id in ids.items()}


def _partitioned_stats(call: Call) -> Any:
    try:
        stats = call.admin.topics().get_partitioned_stats(call.topic, call.flag("perPartition", True))
    except exceptions.NotAllowedError as e:
        raise Refusal(404, f"Partitioned Topic {call.topic} not found") from e
    return stats.json()


def _trim(call: Call) -> Response:
    call.admin.topics().trim_topic(call.topic)
    return Response(status_code=200)


def _create_subscription(call: Call) -> None:
    call.admin.topics().create_subscription(call.topic, call.path["subscription"], call.position())


def _reset(call: Call) -> None:
    timestamp = call.number("timestamp")
    call.admin.topics().reset_cursor(call.topic, call.path["subscription"], timestamp)


def _reset_to_id(call: Call) -> None:
    call.admin.topics().reset_cursor(call.topic, call.path["subscription"], call.position())


def _expire(call: Call) -> None:
    seconds = call.number("seconds")
    call.admin.topics().expire_messages(call.topic, call.path["subscription"], seconds)


def _analyze(call: Call) -> Any:
    return call.admin.topics().analyze_subscription_backlog(call.topic, call.path["subscription"]).json()


def _peek(call: Call) -> Response:
    number = call.number("number")
    messages = call.admin.topics().peek_messages(call.topic, call.path["subscription"], number)
    if number < 1 or len(messages) < number:
        raise Refusal(404, "Message not found")
    return _message(messages[-1])


def _examine(call: Call) -> Response:
    end, text = call.query.get("initialPosition", "latest"), call.query.get("messagePosition", "1")
    if not text.isdecimal() or int(text) < 1:
        raise Refusal(412, "messagePosition is a number from 1 on")
    if end not in ("earliest", "latest"):
        raise Refusal(412, f"initialPosition is earliest or latest, not {end!r}")
    return _message(call.admin.topics().examine_message(call.topic, end, int(text)))


def _by_id(call: Call) -> Response:
    ledger, entry = call.number("ledger"), call.number("entry")
    return _message(call.admin.topics().get_message_by_id(call.topic, ledger, entry))


def _message(message: Message[bytes]) -> Response:
    """The payload, and what describes it in headers."""
    message_id = message.message_id()
    headers = {
        "X-Pulsar-Message-ID": f"{message_id.ledger_id()}:{message_id.entry_id()}",
        "X-Pulsar-publish-time": _time(message.publish_timestamp()),
        "X-Pulsar-producer-name": message.producer_name(),
        "X-Pulsar-sequence-id": str(message.sequence_id()),
        "X-Pulsar-property": json.dumps(message.properties(), separators=(",", ":")),
        "X-Pulsar-Is-Encrypted": str(message.encryption_context() is not None).lower(),
        "X-Pulsar-txn-uncommitted": "false",
    }
    if message.partition_key():
        headers["X-Pulsar-partition-key"] = message.partition_key()
    if message.event_timestamp():
        headers["X-Pulsar-event-time"] = _time(message.event_timestamp())
    # A header is one line of Latin-1: what that has not is sent as UTF-8, and line ends as spaces.
    encoded = {
        name: "".join(sign if sign.isprintable() else " " for sign in value).encode().decode("latin-1")
        for name, value in headers.items()
    }
    return Response(message.data(), 200, encoded, "application/octet-stream")


def _time(timestamp_ms: int) -> str:
    moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    text = moment.strftime("%Y-%m-%dT%H:%M:%S")
    milliseconds = f".{moment.microsecond // 1000:03d}".rstrip("0").rstrip(".")
    return f"{text}{milliseconds}Z"


_ONE: Final = f"{TOPIC}/subscription/{{subscription}}"
_TOPICS: Final = (
    Row("PUT", TOPIC, lambda call: call.admin.topics().create_non_partitioned_topic(call.topic)),
    Row("DELETE", TOPIC, lambda call: call.admin.topics().delete(call.topic, call.flag("force"))),
    Row("PUT", f"{TOPIC}/partitions",
        lambda call: call.admin.topics().create_partitioned_topic(call.topic, _partition_total(call))),
    Row("POST", f"{TOPIC}/partitions", _grow),
    Row("GET", f"{TOPIC}/partitions", _metadata),
    Row("DELETE", f"{TOPIC}/partitions",
        lambda call: call.admin.topics().delete_partitioned_topic(call.topic, call.flag("force"))),
    Row("GET", f"{TOPIC}/stats", lambda call: call.admin.topics().get_stats(call.topic).json(), refused=404),
    Row("GET", f"{TOPIC}/partitioned-stats", _partitioned_stats),
    Row("GET", f"{TOPIC}/internalStats",
        lambda call: call.admin.topics().get_internal_stats(call.topic).json(), refused=404),
    Row("GET", f"{TOPIC}/subscriptions", lambda call: call.admin.topics().get_subscriptions(call.topic)),
    Row("GET", f"{TOPIC}/lastMessageId",
        lambda call: _id_form(call.admin.topics().get_last_message_id(call.topic)), refused=404),
    Row("GET", f"{TOPIC}/messageid/{{timestamp}}",
        lambda call: _id_form(
            call.admin.topics().get_message_id_by_timestamp(call.topic, call.number("timestamp"))),
        refused=405),
    Row("GET", f"{TOPIC}/examinemessage", _examine, refused=405),
    Row("GET", f"{TOPIC}/ledger/{{ledger}}/entry/{{entry}}", _by_id, refused=405),
    Row("PUT", f"{TOPIC}/backlogSize",
        lambda call: call.admin.topics().get_backlog_size_by_message_id(call.topic, call.position()),
        refused=405, looks_only=True),
    Row("PUT", f"{TOPIC}/unload", lambda call: call.admin.topics().unload(call.topic)),
    Row("PUT", f"{TOPIC}/compaction", lambda call: call.admin.topics().compact(call.topic)),
    Row("GET", f"{TOPIC}/compaction", lambda call: call.admin.topics().compaction_status(call.topic).json()),
    Row("PUT", f"{TOPIC}/offload",
        lambda call: call.admin.topics().trigger_offload(call.topic, call.position()) and None),
    Row("GET", f"{TOPIC}/offload", lambda call: call.admin.topics().offload_status(call.topic).json()),
    Row("POST", f"{TOPIC}/trim", _trim),
    Row("DELETE", f"{TOPIC}/truncate", lambda call: call.admin.topics().truncate(call.topic)),
    Row("POST", f"{TOPIC}/terminate",
        lambda call: _id_form(call.admin.topics().terminate_topic(call.topic)), refused=405),
    Row("POST", f"{TOPIC}/terminate/partitions", _terminate_all, refused=405),
    Row("POST", f"{TOPIC}/all_subscription/expireMessages/{{seconds}}",
        lambda call: call.admin.topics().expire_messages_for_all_subscriptions(
            call.topic, call.number("seconds"))),
    Row("PUT", _ONE, _create_subscription),
    Row("DELETE", _ONE,
        lambda call: call.admin.topics().delete_subscription(
            call.topic, call.path["subscription"], call.flag("force"))),
    Row("POST", f"{_ONE}/skip/{{number}}",
        lambda call: call.admin.topics().skip_messages(
            call.topic, call.path["subscription"], call.number("number")) and None, refused=405),
    Row("POST", f"{_ONE}/skip_all",
        lambda call: call.admin.topics().skip_all_messages(call.topic, call.path["subscription"])),
    Row("POST", f"{_ONE}/expireMessages/{{seconds}}", _expire),
    Row("POST", f"{_ONE}/resetcursor/{{timestamp}}", _reset),
    Row("POST", f"{_ONE}/resetcursor", _reset_to_id, refused=405),
    Row("GET", f"{_ONE}/position/{{number}}", _peek, refused=405),
    Row("POST", f"{_ONE}/analyzeBacklog", _analyze, refused=405, looks_only=True),
    *POLICY_ROWS,
)  # fmt: skip


# -- schemas, resource groups, settings, transactions, functions --------------------------------------------


def _get_schema(call: Call) -> Any:
    version = call.number("version") if "version" in call.path else None
    schema = call.admin.schemas().get_schema_info(call.topic, version)
    if schema is None:
        raise Refusal(404, "Schema not found")
    return schema.json()


def _all_schemas(call: Call) -> Any:
    return {
        "getSchemaResponses": [schema.json() for schema in call.admin.schemas().get_all_schemas(call.topic)]
    }


def _post_schema(call: Call) -> Any:
    return {"version": {"version": call.admin.schemas().create_schema(call.topic, call.body(dict))}}


def _delete_schema(call: Call) -> Any:
    return {"version": call.admin.schemas().delete_schema(call.topic, call.flag("force"))}


def _compatibility(call: Call) -> Any:
    return call.admin.schemas().test_compatibility(call.topic, call.body(dict)).json()


def _version(call: Call) -> Any:
    return {"version": call.admin.schemas().get_version_by_schema(call.topic, call.body(dict))}


def _put_group(call: Call) -> None:
    groups, name = call.admin.resource_groups(), call.path["group"]
    change = (
        groups.update_resource_group if name in groups.get_resource_groups() else groups.create_resource_group
    )
    change(name, call.record(ResourceGroup))


def _change_setting(call: Call) -> Response:
    call.admin.brokers().update_dynamic_configuration(call.path["name"], call.path["value"])
    return Response(status_code=200)


def _delete_setting(call: Call) -> Response:
    call.admin.brokers().delete_dynamic_configuration(call.path["name"])
    return Response(status_code=200)


def _ok(call: Call) -> Response:
    call.admin.tenants().get_tenants()  # raises if the store cannot be used
    return Response("ok", media_type="text/plain")


def _txn(call: Call) -> tuple[int, int]:
    return call.number("most"), call.number("least")


def _function_config(call: Call) -> FunctionConfig:
    """The configuration of a function, of a form as pulsar-admin sends it, or JSON alone.

    Code is not taken: a worker imports it by the name of its class, or it is not run.
    """
    fields, parts = {}, call.parts()
    for name, content in parts.items():
        if name == "functionConfig":
            try:
                fields = json.loads(content)
            except ValueError:
                raise Refusal(400, "functionConfig is no JSON") from None
        elif name != "updateOptions" and content:
            raise Refusal(400, f"{name}: code is not uploaded; install it where the workers run, and name "
                               "it as className, module.Class or module.function")  # fmt: skip
    if not isinstance(fields, dict) or not fields:
        raise Refusal(400, "the configuration is missing: a part functionConfig, an object in JSON")
    tenant, namespace, function = _name(call)
    for name, value in (("tenant", tenant), ("namespace", namespace), ("name", function)):
        if fields.setdefault(name, value) != value:
            raise Refusal(400, f"{name} is {value} in the path, and {fields[name]} in the configuration")
    for name in ("jar", "go", "py"):
        if fields.get(name):
            raise Refusal(400, f"{name}: files are not run for a request; name a class that can be imported")
    return FunctionConfig.from_json(fields)


def _name(call: Call) -> tuple[str, str, str]:
    return call.path["tenant"], call.path["namespace"], call.path["function"]


def _coordinator_stats(call: Call) -> Any:
    stats, text = call.admin.transactions().get_coordinator_stats(), call.query.get("coordinatorId", "")
    if text:
        return call.admin.transactions().get_coordinator_stats_by_id(int(text)).json()
    return {str(number): each.json() for number, each in stats.items()}


def _slow(call: Call) -> Any:
    slow = call.admin.transactions().get_slow_transactions(call.number("timeout"))
    return {txn_id: metadata.json() for txn_id, metadata in slow.items()}


_SCHEMA: Final = "/schemas/{tenant}/{namespace}/{topic}"
_V3_TOPIC: Final = "{tenant}/{namespace}/{topic}"
_OTHERS: Final = (
    Row("GET", f"{_SCHEMA}/schema", _get_schema),
    Row("GET", f"{_SCHEMA}/schema/{{version}}", _get_schema),
    Row("GET", f"{_SCHEMA}/schemas", _all_schemas),
    Row("POST", f"{_SCHEMA}/schema", _post_schema),
    Row("DELETE", f"{_SCHEMA}/schema", _delete_schema),
    Row("POST", f"{_SCHEMA}/compatibility", _compatibility, looks_only=True),
    Row("POST", f"{_SCHEMA}/version", _version, looks_only=True),
    Row("GET", "/resourcegroups", lambda call: call.admin.resource_groups().get_resource_groups()),
    Row("GET", "/resourcegroups/{group}",
        lambda call: call.admin.resource_groups().get_resource_group(call.path["group"]), invalid=404),
    Row("PUT", "/resourcegroups/{group}", _put_group),
    Row("DELETE", "/resourcegroups/{group}",
        lambda call: call.admin.resource_groups().delete_resource_group(call.path["group"]), invalid=404),
    Row("GET", "/brokers/configuration", lambda call: call.admin.brokers().get_dynamic_configuration_names()),
    Row("GET", "/brokers/configuration/values",
        lambda call: call.admin.brokers().get_all_dynamic_configurations()),
    Row("GET", "/brokers/configuration/runtime",
        lambda call: call.admin.brokers().get_runtime_configuration()),
    Row("POST", "/brokers/configuration/{name}/{value}", _change_setting),
    Row("DELETE", "/brokers/configuration/{name}", _delete_setting),
    Row("GET", "/brokers/health", _ok),
    Row("GET", "/brokers/ready", _ok),
    Row("GET", "/brokers/version", lambda call: Response(__version__, media_type="text/plain")),
    Row("GET", "v3/transactions/coordinators",
        lambda call: [each.json() for each in call.admin.transactions().list_transaction_coordinators()]),
    Row("GET", "v3/transactions/coordinatorStats", _coordinator_stats),
    Row("GET", "v3/transactions/slowTransactions/{timeout}", _slow),
    Row("GET", "v3/transactions/transactionMetadata/{most}/{least}",
        lambda call: call.admin.transactions().get_transaction_metadata(_txn(call)).json()),
    Row("POST", "v3/transactions/abortTransaction/{most}/{least}",
        lambda call: call.admin.transactions().abort_transaction(_txn(call))),
    Row("GET", f"v3/transactions/transactionBufferStats/{_V3_TOPIC}",
        lambda call: call.admin.transactions().get_transaction_buffer_stats(call.topic).json(), refused=404),
    Row("GET", f"v3/transactions/pendingAckStats/{_V3_TOPIC}/{{subscription}}",
        lambda call: call.admin.transactions().get_pending_ack_stats(
            call.topic, call.path["subscription"]).json(), refused=404),
    Row("GET", "v3/functions/{tenant}/{namespace}",
        lambda call: call.admin.functions().get_functions(call.path["tenant"], call.path["namespace"])),
    Row("GET", "v3/functions/{tenant}/{namespace}/{function}",
        lambda call: call.admin.functions().get_function(*_name(call)).json()),
    Row("POST", "v3/functions/{tenant}/{namespace}/{function}",
        lambda call: call.admin.functions().create_function(_function_config(call)), invalid=400),
    Row("PUT", "v3/functions/{tenant}/{namespace}/{function}",
        lambda call: call.admin.functions().update_function(_function_config(call)), invalid=400),
    Row("DELETE", "v3/functions/{tenant}/{namespace}/{function}",
        lambda call: call.admin.functions().delete_function(*_name(call))),
    Row("GET", "v3/functions/{tenant}/{namespace}/{function}/status",
        lambda call: call.admin.functions().get_function_status(*_name(call)).json()),
    Row("GET", "v3/functions/{tenant}/{namespace}/{function}/stats",
        lambda call: call.admin.functions().get_function_stats(*_name(call)).json()),
    Row("POST", "v3/functions/{tenant}/{namespace}/{function}/start",
        lambda call: call.admin.functions().start_function(*_name(call))),
    Row("POST", "v3/functions/{tenant}/{namespace}/{function}/stop",
        lambda call: call.admin.functions().stop_function(*_name(call))),
    Row("POST", "v3/functions/{tenant}/{namespace}/{function}/restart",
        lambda call: call.admin.functions().restart_function(*_name(call))),
)  # fmt: skip


# -- requests and answers -----------------------------------------------------------------------------------

TABLE: Final = (
    *_CONTAINERS,
    *_OTHERS,
    *_TOPICS,
)
"""All kinds of requests."""


def _segments(path: str) -> tuple[str, ...]:
    """The parts of a path, the version first."""
    return ("v2", *path[1:].split("/")) if path.startswith("/") else tuple(path.split("/"))


_BY_LENGTH: Final[dict[int, list[tuple[tuple[str, ...], Row]]]] = {}
for _row in TABLE:
    _BY_LENGTH.setdefault(len(_segments(_row.path)), []).append((_segments(_row.path), _row))


def _matching(parts: list[str]) -> dict[str, tuple[Row, dict[str, str]]]:
    """The rows for a path, by method, and the variables in it. Fixed parts count before variables."""
    matching: dict[str, tuple[int, Row, dict[str, str]]] = {}
    for segments, row in _BY_LENGTH.get(len(parts), ()):
        variables: dict[str, str] = {}
        for segment, part in zip(segments, parts, strict=True):
            if segment.startswith("{"):
                variables[segment[1:-1]] = part
            elif segment != part:
                break
        else:
            is_known = variables.get("domain", "persistent") in ("persistent", "non-persistent")
            fewest = matching.get(row.method)
            if is_known and (fewest is None or len(variables) < fewest[0]):
                matching[row.method] = (len(variables), row, variables)
    return {method: (row, variables) for method, (_, row, variables) in matching.items()}


def looks_only(method: str, path: str) -> bool:
    """Whether a request changes nothing, whatever its method.

    Example:
        >>> looks_only("POST", "/admin/v2/schemas/public/default/orders/compatibility")
        True
        >>> looks_only("POST", "/admin/v2/persistent/public/default/orders/terminate")
        False
    """
    if not path.startswith("/admin/"):
        return False
    match = _matching([unquote(part) for part in path.removeprefix("/admin/").split("/")]).get(method)
    return match is not None and match[0].looks_only


def _status_of(error: Exception, row: Row) -> int:
    """The status that says what went wrong, as a broker has it."""
    for kind, status in (
        (exceptions.ReadOnlyStoreError, 403),
        (exceptions.IncompatibleSchema, 409),
        (exceptions.InvalidConfiguration, row.invalid),
        (exceptions.InvalidTopicName, 412),
        (exceptions.BrokerMetadataError, 412),
        (exceptions.InvalidMessage, 404),
        (exceptions.TransactionNotFound, 404),
        (exceptions.NotAllowedError, row.refused),
        (exceptions.LockTimeout, 503),
        (LookupError, 404),
        (ValueError, 400),
    ):
        if isinstance(error, kind):
            return status
    return 500


def answer(served: Served, method: str, parts: list[str], query: dict[str, str], content: bytes) -> Response:
    """Answer a request.

    Args:
        served: the store.
        method: of the request.
        parts: its path behind ``/admin``, decoded.
        query: what follows the question mark.
        content: the body.
    """
    rows = _matching(parts)
    match = rows.get("GET" if method == "HEAD" else method)
    if match is None:
        path = f"/admin/{'/'.join(parts)}"
        if not rows:
            return JSONResponse({"reason": f"{path} is not served here; see docs/admin-rest.md"}, 404)
        allowed = {"allow": ", ".join(sorted(rows))}
        return JSONResponse({"reason": f"{path} has no {method}"}, 405, allowed)
    row, variables = match
    # Asked once more: the layer around saw the path decoded, and here a part of it may have a slash.
    if row.method != "GET" and not row.looks_only and not served.allow_changes:
        return JSONResponse({"reason": "nothing may be changed here"}, 403)
    try:
        value = row.answer(Call(served.admin, variables, query, content))
    except Refusal as refusal:
        return JSONResponse({"reason": str(refusal)}, refusal.status)
    except (exceptions.PulsarException, ValueError, LookupError) as error:
        reason = error.args[0] if isinstance(error, LookupError) and error.args else error
        return JSONResponse({"reason": str(reason)}, _status_of(error, row))
    if isinstance(value, Response):
        return value
    if value is None:
        return Response(status_code=row.status, media_type="application/json")
    return JSONResponse(json_form(value))


def routes(served: Served) -> list[Route]:
    """The route below which all of them are."""

    async def endpoint(request: Request) -> Response:
        content = b""
        async for chunk in request.stream():
            content += chunk
            if len(content) > _MOST_BODY:
                return JSONResponse({"reason": f"the body has more than {_MOST_BODY:,} bytes"}, 413)
        # As it was sent: a slash that is a part of a name is encoded there.
        raw = request.scope.get("raw_path") or request.url.path.encode()
        sent = raw.partition(b"?")[0].decode("latin-1")
        parts = [unquote(part) for part in sent.partition("/admin/")[2].split("/")]
        query = dict(parse_qsl(request.url.query, keep_blank_values=True))
        return await run_in_threadpool(answer, served, request.method, parts, query, content)

    methods = ["GET", "PUT", "POST", "DELETE"]
    return [Route("/admin/{path:path}", endpoint, methods=methods)]
