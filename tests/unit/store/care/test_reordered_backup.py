"""A backup that copies a log of which it sees a tail before what stands there.

Each test is named in a row of the table in docs/concurrency.md, "Machines that reorder".
"""

from __future__ import annotations

from pathlib import Path

import embeddedpulsar
from embeddedpulsar import Admin
from tests.support.weak_memory import Stores, reordering, samples


def test_a_backup_has_whole_entries(tmp_path: Path):
    """What it copies is not verified, so it waits until what stands before the tail is seen."""
    root = tmp_path / "store"
    with embeddedpulsar.Client(str(root)) as client:
        producer = client.create_producer("orders")
        producer.send(b"first")
        (log,) = root.rglob("*.log")
        files = [str(log), str(log.with_suffix(".idx")), str(log.parent / "ctl")]
        for number in range(3):
            stores = Stores(*files)
            producer.send(b"second" * 100)
            stores.end()
            tail = [change for change in stores.changes if change.path.endswith("ctl")]
            rest = [change for change in stores.changes if change not in tail]
            *_, seen = samples(rest, 1 + number, seed=number)
            target, copy = tmp_path / f"backup-{number}", tmp_path / f"copy-{number}"
            with Admin(str(root)) as admin:
                with reordering(stores.deliver):
                    stores.show([*tail, *seen])
                    admin.backup(str(target))
                stores.deliver()
                admin.restore(str(target), str(copy))
            with embeddedpulsar.Client(str(copy)) as restored:
                reader = restored.create_reader("orders", embeddedpulsar.MessageId.earliest)
                values = [reader.read_next(1000).data() for _ in range(number + 2)]
                assert values == [b"first"] + [b"second" * 100] * (number + 1)
