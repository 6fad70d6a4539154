"""The whole log of a storm, although the topic is trimmed all the time.

One process that is never killed follows the topic under a durable subscription of its own, writes each
message to a file and acknowledges it then. So whatever goes from the topic is in the file, and what a trim
took too early is missing from it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Final

from embeddedpulsar.client.client import Client
from embeddedpulsar.client.consumer.consumer import Consumer
from embeddedpulsar.enums import InitialPosition
from embeddedpulsar.exceptions import Timeout
from tests.storms.storm_pages import Page
from tests.storms.storm_workload import Stored

SETTINGS: Final = "retentionCheckIntervalInSeconds=1\n"
"""For ``broker.conf``: look at every topic often."""
SUBSCRIPTION: Final = "archive"
_HEAD: Final = struct.Struct("<QqqI")
_POLL_MS: Final = 300
_FEW_LEDGERS: Final = 20


class StormArchive:
    """What was in a topic: written by one process, read when it has ended."""

    def __init__(self, root: str, topic: str) -> None:
        self._root: Final = root
        self._topic: Final = topic
        self._path: Final = f"{root}.archive"

    def prepare(self, client: Client) -> None:
        """Make the subscription, before anything is published."""
        earliest = InitialPosition.Earliest
        client.subscribe(self._topic, SUBSCRIPTION, initial_position=earliest).close()

    def write(self, page: Page) -> None:
        """Follow the topic until nothing comes after the page said drain."""
        client = Client(self._root)
        consumer: Consumer[bytes] = client.subscribe(self._topic, SUBSCRIPTION)
        last = (0, -1, -1)
        with open(self._path, "wb") as file:
            while True:
                is_draining = page.is_draining
                try:
                    message = consumer.receive(timeout_millis=_POLL_MS)
                except Timeout:
                    if is_draining:
                        break
                    continue
                one = message.message_id()
                place = (one.ledger_id(), one.entry_id(), one.batch_index())
                if place > last:  # it comes again if this process was taken for dead meanwhile
                    payload = message.data()
                    file.write(_HEAD.pack(*place, len(payload)) + payload)
                    last = place
                consumer.acknowledge(message)
        client.close()

    def read(self) -> Iterator[Stored]:
        """Every message, in the order of the log."""
        with open(self._path, "rb") as file:
            while head := file.read(_HEAD.size):
                ledger_id, entry_id, batch_index, length = _HEAD.unpack(head)
                yield Stored(ledger_id, entry_id, batch_index, file.read(length))

    def judge(self) -> tuple[str, list[str]]:
        """How many ledgers went, in words, and what is wrong with that."""
        (directory,) = os.scandir(f"{self._root}/topics")
        left = sum(name.endswith(".log") for name in os.listdir(directory.path))
        ledgers = {stored.ledger_id for stored in self.read()}
        problems = []
        if len(ledgers) > _FEW_LEDGERS and left >= len(ledgers):
            problems.append(f"nothing was trimmed: {left} ledgers are left of {len(ledgers)}")
        return f"{left} of {len(ledgers)}", problems
