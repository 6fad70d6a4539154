"""A real broker, at which the conformance tests can be pointed: those that hold for Pulsar, too.

``PULSAR_SERVICE_URL`` is its address, ``PULSAR_ADMIN_URL`` that of its administration.
"""

from __future__ import annotations

import json
import os
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import embeddedpulsar

SERVICE_URL = os.environ.get("PULSAR_SERVICE_URL", "")
ADMIN_URL = os.environ.get("PULSAR_ADMIN_URL", "http://127.0.0.1:8080")
_TOPICS = f"{ADMIN_URL}/admin/v2/persistent/public/default"


def holds(item: pytest.Item) -> bool:
    """Whether a test is run with the broker: it is in the list."""
    return f"{item.path.stem}::{item.name}" in _names()


@cache
def _names() -> frozenset[str]:
    return frozenset(Path(__file__).with_name("holds_for_a_broker.txt").read_text("utf-8").split())


def options(url: object) -> dict[str, Any]:
    """The options of a client: with a broker, less patience, and no log between the results of the tests."""
    if url != SERVICE_URL:
        return {}
    quiet = embeddedpulsar.FileLogger(embeddedpulsar.LoggerLevel.Error, os.devnull)
    return {"operation_timeout_seconds": 5, "logger": quiet}


def delete_topics() -> None:
    """Delete the topics of the namespace public/default, so that each test begins without any."""
    for path in ("partitioned", ""):
        for topic in json.loads(_call("GET", path)):
            suffix = "/partitions" if path else ""
            _call("DELETE", f"{topic.rpartition('/')[2]}{suffix}?force=true")


def _call(method: str, path: str) -> bytes:
    request = urllib.request.Request(f"{_TOPICS}/{path}".rstrip("/"), method=method)
    with urllib.request.urlopen(request, timeout=10) as response:
        found: bytes = response.read()
    return found
