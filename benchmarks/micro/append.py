"""What an append costs, layer by layer, beside a log written with os.write and an SQLite table.

python -m benchmarks.micro.append [directory]
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import sys
import tempfile
from pathlib import Path
from zlib import crc32

from benchmarks.micro.bench import Work, measure, show
from embeddedpulsar._engine.format.entry import EncodedEntry, encode_plain, encode_single
from embeddedpulsar._engine.platform.file_lock import FileLock
from tests.ledger_site import PREFIX, LedgerSite


def appends(site: LedgerSite, entry: EncodedEntry) -> Work:
    """Append one entry again and again."""
    append = site.open().append

    def work(calls: int) -> None:
        for _ in range(calls):
            append(entry)

    return work


def encoded_appends(site: LedgerSite, value: bytes) -> Work:
    """Encode and append, as a synchronous send does."""
    append = site.open().append

    def work(calls: int) -> None:
        for n in range(calls):
            append(encode_single(value, n, PREFIX))

    return work


def lock_pairs(root: Path) -> Work:
    """The topic lock alone."""
    lock = FileLock(root / "pair.lock")

    def work(calls: int) -> None:
        for _ in range(calls):
            try:
                lock.acquire(30.0)
            finally:
                lock.release()

    return work


def flock_pairs(root: Path) -> Work:
    """The two system calls alone."""
    fd = os.open(root / "raw.lock", os.O_RDWR | os.O_CREAT)
    flock = fcntl.flock

    def work(calls: int) -> None:
        for _ in range(calls):
            flock(fd, 6)
            flock(fd, 8)

    return work


def plain_log(root: Path, value: bytes) -> Work:
    """One os.write per message with a checksum, under a lock: the least a shared log can do."""
    fd = os.open(root / "plain.log", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    lock = os.open(root / "plain.lock", os.O_RDWR | os.O_CREAT)
    flock, write = fcntl.flock, os.write

    def work(calls: int) -> None:
        for _ in range(calls):
            flock(lock, 2)
            write(fd, len(value).to_bytes(4, "little") + crc32(value).to_bytes(4, "little") + value)
            flock(lock, 8)
        os.truncate(fd, 0)

    return work


def sqlite_log(root: Path, value: bytes) -> Work:
    """One INSERT and commit per message, write-ahead log, no flush."""
    connection = sqlite3.connect(root / "log.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("CREATE TABLE log (id INTEGER PRIMARY KEY, value BLOB)")

    def work(calls: int) -> None:
        for _ in range(calls):
            connection.execute("INSERT INTO log (value) VALUES (?)", (value,))

    return work


def pwrites(root: Path, size: int) -> Work:
    """os.pwrite of as many bytes into a reserved file, and their checksum."""
    fd = os.open(root / f"raw-{size}", os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(fd, 0, 64 << 20)
    data = os.urandom(size)
    place = 0

    def work(calls: int) -> None:
        nonlocal place
        for _ in range(calls):
            os.pwrite(fd, data, place)
            crc32(data)
            place = (place + size) % ((64 << 20) - size)

    return work


def encoded_large(site: LedgerSite, value: bytes) -> Work:
    """Encode (which computes the checksum) and append one large message."""
    append = site.open().append

    def work(calls: int) -> None:
        for n in range(calls):
            append(encode_single(value, n, PREFIX))

    return work


def main(parent: str | None) -> None:
    """Print the tables."""
    root = Path(tempfile.mkdtemp(prefix="append-", dir=parent))
    sites = []

    def site() -> LedgerSite:
        sites.append(LedgerSite(tempfile.mkdtemp(dir=root)))
        return sites[-1]

    value = b"x" * 100
    try:
        small: dict[str, Work] = {
            "append, 100 bytes": appends(site(), encode_single(value, 0, PREFIX)),
            "encode and append, 100 bytes": encoded_appends(site(), value),
            "append, 1 KiB": appends(site(), encode_single(b"x" * 1024, 0, PREFIX)),
            "append, batch of 100 x 100 bytes": appends(site(), encode_plain([value] * 100, 0, PREFIX)),
            "topic lock": lock_pairs(root),
            "flock": flock_pairs(root),
            "os.write log": plain_log(root, value),
            "sqlite": sqlite_log(root, value),
        }
        show("one append", measure(small, rounds=60, calls=300), "os.write log")
        large: dict[str, Work] = {
            "append, batch of 1000 x 100 bytes": appends(site(), encode_plain([value] * 1000, 0, PREFIX)),
            "encode and append, 1 MiB": encoded_large(site(), b"x" * (1 << 20)),
            "pwrite and crc32, 104 KB": pwrites(root, 104_144),
            "pwrite and crc32, 1 MiB": pwrites(root, 1 << 20),
        }
        show("large appends", measure(large, rounds=20, calls=10), "pwrite and crc32, 1 MiB")
    finally:
        for one in sites:
            one.close()
        shutil.rmtree(root)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
