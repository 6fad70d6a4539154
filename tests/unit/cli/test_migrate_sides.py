"""What `embeddedpulsar migrate` asks the REST interface of a cluster, and what it makes of the answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import click
import pytest

from embeddedpulsar import MessageId
from embeddedpulsar.admin.topic_stats import Cursor
from embeddedpulsar.cli.migrate_commands import ClusterSide

ORDERS = "persistent://acme/sales/orders"
CURSOR = {"markDeletePosition": "7:3", "individuallyDeletedMessages": "[(7:5..7:6],(7:8..8:0]]"}
ANSWERS: dict[str, Any] = {
    "GET tenants": ["acme", "pulsar"],
    "GET namespaces/acme": ["acme/sales"],
    "GET persistent/acme/sales/partitioned": [ORDERS],
    "GET persistent/acme/sales": [
        f"{ORDERS}-partition-0", f"{ORDERS}-partition-1", "persistent://acme/sales/bills",
        "persistent://acme/sales/__change_events",
    ],
    "GET persistent/acme/sales/orders/partitions": {"partitions": 2},
    "GET persistent/acme/sales/bills/internalStats": {
        "numberOfEntries": 12,
        "cursors": {"work": CURSOR, "reader-1": CURSOR, "__compaction": CURSOR},
    },
    "GET persistent/acme/sales/bills/stats": {
        "subscriptions": {"work": {"durable": True}, "reader-1": {"durable": False}, "__compaction": {}}
    },
    "GET persistent/acme/sales/bills/messageTTL": 60,
    "GET persistent/acme/sales/bills/maxProducers": 0,
    "GET persistent/acme/sales/bills/schemaValidationEnforced": False,
    "GET persistent/acme/sales/bills/subscriptionTypesEnabled": [],
    "GET persistent/acme/sales/bills/backlogQuotaMap": {"message_age": {"limitTime": 9}},
    "GET persistent/acme/sales/bills/retention": {"retentionTimeInMinutes": 60, "retentionSizeInMB": 7},
}  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    """Answers from the table, and keeps what was asked."""

    def _answer(self) -> None:
        path = self.path.removeprefix("/admin/v2/")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        asked: list[Any] = self.server.asked  # type: ignore[attr-defined]
        asked.append((self.command, path, json.loads(body) if body else None, self.headers["Authorization"]))
        known = f"{self.command} {path}" in ANSWERS
        status = 200 if known else 204 if self.command in ("PUT", "POST") else 404
        if "forbidden" in path:
            status = 403
        self.send_response(status)
        text = "no such thing" if status >= 400 else ""
        if known:
            text = json.dumps(ANSWERS[f"{self.command} {path}"])
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_PUT = do_POST = _answer

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def broker() -> Iterator[tuple[str, list[Any]]]:
    """The address of an interface, and what it was asked."""
    server = HTTPServer(("127.0.0.1", 0), _Handler)
    server.asked = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", server.asked  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_what_is_asked(broker: tuple[str, list[Any]]):
    """Topics with partitions, cursors of durable subscriptions, policies; with the token."""
    side = ClusterSide(broker[0], "secret")
    assert side.topics(()) == {ORDERS: 2, "persistent://acme/sales/bills": 0}
    assert side.partitions(ORDERS) == 2 and side.partitions("persistent://acme/sales/none") == 0
    bills = "persistent://acme/sales/bills"
    assert side.entries(bills) == 12 and side.entries("persistent://acme/sales/none") == 0
    assert side.cursors(bills) == {"work": Cursor.of(CURSOR)}
    assert side.cursors("persistent://acme/sales/none") == {}
    own = {
        "retention": {"retentionTimeInMinutes": 60, "retentionSizeInMB": 7},
        "messageTTL": 60,
        "maxProducers": 0,
        "backlogQuota": {"message_age": {"limitTime": 9}},
    }
    assert side.policies(bills) == own and side.policies(ORDERS) == {}
    assert {asked[3] for asked in broker[1]} == {"Bearer secret"}


def test_what_is_changed(broker: tuple[str, list[Any]]):
    """Namespaces and partitions that are not there, subscriptions, positions, retention."""
    side = ClusterSide(broker[0], None)
    side.create(ORDERS, 2)
    side.create("persistent://acme/new/flights", 3)
    side.create_subscription(ORDERS, "to/day")
    side.reset(ORDERS, "work", MessageId(1, 7, 3, 2))
    side.set_policy(ORDERS, "retention", {"retentionTimeInMinutes": 1, "retentionSizeInMB": 2})
    for name, value in (("messageTTL", 60), ("maxProducers", 0), ("schemaCompatibilityStrategy", "FULL")):
        side.set_policy(ORDERS, name, value)
    side.set_policy(ORDERS, "backlogQuota", {"message_age": {"limitTime": 9}})
    changes = [asked[:3] for asked in broker[1] if asked[0] != "GET"]
    orders = "persistent/acme/sales/orders"
    assert changes == [
        ("PUT", "namespaces/acme/new", None),
        ("PUT", "persistent/acme/new/flights/partitions", 3),
        ("PUT", f"{orders}/subscription/to%2Fday", {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}),
        (
            "POST",
            f"{orders}/subscription/work/resetcursor",
            {"ledgerId": 7, "entryId": 3, "partitionIndex": 1, "batchIndex": 2},
        ),
        ("POST", f"{orders}/retention", {"retentionTimeInMinutes": 1, "retentionSizeInMB": 2}),
        ("POST", f"{orders}/messageTTL?messageTTL=60", None),
        ("POST", f"{orders}/maxProducers", 0),
        ("PUT", f"{orders}/schemaCompatibilityStrategy", "FULL"),
        ("POST", f"{orders}/backlogQuota?backlogQuotaType=message_age", {"limitTime": 9}),
    ]


def test_errors_name_the_request(broker: tuple[str, list[Any]]):
    """A refusal with its status and reason; a broker that is not there."""
    with pytest.raises(click.ClickException, match=r"GET .*/forbidden/partitioned: 403 no such thing"):
        ClusterSide(broker[0], None).topics(("forbidden",))
    with pytest.raises(click.ClickException, match="does not answer"):
        ClusterSide("http://127.0.0.1:9", None).topics(())


def test_what_a_cursor_has_acknowledged():
    """All up to its mark, and the ranges, without their first entry."""
    cursor = Cursor.of(CURSOR)
    acknowledged = [(7, entry) for entry in range(12) if cursor.is_acknowledged((7, entry, -1))]
    assert acknowledged == [(7, entry) for entry in (0, 1, 2, 3, 6, 9, 10, 11)]
    assert cursor.is_acknowledged((8, 0, 5)) and not cursor.is_acknowledged((8, 1, 0))
    assert len(cursor.limits) == 5
