"""What ``embeddedpulsar serve`` refuses before it listens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from embeddedpulsar import Client
from embeddedpulsar.testing.trial_store import assert_clean


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A closed store."""
    with Client(tmp_path / "store"):
        pass
    return tmp_path / "store"


@pytest.mark.parametrize("address", ["0.0.0.0:8080", "[::]:8080", "192.168.0.7:80", "orders.example:80"])
def test_addresses_of_other_machines(call, store: Path, address: str):
    """They are asked for by --public."""
    status, _, err = call("serve", "--http", address)
    assert status == 2
    assert "add --public" in err
    assert_clean(store)


@pytest.mark.parametrize("address", ["8080", "localhost", ":8080", "127.0.0.1:http", "127.0.0.1:70000"])
def test_what_is_no_address(call, address: str):
    """The error shows how one is written."""
    status, _, err = call("serve", "--http", address)
    assert status == 2
    assert "write host:port, such as 127.0.0.1:8080" in err


def test_stores_that_cannot_be_served(call, store: Path, tmp_path: Path):
    """There is none; or it may only be looked at, and changes are to be allowed."""
    status, _, err = call("--store", str(tmp_path / "nothing"), "serve")
    assert status == 1
    assert "nothing" in err
    assert call("--read-only", "serve", "--allow-changes")[0] == 2


def test_metrics(call, store: Path):
    """What a scrape gets, and the dashboard that shows it."""
    pytest.importorskip("prometheus_client")
    with Client(store) as client:
        client.create_producer("orders").send(b"tea")
    status, out, _ = call("--read-only", "metrics")
    assert status == 0
    assert 'namespace="public/default",topic="persistent://public/default/orders"} 1.0\n' in out
    assert "orders" not in call("metrics", "--topics", "0")[1]
    status, out, _ = call("metrics", "--dashboard")
    assert status == 0
    assert json.loads(out)["title"] == "embeddedpulsar"


def test_an_empty_token_file(call, tmp_path: Path):
    """It would let all in."""
    pytest.importorskip("starlette")
    (tmp_path / "token").write_text("\n")
    status, _, err = call("serve", "--http", "127.0.0.1:0", "--token-file", str(tmp_path / "token"))
    assert status == 1
    assert "has no token" in err
