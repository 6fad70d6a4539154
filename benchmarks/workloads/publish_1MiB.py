"""Payloads of one mebibyte, written and read back."""

from __future__ import annotations

from benchmarks.contest import Budget, Contest, Settings, megabytes_per_second
from benchmarks.embedded import publish, read
from benchmarks.peers import lmdb_store, nats_jetstream, plain_file, redis_streams, sqlite_wal

MEBIBYTE = 1 << 20
# A round of a gigabyte at most: the page cache, not the disk, is what is compared.
MOST = 1000


def contests(settings: Settings) -> list[Contest]:
    """Two tables: writing and reading."""
    messages = settings.scale(256, 8)
    limit = settings.scale(MOST, 16)
    ours, reader = publish.Send(MEBIBYTE), read.ReadAll(messages, MEBIBYTE, batch=1)
    write = Contest(
        "publish_1MiB, write: one payload of 1 MiB at a time",
        megabytes_per_second(MEBIBYTE),
        [
            ours,
            plain_file.Write(MEBIBYTE),
            redis_streams.Add(MEBIBYTE),
            nats_jetstream.Publish(MEBIBYTE),
            sqlite_wal.Insert(MEBIBYTE),
            lmdb_store.Put(MEBIBYTE),
        ],
        [Budget(">= 0.7 x os.pwrite + crc32", ours.key, 0.7, peer="pwrite")],
        operation_limit=limit,
    )
    back = Contest(
        "publish_1MiB, read: payloads of 1 MiB from the page cache, checked",
        megabytes_per_second(MEBIBYTE),
        [reader, plain_file.Read(MEBIBYTE, messages)],
        [Budget(">= 0.7 x os.pread + crc32", reader.key, 0.7, peer="pread")],
        operation_limit=limit,
    )
    return [write, back]
