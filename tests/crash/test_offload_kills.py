"""An offloading that is killed at any of its steps loses nothing, and leaves nothing behind for good."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddedpulsar import (
    Admin,
    Client,
    MessageId,
    offload,  # declares the steps
)
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar.testing import assert_clean
from tests.children import die_at
from tests.conformance.offloading import TOPIC, Site, finished

POINTS = sorted(name for name in failpoints.names() if name.split(":")[0] in ("offload", "fetch"))


def filled(path: Path) -> tuple[Site, list[object]]:
    """A closed store with three ledgers to be offloaded, and what is in it."""
    site = Site(path)
    site.publish(35)
    found = site.read_all()
    site.close()
    return site, found


def act(root: Path) -> None:
    """What the victim does: everything that has steps."""
    with Admin(root) as admin:
        finished(admin, TOPIC, lambda: admin.topics().offload(TOPIC))
    with Client(root) as client, client.create_reader(TOPIC, MessageId.earliest) as reader:
        assert [reader.read_next(1000).data() for _ in range(35)]
    with Admin(root) as admin:
        admin.topics().create_subscription(TOPIC, "s", MessageId.earliest)
        admin.topics().set_retention(TOPIC, 0, 0)
        admin.topics().skip_all_messages(TOPIC, "s")
        admin.topics().trim_topic(TOPIC)
        finished(admin, TOPIC, lambda: admin.topics().offload(TOPIC))


@pytest.mark.parametrize("nth", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("point", POINTS)
def test_killed_at(tmp_path: Path, point: str, nth: int) -> None:
    """All messages are read that were not trimmed; after the next offloading no stray object is left."""
    site, found = filled(tmp_path)
    assert die_at(point, lambda: act(site.root), nth)
    site.reopen()
    left = site.read_all()
    assert left == found[len(found) - len(left) :] and (left == found or len(left) == 5)
    assert site.offload() == ""
    assert site.read_all() == left
    assert site.offload() == ""
    away = [one for one in site.admin.topics().get_internal_stats(TOPIC).ledgers if one.offloaded]
    assert len(site.objects()) == 3 * len(away) == 3 * len(site.notes())
    assert len(away) == (len(left) - 1) // 10
    site.close()
    assert_clean(site.root)


def test_every_step_is_covered() -> None:
    """Those that the modules declare."""
    assert set(POINTS) == {
        "fetch:renamed", "fetch:written", "offload:encoded", "offload:log_unlinked",
        "offload:manifest_written", "offload:note_unlinked", "offload:noted", "offload:object_removed",
        "offload:object_written", "offload:published", "offload:release_noted",
        "offload:removal_noted", "offload:verified",
    }  # fmt: skip
    assert offload.TopicOffload
