"""What is tried on each machine: ``python -m tests.machines.program STORE [options]``.

The options come into force before the package is imported. It prints what was done, and ends with status 0,
or with a traceback.
"""

from __future__ import annotations

import argparse
import mmap
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

MIB = 1 << 20
TOPICS = ("plain", "流れ", "größe-и-ß", "persistent://public/default/🐑")
_MESSAGES = 150
_KILLS = 2


def main() -> None:
    """Make the machine smaller, and use a store on it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store")
    parser.add_argument("--cores", type=int, default=0)
    parser.add_argument("--data", type=int, default=0, help="MiB of data, as RLIMIT_DATA")
    parser.add_argument("--address-space", type=int, default=0, help="MiB of maps, as RLIMIT_AS")
    parser.add_argument("--stack", type=int, default=0, help="KiB of stack for each thread")
    parser.add_argument("--page-size", type=int, default=0, help="KiB of what a page seems to be")
    parser.add_argument("--fill", action="store_true", help="fill the disk, and go on afterwards")
    parser.add_argument(
        "--beside", action="store_true", help="let another program fill the disk, to the last block"
    )
    options = parser.parse_args()
    make_smaller(options)
    steps: list[Callable[[str], object]] = [use_topics, survive_kills, use_memory]
    if options.fill:
        steps.append(fill_by_messages)
    if options.beside:
        steps.append(store_beside_a_full_disk)
    for step in steps:
        print(step.__name__, step(options.store), flush=True)
    from embeddedpulsar.testing import assert_clean

    print("messages", assert_clean(options.store).messages)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print("peak", peak >> 10, "MiB")


def make_smaller(options: argparse.Namespace) -> None:
    """Put the limits on this process, and on those that it starts."""
    if options.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    for kind, size in ((resource.RLIMIT_DATA, options.data), (resource.RLIMIT_AS, options.address_space)):
        if size:
            resource.setrlimit(kind, (size * MIB, size * MIB))
    if options.stack:
        threading.stack_size(options.stack << 10)
    if options.page_size:
        pretend_pages(options.page_size << 10)


def pretend_pages(size: int) -> None:
    """Let pages seem larger, and refuse what a kernel with such pages refuses."""
    real = mmap.mmap
    mmap.PAGESIZE = mmap.ALLOCATIONGRANULARITY = size  # type: ignore[misc]
    sysconf = os.sysconf

    def sized(name: str | int) -> int:
        return size if name in ("SC_PAGESIZE", "SC_PAGE_SIZE") else sysconf(name)

    class Map(real):
        def __new__(cls, *arguments: Any, offset: int = 0, **options: Any) -> Map:
            if offset % size:
                raise OSError(22, f"{offset} is not the start of a page of {size} bytes")
            return super().__new__(cls, *arguments, offset=offset, **options)

        def madvise(self, option: int, start: int = 0, length: int | None = None) -> None:
            if start % size:
                raise OSError(22, f"{start} is not the start of a page of {size} bytes")
            super().madvise(option, start, len(self) - start if length is None else length)

        def flush(self, offset: int = 0, size_: int | None = None) -> None:
            if offset % size:
                raise OSError(22, f"{offset} is not the start of a page of {size} bytes")
            super().flush(offset, len(self) - offset if size_ is None else size_)

    os.sysconf = sized  # type: ignore[assignment]
    mmap.mmap = Map  # type: ignore[misc]


def use_topics(root: str) -> int:
    """Send to topics with all kinds of names and receive by each type of subscription."""
    from embeddedpulsar import Admin, Client, ConsumerType, InitialPosition, MessageId

    received = 0
    with Client(root) as client, Admin(root) as admin:
        for topic in TOPICS:
            with client.create_producer(topic, batching_enabled=True) as producer:
                for number in range(_MESSAGES):
                    producer.send_async(b"%d" % number * 50, None, partition_key=f"k{number % 7}")
                producer.flush()
            for kind in ConsumerType:
                consumer = client.subscribe(topic, kind.name, kind, initial_position=InitialPosition.Earliest)
                for _ in range(_MESSAGES):
                    consumer.acknowledge(consumer.receive(10_000))
                    received += 1
                consumer.close()
            reader = client.create_reader(topic, MessageId.earliest)
            assert reader.read_next(10_000).data()
            reader.close()
            admin.topics().roll_ledger(topic)
            admin.topics().trim_topic(topic)
    return received


def survive_kills(root: str) -> int:
    """Send from a process until it is killed: what it was told is stored is there, and in order."""
    from embeddedpulsar import Client, InitialPosition

    total = 0
    for _ in range(_KILLS):
        told = _send_until_killed(root, "killed")
        with Client(root) as client:
            consumer = client.subscribe("killed", "judge", initial_position=InitialPosition.Earliest)
            expected = 0
            while expected < told:
                message = consumer.receive(10_000)
                number = int(message.data())
                assert number <= expected, f"message {expected} is lost, {number} follows"
                expected = max(expected, number + 1)
                consumer.acknowledge(message)
            while True:  # what was stored when the process died before it told
                try:
                    consumer.acknowledge(consumer.receive(50))
                except Exception as e:
                    if type(e).__name__ != "Timeout":
                        raise
                    break
            consumer.close()
        total += told
    return total


def _send_until_killed(root: str, topic: str) -> int:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            from embeddedpulsar import Client

            producer = Client(root).create_producer(topic)
            number = 0
            while True:
                producer.send(b"%d" % number)
                os.write(writing, b".")
                number += 1
        finally:
            os._exit(status)
    os.close(writing)
    told = 0
    while told < 1_000 and (more := os.read(reading, 1000)):
        told += len(more)
    os.kill(pid, signal.SIGKILL)
    while more := os.read(reading, 65_536):
        told += len(more)
    os.close(reading)
    status = os.waitpid(pid, 0)[1]
    assert os.WTERMSIG(status) == signal.SIGKILL, f"the sender ended by itself: status {status}"
    return told


def use_memory(_: str) -> str:
    """Use a store in memory, or be refused by an error that says why."""
    from embeddedpulsar import Client
    from embeddedpulsar.exceptions import StorageOSError

    try:
        with Client("memory://") as client:
            producer, consumer = client.create_producer("t"), client.subscribe("t", "s")
            for number in range(100):
                producer.send(b"%d" % number)
                consumer.acknowledge(consumer.receive(10_000))
    except StorageOSError as e:
        if "set TMPDIR" not in e.remedy:
            raise
        return "refused"
    return "used"


def fill_by_messages(root: str) -> int:
    """Send until the disk is full, which is an error of `send`; acknowledge, and go on."""
    from embeddedpulsar import Admin, Client, InitialPosition
    from embeddedpulsar.exceptions import StorageFullError

    sent = 0
    with Client(root) as client, Admin(root) as admin:
        producer = client.create_producer("filling")
        consumer = client.subscribe("filling", "s", initial_position=InitialPosition.Earliest)
        for _ in range(2):
            before = sent
            try:
                while True:
                    producer.send(bytes(100_000))
                    sent += 1
            except StorageFullError as e:
                if not e.remedy:
                    raise
            assert sent > before, "nothing could be sent to a disk that was given back"
            for _ in range(sent - before):
                consumer.acknowledge(consumer.receive(10_000))
            admin.topics().trim_topic("filling")
            producer.send(b"and on")
            consumer.acknowledge(consumer.receive(10_000))
        admin.topics().delete("filling", force=True)
    return sent


def store_beside_a_full_disk(root: str) -> int:
    """Another program takes all of the disk while a producer and a consumer use a topic: each call returns or
    raises `StorageFullError`, and the kernel kills no process.

    Before, files were read from their start to their end, as by a program that copies the directory after the
    machine was started. So the kernel has pieces of them in memory that reach beyond what is reserved.
    """
    counts = (3, 31, 57, 123, 125, 500, 2_050, 9_000)
    in_child(lambda: _send_some(root, counts))
    drop_pages(root)
    read_all(root)
    in_child(lambda: _go_on_when_full(root, counts))
    return sum(counts)


def in_child(work: Callable[[], object]) -> None:
    """Run it in a fork, and fail if that fails, or is killed."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)
    status = os.waitpid(pid, 0)[1]
    assert not status, f"a process ended with status {status} (7 is SIGBUS)"


