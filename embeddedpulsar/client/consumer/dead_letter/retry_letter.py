"""Retry letters: messages that the application wants to receive again later, through another topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar.client.common.arguments import check_type, check_type_or_none, checked_properties
from embeddedpulsar.client.consumer.dead_letter.dead_letter import (
    DeadLetters,
    dead_letter_producer_name,
    dead_letter_topic_name,
)
from embeddedpulsar.client.consumer.dead_letter.dead_letter_producer import (
    ORIGIN_MESSAGE_ID,
    DeadLetterProducer,
    encryption_of,
    make_letter,
    with_origin,
)
from embeddedpulsar.exceptions import InvalidTopicName
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Callable

    from embeddedpulsar.client.consumer.ack_grouping_tracker import AckGroupingTracker
    from embeddedpulsar.client.consumer.consumer_session import ConsumerSession
    from embeddedpulsar.message import Message

RECONSUMETIMES: Final = "RECONSUMETIMES"
DELAY_TIME: Final = "DELAY_TIME"
ORIGIN_MESSAGE_IDY_TIME: Final = "ORIGIN_MESSAGE_IDY_TIME"
"""The misspelled variant of ``ORIGIN_MESSAGE_ID``, which Pulsar's Java client still writes."""
MAX_RECONSUMETIMES: Final = 16


class LetterTopics(NamedTuple):
    """The topics for the letters of a consumer with ``enable_retry``.

    Attributes:
        retry: the topic of retry letters.
        dead: the topic of dead letters.
        limit: number of retries after which a message is a dead letter.
    """

    retry: str
    dead: str
    limit: int


class RetryLetters:
    """Publishes messages to the retry topic, or to the dead letter topic after too many retries.

    Role: makes the copy; the caller acknowledges the original afterwards.

    Thread-safe.

    Args:
        retry: producer of the retry topic.
        dead: producer of the dead letter topic.
        limit: most retries of a message.
        wall_ms: returns the time.
    """

    def __init__(
        self, retry: DeadLetterProducer, dead: DeadLetterProducer, limit: int, wall_ms: Callable[[], int]
    ) -> None:
        self._retry = retry
        self._dead = dead
        self._limit = limit
        self._wall_ms = wall_ms

    def publish(self, message: Message[Any], delay_ms: int, properties: dict[str, str] | None) -> None:
        """Store the copy of a message, to be delivered after the delay.

        Raises:
            ValueError: a wrong type.
            PulsarException: see `DeadLetterProducer.publish`.
        """
        check_type(int, delay_ms, "delay_ms")
        delay_ms = max(0, delay_ms)
        copied = retry_properties(message, delay_ms, properties)
        if int(copied[RECONSUMETIMES]) > self._limit:
            producer, letter = self._dead, make_letter(message, copied)
        else:
            deliver_at = self._wall_ms() + delay_ms if delay_ms else 0
            producer, letter = self._retry, make_letter(message, copied, deliver_at)
        keys = encryption_of(message.encryption_context())
        producer.sync(producer.publish([letter], keys, message.writer_schema()))

    def close(self) -> None:
        self._retry.close()
        self._dead.close()


def retry_properties(
    message: Message[Any], delay_ms: int, properties: dict[str, str] | None
) -> dict[str, str]:
    """Return the properties of the next copy: those of the message, the caller's, and the retry counters.

    >>> from types import SimpleNamespace
    >>> message = SimpleNamespace(properties=dict, topic_name=lambda: "t", message_id=lambda: "(5,6,-1,-1)")
    >>> list(retry_properties(message, 3000, {"by": "till-1"}).items())[:3]
    [('by', 'till-1'), ('RECONSUMETIMES', '1'), ('DELAY_TIME', '3000')]
    """
    check_type_or_none(dict, properties, "properties")
    copied = message.properties()
    times = _number(copied.get(RECONSUMETIMES, "0")) + 1
    copied.update(checked_properties(properties or {}))
    copied[RECONSUMETIMES] = str(times)
    copied[DELAY_TIME] = str(delay_ms)
    with_origin(message, copied)
    copied.setdefault(ORIGIN_MESSAGE_IDY_TIME, copied[ORIGIN_MESSAGE_ID])
    return copied


def _number(text: str) -> int:
    """Return the number in a property; 0 if it is no number, because a property may hold any text.

    >>> _number("3"), _number("many"), _number("-1")
    (3, 0, 0)
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def letter_topics(
    topics: list[str],
    subscription: str,
    policy: Any,
    retry_topic: str | None,
    has_topic: Callable[[str], bool],
) -> LetterTopics:
    """Find the topics of a consumer with ``enable_retry``.

    Given names are used. Without a name, the topic of the older form ``<subscription>-RETRY`` (or ``-DLQ``)
    in the same namespace is used if it exists, otherwise ``<topic>-<subscription>-RETRY``, with the first of
    the subscribed topics by name.

    Args:
        topics: full names.
        subscription: its name.
        policy: a dead letter policy or None.
        retry_topic: the given name, or None.
        has_topic: whether a topic exists.

    >>> letter_topics(["persistent://a/b/t"], "s", None, None, lambda name: name.endswith("/s-DLQ"))
    LetterTopics(retry='persistent://a/b/t-s-RETRY', dead='persistent://a/b/s-DLQ', limit=16)
    """
    first = TopicName.parse(min(topics))
    dead_topic = policy.dead_letter_topic if policy is not None else ""

    def older_or(default: str, suffix: str) -> str:
        older = first._replace(local=subscription + suffix, partition=-1).full
        try:
            return older if has_topic(older) else default
        except InvalidTopicName:
            return default  # no topic can have that name

    return LetterTopics(
        retry=retry_topic or older_or(f"{first.base}-{subscription}-RETRY", "-RETRY"),
        dead=dead_topic or older_or(dead_letter_topic_name(first.full, subscription), "-DLQ"),
        limit=policy.max_redeliver_count if policy is not None else MAX_RECONSUMETIMES,
    )


def letters_of(
    session: ConsumerSession,
    acks: AckGroupingTracker,
    give_back: Callable[[int, int], object],
    forget: Callable[[list[tuple[int, int]]], object],
    on_moved: Callable[[], object],
) -> tuple[DeadLetters | None, RetryLetters | None]:
    """Return the objects that a consumer needs for its dead letter and retry topics.

    Without retries, a dead letter policy has an effect on Shared and Key_Shared subscriptions only, because
    the other types do not count deliveries.
    """
    config, client = session.config, session.client
    policy = config.dead_letter
    if policy is None or not (config.enable_retry or session.attachment.delivers_singly):
        return None, None
    names = (session.topic_name, config.subscription_name)
    dead = DeadLetterProducer(
        client,
        policy.dead_letter_topic or dead_letter_topic_name(*names),
        config.schema,
        dead_letter_producer_name(*names, session.consumer_name),
        policy.initial_subscription_name,
        config.key_reader,
    )
    limit = policy.max_redeliver_count
    dead_letters = DeadLetters(session, limit, dead, acks, give_back, forget, on_moved)
    if not config.enable_retry or config.retry_letter_topic is None:
        return dead_letters, None
    retry = DeadLetterProducer(client, config.retry_letter_topic, config.schema, key_reader=config.key_reader)
    return dead_letters, RetryLetters(retry, dead, limit, client.store.clock.wall_ms)
