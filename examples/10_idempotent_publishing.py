"""Publish a file line by line, crash anywhere, start again: every line is in the topic once.

The topic remembers the last sequence id under the producer's name; the line numbers are the sequence ids.
"""

from __future__ import annotations

import os
import signal
from multiprocessing import Process
from pathlib import Path

import embeddedpulsar as pulsar

LINES = [f"line {number}" for number in range(300)]


def publish(crash_after: int) -> None:
    """Go on behind the last line that is stored; die after some of them, in the middle of everything."""
    with pulsar.Client("./data") as client:
        producer = client.create_producer("lines", producer_name="importer")
        for number in range(producer.last_sequence_id() + 1, len(LINES)):
            if number == crash_after:
                os.kill(os.getpid(), signal.SIGKILL)
            producer.send(LINES[number].encode())  # automatic ids go on where the last producer stopped


def main() -> None:
    Path("data").mkdir()
    Path("data/broker.conf").write_text("brokerDeduplicationEnabled=true\n")
    for crash_after in (100, 200, -1):
        process = Process(target=publish, args=(crash_after,))
        process.start()
        process.join()
        print("crashed" if process.exitcode else "done")

    with pulsar.Client("./data") as client:
        # Somebody is careful and sends the last lines again: they are answered, and not stored.
        with client.create_producer("lines", producer_name="importer") as producer:
            assert producer.last_sequence_id() == len(LINES) - 1
            for number in range(290, 300):
                answer = producer.send(LINES[number].encode(), sequence_id=number)
                assert (answer.ledger_id(), answer.entry_id()) == (-1, -1)

        reader = client.create_reader("lines", pulsar.MessageId.earliest)
        stored = [reader.read_next(timeout_millis=1000).data().decode() for _ in LINES]
        assert stored == LINES
        assert not reader.has_message_available()
        print(f"{len(stored)} lines, each once")


if __name__ == "__main__":
    main()
