"""`embeddedpulsar transactions`: what it prints, and what it asks before it ends one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from embeddedpulsar import Client, ConsumerType
from embeddedpulsar.testing.trial_store import assert_clean

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """An open transaction (0,2), a prepared one (0,3), one that is committed (0,1), one aborted (0,4)."""
    root = tmp_path / "store"
    with Client(root) as client:
        orders, bills = client.create_producer("orders"), client.create_producer("bills")
        consumer = client.subscribe("orders", "shipping", ConsumerType.Shared)
        orders.send(b"plain")
        with client.transaction() as committed:
            bills.send(b"x", txn=committed)
        opened = client.new_transaction(label="invoice run")
        orders.send(b"1", txn=opened)
        bills.send(b"2", txn=opened)
        consumer.acknowledge(consumer.receive(), txn=opened)
        prepared = client.new_transaction()
        orders.send(b"3", txn=prepared)
        prepared.prepare("invoice-42")
        aborted = client.new_transaction()
        bills.send(b"4", txn=aborted)
        aborted.abort()
        yield root
    assert_clean(root)


def shown(call: Call, *arguments: str) -> dict[str, object]:
    """What a verb prints as JSON."""
    status, out, _ = call("transactions", *arguments)
    assert status == 0
    found: dict[str, object] = json.loads(out)
    return found


def test_lists(call: Call, store: Path) -> None:
    """For people a table, for programs JSON with Pulsar's names."""
    assert json.loads(call("transactions", "coordinators-list", "--json")[1]) == [
        {"id": 0, "brokerServiceUrl": str(store)}
    ]
    assert "store" in call("transactions", "coordinators-list")[1]
    _, out, _ = call("transactions", "slow-transactions", "-t", "0")
    heading, opened, prepared = out.splitlines()
    assert heading.split()[:3] == ["id", "status", "age"]
    assert opened.startswith("(0,2)  OPEN") and f" {os.getpid()} " in opened
    assert "invoice run" in opened and "bills, orders  orders: shipping" in opened
    assert prepared.startswith("(0,3)  PREPARED") and "never" in prepared and "invoice-42" in prepared
    listed = json.loads(call("transactions", "slow-transactions", "-t", "0", "--json")[1])
    assert list(listed) == ["(0,2)", "(0,3)"] and listed["(0,2)"]["pid"] == os.getpid()
    assert json.loads(call("transactions", "slow-transactions", "-t", "1h", "--json")[1]) == {}
    assert "invoice-42" in call("transactions", "prepared-list")[1]
    (waiting,) = json.loads(call("transactions", "prepared-list", "--json")[1])
    assert waiting["producedPartitions"] == {"persistent://public/default/orders": 1}


def test_figures(call: Call) -> None:
    """Each verb of pulsar-admin prints the object that its name says."""
    assert shown(call, "coordinator-stats")["0"]["ongoingTxnSize"] == 2  # type: ignore[index]
    assert shown(call, "coordinator-stats", "-c", "0")["leastSigBits"] == 4
    assert shown(call, "transaction-metadata", "-m", "0", "-l", "2")["status"] == "OPEN"
    buffer = shown(call, "transaction-buffer-stats", "-t", "bills", "-l")
    assert (buffer["ongoingTxnSize"], buffer["totalAbortedTransactions"]) == (1, 1)
    assert buffer["lowWaterMarks"] == {"0": 1}
    assert shown(call, "transaction-in-buffer-stats", "-l", "4", "-t", "bills")["aborted"] is True
    pending = shown(call, "pending-ack-stats", "-t", "orders", "-s", "shipping")
    assert pending["transactions"] == {"(0,2)": {"entries": 1, "batches": 0}}
    own = shown(call, "transaction-in-pending-ack-stats", "-l", "2", "-t", "orders", "-s", "shipping")
    assert own == {"entries": 1, "batches": 0}
    place = ("-t", "orders", "-s", "shipping", "-l", "1")
    assert shown(call, "position-stats-in-pending-ack", *place, "-e", "0") == {"state": "PendingAck"}
    assert shown(call, "position-stats-in-pending-ack", *place, "-e", "7") == {"state": "InvalidPosition"}
    for verb in (
        ("coordinator-internal-stats",),
        ("pending-ack-internal-stats", "-t", "orders", "-s", "shipping"),
        ("transaction-buffer-snapshot-internal-stats", "-t", "orders"),
    ):
        ledgers = shown(call, *verb)["managedLedgerInternalStats"]["ledgers"]  # type: ignore[index]
        assert ledgers and ledgers[-1]["entries"] > 0, verb


