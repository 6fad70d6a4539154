"""A function that counts words, in worker processes. One of them is killed, and each word is counted once.

With EFFECTIVELY_ONCE the counters and the position of the input are stored together.
"""

from __future__ import annotations

import os
import signal
import time

import embeddedpulsar as pulsar
from embeddedpulsar.functions import FunctionConfig, ProcessingGuarantees, Supervisor

SENTENCES = 3000
PLACE = "public", "default", "WordCount"


class WordCount(pulsar.Function):
    def process(self, input: str, context: pulsar.Context) -> None:
        for word in input.split():
            context.incr_counter(word, 1)
        context.incr_counter("sentences", 1)


def counted(admin: pulsar.Admin) -> int:
    try:
        return int(admin.functions().get_function_state(*PLACE, "sentences"))
    except LookupError:
        return 0


def main() -> None:
    with pulsar.Client("./data") as client, pulsar.Admin("./data") as admin:
        admin.topics().create_partitioned_topic("sentences", 2)
        config = FunctionConfig(
            inputs=["sentences"],
            processing_guarantees=ProcessingGuarantees.EFFECTIVELY_ONCE,
            subscription_position=pulsar.InitialPosition.Earliest,
            parallelism=2,
        )
        admin.functions().create_function(config, WordCount)
        client.create_producer("sentences").send_many(b"tea and cake" for _ in range(SENTENCES))

        with Supervisor("./data") as supervisor:
            is_killed = False
            while counted(admin) < SENTENCES:
                supervisor.look()  # starts the workers, and those again that died
                if not is_killed and counted(admin):
                    worker = next(iter(supervisor.workers()["public/default/WordCount"].values()))
                    os.kill(worker, signal.SIGKILL)
                    is_killed = True
                time.sleep(0.01)
        print("tea:", admin.functions().get_function_state(*PLACE, "tea"), "killed:", is_killed)


if __name__ == "__main__":
    main()
