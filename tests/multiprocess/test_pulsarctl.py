"""pulsarctl, and the REST interface of ``embeddedpulsar serve``. Left out where there is no pulsarctl."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from embeddedpulsar import Client
from embeddedpulsar.testing import assert_clean
from tests.multiprocess.test_serve import serving

PULSARCTL = os.environ.get("PULSARCTL") or shutil.which("pulsarctl")
pytestmark = [
    pytest.mark.skipif(PULSARCTL is None, reason="no pulsarctl"),
    pytest.mark.skipif(find_spec("uvicorn") is None, reason="no uvicorn"),
]
Ctl = Callable[..., tuple[int, str]]

# What is typed, and what is printed.
COMMANDS = (
    ("tenants create acme --allowed-clusters standalone", "Create tenant acme successfully"),
    ("tenants list", "acme"),
    ("tenants get acme", '"standalone"'),
    ("tenants update acme --allowed-clusters standalone", "Update tenant acme successfully"),
    ("namespaces create acme/shop", "Created acme/shop successfully"),
    ("namespaces list acme", "acme/shop"),
    ("namespaces policies acme/shop", '"replication_clusters"'),
    ("namespaces set-retention acme/shop --time 1h --size 100M", "time = 60 min, size = 100 MB"),
    ("namespaces get-retention acme/shop", '"retentionTimeInMinutes": 60'),
    ("namespaces set-message-ttl acme/shop -t 60", "successfully"),
    ("namespaces get-message-ttl acme/shop", "60"),
    ("namespaces set-backlog-quota acme/shop --limit 10M -p producer_exception", "successfully"),
    ("namespaces get-backlog-quotas acme/shop", '"limit": 10485760'),
    ("namespaces set-deduplication acme/shop --enable", "successfully"),
    ("namespaces set-max-producers-per-topic acme/shop --size 7", "to 7"),
    ("namespaces get-max-producers-per-topic acme/shop", "is 7"),
    ("namespaces set-dispatch-rate acme/shop --msg-rate 10 --byte-rate 1000 --period 1", "acme/shop"),
    ("namespaces get-dispatch-rate acme/shop", '"dispatchThrottlingRateInMsg": 10'),
    ("topics create acme/shop/orders 0", "with 0 partitions successfully"),
    ("topics create acme/shop/parts 3", "with 3 partitions successfully"),
    ("topics list acme/shop", "persistent://acme/shop/parts-partition-2"),
    ("topics update acme/shop/parts 4", "with 4 partitions successfully"),
    ("topics get acme/shop/parts", '"partitions": 4'),
    ("topics stats acme/shop/orders", '"deduplicationStatus": "Enabled"'),
    ("topics stats acme/shop/parts --partitioned-topic", '"storageSize": 0'),
    ("topics internal-stats acme/shop/orders", '"state": "LedgerOpened"'),
    ("topics last-message-id public/default/orders", '"entryId": 4'),
    ("subscriptions create public/default/orders work --messageId earliest", "successfully"),
    ("subscriptions list public/default/orders", "work"),
    ("subscriptions peek public/default/orders work --count 2", "order 1"),
    ("subscriptions skip public/default/orders work --count 3", "skips 3 messages"),
    ("subscriptions peek public/default/orders work --count 1", "order 3"),
    ("subscriptions seek public/default/orders work --time 1h", "successfully"),
    ("subscriptions peek public/default/orders work --count 1", "order 0"),
    ("subscriptions expire public/default/orders work --expire-time 3600", "successfully"),
    ("subscriptions delete public/default/orders work", "successfully"),
    ("topics compact-status acme/shop/orders", "is not running"),
    ("topics unload acme/shop/orders", "successfully"),
    ("topics terminate acme/shop/orders", "successfully"),
    ("topics delete acme/shop/orders --non-partitioned", "successfully"),
    ("topics delete acme/shop/parts", "successfully"),
    ("clusters list", "standalone"),
    ("brokers list-dynamic-config", "allowAutoTopicCreation"),
    ("brokers healthcheck", "ok"),
    ("functions list --tenant public --namespace default", "FUNCTION NAME"),
    ("namespaces delete acme/shop", "successfully"),
    ("tenants delete acme", "successfully"),
)
# What is refused, and why.
REFUSED = (
    ("tenants get nothing", "404"),
    ("topics stats public/default/nothing", "404"),
    ("topics create public/default/orders 0", "409"),
    ("topics create acme/shop/orders 0", "404"),
    ("namespaces delete public/default", "409"),
    ("subscriptions delete public/default/orders nothing", "404"),
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """A store with five orders."""
    with Client(tmp_path / "store") as client:
        producer = client.create_producer("orders")
        for number in range(5):
            producer.send(b"order %d" % number)
        client.subscribe("orders", "kept").close()
    yield tmp_path / "store"
    assert_clean(tmp_path / "store")


def control(line: str) -> Ctl:
    """Calls pulsarctl with the server of which this is the first line."""
    base, _, token = line.split()[-1].partition("?token=")

    def call(*arguments: str) -> tuple[int, str]:
        command = [PULSARCTL or "", "-s", base.rstrip("/"), "--token", token, "-C", "false", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout + done.stderr

    return call


def test_commands(store: Path, tmp_path: Path):
    """They do and print what they do with a broker."""
    with serving(store, "--http", "127.0.0.1:0", "--allow-changes") as (process, line):
        call = control(line)
        for command, expected in COMMANDS:
            status, output = call(*command.split())
            assert (status, expected in output) == (0, True), f"{command}: {output}"
        schema = tmp_path / "schema.json"
        schema.write_text(json.dumps({"type": "STRING", "schema": "", "properties": {}}))
        for command in (
            "upload public/default/orders -f",
            "get public/default/orders",
            "delete public/default/orders",
        ):
            arguments = ["schemas", *command.split(), *([str(schema)] if "upload" in command else [])]
            status, output = call(*arguments)
            assert status == 0, f"{command}: {output}"
        for command, reason in REFUSED:
            status, output = call(*command.split())
            assert (status != 0, f"code: {reason}" in output) == (True, True), f"{command}: {output}"
        process.terminate()
        assert process.wait(30) == 0


def test_without_changes(store: Path):
    """Nothing is changed."""
    with serving(store, "--http", "127.0.0.1:0") as (process, line):
        status, output = control(line)("topics", "delete", "public/default/orders", "--non-partitioned")
        assert status != 0
        assert "code: 403" in output
        assert control(line)("topics", "stats", "public/default/orders")[0] == 0
        process.terminate()
        assert process.wait(30) == 0
