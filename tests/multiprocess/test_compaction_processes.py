"""Compaction in one process while others send and read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, MessageId, NotAllowedError
from embeddedpulsar._engine.platform import timing
from embeddedpulsar.testing import assert_clean
from tests.children import ForkedChild, start_python
from tests.conformance.compacting import TOPIC, compact, compacted, send, values

SENDER = """
import random, sys
from embeddedpulsar import Client
root, seed, count, nulls = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
rng = random.Random(seed)
newest = {}
with Client(root) as client, client.create_producer(
    "topic", batching_enabled=seed % 2 == 0, block_if_queue_full=True
) as producer:
    for number in range(count):
        key = f"{seed}-{rng.randrange(200)}"
        value = None if rng.random() < nulls else b"%d" % number
        producer.send_async(value, None, partition_key=key)
        newest[key] = value
    producer.flush()
import json
print(json.dumps({key: value.decode() for key, value in newest.items() if value}))
"""
READER = """
import json, sys
from embeddedpulsar import Client
with Client(sys.argv[1]) as client:
    view = client.create_table_view("topic")
    print("made", flush=True)
    sys.stdin.readline()
    expected = json.loads(sys.stdin.readline())
    import time
    until = time.monotonic() + 60
    found = {}
    while time.monotonic() < until:
        found = {key: view.get(key).decode() for key in view if view.get(key) is not None}
        if found == expected:
            break
        time.sleep(0.05)
    print(json.dumps(found))
"""


@pytest.mark.parametrize("is_trimmed", [False, True])
def test_compactions_beside_producers_and_readers(tmp_path: Path, is_trimmed: bool):
    """Table views of other processes, and readers made later, agree with what was sent.

    A table view that is overtaken by a compaction and a trim misses removals, so there are none then.
    """
    root = tmp_path / "store"
    root.mkdir()
    (root / "broker.conf").write_text("managedLedgerMaxEntriesPerLedger=500\n")
    with Client(root) as client, Admin(root) as admin:
        admin.topics().create_non_partitioned_topic(TOPIC)
        if is_trimmed:
            admin.topics().set_compaction_threshold(TOPIC, 1 << 40)
        else:
            admin.topics().set_retention(TOPIC, -1, -1)
        readers = [start_python(READER, str(root)) for _ in range(2)]
        for reader in readers:
            assert reader.stdout is not None and reader.stdout.readline() == "made\n"
        nulls = "0" if is_trimmed else "0.2"
        senders = [start_python(SENDER, str(root), str(seed), "6000", nulls) for seed in range(3)]
        compactions = 0
        while any(sender.poll() is None for sender in senders):
            compact(admin)
            compactions += 1
            if is_trimmed:
                admin.topics().trim_topic(TOPIC)
            found = dict(values(compacted(client)))
            assert all(key.partition("-")[0] in "012" for key in found)
        newest: dict[str, str] = {}
        for sender in senders:
            newest |= json.loads(sender.communicate(timeout=60)[0])
        for reader in readers:
            answer = reader.communicate(f"\n{json.dumps(newest)}\n", timeout=90)[0]
            assert json.loads(answer) == newest
            assert reader.returncode == 0
        compact(admin)
        assert {key: value.decode() for key, value in values(compacted(client))} == newest
        assert compactions > 0
    assert_clean(root)


def test_one_process_at_a_time(tmp_path: Path):
    """The status says so everywhere, and a process that dies leaves the lock."""
    root = tmp_path / "store"
    with Client(root) as client:
        send(client, *((f"k{n}", b"1") for n in range(50)))

    def hold() -> str:
        store = Admin(root)._store
        use = store.use_topic(TOPIC)
        from embeddedpulsar._engine.filenames import compaction_lock_path
        from embeddedpulsar._engine.platform.file_lock import FileLock

        lock = FileLock(compaction_lock_path(use.topic.directory))
        lock.acquire()
        globals()["_held"] = lock
        return "held"

    child = ForkedChild(hold)
    assert child.ready() == "held"
    with Client(root) as client, Admin(root) as admin:
        assert admin.topics().compaction_status(TOPIC).status == "RUNNING"
        with pytest.raises(NotAllowedError, match="already"):
            admin.topics().compact(TOPIC)
        child.end()
        until = timing.perf_counter() + 30
        while admin.topics().compaction_status(TOPIC).status == "RUNNING":
            assert timing.perf_counter() < until
        compact(admin)
        assert len(compacted(client, MessageId.earliest)) == 50
    Client(root).close()  # removes the lease of the child
    assert_clean(root)
