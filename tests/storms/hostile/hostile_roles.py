"""What the processes of the hostile storm share: the topics, the streams of messages, a page of words.

A stream is what one producer sends to one topic. Every message carries a `Mark`: the stream and its key, the
run of the producer, and a number without gaps within the stream's key. A run begins with the producer's life
and after each interrupt.
"""

from __future__ import annotations

import os
import random
from typing import Final, NamedTuple

from embeddedpulsar._engine.platform.timing import perf_counter
from embeddedpulsar.enums import ConsumerType
from tests.storms.storm_pages import Page
from tests.storms.storm_payload import Mark

TOPICS: Final = {f"work-{one.name.lower()}": one for one in ConsumerType}
SUBSCRIPTION: Final = "work"
SIGNALS: Final = "signals"
OWN: Final = "bystander"
DAEMONS: Final = "daemons"
NOTEBOOK: Final = "notebook"
KEYS: Final = 16
PRODUCERS: Final = 2
KEEP_ALIVE_S: Final = 2
QUEUE: Final = 60

FIRST_PROCESS: Final = 16  # the words below are those of streams
_SIGNAL_STREAMS: Final = 200
DAEMON_STREAM: Final = 300
NOTEBOOK_STREAM: Final = 301
_FROZEN_MS: Final = 2
_WORST_GAP_MS: Final = 3
_COUNTS: Final = 4
COUNTED: Final = (
    "daemons",
    "hung workers",
    "interrupted create_producer",
    "interrupted create_reader",
    "interrupted receive",
    "interrupted subscribe",
)
"""What processes count that bring their fault about themselves, one process for each."""


class HostilePage:
    """Words in shared memory that survive the process that writes them."""

    def __init__(self, path: str) -> None:
        self.page: Final = Page(path)

    def freeze_passed(self, milliseconds: int) -> None:
        """Every process was stopped for that long."""
        self.page.words[_FROZEN_MS] += milliseconds

    @property
    def frozen_ms(self) -> int:
        """How long every process was stopped, in all."""
        return int(self.page.words[_FROZEN_MS])

    def note_gap(self, milliseconds: int) -> None:
        """The bystander got nothing for that long."""
        self.page.words[_WORST_GAP_MS] = max(self.worst_gap_ms, milliseconds)

    @property
    def worst_gap_ms(self) -> int:
        """The longest time in which the bystander got nothing."""
        return int(self.page.words[_WORST_GAP_MS])

    def count(self, kind: str) -> None:
        """One more of a kind of `COUNTED`."""
        self.page.words[_COUNTS + COUNTED.index(kind)] += 1

    def counts(self) -> dict[str, int]:
        """How many of each kind there were."""
        return {kind: int(self.page.words[_COUNTS + at]) for at, kind in enumerate(COUNTED)}


class HostileRole(NamedTuple):
    """One process in one of its lives.

    ``began`` is when the storm began, on `perf_counter`; ``closed`` are the standard descriptors it does
    without; ``seed`` is that of the round.
    """

    member: int
    life: int
    folder: str
    board: HostilePage
    began: float
    closed: tuple[int, ...]
    seed: int

    @property
    def page(self) -> Page:
        return self.board.page

    @property
    def root(self) -> str:
        return store_of(self.folder)

    def random(self) -> random.Random:
        return random.Random((self.seed * 1009 + self.member) * 1_000_003 + self.life)

    def new_run(self) -> int:
        """A number above those of all runs before: two interrupts can strike within a millisecond."""
        return int((perf_counter() - self.began) * 1_000_000) + 1

    def check_descriptors(self) -> None:
        """Fail if a standard descriptor belongs to the store."""
        for descriptor in range(3):
            try:
                path = os.readlink(f"/proc/self/fd/{descriptor}")
            except FileNotFoundError:
                continue
            if path.startswith(self.root):
                raise AssertionError(f"descriptor {descriptor} is {path}")


def store_of(folder: str) -> str:
    """The store of a storm that works in ``folder``."""
    return f"{folder}/store"


def diary_of(folder: str, topic: str) -> str:
    """The diary of all consumers of a topic."""
    return f"{folder}/diary-{topic}"


def stream_of(topic: str, producer: int) -> int:
    """The number of a stream; it is also that of its words in the page."""
    return list(TOPICS).index(topic) * PRODUCERS + producer


def signal_stream_of(member: int) -> int:
    """The stream of what the signal handler of a process sends."""
    return _SIGNAL_STREAMS + member


def mark_of(stream: int, run: int, number: int) -> Mark:
    """How the ``number``-th message of a stream is marked: its keys count their messages one by one."""
    return Mark(stream * KEYS + number % KEYS, run, number // KEYS)


def stored_by_key(stream: int, count: int) -> dict[int, int]:
    """How many messages of each key are among the first ``count`` of a stream."""
    return {stream * KEYS + key: max(0, -(-(count - key) // KEYS)) for key in range(KEYS)}
