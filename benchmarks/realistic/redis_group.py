"""Redis Streams in the realistic cells: XADD, and one consumer group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.contest import SECOND
from benchmarks.peers import servers
from benchmarks.peers.redis_streams import GROUP, PIPELINE, STREAM, connect
from benchmarks.realistic.cell import SEND, Cell, Letter
from benchmarks.realistic.contestant import CellContestant
from benchmarks.realistic.workers import Sink, Source

READ_AT_ONCE = 100


class RedisGroup(CellContestant):
    """A server with its append-only file; messages are fields of stream entries."""

    peer = "Redis Streams, consumer group"
    survives = SECOND
    source = "benchmarks.realistic.redis_group:RedisSource"
    sink = "benchmarks.realistic.redis_group:RedisSink"

    def open(self, place: Path) -> dict[str, Any]:
        self.server = server = servers.redis(place)
        redis = connect(server.port)
        redis.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        redis.close()
        return {"port": server.port}


class RedisSource(Source):
    def __init__(self, cell: Cell, port: int) -> None:
        super().__init__(cell)
        self._redis = connect(port)

    def send(self, batch: list[Letter]) -> None:
        at_once = 1 if self.cell.mode == SEND else PIPELINE
        for first in range(0, len(batch), at_once):
            part = batch[first : first + at_once]
            if at_once == 1:
                self._redis.xadd(STREAM, _fields(part[0]))
                continue
            pipeline = self._redis.pipeline(transaction=False)
            for letter in part:
                pipeline.xadd(STREAM, _fields(letter))
            pipeline.execute()

    def close(self) -> None:
        self._redis.close()


def _fields(letter: Letter) -> Any:
    if not letter.key:
        return {"body": letter.body}
    return {"body": letter.body, "key": letter.key, **letter.properties}


class RedisSink(Sink):
    def __init__(self, number: int, tally: str, cell: Cell, port: int) -> None:
        super().__init__(number, tally, cell)
        self._redis = connect(port)
        self._name = f"consumer-{number}"

    def receive(self, seconds: float) -> None:
        read, block = self._redis.xreadgroup, int(seconds * 1000)
        while reply := read(GROUP, self._name, {STREAM: ">"}, count=READ_AT_ONCE, block=block):
            pipeline = self._redis.pipeline(transaction=False)
            for message_id, fields in reply[0][1]:
                len(fields[b"body"])
                pipeline.xack(STREAM, GROUP, message_id)
            pipeline.execute()
            self.words[self.word] += len(reply[0][1])

    def close(self) -> None:
        self._redis.close()