def _send_some(root: str, counts: Sequence[int]) -> None:
    from embeddedpulsar import Client

    with Client(root) as client:
        for count in counts:
            producer = client.create_producer(f"beside-{count}")
            for _ in range(count):
                producer.send(bytes(_length(count)))


def _go_on_when_full(root: str, counts: Sequence[int]) -> None:
    from embeddedpulsar import Client
    from embeddedpulsar.exceptions import StorageFullError

    ballast = os.path.join(os.path.dirname(root), "ballast")
    with Client(root) as client:
        producers = [client.create_producer(f"beside-{count}") for count in counts]
        fill(ballast)
        refused = 0
        for producer, count in zip(producers, counts, strict=True):
            try:
                for _ in range(10_000):
                    producer.send(bytes(_length(count)))
            except StorageFullError:
                refused += 1
        os.unlink(ballast)
        assert refused == len(counts), "the disk was not full"
        for producer, count in zip(producers, counts, strict=True):
            last = producer.send(b"again")
            reader = client.create_reader(f"beside-{count}", last, start_message_id_inclusive=True)
            assert reader.read_next(10_000).data() == b"again"


def _length(count: int) -> int:
    return 950 if count < 1_000 else 20


def drop_pages(root: str) -> None:
    os.sync()
    for directory, _, names in os.walk(root):
        for name in names:
            try:
                fd = os.open(os.path.join(directory, name), os.O_RDONLY | os.O_NONBLOCK)
            except OSError:
                continue
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            except OSError:  # a FIFO has no pages
                continue
            finally:
                os.close(fd)


def read_all(root: str) -> None:
    """Read each file as a program does that copies the directory."""
    for directory, _, names in os.walk(root):
        for name in names:
            path = os.path.join(directory, name)
            if os.path.isfile(path):
                with open(path, "rb", buffering=0) as file:
                    while file.read(65_536):
                        pass


def fill(path: str) -> None:
    """Take all of a disk that there is, to the last block."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        size, step = 0, 16 * MIB
        while step >= 512:
            try:
                os.posix_fallocate(fd, size, step)
                size += step
            except OSError:
                step //= 2
        try:
            while True:
                size += os.pwrite(fd, bytes(4096), size)
        except OSError:
            return
    finally:
        os.close(fd)


if __name__ == "__main__":
    main()
