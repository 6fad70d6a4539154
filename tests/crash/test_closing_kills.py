"""A process is killed while it closes an open ledger that is acknowledged, and gives it back."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, InitialPosition
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar.testing import assert_clean
from tests.children import die_at

POINTS = sorted(name for name in failpoints.names() if name.split(":")[0] in ("closing", "roll", "trim"))
VALUE = bytes(40_000)


def trim(root: Path) -> None:
    """What the victim does."""
    with Admin(root) as admin:
        admin.topics().trim_topic("topic")


@pytest.mark.parametrize("point", POINTS)
def test_killed_at(tmp_path: Path, point: str):
    """Nothing comes again, nothing is lost, ids go up, and the next trimming removes what was left."""
    root = tmp_path / "store"
    with Client(root) as client:
        consumer = client.subscribe("topic", "s", initial_position=InitialPosition.Earliest)
        producer = client.create_producer("topic")
        for _ in range(4):
            last = producer.send(VALUE)
            consumer.acknowledge(consumer.receive(1000))
    assert die_at(point, lambda: trim(root))
    with Client(root) as client, Admin(root) as admin:
        admin.topics().trim_topic("topic")
        assert [
            len(admin.topics().peek_messages("topic", "s", 9)),
            len(list(root.glob("topics/*/*.log"))),
        ] == [0, 1]
        new = client.create_producer("topic").send(b"new")
        assert new.ledger_id() > last.ledger_id()
        consumer = client.subscribe("topic", "s")
        assert consumer.receive(1000).data() == b"new"
    assert_clean(root)


def test_every_step_is_covered():
    """Those between the decision and the removal."""
    assert {name for name in POINTS if name.startswith("closing:")} == {"closing:decided", "closing:rolled"}
    assert len(POINTS) >= 8
