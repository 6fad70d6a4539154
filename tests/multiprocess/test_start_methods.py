"""Clients, ids and messages in processes of each start method.

From Python 3.14 on `forkserver` is the default on Linux. From 3.12 on a fork beside threads is warned about.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Admin, Client, ConsumerType, InitialPosition, Message, MessageId
from embeddedpulsar.futures import Executor
from embeddedpulsar.testing import assert_clean

METHODS = ("fork", "forkserver", "spawn")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """A store with three messages that nobody has received; whole at the end."""
    with Client(tmp_path / "store") as client, client.create_producer("orders") as producer:
        for number in range(3):
            producer.send(b"%d" % number, properties={"number": str(number)})
    yield tmp_path / "store"
    assert_clean(tmp_path / "store")


def work(
    client: Client, admin: Admin, path: Path, topic: str, message_id: MessageId, message: Message[bytes]
) -> tuple[bytes, list[str], Message[bytes], MessageId]:
    """Use in another process what one hands on: a client, an Admin, a path, a name, an id and a message."""
    with Client(path) as own, own.create_reader(topic, message_id) as reader:
        read = reader.read_next(10_000).data()
    with client, client.subscribe(topic, "work", ConsumerType.Shared) as consumer:
        consumer.acknowledge(message)
        received = consumer.receive(10_000)
        consumer.acknowledge(received)
        with client.create_producer("answers") as producer:
            answer = producer.send(received.data())
    with admin:
        return read, admin.topics().get_subscriptions(topic), received, answer


def put(answers: Any, *arguments: Any) -> None:
    """`work`, for a process that has no result."""
    answers.put(work(*arguments))


def by_process(method: str, arguments: tuple[Any, ...]) -> Any:
    """In a process of its own."""
    context = multiprocessing.get_context(method)
    answers = context.Queue()
    process = context.Process(target=put, args=(answers, *arguments))
    process.start()
    try:
        answer = answers.get(timeout=60)
    finally:
        process.join(60)
        answers.close()
        answers.join_thread()
    assert process.exitcode == 0
    process.close()
    return answer


def by_pool(method: str, arguments: tuple[Any, ...]) -> Any:
    """In a process of a pool."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
        return pool.submit(work, *arguments).result(timeout=60)


# A consumer has a thread that shows that its process lives, so a fork is warned about from Python 3.12 on.
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("run", [by_process, by_pool])
@pytest.mark.parametrize("method", METHODS)
def test_what_is_handed_on(store: Path, method: str, run: Callable[[str, tuple[Any, ...]], Any]):
    """The other process opens the same store, and takes part in a subscription beside this one."""
    with Client(store, stats_interval_in_seconds=0) as client, Admin(store) as admin:
        consumer = client.subscribe(
            "orders", "work", ConsumerType.Shared, receiver_queue_size=1,
            initial_position=InitialPosition.Earliest,
        )  # fmt: skip
        first = consumer.receive(10_000)
        arguments = (client, admin, store, first.topic_name(), first.message_id(), first)
        read, subscriptions, received, answer = run(method, arguments)
        # A reader begins behind the id.
        assert read == b"1"
        assert subscriptions == ["work"]
        with client.create_reader("answers", MessageId.earliest) as reader:
            stored = reader.read_next(10_000)
        assert (stored.message_id(), stored.data()) == (answer, received.data())
        rest = {received.data()}
        while len(rest) < 2:
            message = consumer.receive(10_000)
            consumer.acknowledge(message)
            rest.add(message.data())
        assert rest == {b"1", b"2"}
        consumer.close()
        stats = admin.topics().get_stats("orders").subscriptions["work"]
        assert stats.msg_backlog == 0


def handed_on() -> dict[str, Callable[[Client, Executor], object]]:
    """What stays in its process, and what makes it."""
    return {
        "Producer": lambda client, executor: client.create_producer("orders"),
        "Consumer": lambda client, executor: client.subscribe("orders", "work"),
        "Reader": lambda client, executor: client.create_reader("orders", MessageId.earliest),
        "TableView": lambda client, executor: client.create_table_view("orders"),
        "Transaction": lambda client, executor: client.new_transaction(),
        "Executor": lambda client, executor: executor,
        "Future": lambda client, executor: executor.submit(len, [1]),
    }


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
@pytest.mark.parametrize("kind", handed_on())
def test_what_cannot_be_handed_on(store: Path, kind: str, method: str):
    """What is attached to its store names itself, the reason, and what to hand on instead."""
    with Client(store) as client, Executor(client, max_workers=0) as executor:
        owned = handed_on()[kind](client, executor)
        process = multiprocessing.get_context(method).Process(target=print, args=(owned,))
        with pytest.raises(
            TypeError, match=rf"^an? {kind} cannot be pickled or copied: .* this process\. Pass "
        ):
            process.start()
        executor.shutdown(cancel_futures=True)


def test_an_admin_of_memory_stays():
    """Its store is that of this process."""
    with Client("memory://start-methods"), Admin("memory://start-methods") as admin:
        with pytest.raises(TypeError, match="an Admin of memory://start-methods cannot be pickled"):
            pickle.dumps(admin)


FORKS = """
import multiprocessing
import os
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from embeddedpulsar import Admin, Client, InitialPosition, MessageId

def receive(client):
    with client, client.subscribe("orders", "child") as consumer:
        consumer.acknowledge(consumer.receive(10_000))
        return client.create_producer("answers").send(b"").entry_id()

def use(client):
    reader = client.create_reader("orders", MessageId.latest)
    with reader, client.create_producer("orders") as producer:
        producer.send(b"tea")
        assert reader.read_next(10_000).data() == b"tea"

if __name__ == "__main__":
    warnings.simplefilter("error")
    with Client(sys.argv[1]) as before:
        use(before)
        before.subscribe("orders", "child", initial_position=InitialPosition.Earliest).close()
    # Its threads have ended. The system counts one until it has tidied up behind it.
    for _ in range(10_000):
        if len(os.listdir("/proc/self/task")) == 1:
            break
        time.sleep(0.001)
    with Client(sys.argv[1], stats_interval_in_seconds=0) as client, Admin(sys.argv[1]) as admin:
        use(client)
        assert admin.topics().get_subscriptions("orders") == ["child"]
        fork = multiprocessing.get_context("fork")
        process = fork.Process(target=receive, args=(client,))
        process.start()
        process.join()
        assert process.exitcode == 0, process.exitcode
        with ProcessPoolExecutor(1, mp_context=fork) as pool:
            print(pool.submit(receive, client).result(60))
"""


def test_forks_without_threads(store: Path, tmp_path: Path):
    """A client, an Admin, readers, and producers without statistics have no thread: no fork is warned of."""
    script = tmp_path / "script.py"
    script.write_text(FORKS)
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-X", "dev", str(script), str(store)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert (run.stdout, run.stderr) == ("1\n", "")
