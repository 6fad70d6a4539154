"""Requests to the REST interface of a broker, their answers recorded, and the same to ours.

.venv/bin/python -m tests.beside_pulsar.rest_programs --record tests/beside_pulsar/rest_answers.json

It starts a broker for a minute, with the jars of ``benchmarks/peers/pulsar.sh``. The suite compares answers
of the server with those that were recorded.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import sys
import tempfile
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

from tests.beside_pulsar.side import wait_for

ANSWERS = Path(__file__).with_name("rest_answers.json")

# A line is a request: method, path below /admin/v2 (or a whole one), body; or, with an exclamation mark, what
# a client does. With a question mark, an answer without content is waited for to change.
PROGRAM = Path(__file__).with_name("rest_requests.txt")


class Runner:
    """Makes the requests of the program, one after the other.

    Args:
        pulsar: the module of the client.
        client: one of the same store.
        ask: makes a request; returns status, headers and body.
        settles: whether changes of topic policies take a moment, and are waited for.
    """

    def __init__(self, pulsar: Any, client: Any, ask: Any, *, settles: bool = False) -> None:
        self._pulsar, self._client, self._ask, self._settles = pulsar, client, ask, settles
        self._consumer: Any = None
        self._ledger = "0"

    def run(self) -> list[dict[str, Any]]:
        """The requests and their answers."""
        answers = []
        for line in PROGRAM.read_text().splitlines():
            if line.startswith("!"):
                self._act(*line[1:].split())
                continue
            waits = line.startswith("?")
            method, path, body = (*line.lstrip("? ").split(" ", 2), "")[:3]
            path, body = (text.replace("{ledger}", self._ledger) for text in (path, body))
            whole = path if path.startswith("/admin/") else f"/admin/v2{path}"
            if waits and self._settles:
                wait_for(partial(self._has_content, method, whole))
            status, headers, content = self._ask(method, whole, body or None)
            if path.endswith("/lastMessageId") and status == 200 and self._ledger == "0":
                self._ledger = str(json.loads(content)["ledgerId"])
            answers.append({"request": line, "status": status, **answer_of(headers, content)})
        return answers

    def _has_content(self, method: str, path: str) -> bool:
        return bool(self._ask(method, path, None)[2].strip(b"{}"))

    def _act(self, action: str, topic: str = "", value: str = "") -> None:
        if action == "produce":
            producer = self._client.create_producer(topic, producer_name="shop")
            for number in range(int(value)):
                producer.send(b"order %d" % number, properties={"n": str(number)}, partition_key=f"k{number}")
            producer.close()
        elif action == "attach":
            self._consumer = self._client.subscribe(
                topic, value, self._pulsar.ConsumerType.Shared, consumer_name="till"
            )
        else:
            self._consumer.close()


# What no two stores have in common: ids, times, sizes of entries, addresses.
MASKED = {
    *(
        "ledgerId",
        "timestamp",
        "x-pulsar-message-id",
        "x-pulsar-publish-time",
        "markDeletePosition",
        "readPosition",
    ),
    *(
        "lastConfirmedEntry",
        "earliestMsgPublishTimeInBacklogs",
        "earliestMsgPublishTimeInBacklog",
        "storageSize",
    ),
    *(
        "backlogSize",
        "bytesInCounter",
        "totalSize",
        "currentLedgerSize",
        "size",
        "connectedSince",
        "msgRateIn",
    ),
    *("msgThroughputIn", "averageMsgSize", "producerId", "topicEpoch", "entryId", "maxReadPosition", "state"),
}
# Answers of which ours has the fields that a store has a value for. Of all others it has all fields.
SHORTER = ("stats", "Stats", "analyzeBacklog", "/offload", "delayedDelivery")

# A broker has it in the statistics of a topic, and not in those of a partitioned or non-persistent one.
OWN = {"deduplicationStatus"}

# Request -> why the answers differ.
KNOWN = {
    "GET /persistent/acme/shop/orders/examinemessage?initialPosition=middle&messagePosition=1": (
        "a word that is none of the two is refused"
    ),
    "GET /persistent/acme/shop/orders/ledger/{ledger}/entry/999": "a broker fails with a trace of its stack",
    "PUT /persistent/acme/shop/orders/backlogSize": "bytes of other frames",
    "GET /persistent/acme/shop/orders/properties": "topics have no properties",
    "GET /namespaces/acme/shop/persistence": "there are no bookies",
    "POST /schemas/acme/shop/ruled/compatibility": "a broker fails with a trace of its stack",
    "GET /brokers/leaderBroker": "there are no brokers",
    "GET /admin/v3/transactions/coordinatorStats": "a broker has no coordinator before the first transaction",
    "GET /admin/v3/transactions/slowTransactions/1000": "likewise",
    "GET /namespaces/acme/shop/topics?mode=ALL": "a broker lists non-persistent topics while they are loaded",
    "GET /brokers/configuration": "other settings",
    "GET /persistent/acme/shop/orders/stats": "keep-alives of consumers",
    "GET /persistent/acme/shop/orders/internalStats": "figures of the open ledger, and before a cursor",
    "GET /brokers/version": "another program",
    "GET /admin/v3/transactions/transactionBufferStats": "committed ones are counted, and nothing recovers",
    "GET /namespaces/acme/shop/topics": "a broker does not list a name with a slash",
}


def differences(ours: Any, theirs: Any, path: str, *, is_shorter: bool) -> list[str]:
    """Where two contents differ; lists of names have no order."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        found = [f"{path}.{name} is missing" for name in theirs.keys() - ours.keys() if not is_shorter]
        found += [f"{path}.{name} is no field of Pulsar" for name in ours.keys() - theirs.keys() - OWN]
        for name in ours.keys() & theirs.keys() - MASKED:
            found += differences(ours[name], theirs[name], f"{path}.{name}", is_shorter=is_shorter)
        return found
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        if all(isinstance(each, str) for each in [*ours, *theirs]):
            return [] if sorted(ours) == sorted(theirs) else [f"{path}: {ours} and {theirs}"]
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [
            text
            for number, (one, other) in pairs
            for text in differences(one, other, f"{path}[{number}]", is_shorter=is_shorter)
        ]
    return [] if ours == theirs else [f"{path}: {ours!r} and {theirs!r}"]


