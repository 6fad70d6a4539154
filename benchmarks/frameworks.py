"""Frameworks of jobs over a store and over Redis, in one run: ``python -m benchmarks.frameworks``.

For each framework a client sends tasks that do nothing, one after the other; then a worker process of the
framework runs them and stores their results; then the client sends single tasks and awaits each result.
Rounds of the two back ends take turns, and the median of the rounds counts. Redis keeps an append-only file
that is flushed every second; a store has what it has by default: what was sent survives every process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.peers import servers

ROOT = Path(__file__).resolve().parent.parent
STORE, REDIS = "store", "Redis"
WAIT_S = 120.0


class Application(NamedTuple):
    """A program of a user of one framework.

    Attributes:
        send: sends tasks, given their number; returns the seconds that took.
        round_trips: sends single tasks and awaits each result; returns the seconds of each.
        work: runs a worker, without end.
    """

    send: Callable[[int], float]
    round_trips: Callable[[int], list[float]]
    work: Callable[[], object]


class Counter:
    """Counts the tasks that a worker runs, and says how long they took together."""

    def __init__(self) -> None:
        self.tasks = int(os.environ.get("TASKS", "0"))
        self._lock = threading.Lock()
        self._count = 0
        self._begun = 0.0

    def count(self) -> None:
        """A task runs."""
        with self._lock:
            self._count += 1
            if self._count == 1:
                self._begun = time.perf_counter()
            if self._count == self.tasks:
                print(time.perf_counter() - self._begun, flush=True)


COUNTER = Counter()


def taskiq_application(backend: str, url: str) -> Application:
    """taskiq: lists of taskiq-redis, or a topic."""
    from taskiq.api import run_receiver_task

    if backend == REDIS:
        from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

        results: Any = RedisAsyncResultBackend(url)
        broker: Any = RedisStreamBroker(url).with_result_backend(results)
    else:
        from embeddedpulsar.frameworks.taskiq import EmbeddedPulsarBroker, EmbeddedPulsarResultBackend

        broker = EmbeddedPulsarBroker(url).with_result_backend(EmbeddedPulsarResultBackend(url))

    @broker.task(task_name="nothing")
    async def nothing(number: int) -> int:
        COUNTER.count()
        return number

    async def within(program: Callable[[], Any]) -> Any:
        await broker.startup()
        try:
            return await program()
        finally:
            await broker.shutdown()

    async def send(count: int) -> float:
        begun = time.perf_counter()
        for number in range(count):
            await nothing.kiq(number)
        return time.perf_counter() - begun

    async def round_trips(count: int) -> list[float]:
        seconds = []
        for number in range(count):
            begun = time.perf_counter()
            task = await nothing.kiq(number)
            await task.wait_result(check_interval=0.0005, timeout=WAIT_S)
            seconds.append(time.perf_counter() - begun)
        return seconds

    return Application(
        lambda count: asyncio.run(within(lambda: send(count))),
        lambda count: asyncio.run(within(lambda: round_trips(count))),
        lambda: asyncio.run(run_receiver_task(broker, run_startup=True)),
    )


def dramatiq_application(backend: str, url: str) -> Application:
    """dramatiq: its Redis broker, or topics."""
    import dramatiq
    from dramatiq.results import Results

    if backend == REDIS:
        from dramatiq.brokers.redis import RedisBroker
        from dramatiq.results.backends.redis import RedisBackend

        broker: Any = RedisBroker(url=url)
        broker.add_middleware(Results(backend=RedisBackend(url=url)))
    else:
        from embeddedpulsar.frameworks.dramatiq import EmbeddedPulsarBackend, EmbeddedPulsarBroker

        broker = EmbeddedPulsarBroker(url)
        broker.add_middleware(Results(backend=EmbeddedPulsarBackend(url)))
    dramatiq.set_broker(broker)

    @dramatiq.actor(store_results=True)
    def nothing(number: int) -> int:
        COUNTER.count()
        return number

    def send(count: int) -> float:
        begun = time.perf_counter()
        for number in range(count):
            nothing.send(number)
        return time.perf_counter() - begun

    def round_trip(number: int) -> float:
        begun = time.perf_counter()
        nothing.send(number).get_result(block=True, timeout=int(WAIT_S * 1000))
        return time.perf_counter() - begun

    def work() -> None:
        dramatiq.Worker(broker, worker_threads=8).start()
        threading.Event().wait()

    return Application(send, lambda count: [round_trip(number) for number in range(count)], work)


def huey_application(backend: str, url: str) -> Application:
    """huey: its Redis storage that notifies those who wait for results, or topics."""
    if backend == REDIS:
        from huey import RedisHuey

        huey: Any = RedisHuey("bench", url=url, notify_result=True)
    else:
        from embeddedpulsar.frameworks.huey import EmbeddedPulsarHuey

        huey = EmbeddedPulsarHuey("bench", service_url=url)

    @huey.task(name="nothing")
    def nothing(number: int) -> int:
        COUNTER.count()
        return number

    def send(count: int) -> float:
        begun = time.perf_counter()
        for number in range(count):
            nothing(number)
        return time.perf_counter() - begun

    def round_trip(number: int) -> float:
        begun = time.perf_counter()
        nothing(number).get(blocking=True, timeout=WAIT_S)
        return time.perf_counter() - begun

    def work() -> None:
        huey.create_consumer(workers=4, periodic=False).run()

    return Application(send, lambda count: [round_trip(number) for number in range(count)], work)


def celery_application(backend: str, url: str) -> Application:
    """Celery: kombu's Redis transport and Celery's Redis results, or topics."""
    from celery import Celery

    import embeddedpulsar.frameworks.celery

    place = url if backend == REDIS else f"{embeddedpulsar.frameworks.celery.SCHEME}://{url}"
    app = Celery("bench", broker=place, backend=place)
    app.conf.task_acks_late = True
    app.conf.broker_connection_retry_on_startup = True

    @app.task(name="nothing")
    def nothing(number: int) -> int:
        COUNTER.count()
        return number

    def send(count: int) -> float:
        begun = time.perf_counter()
        for number in range(count):
            nothing.delay(number)
        return time.perf_counter() - begun

    def round_trip(number: int) -> float:
        begun = time.perf_counter()
        nothing.delay(number).get(timeout=WAIT_S)
        return time.perf_counter() - begun

    def work() -> None:
        # What the tasks print is the result: without the redirection of Celery.
        app.conf.worker_redirect_stdouts = False
        app.worker_main(["--quiet", "worker", "--pool", "solo", "--loglevel", "ERROR", "--without-gossip"])

    return Application(send, lambda count: [round_trip(number) for number in range(count)], work)


def faststream_application(backend: str, url: str) -> Application:
    """FastStream: streams of Redis with a consumer group, or topics. Results are messages, or answers."""
    from faststream import FastStream

    if backend == REDIS:
        from faststream.redis import RedisBroker, StreamSub

        broker: Any = RedisBroker(url, logger=None)
        sources = {
            name: {"stream": StreamSub(name, group="workers", consumer="one", last_id="0")}
            for name in STREAMS
        }
        place = "stream"
    else:
        from embeddedpulsar.frameworks.faststream import EmbeddedPulsarBroker

        broker = EmbeddedPulsarBroker(url, logger=None)
        sources = {name: {"topic": name, "subscription": "workers"} for name in STREAMS}
        place = "topic"

    async def nothing(number: int) -> int:
        COUNTER.count()
        return number

    async def answer(number: int) -> int:
        return number

    async def within(program: Callable[[], Any]) -> Any:
        async with broker:
            return await program()

    async def send(count: int) -> float:
        begun = time.perf_counter()
        for number in range(count):
            await broker.publish(number, **{place: "numbers"})
        return time.perf_counter() - begun

    async def round_trips(count: int) -> list[float]:
        seconds = []
        for number in range(count):
            begun = time.perf_counter()
            await broker.request(number, **{place: "requests"}, timeout=WAIT_S)
            seconds.append(time.perf_counter() - begun)
        return seconds

    async def work() -> None:
        broker.subscriber(**sources["numbers"])(broker.publisher(**{place: "results"})(nothing))
        broker.subscriber(**sources["requests"])(answer)
        await FastStream(broker, logger=None).run()

    return Application(
        lambda count: asyncio.run(within(lambda: send(count))),
        lambda count: asyncio.run(within(lambda: round_trips(count))),
        lambda: asyncio.run(work()),
    )


STREAMS = ("numbers", "requests")


def django_application(backend: str, url: str) -> Application:
    """Tasks of Django: django-tasks-rq and a worker of RQ that runs them itself, or a store."""
    import django
    from django.conf import settings

    options: dict[str, Any]
    if backend == REDIS:
        options = {"BACKEND": "django_tasks_rq.RQBackend"}
    else:
        options = {"BACKEND": "embeddedpulsar.frameworks.django.TaskBackend", "OPTIONS": {"path": url}}
    settings.configure(TASKS={"default": options}, RQ_QUEUES={"default": {"URL": url}}, USE_TZ=True)
    django.setup()
    from benchmarks.django_tasks_of_frameworks import nothing

    def send(count: int) -> float:
        begun = time.perf_counter()
        for number in range(count):
            nothing.enqueue(number)
        return time.perf_counter() - begun

    def round_trip(number: int) -> float:
        begun = time.perf_counter()
        result = nothing.enqueue(number)
        while not result.is_finished:
            time.sleep(0.0005)
            result.refresh()
        return time.perf_counter() - begun

    def work() -> None:
        if backend == REDIS:
            import django_rq
            from rq.worker import SimpleWorker

            worker = django_rq.get_worker(
                "default", worker_class=SimpleWorker, job_class="django_tasks_rq.Job"
            )
            worker.work(logging_level="ERROR")
        else:
            from embeddedpulsar.frameworks.django import Worker

            Worker(nothing.get_backend()).run()

    return Application(send, lambda count: [round_trip(number) for number in range(count)], work)


APPLICATIONS = {
    "celery": celery_application,
    "taskiq": taskiq_application,
    "dramatiq": dramatiq_application,
    "huey": huey_application,
    "faststream": faststream_application,
    "django": django_application,
}


def client(name: str, backend: str, url: str, tasks: int, trips: int) -> dict[str, float]:
    """Measure one framework over one back end, whose worker is a process of its own."""
    application = APPLICATIONS[name](backend, url)
    application.send(1)  # opens the store, or the connection
    sending = application.send(tasks)
    worker = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.frameworks", "--worker", name, backend, url],
        env={**os.environ, "TASKS": str(tasks)},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert worker.stdout is not None
        running = float(worker.stdout.readline())
        seconds = application.round_trips(trips)
    finally:
        worker.kill()
        worker.communicate()
    return {
        "sent/s": tasks / sending,
        "run/s": tasks / running,
        "round trip ms": 1000 * statistics.median(seconds),
    }


def measure(name: str, backend: str, tasks: int, trips: int) -> dict[str, float]:
    """One round, in a process of its own, with a store or a server of its own."""
    place = Path(tempfile.mkdtemp(prefix="frameworks-"))
    server = servers.redis(place) if backend == REDIS else None
    url = f"{place}/data" if server is None else f"redis://127.0.0.1:{server.port}/0"
    try:
        command = [sys.executable, "-m", "benchmarks.frameworks", "--client", name, backend, url]
        done = subprocess.run(
            [*command, "--tasks", str(tasks), "--trips", str(trips)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            timeout=600,
            check=True,
            text=True,
        )
        figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return figures
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(place)


def main() -> None:
    """Print a table, or be the client or the worker of a round."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.frameworks", description=__doc__)
    parser.add_argument("--tasks", type=int, default=5000, help="of a round (default 5000)")
    parser.add_argument("--trips", type=int, default=200, help="tasks whose result is awaited (default 200)")
    parser.add_argument("--rounds", type=int, default=3, help="of each back end (default 3)")
    parser.add_argument("--framework", action="append", choices=sorted(APPLICATIONS), help="default: all")
    for role in ("client", "worker"):
        parser.add_argument(f"--{role}", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        APPLICATIONS[options.worker[0]](*options.worker[1:]).work()
        return
    if options.client:
        print(json.dumps(client(*options.client, options.tasks, options.trips)))
        return
    print("| framework | figure | store | Redis | ratio |\n|---|---|--:|--:|--:|")
    for name in options.framework or APPLICATIONS:
        rounds: dict[str, list[dict[str, float]]] = {STORE: [], REDIS: []}
        for _ in range(options.rounds):
            for backend, figures in rounds.items():
                figures.append(measure(name, backend, options.tasks, options.trips))
        for figure in rounds[STORE][0]:
            store, redis = (
                statistics.median(figures[figure] for figures in rounds[backend]) for backend in rounds
            )
            ratio = redis / store if figure.endswith("ms") else store / redis
            print(f"| {name} | {figure} | {store:,.2f} | {redis:,.2f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
