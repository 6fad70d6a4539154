"""Failover over real processes: who is killed, closes or is stopped is replaced at once, in order."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

import embeddedpulsar as pulsar
from tests.multiprocess.workers import Worker, keep_alive, send, subscribe

ROUNDS = 5
QUICK_S = 0.02
NOT_BY_POLLING_S = 0.09


def takeover(root: Path, number: int, *, is_killed: bool) -> float:
    """Seconds from the end of the active consumer to the first message at the one that waits."""
    with Worker(root, "Failover", "active") as active, Worker(root, "Failover", "standby") as standby:
        assert active.take() == (str(number), 0)
        standby.tell("take")
        time.sleep(0.15)  # it sleeps by now, for longer than the time that is measured
        begun = time.perf_counter()
        if is_killed:
            active.kill()
        else:
            active.tell("close")
        data, _, when = standby.got()
        assert data == str(number)
    return when - begun


@pytest.mark.parametrize("is_killed", [True, False])
def test_the_standby_takes_over_at_once(tmp_path: Path, is_killed: bool):
    """From SIGKILL, or a close, to the first message at a consumer that waits: some milliseconds."""
    with pulsar.Client(tmp_path) as client:
        subscribe(client, "Failover").close()
        taken = []
        for number in range(ROUNDS):
            send(client, number)
            taken.append(takeover(tmp_path, number, is_killed=is_killed))
            consumer = subscribe(client, "Failover")
            consumer.acknowledge(consumer.receive(5000))
            consumer.close()
    assert min(taken) < QUICK_S
    assert sorted(taken)[ROUNDS // 2] < NOT_BY_POLLING_S


def test_what_was_not_acknowledged_comes_to_the_next_in_order(tmp_path: Path):
    """Messages in the hands of the dead one, those it had fetched, and those behind."""
    with pulsar.Client(tmp_path) as client, Worker(tmp_path, "Failover", "active") as active:
        send(client, *range(6))
        assert [active.ack()[0] for _ in range(2)] == ["0", "1"]
        assert active.take() == ("2", 0)
        standby = subscribe(client, "Failover")
        with pytest.raises(pulsar.Timeout):
            standby.receive(100)
        active.kill()
        assert [standby.receive(5000).data() for _ in range(4)] == [b"2", b"3", b"4", b"5"]


def test_each_of_many_is_replaced_by_the_next(tmp_path: Path):
    """Five in a row are killed; the order of subscription decides, and nothing is lost or doubled."""
    with pulsar.Client(tmp_path) as client:
        workers = [Worker(tmp_path, "Failover", f"w{number}") for number in range(5)]
        try:
            for number, worker in enumerate(workers):
                send(client, number)
                assert worker.ack() == (str(number), 0)
                worker.kill()
            consumer = subscribe(client, "Failover")
            send(client, "last")
            assert consumer.receive(5000).data() == b"last"
        finally:
            for worker in workers:
                worker.__exit__(None, None, None)


def test_one_that_is_stopped_is_replaced_and_comes_back(tmp_path: Path):
    """Silent for longer than keepAliveIntervalSeconds; when it goes on it stands by, and takes over again."""
    keep_alive(tmp_path, 1)
    with pulsar.Client(tmp_path) as client, Worker(tmp_path, "Failover", "stopped") as stopped:
        send(client, "a", "b")
        assert stopped.ack() == ("a", 0)
        standby = subscribe(client, "Failover", consumer_name="standby")
        os.kill(stopped.process.pid, signal.SIGSTOP)
        begun = time.perf_counter()
        message = standby.receive(10_000)
        assert message.data() == b"b"
        assert 0.6 < time.perf_counter() - begun < 2.5
        standby.acknowledge(message)
        os.kill(stopped.process.pid, signal.SIGCONT)
        stopped.tell("take")  # "b" again if it had fetched that, and then what comes after the other closed
        time.sleep(0.3)
        standby.close()
        send(client, "c")
        data = stopped.got()[0]
        if data == "b":
            data = stopped.take()[0]
        assert data == "c"
