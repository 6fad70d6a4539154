"""The two ends of ``embeddedpulsar migrate``: what administers them. A store has its Admin, a cluster the
REST interface of its brokers.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.parse
from typing import Any, Final, Protocol

import click

from embeddedpulsar.admin.admin import Admin
from embeddedpulsar.cli.engine import late_imports
from embeddedpulsar.exceptions import PulsarException
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.topic_name import TopicName

Place = tuple[int, int, int]
"""Ledger, entry and batch index: what orders the messages of a log."""


def place_of(message_id: MessageId) -> Place:
    """The place of a message in its log."""
    return message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()


def _position(text: str) -> Place:
    """A mark-delete position as a place: all messages of its entry lie before it."""
    ledger, entry = text.split(":")
    return int(ledger), int(entry), sys.maxsize


class Cursor(NamedTuple):
    """What a subscription has acknowledged: all up to `mark`, and the ranges of entries ``(first, last]``."""

    mark: Place
    ranges: tuple[tuple[Place, Place], ...]

    @staticmethod
    def of(stats: dict[str, Any]) -> Cursor:
        """Of a cursor of internal stats.

        Example:
            >>> ranges = "[(1:1..1:3]]"
            >>> cursor = Cursor.of({"markDeletePosition": "1:0", "individuallyDeletedMessages": ranges})
            >>> [cursor.is_acknowledged((1, entry, -1)) for entry in range(5)]
            [True, False, True, True, False]
        """
        ranges = re.findall(r"\((\d+:-?\d+)\.\.(\d+:-?\d+)\]", stats.get("individuallyDeletedMessages", ""))
        return Cursor(
            _position(stats["markDeletePosition"]),
            tuple((_position(first), _position(last)) for first, last in ranges),
        )

    def is_acknowledged(self, place: Place) -> bool:
        """Whether a message needs no delivery any more."""
        return place <= self.mark or any(first < place <= last for first, last in self.ranges)

    @property
    def limits(self) -> list[Place]:
        """Behind which places something else begins."""
        return [self.mark, *(place for limits in self.ranges for place in limits)]


class Side(Protocol):
    """One end of a migration: what an Admin knows of it. Topics have their full names."""

    def topics(self, namespaces: tuple[str, ...]) -> dict[str, int]:
        """The topics of namespaces, with the number of partitions; 0 for one that has none."""
        ...

    def partitions(self, topic: str) -> int:
        """The number of partitions; 0 also for a topic that is not there."""
        ...

    def create(self, topic: str, partitions: int) -> None:
        """Make a topic with partitions, and its namespace, unless it is there."""
        ...

    def entries(self, log: str) -> int:
        """How many entries a log has; 0 if it is not there."""
        ...

    def cursors(self, log: str) -> dict[str, Cursor]:
        """The durable subscriptions of a log."""
        ...

    def create_subscription(self, log: str, name: str) -> None:
        """Make a subscription that begins with the oldest message."""
        ...

    def reset(self, log: str, name: str, message_id: MessageId) -> None:
        """Move a subscription to the first message that it delivers."""
        ...

    def retention(self, topic: str) -> tuple[int, int] | None:
        """Minutes and MiB of the policy of a topic; None if it has none."""
        ...

    def set_retention(self, topic: str, limits: tuple[int, int]) -> None:
        """Set that policy."""
        ...


class StoreSide:
    """A store, by its Admin."""

    def __init__(self, admin: Admin) -> None:
        self._admin: Final = admin
        self._topics: Final = admin.topics()

    def topics(self, namespaces: tuple[str, ...]) -> dict[str, int]:
        names = namespaces or tuple(
            namespace
            for tenant in self._admin.tenants().get_tenants()
            if tenant != "pulsar"
            for namespace in self._admin.namespaces().get_namespaces(tenant)
        )
        listed: dict[str, int] = {}
        for namespace in names:
            partitioned = {
                topic: self.partitions(topic) for topic in self._topics.get_partitioned_topic_list(namespace)
            }
            listed |= partitioned
            listed |= _without_partitions(self._topics.get_list(namespace), partitioned)
        return listed

    def partitions(self, topic: str) -> int:
        try:
            return self._topics.get_partitioned_topic_metadata(topic).partitions
        except PulsarException:
            return 0

    def create(self, topic: str, partitions: int) -> None:
        tenant, _, _ = (namespace := TopicName.parse(topic).namespace_name).partition("/")
        if (
            tenant not in self._admin.tenants().get_tenants()
            or namespace not in self._admin.namespaces().get_namespaces(tenant)
        ):
            self._admin.namespaces().create_namespace(namespace)
        if partitions and self.partitions(topic) == 0:
            self._topics.create_partitioned_topic(topic, partitions)

    def entries(self, log: str) -> int:
        try:
            return self._topics.get_internal_stats(log).number_of_entries
        except PulsarException:
            return 0

    def cursors(self, log: str) -> dict[str, Cursor]:
        stats = self._topics.get_internal_stats(log).json()["cursors"]
        durable = set(self._topics.get_subscriptions(log))
        return {name: Cursor.of(cursor) for name, cursor in stats.items() if name in durable}

    def create_subscription(self, log: str, name: str) -> None:
        self._topics.create_subscription(log, name, MessageId.earliest)

    def reset(self, log: str, name: str, message_id: MessageId) -> None:
        self._topics.reset_cursor(log, name, message_id)

    def retention(self, topic: str) -> tuple[int, int] | None:
        policy = self._topics.get_retention(topic)
        return None if policy is None else (policy.time_minutes, policy.size_mb)

    def set_retention(self, topic: str, limits: tuple[int, int]) -> None:
        self._topics.set_retention(topic, *limits)


class ClusterSide:
    """A cluster, by the REST interface of its brokers.

    Args:
        url: of a broker or proxy, such as ``http://localhost:8080``.
        token: for ``Authorization: Bearer``; None for no credentials.

    Raises (all methods):
        ClickException: the broker cannot be reached, or refuses.
    """

    def __init__(self, url: str, token: str | None) -> None:
        self._url: Final = url.rstrip("/") + "/admin/v2/"
        self._headers: Final = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"

    def _call(self, method: str, path: str, body: object = None, missing: Any = None) -> Any:
        # With TLS, the client of HTTP takes as long to import as the rest of a small command.
        with late_imports():
            import urllib.error
            import urllib.request
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, self._headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read()
        except urllib.error.HTTPError as e:
            if e.code == 404 and missing is not None:
                return missing
            reason = e.read().decode("utf-8", "replace")[:200]
            raise click.ClickException(f"{method} {self._url}{path}: {e.code} {reason}") from e
        except OSError as e:
            raise click.ClickException(f"{self._url} does not answer: {e}") from e
        return json.loads(text) if text else None

    @staticmethod
    def _path(topic: str) -> str:
        name = TopicName.parse(topic)
        local = name.full.removeprefix(f"persistent://{name.namespace_name}/")
        return f"persistent/{name.namespace_name}/{urllib.parse.quote(local, safe='')}"

    def topics(self, namespaces: tuple[str, ...]) -> dict[str, int]:
        names = namespaces or tuple(
            namespace
            for tenant in self._call("GET", "tenants")
            if tenant != "pulsar"
            for namespace in self._call("GET", f"namespaces/{tenant}")
        )
        listed: dict[str, int] = {}
        for namespace in names:
            partitioned = {
                topic: self.partitions(topic)
                for topic in self._call("GET", f"persistent/{namespace}/partitioned")
            }
            listed |= partitioned
            listed |= _without_partitions(self._call("GET", f"persistent/{namespace}"), partitioned)
        return {topic: number for topic, number in listed.items() if "/__" not in topic}

    def partitions(self, topic: str) -> int:
        return int(self._call("GET", f"{self._path(topic)}/partitions", missing={}).get("partitions", 0))

    def create(self, topic: str, partitions: int) -> None:
        tenant, _, _ = (namespace := TopicName.parse(topic).namespace_name).partition("/")
        if namespace not in self._call("GET", f"namespaces/{tenant}"):
            self._call("PUT", f"namespaces/{namespace}")
        if partitions and self.partitions(topic) == 0:
            self._call("PUT", f"{self._path(topic)}/partitions", partitions)

    def entries(self, log: str) -> int:
        stats = self._call("GET", f"{self._path(log)}/internalStats", missing={})
        return int(stats.get("numberOfEntries", 0))

    def cursors(self, log: str) -> dict[str, Cursor]:
        stats = self._call("GET", f"{self._path(log)}/internalStats", missing={}).get("cursors", {})
        subscriptions = self._call("GET", f"{self._path(log)}/stats", missing={}).get("subscriptions", {})
        return {
            name: Cursor.of(stats[name])
            for name, subscription in subscriptions.items()
            # A cursor of compaction is no subscription, and readers have theirs for as long as they live.
            if name in stats and subscription.get("durable", True) and not name.startswith("__")
        }

    def create_subscription(self, log: str, name: str) -> None:
        path = f"{self._path(log)}/subscription/{urllib.parse.quote(name, safe='')}"
        self._call("PUT", path, {"ledgerId": -1, "entryId": -1, "partitionIndex": -1})

    def reset(self, log: str, name: str, message_id: MessageId) -> None:
        path = f"{self._path(log)}/subscription/{urllib.parse.quote(name, safe='')}/resetcursor"
        position = {
            "ledgerId": message_id.ledger_id(),
            "entryId": message_id.entry_id(),
            "partitionIndex": message_id.partition(),
            "batchIndex": message_id.batch_index(),
        }
        self._call("POST", path, position)

    def retention(self, topic: str) -> tuple[int, int] | None:
        policy = self._call("GET", f"{self._path(topic)}/retention", missing={})
        if not policy:
            return None
        return int(policy["retentionTimeInMinutes"]), int(policy["retentionSizeInMB"])

    def set_retention(self, topic: str, limits: tuple[int, int]) -> None:
        policy = {"retentionTimeInMinutes": limits[0], "retentionSizeInMB": limits[1]}
        self._call("POST", f"{self._path(topic)}/retention", policy)


def _without_partitions(logs: list[str], partitioned: dict[str, int]) -> dict[str, int]:
    """The topics among logs: those that are no partition of one that is listed."""
    return {log: 0 for log in logs if log.rpartition("-partition-")[0] not in partitioned}