def test_ending_asks_first(call: Call) -> None:
    """The question says what goes; of one that is prepared a warning says what may rely on it."""
    status, out, _ = call("transactions", "abort-transaction", "-l", "2", "--dry-run")
    assert status == 0 and "would abort the transaction (0,2) 'invoice run'" in out
    assert "messages in bills, messages in orders, acknowledgements in orders: shipping" in out
    assert call("transactions", "abort-transaction", "-l", "2", typed=b"n\n")[0] == 1
    assert shown(call, "transaction-metadata", "-l", "2")["status"] == "OPEN"
    assert call("transactions", "abort-transaction", "-l", "2", "-y") == (0, "", "")
    assert shown(call, "transaction-metadata", "-l", "2")["status"] == "ABORTED"
    status, _, err = call("transactions", "abort-transaction", "-l", "3", "--dry-run")
    assert status == 0 and "PREPARED" in err and "'invoice-42'" in err
    assert call("transactions", "commit-prepared", "-l", "3", "-y")[0] == 0
    assert shown(call, "transaction-metadata", "-l", "3")["status"] == "COMMITTED"


def test_refusals(call: Call) -> None:
    """One line that names the reason."""
    for arguments, reason in (
        (("abort-transaction", "-l", "1", "-y"), "is committed"),
        (("abort-transaction", "-l", "99", "-y"), "there is no transaction (0,99)"),
        (("commit-prepared", "-l", "2", "-y"), "no transaction (0,2) is prepared"),
        (("transaction-metadata", "-m", "3", "-l", "1"), "no transaction coordinator 3"),
        (("coordinator-stats", "-c", "1"), "no transaction coordinator 1"),
        (("scale-transactionCoordinators", "-r", "4"), "it has one"),
        (("pending-ack-stats", "-t", "orders", "-s", "nobody"), "no subscription 'nobody'"),
    ):
        status, out, err = call("transactions", *arguments)
        assert (status, out) == (1, "") and reason in err, arguments


def test_top_names_the_transaction(call: Call, store: Path) -> None:
    """Its id, label and process, where the topics cannot go on."""
    status, out, _ = call("top", "--once", "--interval", "0.1")
    assert status == 0
    (waiting,) = [line for line in out.splitlines() if line.startswith("bills waits")]
    assert f"(0,2) 'invoice run' of {os.getpid()} " in waiting and "from 2:1 on" in waiting
    (orders,) = [line for line in out.splitlines() if line.startswith("orders waits")]
    assert orders.endswith("; 1 more")
    shown_topics = json.loads(call("top", "--json", "--interval", "0.1")[1])["topics"]
    held = {topic["topic"].rpartition("/")[2]: topic["heldBy"]["txnId"] for topic in shown_topics}
    assert held == {"bills": "(0,2)", "orders": "(0,2)"}
    call("transactions", "abort-transaction", "-l", "2", "-y")
    assert "bills waits" not in call("top", "--once", "--interval", "0.1")[1]
    assert "(0,3) 'invoice-42', prepared and not ended" in call("top", "--once", "--interval", "0.1")[1]


def test_stats_of_a_topic(call: Call) -> None:
    """They count the transactions, with Pulsar's names."""
    assert "1 open, 1 committed, 1 aborted" in call("topics", "stats", "bills")[1]
    stats = json.loads(call("topics", "stats", "bills", "--json")[1])
    counts = [stats[name] for name in ("ongoingTxnCount", "committedTxnCount", "abortedTxnCount")]
    assert counts == [1, 1, 1]
