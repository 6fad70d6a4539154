"""A message of one gibibyte through entries of five mebibytes."""

from __future__ import annotations

from benchmarks.contest import Budget, Contest, Settings, megabytes_per_second
from benchmarks.embedded.chunked import ReceiveChunked, SendChunked
from benchmarks.peers import plain_file

GIBIBYTE = 1 << 30


def contests(settings: Settings) -> list[Contest]:
    """Two tables: sending and receiving. The peer writes and checks the same bytes in one piece."""
    size = settings.scale(GIBIBYTE, 16 << 20)
    ours, reader = SendChunked(size), ReceiveChunked(size)
    send = Contest(
        "publish_chunked_1GiB, send: one message in parts of at most 5 MiB",
        megabytes_per_second(size),
        [ours, plain_file.Write(size)],
        [Budget(">= 0.7 x os.pwrite + crc32", ours.key, 0.7, peer="pwrite")],
        operation_limit=1,
    )
    receive = Contest(
        "publish_chunked_1GiB, receive: the message whole, from the page cache, checked",
        megabytes_per_second(size),
        [reader, plain_file.Read(size, 1)],
        [Budget(">= 0.7 x os.pread + crc32", reader.key, 0.7, peer="pread")],
        operation_limit=1,
    )
    return [send, receive]
