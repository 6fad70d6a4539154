"""What finished transactions leave: bytes, and time when a store is opened; before and after they are folded.

python -m benchmarks.micro.finished_transactions [transactions] [directory]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from embeddedpulsar import Client
from embeddedpulsar._engine.filenames import FOLDED
from embeddedpulsar._engine.format.control import TransactionWord

_ABORTED_OF = 10
"""One of so many is aborted."""
_OPENINGS = 7
_OPEN = """
import sys, time
from embeddedpulsar import Client
import embeddedpulsar._engine.txn.transaction_log, embeddedpulsar.client.transaction
began = time.perf_counter()
client = Client(sys.argv[1])
opened = time.perf_counter()
client.new_transaction().id
begun = time.perf_counter()
client.close()
print(opened - began, begun - opened)
"""


def size_of(root: Path) -> tuple[int, int]:
    """Bytes of the transaction log, and of the documents of topics."""
    log = sum(path.stat().st_size for path in (root / "txn").glob("*") if path.is_file())
    return log, sum(path.stat().st_size for path in (root / "topics").rglob(FOLDED))


def opening(root: Path) -> tuple[float, float]:
    """Milliseconds in which a fresh process opens the store, then begins a transaction; the best of some."""
    samples = []
    for _ in range(_OPENINGS):
        command = [sys.executable, "-c", _OPEN, str(root)]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        samples.append([float(number) * 1000 for number in printed.split()])
    first, second = zip(*samples, strict=True)
    return min(first), min(second)


def show(title: str, root: Path) -> None:
    """One row."""
    (log, documents), (opened, begun) = size_of(root), opening(root)
    print(f"{title:34} {log:>12,} {documents:>12,} {opened:>9.2f} {begun:>9.2f}", flush=True)


def run(client: Client, count: int) -> float:
    """Transactions of one send each; microseconds for each."""
    producer = client.create_producer("finished")
    began = time.perf_counter()
    for number in range(count):
        txn = client.new_transaction()
        producer.send(b"x", txn=txn)
        if number % _ABORTED_OF:
            txn.commit()
        else:
            txn.abort()
    return (time.perf_counter() - began) / max(count, 1) * 1e6


def fold(client: Client) -> float:
    """One pass; seconds."""
    store = client._core.store
    log, folder = store.transactions.log(), store.make_folder(store._current())
    began = time.perf_counter()
    while folder.fold(log, []):
        pass
    return time.perf_counter() - began


def end_range(client: Client) -> None:
    """Have the next transaction begin a table, so that a pass can let go all tables before."""
    words = client._core.store.transactions.log().control.words
    words[TransactionWord.NEXT_ID] = words[TransactionWord.RESERVED]


def main() -> None:
    """Measure, and print a table."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    where = Path(tempfile.mkdtemp(dir=sys.argv[2] if len(sys.argv) > 2 else None))
    root = where / "store"
    print(f"{'':34} {'log, bytes':>12} {'documents':>12} {'open, ms':>9} {'begin, ms':>9}")
    try:
        # Housekeeping does nothing by itself meanwhile: the rows are those of moments that are known.
        Client(root).close()
        (root / "broker.conf").write_text("retentionCheckIntervalInSeconds=86400\n")
        with Client(root) as client:
            run(client, 1)
        show("one transaction", root)
        with Client(root) as client:
            client._core.store.transactions.fold = lambda log, done: False
            each = run(client, count)
        show(f"{count:,}, not folded", root)
        with Client(root) as client:
            end_range(client)
            seconds = fold(client)
        show(f"{count:,}, folded", root)
        with Client(root) as client:
            store = client._core.store
            folder = store.make_folder(store._current())
            for _ in range(6):
                folder._look_at = 0.0
                folder.fold(store.transactions.log(), [])
        show("and nothing decided for a while", root)
        print(f"{each:.1f} us for each, {seconds:.2f} s to fold, {seconds / count * 1e6:.2f} us for each")
    finally:
        shutil.rmtree(where)


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    main()
