"""A pool of workers over one Shared subscription. One of them is killed, and no job is lost.

Each job goes to one worker. What a worker had not acknowledged when it died goes to the others.
"""

from __future__ import annotations

import multiprocessing
import os
import signal

import embeddedpulsar as pulsar

JOBS = 300
WORKERS = 3


def work(client: pulsar.Client) -> None:
    """In a process of its own: square numbers, for as long as the process lives."""
    results = client.create_producer("results")
    jobs = client.subscribe("jobs", "pool", pulsar.ConsumerType.Shared, receiver_queue_size=5)
    results.send(b"ready")
    for job in jobs:
        number = int(job.data())
        results.send(b"%d %d" % (number, number * number), partition_key=str(os.getpid()))
        jobs.acknowledge(job)  # last: a death before this brings the job to another worker


def main() -> None:
    with pulsar.Client("./data") as client:
        results = client.subscribe("results", "main")
        context = multiprocessing.get_context("spawn")
        workers = [context.Process(target=work, args=(client,), daemon=True) for _ in range(WORKERS)]
        for worker in workers:
            worker.start()
        for _ in workers:
            results.acknowledge(results.receive(timeout_millis=60_000))

        with client.create_producer("jobs", batching_enabled=True, batching_max_messages=10) as producer:
            for number in range(JOBS):
                producer.send_async(str(number).encode(), None)

        squares, killed = {}, False
        while len(squares) < JOBS:
            result = results.receive(timeout_millis=60_000)
            number, square = map(int, result.data().split())  # a job may be done twice
            squares[number] = square
            results.acknowledge(result)
            if not killed and len(squares) >= JOBS // 3:
                killed = True
                os.kill(int(result.partition_key()), signal.SIGKILL)
        assert squares == {number: number * number for number in range(JOBS)}
        print(f"{len(squares)} jobs done by {len(workers)} workers, one of them killed")
        for worker in workers:
            worker.kill()
            worker.join()


if __name__ == "__main__":
    main()
