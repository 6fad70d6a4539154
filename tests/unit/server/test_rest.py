"""Pulsar's REST interface: the answers of a broker, and what is its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embeddedpulsar
from embeddedpulsar import Admin, Client
from embeddedpulsar.functions import FunctionConfig
from embeddedpulsar.server import rest
from tests.beside_pulsar.rest_programs import ANSWERS, KNOWN, Runner, compared
from tests.unit.server.conftest import BEARER, Site

Maker = Callable[..., Site]
TOPIC = "/admin/v2/persistent/public/default/orders"


def test_the_answers_of_a_broker(site: Maker, root: Path):
    """To 286 requests, status and content are those that a broker 4.0.7 gave, but for what is known."""
    with Client(root) as client:
        served = site(client, token=None, allow_changes=True)

        def ask(method: str, path: str, body: str | None) -> tuple[int, dict[str, str], bytes]:
            answer = served.ask(method, path, content=body)
            return answer.status_code, dict(answer.headers), answer.content

        ours = Runner(embeddedpulsar, client, ask).run()
    found = compared(ours, json.loads(ANSWERS.read_text()))
    unknown = {request: where for request, where in found.items() if not request.startswith(tuple(KNOWN))}
    assert not unknown
    assert len(ours) == 286
    assert {known for known in KNOWN if not any(request.startswith(known) for request in found)} == set()
    failed = [answer["request"] for answer in ours if answer["status"] >= 500]
    assert not failed


def test_nothing_is_changed(site: Maker, root: Path):
    """Without `allow_changes`; what only asks by another method is answered."""
    with Client(root) as client:
        client.subscribe("orders", "work").close()
        client.create_producer("orders").send(b"tea")
    served = site()
    for method, path in (
        ("PUT", ""),
        ("DELETE", ""),
        ("POST", "/terminate"),
        ("POST", "/subscription/work/skip/1"),
    ):
        assert served.ask(method, TOPIC + path, BEARER).status_code == 403
    answer = served.ask("PUT", f"{TOPIC}/backlogSize", BEARER, content='{"ledgerId": 1, "entryId": -1}')
    assert answer.status_code == 200
    assert answer.json() > 0
    answer = served.ask("POST", f"{TOPIC}/subscription/work/analyzeBacklog", BEARER)
    assert answer.json() == {"entries": 1, "messages": 1, "aborted": False}
    # Decoded, it is a path of a request that only asks; as it was sent, it is none.
    sneaky = "/admin/v2/persistent/public/default/orders/subscription/work%2FanalyzeBacklog"
    for method in ("POST", "PUT", "DELETE"):
        assert served.ask(method, sneaky, BEARER).status_code in (403, 405)
    with Admin(root) as admin:
        assert admin.topics().get_stats("orders").subscriptions["work"].msg_backlog == 1


def test_names_with_slashes(site: Maker, root: Path):
    """A slash that is a part of a name is encoded, as pulsar-admin does."""
    served = site(allow_changes=True)
    for name in ("a%2Fb", "%C3%A4%20%3F", "100%25"):
        path = f"/admin/v2/persistent/public/default/{name}"
        assert served.ask("PUT", path, BEARER).status_code == 204
        assert served.get(f"{path}/stats").json()["msgInCounter"] == 0
    listed = served.get("/admin/v2/persistent/public/default").json()
    assert listed == [f"persistent://public/default/{name}" for name in ("100%", "a/b", "ä ?")]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "reason"),
    [
        (
            "PUT",
            "/admin/v2/persistent/public/default/t/partitions",
            '"two"',
            400,
            "the body of the request is int",
        ),
        (
            "PUT",
            "/admin/v2/persistent/public/default/t/partitions",
            "true",
            400,
            "the body of the request is int",
        ),
        ("POST", "/admin/v2/namespaces/public/default/retention", "{", 400, "no JSON"),
        ("POST", "/admin/v2/namespaces/public/default/retention", "[]", 400, "dict, not []"),
        ("POST", "/admin/v2/namespaces/public/default/deduplication", "1", 400, "bool, not 1"),
        ("PUT", f"{TOPIC}/subscription/s", '"middle"', 400, "an id, earliest or latest"),
        ("PUT", f"{TOPIC}/subscription/s", '{"ledgerId": 1}', 400, "ledgerId and entryId"),
        ("POST", f"{TOPIC}/subscription/s/skip/many", "", 404, "number is a number"),
        ("PUT", "/admin/v2/tenants/acme", '{"adminRoles": ["root"]}', 412, "no roles"),
        ("PUT", "/admin/v2/tenants/acme", '{"allowedClusters": ["us"]}', 412, "standalone alone"),
        (
            "PUT",
            "/admin/v2/namespaces/public/x",
            '{"retention_policies": {"a": 1}}',
            412,
            "requests of their own",
        ),
        (
            "POST",
            "/admin/v2/namespaces/public/default/subscriptionTypesEnabled",
            '["Some"]',
            400,
            "Key_Shared",
        ),
        ("PATCH", TOPIC, "", 405, "Method Not Allowed"),
        ("POST", TOPIC, "", 405, "has no POST"),
        ("GET", "/admin/v2/nothing", "", 404, "is not served here"),
        ("PUT", TOPIC, "x" * (1 << 20 + 1), 413, "more than"),
    ],
)
def test_wrong_requests(site: Maker, method: str, path: str, body: str, status: int, reason: str):
    """The answer says what is wrong."""
    served = site(allow_changes=True)
    answer = served.ask(method, path, BEARER, content=body)
    assert answer.status_code == status
    assert reason in answer.json()["reason"]


def test_messages_with_unusual_names(site: Maker, root: Path):
    """A header is one line of Latin-1 whatever a key has."""
    with Client(root) as client:
        client.create_producer("orders").send(b"x", partition_key="k\r\nX-Evil: 1 ☃", event_timestamp=1)
    answer = site().get(f"{TOPIC}/examinemessage")
    assert answer.content == b"x"
    assert "x-evil" not in answer.headers
    assert answer.headers["x-pulsar-partition-key"] == "k  X-Evil: 1 ☃"
    assert answer.headers["x-pulsar-event-time"] == "1970-01-01T00:00:00.001Z"


def test_functions_are_created_and_changed(site: Maker, root: Path):
    """By a form as pulsar-admin sends it, or by JSON; code is not uploaded, and no file is run."""
    with Client(root) as client, Admin(root) as admin:
        served = site(client, allow_changes=True)
        dump = "/admin/v3/functions/public/default/dump"

        def send(method: str, config: Any, **more: Any) -> Any:
            parts = {"functionConfig": (None, json.dumps(config), "application/json"), **more}
            return served.ask(method, dump, BEARER, files=parts)

        config = {"className": "json.dumps", "inputs": ["in"], "output": "out", "parallelism": 2}
        assert send("POST", config).status_code == 204
        assert admin.functions().get_function("public", "default", "dump").parallelism == 2
        assert "dump" in send("POST", config).json()["reason"]
        changed = send("PUT", {**config, "parallelism": 3}, updateOptions=(None, "{}", "application/json"))
        assert changed.status_code == 204
        assert admin.functions().get_function("public", "default", "dump").parallelism == 3
        as_json = served.ask("PUT", dump, BEARER, json={**config, "tenant": "public"})
        assert as_json.status_code == 204
        assert admin.functions().get_function("public", "default", "dump").parallelism == 2
        for given, more, reason in (
            (config, {"data": ("dump.py", b"import os")}, "code is not uploaded"),
            ({**config, "py": "/tmp/dump.py"}, {}, "files are not run"),
            ({**config, "name": "load"}, {}, "name is dump in the path, and load"),
            ({**config, "className": "json.nothing"}, {}, "nothing"),
            ([], {}, "is missing"),
        ):
            refused = send("PUT", given, **more)
            assert refused.status_code == 400 and reason in refused.json()["reason"], reason
        assert served.ask("PUT", dump, BEARER, content=b"--x\r\nnonsense").status_code == 400
        assert served.ask("PUT", dump, BEARER, content=b"nonsense").status_code == 400
        assert site(client).ask("POST", dump, BEARER, json=config).status_code == 403


def test_functions_and_transactions(site: Maker, root: Path):
    """What has no counterpart in the requests to a broker."""
    with Client(root) as client, Admin(root) as admin:
        admin.functions().create_function(FunctionConfig("json.dumps", "dump", inputs=["in"]))
        served = site(client, allow_changes=True)
        functions = "/admin/v3/functions/public/default"
        assert served.get(functions).json() == ["dump"]
        assert served.get(f"{functions}/dump").json()["className"] == "json.dumps"
        assert served.get(f"{functions}/dump/status").json()["numInstances"] == 1
        assert served.get(f"{functions}/dump/stats").json()["receivedTotal"] == 0
        assert served.ask("POST", f"{functions}/dump/stop", BEARER).status_code == 204
        assert served.get(f"{functions}/dump/status").json()["isStarted"] is False
        assert served.ask("DELETE", f"{functions}/dump", BEARER).status_code == 204
        assert served.get(f"{functions}/dump").status_code == 404
        txn = client.new_transaction()
        client.create_producer("orders").send(b"x", txn=txn)
        path = f"/admin/v3/transactions/transactionMetadata/0/{txn.id.least_sig_bits}"
        assert served.get(path).json()["status"] == "OPEN"
        stats = served.get("/admin/v3/transactions/transactionBufferStats/public/default/orders").json()
        assert stats["ongoingTxnSize"] == 1
        end = f"/admin/v3/transactions/abortTransaction/0/{txn.id.least_sig_bits}"
        assert served.ask("POST", end, BEARER).status_code == 204
        assert served.get(path).json()["status"] == "ABORTED"


def test_the_table(site: Maker):
    """No two rows are for one request, and each policy of the table has its methods."""
    requests = [(row.method, row.path) for row in rest.TABLE]
    assert len(set(requests)) == len(requests) > 200
