"""Redis Streams: XADD, and a consumer group with XREADGROUP and XACK."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

from benchmarks.actors import Crowd, CrowdReceiver, Pair, Receiver, Sender
from benchmarks.contest import SECOND, Contestant
from benchmarks.herd import Herd, Member
from benchmarks.peers import servers

PIPELINE = 1000
STREAM, GROUP, CONSUMER, FIELD = "s", "g", "c", b"v"


def connect(port: int) -> Any:
    """A client of the server on `port`; without hiredis when that is how redis-py is installed."""
    import redis

    return redis.Redis(host="127.0.0.1", port=port, socket_timeout=None)  # a read may block for a minute


class _OverRedis(Contestant):
    survives = SECOND

    def __init__(self, size: int) -> None:
        super().__init__()
        self.payload = b"x" * size
        self._server: servers.Server | None = None

    def start(self, place: Path) -> None:
        self._server = servers.redis(place)
        self.redis = connect(self._server.port)

    def stop(self) -> None:
        if hasattr(self, "redis"):
            self.redis.close()
        if self._server is not None:
            self._server.stop()


class Add(_OverRedis):
    """One XADD per message, its reply awaited."""

    key = "redis"
    name = "Redis Streams XADD"

    def run(self, operations: int) -> float:
        add, fields = self.redis.xadd, {FIELD: self.payload}
        begun = time.perf_counter()
        for _ in range(operations):
            add(STREAM, fields)
        seconds = time.perf_counter() - begun
        self.redis.delete(STREAM)
        return seconds


class PipelinedAdd(_OverRedis):
    """XADD in pipelines of 1000."""

    key = "redis"
    name = f"Redis Streams XADD, pipelines of {PIPELINE}"

    def run(self, operations: int) -> float:
        fields = {FIELD: self.payload}
        begun = time.perf_counter()
        for first in range(0, operations, PIPELINE):
            pipeline = self.redis.pipeline(transaction=False)
            for _ in range(min(PIPELINE, operations - first)):
                pipeline.xadd(STREAM, fields)
            pipeline.execute()
        seconds = time.perf_counter() - begun
        self.redis.delete(STREAM)
        return seconds


class RandomAcks(_OverRedis):
    """XACK of a group's pending messages one by one in random order, in pipelines of 1000."""

    key = "redis"
    name = "Redis Streams XACK, random order, pipelined, of 100,000"
    operation_limit = 100_000

    def run(self, operations: int) -> float:
        self.redis.delete(STREAM)
        ids = []
        for first in range(0, operations, PIPELINE):
            pipeline = self.redis.pipeline(transaction=False)
            for _ in range(min(PIPELINE, operations - first)):
                pipeline.xadd(STREAM, {FIELD: b"x"})
            ids += pipeline.execute()
        self.redis.xgroup_create(STREAM, GROUP, id="0")
        while self.redis.xreadgroup(GROUP, CONSUMER, {STREAM: ">"}, count=10_000):
            continue
        random.Random(1).shuffle(ids)
        begun = time.perf_counter()
        for first in range(0, operations, PIPELINE):
            pipeline = self.redis.pipeline(transaction=False)
            for message_id in ids[first : first + PIPELINE]:
                pipeline.xack(STREAM, GROUP, message_id)
            pipeline.execute()
        return time.perf_counter() - begun


class SortedSet(_OverRedis):
    """The usual way to delay messages: a sorted set by due time, popped in blocks when they are due."""

    key = "redis"
    name = "Redis ZADD, ZPOPMIN in blocks of 1000 (a crash loses what was popped)"

    def run(self, operations: int) -> float:
        self.redis.delete(STREAM)
        begun = time.perf_counter()
        for first in range(0, operations, PIPELINE):
            numbers = range(first, min(first + PIPELINE, operations))
            self.redis.zadd(STREAM, {b"%012d" % number + self.payload: number for number in numbers})
        self.notes = {"publish msg/s": operations / (time.perf_counter() - begun)}
        begun = time.perf_counter()
        while self.redis.zpopmin(STREAM, PIPELINE):
            continue
        return time.perf_counter() - begun


class GroupPair(Pair):
    """One producer process, one consumer of a group in another."""

    key = "redis"
    name = "Redis Streams, consumer group"
    survives = SECOND
    sender = "benchmarks.peers.redis_streams:GroupSender"
    receiver = "benchmarks.peers.redis_streams:GroupReceiver"
    _server: servers.Server | None = None

    def start(self, place: Path) -> None:
        self._server = servers.redis(place)
        self.open_pair(port=self._server.port)

    def stop(self) -> None:
        super().stop()
        if self._server is not None:
            self._server.stop()


class GroupCrowd(Crowd):
    """Two producer processes, two consumers of a group in two others."""

    key = "redis"
    name = "Redis Streams, consumer group, 2 to 2"
    survives = SECOND
    sender = "benchmarks.peers.redis_streams:GroupSender"
    receiver = "benchmarks.peers.redis_streams:GroupMember"
    _server: servers.Server | None = None

    def start(self, place: Path) -> None:
        self._server = servers.redis(place)
        redis = connect(self._server.port)
        redis.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        redis.close()
        self.open_crowd(place, port=self._server.port)

    def stop(self) -> None:
        super().stop()
        if self._server is not None:
            self._server.stop()


