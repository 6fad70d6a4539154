"""Offloading to an S3-compatible server, which the test starts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.fs as fs
import pytest

from embeddedpulsar.arrow import read_topic
from embeddedpulsar.policy_values import OffloadPolicies
from embeddedpulsar.testing import assert_clean
from tests.children import run_python
from tests.conformance.offloading import TOPIC, Site

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
BUCKET = "cold-bucket"


@pytest.fixture
def location(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A prefix in a bucket of a server of this test."""
    server_module: Any = pytest.importorskip("moto.server", reason="the server of S3 needs moto")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    uri = f"s3://{BUCKET}/archive?endpoint_override={host}:{port}&scheme=http&region=us-east-1"
    uri += "&allow_bucket_creation=true"
    files, _ = fs.FileSystem.from_uri(uri)
    files.create_dir(BUCKET)
    yield uri
    server.stop()


def objects(uri: str) -> list[str]:
    """Names in the bucket."""
    files, path = fs.FileSystem.from_uri(uri)
    found = files.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
    return sorted(one.path for one in found if one.is_file)


def test_ledgers_go_to_a_bucket_and_come_back(tmp_path: Path, location: str) -> None:
    """By readers, by whole columns and by another process; and go with their topic."""
    site = Site(tmp_path)
    site.admin.namespaces().set_offload_policies(
        "public/default", OffloadPolicies(location, offload_deletion_lag_in_millis=0)
    )
    ids = site.publish(35)
    before = read_topic(site.root, TOPIC).to_pylist()
    assert site.offload() == ""
    assert len(objects(location)) == 9 and len(site.logs()) == 1
    assert read_topic(site.root, TOPIC).to_pylist() == before
    code = (
        "import sys; from embeddedpulsar.arrow import read_topic; "
        f"print(read_topic(sys.argv[1], {TOPIC!r}, ['value']).num_rows)"
    )
    assert run_python(code, str(site.root)).strip() == "35", sys.executable
    assert [found for found, _ in site.read_all()] == ids
    site.admin.topics().delete(TOPIC, force=True)
    assert objects(location) == []
    site.close()
    assert_clean(site.root)
