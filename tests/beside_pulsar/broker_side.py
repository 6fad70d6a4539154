"""Pulsar: pulsar-client, and the administration over HTTP."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote

from tests.beside_pulsar.side import Refused, Side, wait_for

QUIET_SECONDS = 10.0


class BrokerAdministration:
    """The REST interface of a broker, of which the proxies of the environment are not asked.

    Args:
        url: of its web service.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/") + "/admin/v2/"
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def _call(self, method: str, path: str, body: Any = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, method=method)
        request.add_header("Content-Type", "application/json")
        try:
            with self._opener.open(request, timeout=QUIET_SECONDS) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                raise Refused("missing" if error.code == 404 else "refused") from error

    def _json(self, path: str) -> Any:
        text = self._call("GET", path)
        return json.loads(text) if text else None

    def create_namespace(self, namespace: str) -> None:
        self._call("PUT", f"namespaces/{namespace}", {})

    def topics(self, namespace: str) -> list[str]:
        found: list[str] = self._json(f"persistent/{namespace}")
        return sorted(name for name in found if "__change_events" not in name)

    def create_topic(self, topic: str, partitions: int = 0) -> None:
        if partitions:
            self._call("PUT", f"{_path(topic)}/partitions", partitions)
        else:
            self._call("PUT", _path(topic))

    def delete_topic(self, topic: str, force: bool = False) -> None:
        self._call("DELETE", f"{_path(topic)}?force={str(force).lower()}")

    def terminate(self, topic: str) -> None:
        self._call("POST", f"{_path(topic)}/terminate")

    def stats(self, topic: str) -> dict[str, Any]:
        found: dict[str, Any] = self._json(f"{_path(topic)}/stats")
        return found

    def partitioned_stats(self, topic: str) -> dict[str, Any]:
        found: dict[str, Any] = self._json(f"{_path(topic)}/partitioned-stats?perPartition=true")
        return found

    def internal_stats(self, topic: str) -> dict[str, Any]:
        found: dict[str, Any] = self._json(f"{_path(topic)}/internalStats")
        return found

    def create_subscription(self, topic: str, name: str) -> None:
        self._call("PUT", f"{_path(topic)}/subscription/{name}", {"ledgerId": -1, "entryId": -1})

    def delete_subscription(self, topic: str, name: str, force: bool = False) -> None:
        self._call("DELETE", f"{_path(topic)}/subscription/{name}?force={str(force).lower()}")

    def skip(self, topic: str, name: str, count: int) -> None:
        self._call("POST", f"{_path(topic)}/subscription/{name}/skip/{count}")

    def skip_all(self, topic: str, name: str) -> None:
        self._call("POST", f"{_path(topic)}/subscription/{name}/skip_all")

    def expire(self, topic: str, name: str, seconds: int) -> None:
        self._call("POST", f"{_path(topic)}/subscription/{name}/expireMessages/{seconds}")

    def reset_to_time(self, topic: str, name: str, timestamp: int) -> None:
        self._call("POST", f"{_path(topic)}/subscription/{name}/resetcursor/{timestamp}")

    def peek(self, topic: str, name: str, number: int) -> bytes:
        return self._call("GET", f"{_path(topic)}/subscription/{name}/position/{number}")

    def examine(self, topic: str, end: str, number: int) -> bytes:
        return self._call(
            "GET", f"{_path(topic)}/examinemessage?initialPosition={end}&messagePosition={number}"
        )

    def id_by_time(self, topic: str, timestamp: int) -> tuple[int, int]:
        found = self._json(f"{_path(topic)}/messageid/{timestamp}")
        return found["ledgerId"], found["entryId"]

    def compact(self, topic: str) -> None:
        self._call("PUT", f"{_path(topic)}/compaction")
        path = f"{_path(topic)}/compaction"
        assert wait_for(lambda: self._json(path)["status"] == "SUCCESS"), self._json(path)

    def set_policy(self, owner: str, name: str, value: Any) -> None:
        query = f"?messageTTL={value}" if name == "messageTTL" and "://" in owner else ""
        method = "PUT" if name == "compactionThreshold" and "://" not in owner else "POST"
        self._call(method, f"{_path(owner)}/{name}{query}", value)
        wait_for(lambda: self.get_policy(owner, name) is not None, 5)

    def get_policy(self, owner: str, name: str) -> Any:
        return self._json(f"{_path(owner)}/{name}Map" if name == "backlogQuota" else f"{_path(owner)}/{name}")

    def remove_policy(self, owner: str, name: str) -> None:
        self._call("DELETE", f"{_path(owner)}/{name}")
        wait_for(lambda: not self.get_policy(owner, name), 5)

    def close(self) -> None:
        """There is no connection that stays."""


def broker_side(service_url: str, admin_url: str, namespace: str) -> Side:
    """A client of a broker, and a new namespace there."""
    import pulsar

    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
    client = pulsar.Client(service_url, operation_timeout_seconds=10, logger=logger)
    admin = BrokerAdministration(admin_url)
    admin.create_namespace(namespace)
    return Side(pulsar, client, admin, namespace)


def _path(owner: str) -> str:
    domain, separator, rest = owner.partition("://")
    if not separator:
        return f"namespaces/{owner}"
    namespace, _, name = rest.rpartition("/")
    return f"{domain}/{namespace}/{quote(name, safe='')}"