class GroupMember(CrowdReceiver):
    def __init__(self, number: int, tally: str, port: int) -> None:
        super().__init__(number, tally)
        self._redis = connect(port)
        self._name = f"consumer-{number}"

    def receive_some(self, seconds: float) -> int:
        reply = self._redis.xreadgroup(
            GROUP, self._name, {STREAM: ">"}, count=PIPELINE, block=int(seconds * 1000)
        )
        if not reply:
            return 0
        total = 0
        pipeline = self._redis.pipeline(transaction=False)
        for message_id, fields in reply[0][1]:
            total += len(fields[FIELD])
            pipeline.xack(STREAM, GROUP, message_id)
        pipeline.execute()
        return len(reply[0][1])

    def close(self) -> None:
        self._redis.close()


class WaitingGroupMember(Member):
    """One consumer of a group, blocked in XREADGROUP."""

    def __init__(self, port: int) -> None:
        self._redis = connect(port)
        self._name = f"consumer-{os.getpid()}"

    def receive(self) -> bytes:
        reply = None
        while not reply:
            reply = self._redis.xreadgroup(GROUP, self._name, {STREAM: ">"}, count=1, block=60_000)
        message_id, fields = reply[0][1][0]
        self._redis.xack(STREAM, GROUP, message_id)
        payload: bytes = fields[FIELD]
        return payload


class GroupHerd(Herd):
    """Processes of one consumer group; the CPU time of the server is counted too."""

    survives = SECOND
    _server: servers.Server | None = None

    def __init__(self, members: int) -> None:
        super().__init__(members)
        self.key = f"redis-{members}"
        self.name = f"Redis Streams, consumer group, {members} processes"

    def open(self, place: Path) -> None:
        self._server = servers.redis(place)
        redis = connect(self._server.port)
        redis.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        redis.close()

    def member(self) -> Member:
        assert self._server is not None
        return WaitingGroupMember(self._server.port)

    def sender(self) -> HerdSender:
        assert self._server is not None
        return HerdSender(self._server.port)

    def cpu_elsewhere(self) -> list[int]:
        return [] if self._server is None else [self._server.pid]

    def stop(self) -> None:
        super().stop()
        if self._server is not None:
            self._server.stop()


class HerdSender:
    """XADD of one message."""

    def __init__(self, port: int) -> None:
        self._redis = connect(port)

    def send(self, payload: bytes, number: int) -> None:
        self._redis.xadd(STREAM, {FIELD: payload})

    def close(self) -> None:
        self._redis.close()


class ClaimAgain(_OverRedis):
    """A group member reads everything, claims all of it again with XAUTOCLAIM, and acknowledges."""

    key = "redis"
    name = "Redis Streams XREADGROUP, XAUTOCLAIM, XACK, of 100,000"
    operation_limit = 100_000

    def run(self, operations: int) -> float:
        self.redis.delete(STREAM)
        for first in range(0, operations, PIPELINE):
            pipeline = self.redis.pipeline(transaction=False)
            for _ in range(min(PIPELINE, operations - first)):
                pipeline.xadd(STREAM, {FIELD: self.payload})
            pipeline.execute()
        self.redis.xgroup_create(STREAM, GROUP, id="0")
        begun = time.perf_counter()
        while self.redis.xreadgroup(GROUP, CONSUMER, {STREAM: ">"}, count=PIPELINE):
            continue
        place, claimed = b"0-0", 0
        while claimed < operations:
            place, messages, *_ = self.redis.xautoclaim(
                STREAM, GROUP, CONSUMER, min_idle_time=0, start_id=place, count=PIPELINE
            )
            self.redis.xack(STREAM, GROUP, *(message_id for message_id, _ in messages))
            claimed += len(messages)
        return time.perf_counter() - begun


class GroupSender(Sender):
    def __init__(self, port: int) -> None:
        self._redis = connect(port)

    def send_one(self, payload: bytes) -> None:
        self._redis.xadd(STREAM, {FIELD: payload})

    def send_many(self, operations: int, payload: bytes) -> None:
        fields = {FIELD: payload}
        for first in range(0, operations, PIPELINE):
            pipeline = self._redis.pipeline(transaction=False)
            for _ in range(min(PIPELINE, operations - first)):
                pipeline.xadd(STREAM, fields)
            pipeline.execute()

    def close(self) -> None:
        self._redis.close()


class GroupReceiver(Receiver):
    def __init__(self, port: int) -> None:
        self._redis = connect(port)
        self._redis.xgroup_create(STREAM, GROUP, id="0", mkstream=True)

    def receive_one(self) -> bytes:
        reply = None
        while not reply:
            reply = self._redis.xreadgroup(GROUP, CONSUMER, {STREAM: ">"}, count=1, block=1000)
        message_id, fields = reply[0][1][0]
        self._redis.xack(STREAM, GROUP, message_id)
        payload: bytes = fields[FIELD]
        return payload

    def receive_many(self, operations: int) -> None:
        left, total = operations, 0
        while left:
            reply = self._redis.xreadgroup(GROUP, CONSUMER, {STREAM: ">"}, count=PIPELINE, block=1000)
            if not reply:
                continue
            pipeline = self._redis.pipeline(transaction=False)
            for message_id, fields in reply[0][1]:
                total += len(fields[FIELD])
                pipeline.xack(STREAM, GROUP, message_id)
            pipeline.execute()
            left -= len(reply[0][1])

    def receive_nothing(self, seconds: float) -> None:
        assert not self._redis.xreadgroup(GROUP, CONSUMER, {STREAM: ">"}, count=1, block=int(seconds * 1000))

    def close(self) -> None:
        self._redis.close()
