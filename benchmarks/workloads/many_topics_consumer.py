"""What a message costs a consumer of 100 to 10,000 topics, most of which are empty."""

from __future__ import annotations

from benchmarks.contest import MESSAGES_PER_SECOND, Budget, Contest, Settings
from benchmarks.embedded.many_topics import ManyTopics

TOPICS = (100, 1_000, 10_000)


def contests(settings: Settings) -> list[Contest]:
    """One table; there is no peer that reads thousands of logs through one subscription each."""
    small, medium, large = (ManyTopics(settings.scale(topics, topics // 100 + 2)) for topics in TOPICS)
    return [
        Contest(
            "many_topics_consumer: bursts of 2,000 messages on topics drawn at random",
            MESSAGES_PER_SECOND,
            [small, medium, large],
            [
                Budget(">= 50,000/s at 1,000 topics", medium.key, 50_000),
                Budget(">= 20,000/s at 10,000 topics", large.key, 20_000),
            ],
            fixed=settings.scale(20_000, 100),
        )
    ]