def compared(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> dict[str, list[str]]:
    """The requests whose answers differ, and where. Texts of refusals are those of each side."""
    found: dict[str, list[str]] = {}
    for mine, other in zip(ours, theirs, strict=True):
        request = mine["request"]
        assert request == other["request"]
        where = [] if mine["status"] == other["status"] else [f"{mine['status']} and {other['status']}"]
        if not where and mine["status"] < 300:
            is_shorter = any(word in request for word in SHORTER)
            for part in ("answer", "message", "headers", "text"):
                where += differences(mine.get(part), other.get(part), part, is_shorter=is_shorter)
        if not where and mine["status"] >= 300 and not other.get("text"):
            assert isinstance(mine["answer"]["reason"], str)
        if where:
            found[request] = where
    return found


def answer_of(headers: dict[str, str], content: bytes) -> dict[str, Any]:
    """The content of an answer: JSON, a message with the headers that describe it, or text."""
    described = {
        name.lower(): value for name, value in headers.items() if name.lower().startswith("x-pulsar-")
    }
    if described:
        return {"message": base64.b64encode(content).decode(), "headers": described}
    try:
        return {"answer": json.loads(content)} if content else {}
    except ValueError:
        return {"text": content.decode("utf-8", "replace")}


def over_http(url: str) -> Any:
    """What asks a server, for `Runner`."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(method: str, path: str, body: str | None) -> tuple[int, dict[str, str], bytes]:
        request = urllib.request.Request(url + path, None if body is None else body.encode(), method=method)
        request.add_header("Content-Type", "application/json")
        try:
            with opener.open(request, timeout=12) as answer:
                return answer.status, dict(answer.headers), answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, dict(error.headers), error.read()
        except TimeoutError:
            print(f"no answer: {method} {path}", file=sys.stderr)
            return 0, {}, b""

    return ask


def main() -> int:
    """Record the answers of a broker."""
    import pulsar

    from benchmarks.peers.pulsar_standalone import Broker, quiet_client

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, required=True, metavar="FILE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        settings = "transactionCoordinatorEnabled=true\ntopicLevelPoliciesEnabled=true\n"
        broker = Broker(
            place,
            is_tuned=True,
            settings=settings + "forceDeleteNamespaceAllowed=true\nbrokerDeleteInactiveTopicsEnabled=false\n",
        )
        try:
            port = re.findall(r"webServicePort=(\d+)", (place / "standalone.conf").read_text())[-1]
            client = quiet_client(broker.url)
            answers = Runner(pulsar, client, over_http(f"http://127.0.0.1:{port}"), settles=True).run()
            client.close()
        finally:
            broker.stop()
    lines = ",\n".join(json.dumps(answer, ensure_ascii=False, sort_keys=True) for answer in answers)
    arguments.record.write_text(f"[\n{lines}\n]\n")
    print(f"{len(answers)} answers")
    return 0


if __name__ == "__main__":
    sys.exit(main())
