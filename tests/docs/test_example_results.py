"""What the examples print."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.test_docs import run
from tests.source_tree import ROOT

RESULTS = {
    "01_quickstart.py": ["table-7 Ada soup", "table-7 Ada pasta", "and then tea"],
    "02_shared_between_processes.py": ["3 processes, 2000 messages, in order: True"],
    "03_reader_seek.py": [
        "all: one two three four",
        "behind two: three four",
        "since 1970: one two three four",
        "anything new? False",
        "from three: three four",
    ],
    "04_retries_and_dead_letters.py": [
        "pasta served, attempt 1",
        "soup served, attempt 2",
        "shoe given up: burnt",
        "ordered in persistent://public/default/orders",
    ],
    "05_worker_pool.py": ["300 jobs done by 3 workers, one of them killed"],
    "06_key_order.py": ["24 customers, 20 orders of each, in order: True"],
    "07_delayed.py": [
        "from   0 ms on: cake is in the oven",
        "from 200 ms on: lower the heat",
        "from 400 ms on: take the cake out",
        "log: take the cake out, lower the heat, cake is in the oven",
    ],
    "12_encryption.py": [
        "the curious see 80 bytes, a cake among them: False",
        "the kitchen reads: a birthday cake for Ada - a surprise",
    ],
    "08_key_ordered_partitions.py": [
        "24 customers, 50 orders of each, in order",
        "on 4 partitions, by 2 cooks",
    ],
    "11_whole_columns.py": [
        "100,000 messages in 11 entries",
        'N593JB {"carrier": "B6", "flight": 79}',
        "the same columns: True",
        "keys without one: 25000",
    ],
    "13_functions.py": ["tea: 3000 killed: True"],
    "14_consume_transform_produce.py": [
        "workers that died: 3",
        "invoices 300 each once: True",
        "deliveries 300 each once: True",
    ],
    "15_two_phase_commit.py": ["rows: fish tea", "messages: fish tea"],
    "16_transfers.py": ["399 transfers, in both banks: True", "sum of all accounts: 0"],
    "09_leader_election.py": ["3 leaders, one after the other"],
    "outbox.py": ["bills: 300 300 messages: 300 300"],
    "10_idempotent_publishing.py": ["crashed", "crashed", "done", "300 lines, each once"],
}
SERVED = ("17_two_phase_commit_postgresql.py",)


def test_every_example_has_its_result():
    """A folder in examples/ is a program of several files with a test of its own; those of Spark share a
    session in `tests/spark/test_pipelines.py`, and those of a server are in `tests/multiprocess`."""
    found = {path.name for path in (ROOT / "examples").glob("*.py")}
    assert RESULTS.keys() == {name for name in found if not name.startswith(("_", "spark_", *SERVED))}


@pytest.mark.parametrize("name", sorted(RESULTS))
def test_an_example_prints_its_result(name: str, tmp_path: Path):
    """An example runs alone in an empty folder, prints what it promises, and is short."""
    done = run(ROOT / "examples" / name, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == RESULTS[name]
    assert len((ROOT / "examples" / name).read_text("utf-8").splitlines()) <= 60
