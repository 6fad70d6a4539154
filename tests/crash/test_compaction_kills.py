"""A compaction that is killed at any of its steps has changed nothing, or has been done."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.store import topic_compaction  # declares the steps
from embeddedpulsar.testing import assert_clean
from tests.children import die_at
from tests.conformance.compacting import TOPIC, compact, compacted, next_ledger, send, send_batch, values

KEYS = 1500  # two blocks

POINTS = sorted(name for name in failpoints.names() if name.split(":")[0] in ("compaction", "document"))


def compact_in(root: Path) -> None:
    """What the victim does."""
    with Admin(root) as admin:
        compact(admin)


def made(root: Path, *, is_compacted: bool) -> dict[str, bytes]:
    """A closed store; returns the newest value of each key."""
    with Client(root) as client, Admin(root) as admin:
        admin.topics().create_non_partitioned_topic(TOPIC)
        admin.topics().set_compaction_threshold(TOPIC, 1 << 40)
        for turn in range(3):
            send_batch(client, *((f"k{n}", b"%d-%d" % (turn, n)) for n in range(0, KEYS, turn + 1)))
            send(client, ("k1", None), ("other", b"%d" % turn))
            next_ledger(client)
            if not turn and is_compacted:
                compact(admin)
    found = {f"k{n}": b"0-%d" % n for n in range(KEYS)}
    found |= {f"k{n}": b"1-%d" % n for n in range(0, KEYS, 2)}
    found |= {f"k{n}": b"2-%d" % n for n in range(0, KEYS, 3)}
    del found["k1"]
    return found | {"other": b"2"}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, tuple[Path, dict[str, bytes]]]:
    """Of `made`, without and with a compaction; tests use copies."""
    folder = tmp_path_factory.mktemp("stores")
    return {
        is_compacted: (
            folder / str(is_compacted),
            made(folder / str(is_compacted), is_compacted=is_compacted),
        )
        for is_compacted in (False, True)
    }


def files(root: Path) -> list[str]:
    """What compaction has of its own, without the lock."""
    directory = next(root.glob("topics/*"))
    return sorted(name for name in os.listdir(directory) if name.startswith("compact") and "lock" not in name)


@pytest.mark.parametrize("is_compacted", [False, True], ids=["first", "second"])
@pytest.mark.parametrize("point", POINTS)
def test_killed_at(
    stores: dict[bool, tuple[Path, dict[str, bytes]]], tmp_path: Path, point: str, is_compacted: bool
):
    """Readers get the newest values of all keys; the next compaction removes what was left."""
    root = tmp_path / "store"
    store, newest = stores[is_compacted]
    shutil.copytree(store, root)
    is_killed = die_at(point, lambda: compact_in(root))
    assert is_killed or (point == "compaction:unlinked" and not is_compacted)
    with Client(root) as client, Admin(root) as admin:
        assert admin.topics().compaction_status(TOPIC).status in ("NOT_RUN", "SUCCESS")
        admin.topics().trim_topic(TOPIC)
        with client.create_table_view(TOPIC) as view:
            assert {key: view.get(key) for key in view} == newest
        send(client, ("k2", b"new"))
        compact(admin)
        admin.topics().trim_topic(TOPIC)
        assert dict(values(compacted(client))) == newest | {"k2": b"new"}
        assert len(compacted(client)) == len(newest)
    assert [name.partition(".")[0] for name in files(root)] == ["compacted", "compaction"]
    assert_clean(root)


def test_every_step_is_covered():
    """Those of compaction, declared by its modules."""
    assert {name.split(":")[1] for name in POINTS if name.startswith("compaction:")} == {
        "began", "block_written", "written", "synced", "renamed", "published", "unlinked",
    }  # fmt: skip
    assert topic_compaction.TopicCompaction


def test_a_compaction_that_fails_says_why(tmp_path: Path):
    """The log and the compacted ledger stay; the next one succeeds."""
    root = tmp_path / "store"
    newest = made(root, is_compacted=True)
    with Client(root) as client, Admin(root) as admin:

        def full() -> None:
            raise OSError("no room")

        failpoints.set("compaction:block_written", full)
        try:
            admin.topics().compact(TOPIC)
            while admin.topics().compaction_status(TOPIC).status == "RUNNING":
                pass
        finally:
            failpoints.clear()
        assert admin.topics().compaction_status(TOPIC).json() == {"status": "ERROR", "lastError": "no room"}
        assert admin.topics().get_stats(TOPIC).compaction.last_compaction_failed_timestamp > 0
        assert dict(one for one in values(compacted(client)) if one[1]).keys() >= newest.keys()
        assert files(root) == ["compacted.1", "compaction"]
        compact(admin)
        assert dict(values(compacted(client))) == newest
    assert_clean(root)
