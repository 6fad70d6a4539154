"""Calls that end by RecursionError or MemoryError at any place: they leave no lock held."""

from __future__ import annotations

import gc
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from embeddedpulsar import (
    Admin,
    Client,
    Consumer,
    ConsumerType,
    InitialPosition,
    Producer,
    PulsarException,
    Timeout,
)
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.threads import RLock
from embeddedpulsar.testing.trial_store import assert_clean

EARLIEST = {"initial_position": InitialPosition.Earliest}
ONLY_PYTHON_COUNTS = sys.version_info >= (3, 12)
"""Calls of functions in C are not limited any more, so a lock may need no room at all."""
DEEPEST = 120
"""So many calls below the limit, no call of the package comes to it."""


def at_depth(room: int, action: Callable[[], object]) -> BaseException | None:
    """Call ``action`` with room for so many calls below it; what it raises."""
    depth, frame = 0, sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back  # type: ignore[assignment]
    before = sys.getrecursionlimit()
    gc.disable()  # what is left of other tests is not to end its life here, and fail at it
    failure: BaseException | None = None
    try:
        sys.setrecursionlimit(depth + room)
        try:
            action()
        except Exception as error:
            failure = error
    except RecursionError as error:  # there was no room to set the limit back, or to note the error
        failure = error
    finally:
        sys.setrecursionlimit(before)
        gc.enable()
    return failure


def in_thread(action: Callable[[], object]) -> object:
    """What ``action`` returns in another thread."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(action())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(20)
    assert found, "it hangs"
    return found[0]


@pytest.mark.parametrize("is_reopened", [False, True])
def test_a_file_lock(tmp_path: Path, is_reopened: bool):
    """At every depth: it is acquired and released, or neither."""
    lock, other = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    if is_reopened:
        lock.close_descriptor()
        lock.acquire()
        lock.release()
    entered = []

    def section() -> None:
        try:
            lock.acquire(1.0)
            entered.append(1)
        finally:
            lock.release()

    failed = 0
    for room in range(5, 40):
        failed += at_depth(room, section) is not None
        assert not lock.held and other.try_acquire(), room
        other.release()
    assert entered and (failed or ONLY_PYTHON_COUNTS)
    lock.close()
    other.close()


def test_a_thread_lock():
    """The same."""
    lock = RLock()
    entered = []

    def section() -> None:
        try:
            lock.acquire()
            entered.append(1)
        finally:
            lock.release()

    failed = 0
    for room in range(5, 30):
        failed += at_depth(room, section) is not None
        assert in_thread(lambda: lock.acquire(False) and (lock.release() or True)), room
    assert entered and (failed or ONLY_PYTHON_COUNTS)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """A client of a store, which is audited when it is closed and repaired."""
    root = str(tmp_path / "store")
    client = Client(root, operation_timeout_seconds=5)
    yield client
    client.close()
    with Admin(root) as admin:
        admin.repair()  # files that a call had begun to make, as when a process is killed there
    assert_clean(root)


def _sender(client: Client) -> Callable[[], object]:
    producer = client.create_producer("t", send_timeout_millis=4000)
    return lambda: producer.send(b"x")


def _large_sender(client: Client) -> Callable[[], object]:
    producer = client.create_producer("t", send_timeout_millis=4000)
    return lambda: producer.send(bytes(100_000))


def _batching(client: Client) -> Callable[[], object]:
    producer = client.create_producer("t", batching_enabled=True, send_timeout_millis=4000)

    def send() -> None:
        producer.send_async(b"x", None)
        producer.flush()

    return send


def _receiver(kind: ConsumerType) -> Callable[[Client], Callable[[], object]]:
    def make(client: Client) -> Callable[[], object]:
        consumer = client.subscribe("t", "s", kind, **EARLIEST)
        producer = client.create_producer("t")
        for _ in range(2 * DEEPEST):
            producer.send(b"x")

        def receive() -> None:
            message = consumer.receive(1000)
            consumer.negative_acknowledge(message)
            consumer.acknowledge(message)

        return receive

    return make


def _subscriber(client: Client) -> Callable[[], object]:
    names = iter(range(1000))
    return lambda: client.subscribe("t", f"s{next(names)}", ConsumerType.Shared, **EARLIEST).close()


def _creator(client: Client) -> Callable[[], object]:
    return lambda: client.create_producer("t").close()


def _closer(client: Client) -> Callable[[], object]:
    producers: list[Producer | Consumer] = []

    def close() -> None:
        producers.pop().close()

    for _ in range(DEEPEST // 2):
        producers.append(client.create_producer("t"))
        producers.append(client.subscribe("t", "s", ConsumerType.Shared))
    return close


CALLS: dict[str, Callable[[Client], Callable[[], object]]] = {
    "send": _sender,
    "send large": _large_sender,
    "batch": _batching,
    **{f"receive {kind.name}": _receiver(kind) for kind in ConsumerType},
    "subscribe": _subscriber,
    "create producer": _creator,
    "close": _closer,
}


def assert_usable(client: Client) -> None:
    """Another thread publishes and receives on the same topic."""

    def use() -> bool:
        producer = client.create_producer("t", send_timeout_millis=4000)
        consumer = client.subscribe("t", "another", ConsumerType.Shared)
        producer.send(b"from another thread")
        consumer.acknowledge(consumer.receive(4000))
        producer.close()
        consumer.close()
        return True

    assert in_thread(use) is True


def described(failure: BaseException) -> str:
    """It with its last frames: those before are the way down."""
    return "".join(traceback.format_exception(type(failure), failure, failure.__traceback__, limit=-12))


@pytest.mark.parametrize("call", CALLS)
def test_calls(client: Client, call: str):
    """However much room there is: the topic, the subscription and the client can be used afterwards."""
    action = CALLS[call](client)
    failed = 0
    for room in range(6, DEEPEST, 1 if "send" in call else 3):
        failure = at_depth(room, action)
        failed += isinstance(failure, RecursionError)
        assert failure is None or isinstance(failure, (RecursionError, PulsarException)), described(failure)
        if room % 9 == 0:
            assert_usable(client)
    assert failed
    assert_usable(client)
    if "close" not in call:
        try:
            action()
        except Timeout:
            assert "receive" in call  # what was received at the limit is not acknowledged yet


# A method with ``any(one == self.one for one in self.all)`` in a ``try`` is enough: no memory for the
# generator ends 3.12.1 and 3.13.18 by a segmentation fault, and 3.11 and 3.14 by MemoryError.
@pytest.mark.skipif((3, 12) <= sys.version_info < (3, 14), reason="the interpreter crashes without memory")
# The object that cannot be made may be one of another thread, or of a finalizer.
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)
@pytest.mark.parametrize("call", ["send", "send large", "receive Shared", "receive Exclusive"])
def test_calls_without_memory(client: Client, call: str):
    """Whichever object cannot be made."""
    testcapi = pytest.importorskip("_testcapi")
    action = CALLS[call](client)
    action()
    failed = 0
    for number in range(1, 150):
        try:
            testcapi.set_nomemory(number, number + 1)
            action()
        except (MemoryError, PulsarException, SystemError):
            failed += 1
        finally:
            testcapi.remove_mem_hooks()
        if number % 10 == 0:
            assert_usable(client)
    assert failed
    assert_usable(client)
