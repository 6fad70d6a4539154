"""What a store costs that has 1,000 to 100,000 topics, or, with ``--seconds 60`` or more, a million."""

from __future__ import annotations

from benchmarks.contest import MILLISECONDS, Budget, Contest, Settings
from benchmarks.embedded.topic_count import ONE_BY_ONE, TopicCount

TOPICS = (1_000, 10_000, 100_000)
LONG = 1_000_000
LONG_SECONDS = 60


def contests(settings: Settings) -> list[Contest]:
    """One table; there is no peer with a list of logs in a directory."""
    counts = TOPICS + ((LONG,) if settings.seconds >= LONG_SECONDS else ())
    contestants = [TopicCount(settings.scale(count, ONE_BY_ONE + count // 1000)) for count in counts]
    largest = contestants[-1].key
    return [
        Contest(
            "many_topics: a client opens the store and finds one of its topics",
            MILLISECONDS,
            contestants,
            [
                Budget("<= 50 ms with the most topics", largest, 50, at_least=False),
                Budget("<= 300 us to make a topic in bulk", largest, 300, note=_BULK, at_least=False),
                Budget("<= 1,000 us to make a topic alone", largest, 1_000, note=_ALONE, at_least=False),
                Budget("<= 1,024 bytes of memory a topic", largest, 1_024, note=_MEMORY, at_least=False),
                Budget("<= 4,096 bytes on disk a topic", largest, 4_096, note=_DISK, at_least=False),
            ],
            fixed=1,
        )
    ]


_BULK = "us to make in bulk, a topic"
_ALONE = "us to make one by one"
_MEMORY = "bytes of memory, a topic"
_DISK = "bytes on disk, a topic"
