"""Which ledgers Spark reads itself, and where the rest begins."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from embeddedpulsar.spark.log_plan import cold_part
from embeddedpulsar.topic_name import TopicName
from tests.conformance.offloading import TOPIC, Site


@pytest.mark.parametrize("is_rolled", [False, True], ids=["goes on", "rolled"])
def test_the_oldest_ledgers(tmp_path: Path, is_rolled: bool):
    """All that are offloaded, also if nothing was published since."""
    site = Site(tmp_path)
    log = TopicName.parse(TOPIC)
    ids = site.publish(25)
    assert cold_part(str(site.root), log)[0] == []
    if is_rolled:
        site.roll()
    assert site.offload() == ""
    uris, start = cold_part(str(site.root), log)
    ledger, entry = map(int, start.split(":"))
    if is_rolled:
        assert len(uris) == 3 and ledger > ids[-1].ledger_id() and entry == 0
    else:
        assert len(uris) == 2 and (ledger, entry) == (ids[-1].ledger_id(), 0)
    site.close()
