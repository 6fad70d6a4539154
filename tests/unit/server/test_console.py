"""The console without a browser: what its page asks for, and what it may change."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import BatchingType, Client, ConsumerDeadLetterPolicy, ConsumerType, MessageId, Timeout
from embeddedpulsar.admin.activity import StoreActivity, SubscriptionActivity, TopicActivity
from embeddedpulsar.schema import AvroSchema, Float, Integer, JsonSchema, Record, String
from embeddedpulsar.server.browsing import Query, find_messages, id_text, message_form
from embeddedpulsar.server.sampling import Rates, Sampler, sample_of
from tests.unit.server.conftest import BEARER, Site

Maker = Callable[..., Site]
API = "/console/api/"
HOSTILE = "<img src=x onerror=alert(1)>\"'&"
STATIC = files("embeddedpulsar.server") / "static"


class Order(Record):
    table = Integer()
    item = String()
    price = Float()


def get(site: Site, name: str, /, **query: Any) -> Any:
    """The JSON of a path of the API."""
    answer = site.ask("GET", API + name, BEARER, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(site: Site, name: str, /, **query: Any) -> tuple[int, str]:
    """The status and the reason of a refusal."""
    answer = site.ask("GET", API + name, BEARER, params=query)
    return answer.status_code, answer.json()["reason"]


def act(site: Site, **given: Any) -> Any:
    """The answer to an action that is done."""
    return site.ask("POST", API + "actions", BEARER, json=given)


def plan(site: Site, **given: Any) -> Any:
    """What an action says it would do."""
    return get(site, "plan", given=json.dumps(given))


def publish(root: Path, topic: str, count: int, **options: Any) -> None:
    """Publish numbers."""
    with Client(root) as client, client.create_producer(topic, **options) as producer:
        for number in range(count):
            producer.send_async(b"%d" % number, None, partition_key=f"key-{number % 3}")
        producer.flush()


# -- the files of the page ---------------------------------------------------------------------------------


def test_the_page_and_its_files(site: Maker):
    """All files that the page names are served, with their types, and nothing beside them."""
    served = site()
    assert served.get("/").headers["location"] == "console/"
    assert served.get("/console").headers["location"] == "console/"
    page = served.get("/console/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "script-src 'self'" in page.headers["content-security-policy"]
    names = set(re.findall(r'(?:src|href)="(static/[^"]+)"', page.text))
    assert "static/main.js" in names
    modules = {f"static/{each.name}" for each in STATIC.iterdir() if each.name.endswith(".js")}
    for name in names | modules:
        answer = served.get(f"/console/{name}")
        assert answer.status_code == 200, name
        if name.endswith(".js"):
            assert answer.headers["content-type"].startswith("text/javascript")
            imported = re.findall(r'from "\./([^"]+)"', answer.text)
            assert {f"static/{other}" for other in imported} <= modules
    for name in ("../app.py", "..%2fapp.py", "none.js", "", "main.js/..", "%2e%2e/app.py", "a%00.js"):
        assert served.get(f"/console/static/{name}").status_code in (307, 404), name


def test_the_page_takes_no_text_for_markup():
    """Names, keys and payloads are texts: nothing in the modules makes elements of a string."""
    for each in STATIC.iterdir():
        text = each.read_text("utf-8")
        if each.name.endswith(".js"):
            markup = re.findall(
                r"innerHTML|outerHTML\s*=|insertAdjacentHTML|document\.write|eval\(|srcdoc", text
            )
            assert not markup, each.name
        # A strict policy refuses these, and pages of others are asked for nothing.
        assert not re.search(r"<script>|<style|\son\w+=\"|style=\"|https?://(?!www\.w3\.org)", text), (
            each.name
        )


def test_the_page_needs_the_token(site: Maker):
    """Its data as well as its files."""
    served = site()
    for path in ("/console/", "/console/static/main.js", "/console/api/overview", "/console/api/events"):
        assert served.get(path, None).status_code == 401, path


def test_a_mounted_page(site: Maker, root: Path):
    """Its addresses are relative, so it works below any path."""
    from starlette.applications import Starlette
    from starlette.routing import Mount

    inner = site()
    outer = Starlette(routes=[Mount("/queues", inner.app)])
    outer.state.served = inner.served
    mounted = Site(outer)
    assert mounted.get("/queues/").headers["location"] == "console/"
    page = mounted.get("/queues/console/")
    assert page.status_code == 200
    assert not re.search(r'(src|href)="/', page.text)
    assert mounted.get("/queues/console/static/main.js").status_code == 200
    assert mounted.get("/queues/console/api/about").json()["allowChanges"] is False
    for each in STATIC.iterdir():
        assert not re.search(r"fetch\([\"'`]/|EventSource\([\"'`]/", each.read_text("utf-8")), each.name


# -- the store and its topics ------------------------------------------------------------------------------


def test_the_overview(site: Maker, root: Path):
    """Figures of the whole store, and what is stuck."""
    with Client(root) as client:
        client.subscribe("orders", "kitchen").close()
        publish(root, "orders", 5)
        overview = get(site(), "overview")
    assert (overview["topics"], overview["backlog"], overview["subscriptions"]) == (1, 5, 1)
    assert [(each["subscription"], each["why"]) for each in overview["stuck"]] == [("kitchen", "no consumer")]
    assert overview["history"][0][3] == 5


def test_the_list_of_topics(site: Maker, root: Path):
    """Partitions are one topic; words of the search may be anywhere; orders and pages."""
    served = site(allow_changes=True)
    topics = served.served.admin.topics()
    topics.create_partitioned_topic("journeys", 3)
    topics.create_non_partitioned_topics(f"sensor-{number:03}" for number in range(120))
    topics.create_non_partitioned_topic(HOSTILE)
    topics.create_subscription("journeys", "fleet")
    publish(root, "journeys", 30)
    page = get(served, "topics", count=50, offset=100)
    assert (page["total"], page["all"], len(page["rows"])) == (122, 122, 22)
    rows = get(served, "topics", search="JOURN public")["rows"]
    assert [(row["name"], row["partitions"]) for row in rows] == [("persistent://public/default/journeys", 3)]
    assert get(served, "topics", order="backlog", descending=1, count=1)["rows"][0]["backlog"] == 30
    assert get(served, "topics", search="alert(1)")["rows"][0]["name"].endswith(HOSTILE)
    assert refused(served, "topics", order="colour")[0] == 400
    assert refused(served, "topics", count="10000")[0] == 400


def test_a_topic_and_its_segments(site: Maker, root: Path):
    """Each segment has a state, and who holds it; compaction and partitions are told."""
    served = site(allow_changes=True)
    topics = served.served.admin.topics()
    topics.create_subscription("stock", "shop")
    topics.set_retention("stock", -1, -1)
    for _ in range(2):
        publish(root, "stock", 6)
        topics.roll_ledger("stock")
    publish(root, "stock", 1)
    topics.compact("stock")
    while topics.compaction_status("stock").status == "RUNNING":
        pass
    topics.skip_messages("stock", "shop", 6)
    log = get(served, "topic", topic="stock")["logs"][0]
    states = [(each["state"], each["reason"], each["holders"]) for each in log["segments"]]
    assert states == [
        ("compacted", "retention", []),
        ("compacted", "backlog", ["shop"]),
        ("active", "open", ["shop"]),
    ]
    assert log["horizon"] == topics.get_internal_stats("stock").compaction_horizon == log["last"]
    assert get(served, "topic", topic="stock")["policies"]["retentionMinutes"] == -1
    assert sum(get(served, "arrivals", topic="stock", seconds=60)["entries"]) == 13
    topics.create_partitioned_topic("journeys", 3)
    publish(root, "journeys", 30)
    topic = get(served, "topic", topic="journeys")
    assert (topic["partitions"], len(topic["logs"]), len(topic["shares"])) == (3, 3, 3)
    assert sum(log["entries"] for log in topic["logs"]) == 30
    assert refused(served, "topic", topic="none")[0] == 404
    assert refused(served, "topic", topic="a/b")[0] == 400


def test_a_non_persistent_topic(site: Maker, root: Path):
    """Its segments are a ring; its messages are shown while it has them."""
    served = site(allow_changes=True)
    name = "non-persistent://public/default/beats"
    with Client(root) as client:
        consumer = client.subscribe(name, "drum")
        client.create_producer(name).send(b"boom")
        assert consumer.receive(5000).data() == b"boom"
        assert [row["name"] for row in get(served, "topics", search="beats")["rows"]] == [name]
        assert get(served, "topic", topic=name)["logs"][0]["segments"][0]["reason"] in ("ring", "open")
        detail = get(served, "subscription", topic=name, name="drum")
        assert detail["logs"][0]["ranges"]["mark"] is None
        assert [each["value"]["text"] for each in get(served, "messages", topic=name)["messages"]] == ["boom"]


# -- messages ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize("limit", [1, 7, 500])
def test_pages_have_every_message_once(site: Maker, root: Path, batching: bool, limit: int):
    """From either end, over several segments, whatever the size of a page and of batches."""
    served = site(allow_changes=True).served
    served.admin.namespaces().set_retention("public/default", -1, -1)
    with Client(root) as client:
        producer = client.create_producer(
            "orders",
            batching_enabled=batching,
            batching_type=BatchingType.Default,
            batching_max_messages=9,
            batching_max_publish_delay_ms=60_000,
        )
        for number in range(60):
            producer.send_async(b"%d" % number, None)
            if number in (25, 41):
                producer.flush()
                served.admin.topics().roll_ledger("orders")
        producer.flush()
    for is_backward in (True, False):
        values: list[bytes] = []
        start: MessageId | None = None
        is_inclusive = True
        while True:
            page = find_messages(served, Query("orders", start, is_inclusive, is_backward, limit))
            assert len(page.messages) <= limit
            values += [message.data() for message in page.messages]
            if page.next is None:
                break
            start, is_inclusive = page.next, False
        wanted = [b"%d" % number for number in range(60)]
        assert values == (wanted[::-1] if is_backward else wanted)


@pytest.mark.parametrize("forward", ["", "1"])
def test_partitions_are_one_list(site: Maker, root: Path, forward: str):
    """In the order of their publish times, every message once, over many pages."""
    served = site(allow_changes=True)
    served.served.admin.topics().create_partitioned_topic("journeys", 3)
    served.served.admin.namespaces().set_retention("public/default", -1, -1)
    publish(root, "journeys", 40, batching_enabled=False)
    shown: list[Any] = []
    place = ""
    while True:
        page = get(served, "messages", topic="journeys", count=7, forward=forward, **{"from": place})
        assert len(page["messages"]) <= 7
        shown += page["messages"]
        place = page["next"]
        if place is None:
            break
    assert sorted(int(each["value"]["text"]) for each in shown) == list(range(40))
    assert {each["partition"] for each in shown} == {0, 1, 2}
    times = [each["publishTime"] for each in shown]
    assert times == sorted(times, reverse=not forward)
    assert refused(served, "messages", topic="journeys", **{"from": "1:0"})[0] == 400
    assert refused(served, "messages", topic="journeys", **{"from": "x@1:0"})[0] == 400
    later = {"from": str(times[0] + 60_000)}
    assert get(served, "messages", topic="journeys", forward=1, **later)["messages"] == []
    assert len(get(served, "messages", topic="journeys", key="key-1")["messages"]) == 13


def test_messages_by_id_time_key_and_text(site: Maker, root: Path):
    """What the page offers to search by."""
    publish(root, "orders", 30)
    served = site()

    def values(**query: Any) -> list[str]:
        return [
            each["value"]["text"] for each in get(served, "messages", topic="orders", **query)["messages"]
        ]

    assert values(count=3) == ["29", "28", "27"]
    assert values(count=3, forward=1) == ["0", "1", "2"]
    first = get(served, "messages", topic="orders", forward=1)["messages"]
    assert values(count=2, forward=1, **{"from": first[7]["id"]}) == ["7", "8"]
    assert values(count=2, **{"from": first[7]["id"]}) == ["7", "6"]
    assert values(count=2, forward=1, exclusive=1, **{"from": first[7]["id"]}) == ["8", "9"]
    assert values(count=1, forward=1, **{"from": first[0]["publishTime"]}) == ["0"]
    assert values(count=1, **{"from": first[0]["publishTime"]}) == []
    assert values(forward=1, **{"from": first[-1]["publishTime"] + 60_000}) == []
    assert values(key="key-1", count=4) == ["28", "25", "22", "19"]
    assert values(text="9") == ["29", "19", "9"]
    assert values(key="none") == []
    assert refused(served, "messages", topic="orders", **{"from": "first"})[0] == 400
    assert refused(served, "messages", topic="none")[0] == 404
    # No topic is made by a look at it.
    assert get(served, "overview")["topics"] == 1


def test_values_are_decoded(site: Maker, root: Path):
    """By the schema of their writer; without one, as text or JSON where that is what they are."""
    with Client(root) as client:
        client.create_producer("json", schema=JsonSchema(Order)).send(Order(table=7, item="soup"))
        client.create_producer("avro", schema=AvroSchema(Order)).send(Order(table=8, item="tea"))
        plain = client.create_producer("plain")
        for data in (b"text", b'{"a": [1]}', bytes(range(20)), b"", None, "ü".encode() * 3000):
            plain.send(data)
    served = site()

    def last(topic: str, count: int = 1) -> Any:
        return get(served, "messages", topic=topic, count=count)["messages"]

    assert json.loads(last("json")[0]["value"]["text"])["item"] == "soup"
    assert last("json")[0]["value"]["schema"] == "JSON"
    assert json.loads(last("avro")[0]["value"]["text"])["table"] == 8
    long, null, empty, raw, made, text = (each["value"] for each in last("plain", 6))
    assert (text["kind"], text["text"], made["kind"]) == ("text", "text", "json")
    assert json.loads(made["text"]) == {"a": [1]}
    assert (raw["kind"], raw["text"].split("\n")[1].split()[:3]) == ("hex", ["00000010", "10", "11"])
    assert (empty["kind"], empty["text"], null["kind"]) == ("text", "", "null")
    assert (long["kind"], long["isCut"], len(long["text"])) == ("text", True, 2048)
    whole = get(served, "message", topic="plain", id=last("plain")[0]["id"])["value"]
    assert (whole["isCut"], len(whole["text"])) == (False, 3000)
    payload = served.get(f"{API}payload?topic=plain&id={last('plain')[0]['id']}")
    assert payload.content == "ü".encode() * 3000
    assert payload.headers["content-type"] == "application/octet-stream"
    assert payload.headers["content-disposition"].startswith("attachment")


def test_a_payload_that_does_not_fit_its_schema(site: Maker, root: Path):
    """The bytes are shown, and why they are no value."""
    with Client(root) as client:
        client.create_producer("avro", schema=AvroSchema(Order)).send(Order(table=8, item="tea"))
        message = client.create_reader("avro", MessageId.earliest).read_next(5000)
        form = message_form(message.replace(data=b"\xff"))
    assert (form["value"]["kind"], form["value"]["schema"]) == ("hex", "AVRO")
    assert form["value"]["error"]


def test_a_search_that_takes_long_goes_on_where_it_was(
    site: Maker, root: Path, monkeypatch: pytest.MonkeyPatch
):
    """A call reads so many messages at most; several find the only one."""
    publish(root, "orders", 3000)
    monkeypatch.setattr("embeddedpulsar.server.browsing._MOST_READ", 200)
    served = site()
    calls, start, found = 0, dict[str, Any](), list[Any]()
    while not found and calls < 40:
        page = get(served, "messages", topic="orders", text="77", count=1, forward="", **start)
        start, found, calls = {"from": page["next"], "exclusive": 1}, page["messages"], calls + 1
    assert found[0]["value"]["text"] == "2977"
    page = get(served, "messages", topic="orders", key="none", forward=1)
    assert (page["isWhole"], page["read"], page["messages"]) == (False, 200, [])


# -- subscriptions -----------------------------------------------------------------------------------------


def test_a_subscription_and_what_it_acknowledged(site: Maker, root: Path):
    """Entries along the log, and consumers with their process."""
    served = site()
    with Client(root) as client:
        consumer = client.subscribe("orders", HOSTILE, ConsumerType.Shared, consumer_name="till-1")
        publish(root, "orders", 10, batching_enabled=False)
        messages = [consumer.receive(5000) for _ in range(10)]
        for at in (0, 1, 4):
            consumer.acknowledge(messages[at])
        consumer.close()
        consumer = client.subscribe("orders", HOSTILE, ConsumerType.Shared, consumer_name="till-1")
        rows = get(served, "subscriptions", search="onerror orders")["rows"]
        assert [(row["name"], row["backlog"], row["consumers"]) for row in rows] == [(HOSTILE, 7, 1)]
        detail = get(served, "subscription", topic="orders", name=HOSTILE)
        clients = get(served, "clients", topic="orders")
    ranges = detail["logs"][0]["ranges"]
    assert ranges["columns"] == [1, 1, 0, 0, 1, 0, 0, 0, 0, 0]
    assert (ranges["acknowledged"], ranges["runsTotal"], ranges["entries"]) == (3, 1, 10)
    assert [each["consumerName"] for each in detail["logs"][0]["consumers"]] == ["till-1"]
    assert detail["logs"][0]["consumers"][0]["pid"] > 0
    assert {each["kind"] for each in clients} == {"consumer"}
    assert refused(served, "subscription", topic="orders", name="none")[0] == 404


def test_actions_say_what_they_would_do_and_do_it(site: Maker, root: Path):
    """A plan changes nothing."""
    served = site(allow_changes=True)
    topics = served.served.admin.topics()
    of = {"topic": "orders", "subscription": "kitchen"}
    topics.create_subscription("orders", "kitchen")
    publish(root, "orders", 10, batching_enabled=False)

    def backlog() -> int:
        return topics.get_stats("orders").subscriptions["kitchen"].msg_backlog

    shown = plan(served, action="skip", count=3, **of)
    assert "3 messages would" in shown["text"][0]
    assert [each["value"]["text"] for each in shown["messages"]] == ["0", "1", "2"]
    assert backlog() == 10
    assert act(served, action="skip", count=3, **of).json() == {"text": "3 messages skipped"}
    assert backlog() == 7
    assert "10 entries" in plan(served, action="reset", to="earliest", **of)["text"][1]
    assert act(served, action="reset", to="earliest", **of).status_code == 200
    assert backlog() == 10
    ledger = topics.get_last_message_id("orders").ledger_id()
    assert "4 entries" in plan(served, action="reset", to=f"{ledger}:6", **of)["text"][1]
    act(served, action="reset", to=f"{ledger}:6", **of)
    assert backlog() == 4
    assert plan(served, action="clear", **of)["isDangerous"]
    act(served, action="clear", **of)
    assert backlog() == 0
    assert plan(served, action="delete-subscription", **of)["name"] == "kitchen"
    assert act(served, action="publish", topic="orders", payload="ü", key="k").status_code == 200
    assert get(served, "messages", topic="orders", count=1)["messages"][0]["value"]["text"] == "ü"
    act(served, action="delete-subscription", **of)
    assert topics.get_subscriptions("orders") == []
    assert plan(served, action="delete-topic", topic="orders")["name"] == "orders"
    act(served, action="delete-topic", topic="orders")
    assert get(served, "overview")["topics"] == 0


def test_what_is_wrong_with_an_action(site: Maker, root: Path):
    """Is said, with a status that fits."""
    served = site(allow_changes=True)
    publish(root, "orders", 1)
    assert act(served, action="fly").status_code == 400
    assert act(served, action="skip", topic="orders", subscription="none", count=1).status_code == 404
    assert act(served, action="skip", topic="orders", subscription="none", count="x").status_code == 400
    assert act(served, action="publish", topic="none", payload="").status_code == 404
    assert served.ask("POST", API + "actions", BEARER, content=b"action=clear").status_code == 415
    assert served.ask("POST", API + "actions", BEARER | {"origin": "http://evil"}, json={}).status_code == 403
    assert refused(served, "plan", given="{")[0] == 400
    assert get(served, "overview")["topics"] == 1


def test_nothing_changes_unless_it_is_allowed(site: Maker, root: Path):
    """The page shows no actions, and the server takes none."""
    publish(root, "orders", 1)
    served = site()
    assert get(served, "about")["allowChanges"] is False
    assert act(served, action="delete-topic", topic="orders").status_code == 403
    assert get(site(allow_changes=True), "about")["allowChanges"] is True


# -- the rest ----------------------------------------------------------------------------------------------


def test_dead_letters(site: Maker, root: Path):
    """Inspected, replayed one by one and all, given up."""
    served = site(allow_changes=True)
    with Client(root) as client:
        consumer = client.subscribe(
            "or-ders",
            "kit-chen",
            ConsumerType.Shared,
            negative_ack_redelivery_delay_ms=1,
            dead_letter_policy=ConsumerDeadLetterPolicy(1),
        )
        publish(root, "or-ders", 3)
        letters = served.served.admin.dead_letters("or-ders", "kit-chen")
        while len(letters.list()) < 3:
            # The last one is on its way to the dead letters, and is not delivered any more.
            with contextlib.suppress(Timeout):
                consumer.negative_acknowledge(consumer.receive(20))
        consumer.close()
    topics = get(served, "letter-topics")
    assert [(each["subscription"], each["letters"]) for each in topics] == [("kit-chen", 3)]
    of = {"topic": "or-ders", "subscription": "kit-chen"}
    shown = get(served, "letters", **of)
    assert sorted(each["value"]["text"] for each in shown) == ["0", "1", "2"]
    assert {each["origin"] for each in shown} == {"persistent://public/default/or-ders"}
    assert "would be published" in plan(served, action="replay", id=shown[0]["id"], **of)["text"][0]
    assert act(served, action="replay", id=shown[0]["id"], **of).status_code == 200
    assert len(get(served, "letters", **of)) == 2
    assert act(served, action="replay", id=shown[0]["id"], **of).status_code == 400
    assert act(served, action="replay", **of).json()["text"] == "2 dead letters published again"
    assert plan(served, action="purge", **of)["name"] == "purge"
    assert act(served, action="purge", **of).json()["text"] == "0 dead letters given up"


def test_transactions_functions_schemas_and_health(site: Maker, root: Path):
    """What these screens show of a store that has some."""
    from embeddedpulsar.functions import FunctionConfig

    served = site(allow_changes=True)
    served.served.admin.functions().create_function(FunctionConfig("json.dumps", "text", inputs=["in"]))
    with Client(root) as client:
        client.create_producer("json", schema=JsonSchema(Order)).send(Order(table=7))
        txn = client.new_transaction(label="bills of may")
        client.create_producer("bills").send(b"1", txn=txn)
        shown = get(served, "transactions")
        assert [(each["label"], each["status"]) for each in shown["open"]] == [("bills of may", "OPEN")]
        assert (
            "stored something in 1 topic"
            in plan(served, action="abort-transaction", transaction=shown["open"][0]["txnId"])["text"][1]
        )
        stuck = get(served, "overview")["stuck"]
        assert "bills of may" in next(each["why"] for each in stuck if "transaction" in each["why"])
        act(served, action="abort-transaction", transaction=shown["open"][0]["txnId"])
        assert get(served, "transactions")["open"] == []
    assert [each["name"] for each in get(served, "functions")] == ["public/default/text"]
    act(served, action="stop-function", function="public/default/text")
    assert get(served, "functions")[0]["status"]["isStarted"] is False
    assert [each["type"] for each in get(served, "schemas", topic="json")] == ["JSON"]
    health = get(served, "health")
    assert [check["name"] for check in health["checks"]] == ["store", "disk", "locks", "damage"]
    assert health["path"] == str(root)
    assert get(served, "check", topic="json")["damage"] == []


@pytest.mark.parametrize("view", ["overview", "topics", "topic", "subscriptions", "subscription", "messages"])
def test_streams_end_with_the_server(site: Maker, root: Path, view: str):
    """Each begins with what there is, and ends when the server is about to."""
    publish(root, "orders", 3)
    served = site(allow_changes=True)
    served.served.admin.topics().create_subscription("orders", HOSTILE)
    served.served.stop()
    query = {"view": view, "topic": "orders", "name": HOSTILE}
    answer = served.ask("GET", API + "events", BEARER, params=query)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.text.strip().split("\n\n")
    assert len(events) == 1
    assert isinstance(json.loads(events[0].removeprefix("data: ")), dict)


def test_streams_are_refused_and_counted(site: Maker, root: Path, monkeypatch: pytest.MonkeyPatch):
    """A stream of nothing is an error of the request; so many are open together."""
    served = site()
    assert refused(served, "events", view="topic", topic="none")[0] == 404
    assert refused(served, "events", view="weather")[0] == 400
    monkeypatch.setattr("embeddedpulsar.server.console._MOST_STREAMS", 0)
    assert refused(served, "events") == (503, "0 pages follow the store already; close one")


def test_a_page_that_follows_gets_the_last_messages(site: Maker, root: Path):
    """Few of them however many come, and the count of all."""
    from embeddedpulsar.server.browsing import newest

    publish(root, "orders", 5)
    served = site().served
    _, after = newest(served, "orders", 25, None)
    assert newest(served, "orders", 25, after) == ([], after)
    publish(root, "orders", 500)
    messages, last = newest(served, "orders", 25, after)
    assert [message.data() for message in messages] == [b"%d" % number for number in range(475, 500)]
    assert id_text(last) == id_text(served.admin.topics().get_last_message_id("orders"))
    assert newest(served, "orders", 25, last)[0] == []


def activity(time_ms: int, published: int, **backlogs: int) -> Any:
    """A store with one topic, at one moment."""
    subscriptions = tuple(
        SubscriptionActivity(name, "Shared", backlog, 0, 1, "") for name, backlog in backlogs.items()
    )
    backlog = max(backlogs.values(), default=0)
    topic = TopicActivity("persistent://a/b/c", 0.0, published, 0, backlog, 1, 100, subscriptions, ())
    return StoreActivity((topic,), 1, time_ms)


def test_rates_are_those_between_two_samples():
    """Of a subscription that is new, and of a topic that lost its counter, nothing is made up."""
    before = activity(1000, 100, audit=40)
    sample = sample_of(activity(3000, 300, audit=140, kitchen=0), before)
    assert sample.topics["persistent://a/b/c"] == Rates(100.0, 50.0)
    assert sample.subscriptions == {("persistent://a/b/c", "audit"): 50.0}
    assert sample_of(activity(3000, 0, audit=0), before).totals.rate_in == 0


def test_a_topic_that_grows_is_reported(site: Maker):
    """If its backlog rises for ten samples, and by a part of what comes."""
    sampler = Sampler(site().served.admin)
    before = None
    for second in range(12):
        now = activity(1000 * second, 1000 * second, audit=600 * second)
        sample = sample_of(now, before)
        sampler._keep(sample)
        before = now
    growing = list(sampler.growing(sample))
    assert [each.why for each in growing] == ["grows by 600 messages/s: 1,000/s come in"]
    sampler._keep(sample_of(activity(12_000, 12_000, audit=10), before))
    assert list(sampler.growing(sample)) == []


def test_samples_are_shared(site: Maker, root: Path):
    """However many pages ask, the store is looked at once in a second."""
    sampler = Sampler(site().served.admin)

    async def several() -> list[Any]:
        return await asyncio.gather(*(sampler.sample() for _ in range(20)))

    samples = asyncio.run(several())
    assert all(sample is samples[0] for sample in samples)
    assert len(sampler.history) == 1
