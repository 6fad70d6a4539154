"""Retry letters: where they go, when, and what they carry."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from embeddedpulsar import ConsumerDeadLetterPolicy
from embeddedpulsar.client.consumer.dead_letter import (
    LetterTopics,
    RetryLetters,
    letter_topics,
    retry_properties,
)
from embeddedpulsar.exceptions import InvalidTopicName

BASE = "persistent://public/default/"
DELIVER_AT = 5


class Producer:
    """Keeps letters."""

    def __init__(self) -> None:
        self.letters: list[Any] = []
        self.synced = self.closed = 0

    def publish(self, letters: list[Any], names: tuple[str, ...] = (), written: Any = None) -> int:
        self.letters += letters
        return len(self.letters)

    def sync(self, end_words: int) -> None:
        self.synced = end_words

    def close(self) -> None:
        self.closed += 1


def message(**properties: str) -> Any:
    """A received message."""
    return SimpleNamespace(
        data=lambda: b"v",
        properties=lambda: dict(properties),
        partition_key=lambda: "k",
        ordering_key=lambda: "",
        event_timestamp=lambda: 9,
        has_null_value=lambda: False,
        topic_name=lambda: BASE + "t",
        message_id=lambda: "(1,0,-1,0)",
        encryption_context=lambda: None,
        writer_schema=lambda: None,
    )


@pytest.fixture
def producers() -> tuple[Producer, Producer]:
    return Producer(), Producer()


@pytest.fixture
def retries(producers) -> RetryLetters:
    """At most two retries, at second 1."""
    return RetryLetters(*producers, 2, lambda: 1000)


def test_a_letter_is_delivered_after_the_delay(retries, producers):
    """The delay counts from now; without one the letter is delivered at once."""
    for delay_ms in (3000, 0, -1):
        retries.publish(message(), delay_ms, None)
    assert [options[DELIVER_AT] for _, options in producers[0].letters] == [4000, 0, 0]
    assert [options[0]["DELAY_TIME"] for _, options in producers[0].letters] == ["3000", "0", "0"]
    assert producers[0].synced == 3


def test_a_letter_beyond_the_limit_is_dead(retries, producers):
    """With more rounds than allowed it goes to the dead letter topic, and no delay is kept."""
    for times in ("0", "1", "2", "7"):
        retries.publish(message(RECONSUMETIMES=times), 500, None)
    assert [options[0]["RECONSUMETIMES"] for _, options in producers[0].letters] == ["1", "2"]
    assert [options[0]["RECONSUMETIMES"] for _, options in producers[1].letters] == ["3", "8"]
    assert [options[DELIVER_AT] for _, options in producers[1].letters] == [0, 0]


def test_the_origin_is_kept():
    """Where a message came from first is written once."""
    first = retry_properties(message(), 0, None)
    assert (first["REAL_TOPIC"], first["ORIGIN_MESSAGE_ID"]) == (BASE + "t", "(1,0,-1,0)")
    origin = {"REAL_TOPIC": "r", "ORIGIN_MESSAGE_ID": "1:0:-1:0"}
    again = retry_properties(message(**origin), 0, None)
    assert (again["REAL_TOPIC"], again["ORIGIN_MESSAGE_ID"]) == ("r", "1:0:-1:0")
    assert again["ORIGIN_MESSAGE_IDY_TIME"] == "1:0:-1:0"


def test_closing_closes_both(retries, producers):
    """Neither topic keeps a producer."""
    retries.close()
    assert [producer.closed for producer in producers] == [1, 1]


def found(*topics: str, existing: tuple[str, ...] = (), policy: Any = None, retry: str | None = None) -> Any:
    """The topics for subscription ``sub``."""
    return letter_topics(list(topics), "sub", policy, retry, lambda name: name in existing)


def test_names_by_default():
    """They begin with the topic, without a partition, and of several topics with the first by name."""
    assert found(BASE + "t") == LetterTopics(BASE + "t-sub-RETRY", BASE + "t-sub-DLQ", 16)
    assert found(BASE + "t-partition-3").retry == BASE + "t-sub-RETRY"
    assert found(BASE + "z", BASE + "a").dead == BASE + "a-sub-DLQ"


def test_names_of_the_older_form():
    """Each is used on its own, if it exists in the namespace of the topic."""
    assert found(BASE + "t", existing=(BASE + "sub-RETRY",)) == LetterTopics(
        BASE + "sub-RETRY", BASE + "t-sub-DLQ", 16
    )
    assert found(BASE + "t", existing=(BASE + "sub-DLQ",)).dead == BASE + "sub-DLQ"
    assert found("persistent://a/b/t", existing=(BASE + "sub-DLQ",)).dead == "persistent://a/b/t-sub-DLQ"


def test_names_that_are_given():
    """They win, and so does the limit of the policy."""
    policy = ConsumerDeadLetterPolicy(3, dead_letter_topic="dead")
    names = found(BASE + "t", existing=(BASE + "sub-RETRY", BASE + "sub-DLQ"), policy=policy, retry="again")
    assert names == LetterTopics("again", "dead", 3)


def test_a_name_that_no_topic_can_have():
    """A subscription whose name makes no topic name has no topics of the older form."""

    def has_topic(name: str) -> bool:
        raise InvalidTopicName(name)

    assert letter_topics([BASE + "t"], "a\nb", None, None, has_topic).retry == BASE + "t-a\nb-RETRY"
