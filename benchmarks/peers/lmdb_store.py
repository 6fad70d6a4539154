"""LMDB by hand: an ordered map of counter to payload in one memory-mapped file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.contest import POWER, PROCESS, READ_ONLY, Contestant

MAP_SIZE = 8 << 30
BATCH = 1000


def open_environment(place: Path, sync: bool) -> Any:
    """An environment in `place`; with sync=False a commit reaches the page cache only."""
    import lmdb

    return lmdb.open(str(place), map_size=MAP_SIZE, sync=sync, metasync=sync)


class Put(Contestant):
    """One message, one transaction."""

    key = "lmdb"
    name = "LMDB, sync=False"
    survives = PROCESS
    sync = False

    def __init__(self, size: int) -> None:
        super().__init__()
        self.payload = b"x" * size
        self.next = 0

    def start(self, place: Path) -> None:
        self.environment = open_environment(place, self.sync)

    def run(self, operations: int) -> float:
        begin, payload, first = self.environment.begin, self.payload, self.next
        begun = time.perf_counter()
        for i in range(first, first + operations):
            with begin(write=True) as transaction:
                transaction.put(i.to_bytes(8, "big"), payload, append=True)
        seconds = time.perf_counter() - begun
        self.next += operations
        self.empty()
        return seconds

    def empty(self) -> None:
        """Give the pages back, so that the map does not fill up over the rounds."""
        with self.environment.begin(write=True) as transaction:
            transaction.drop(self.environment.open_db(txn=transaction), delete=False)

    def stop(self) -> None:
        if hasattr(self, "environment"):
            self.environment.close()


class FlushedPut(Put):
    """One message, one transaction, one flush."""

    key = "lmdb-sync"
    name = "LMDB, sync=True"
    survives = POWER
    sync = True


class BatchPut(Put):
    """A thousand messages to a transaction."""

    key = "lmdb"
    name = f"LMDB, sync=False, {BATCH} per transaction"

    def run(self, operations: int) -> float:
        payload = self.payload
        begun = time.perf_counter()
        for first in range(self.next, self.next + operations, BATCH):
            last = min(first + BATCH, self.next + operations)
            with self.environment.begin(write=True) as transaction:
                cursor = transaction.cursor()
                cursor.putmulti(((i.to_bytes(8, "big"), payload) for i in range(first, last)), append=True)
        seconds = time.perf_counter() - begun
        self.next += operations
        self.empty()
        return seconds


class OpenLarge(Contestant):
    """Open a map of many messages and read the last one."""

    key = "lmdb"
    name = "LMDB: open, read the last message"
    survives = READ_ONLY

    def __init__(self, messages: int) -> None:
        super().__init__()
        self._messages = messages

    def start(self, place: Path) -> None:
        self._place = place
        environment = open_environment(place, sync=False)
        with environment.begin(write=True) as transaction:
            rows = ((i.to_bytes(8, "big"), b"x" * 10) for i in range(self._messages))
            transaction.cursor().putmulti(rows, append=True)
        environment.close()

    def run(self, operations: int) -> float:
        begun = time.perf_counter()
        environment = open_environment(self._place, sync=False)
        with environment.begin() as transaction:
            cursor = transaction.cursor()
            last_key = cursor.last() and cursor.key()
        seconds = time.perf_counter() - begun
        environment.close()
        assert int.from_bytes(last_key, "big") == self._messages - 1
        return seconds
