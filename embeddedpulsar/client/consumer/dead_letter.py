"""Dead letters: messages that were redelivered too often move to another topic.

The producers of a consumer, which publish to its dead letter and retry topics.

Retry letters: messages that the application wants to receive again later, through another topic.
"""

from __future__ import annotations

import contextlib
import os

from embeddedpulsar._engine.format.entry_decoder import RawPosition
from embeddedpulsar._engine.log.log_positions import read_whole_entry
from embeddedpulsar._engine.platform import failpoints, fork, threads
from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar._engine.store.policies.admitting import AUTO_SUBSCRIPTION_CREATION
from embeddedpulsar._engine.store.topic_list import partition_names
from embeddedpulsar.client.arguments import Options, check_type, check_type_or_none, checked_properties
from embeddedpulsar.crypto import Encryption
from embeddedpulsar.exceptions import (
    AlreadyClosed,
    CryptoError,
    InvalidTopicName,
    NotAllowedError,
    ProducerBusy,
    ProducerFenced,
    SubscriptionNotFound,
    TopicNotFound,
)
from embeddedpulsar.message import Message, is_skipped
from embeddedpulsar.message_id import BEFORE_FIRST, Position
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple
from embeddedpulsar.schema.schema import BYTES, CopiedSchema, Schema
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, Final

    from embeddedpulsar._engine.format.entry import EntryView
    from embeddedpulsar._engine.log.log import Log
    from embeddedpulsar._engine.store.schema_info import SchemaInfo
    from embeddedpulsar.client.client_context import ClientContext
    from embeddedpulsar.client.consumer.ack_grouping_tracker import AckGroupingTracker
    from embeddedpulsar.client.consumer.consumer_session import ConsumerSession
    from embeddedpulsar.client.producer.producer import Producer
    from embeddedpulsar.client.producer.publisher import Publisher
    from embeddedpulsar.crypto import CryptoKeyReader
    from embeddedpulsar.encryption import EncryptionContext

    EndWords = dict[Log, int]
"""The word to wait for, for each log to which letters were written."""

Letter = tuple[bytes, Options]
"""A payload as it was stored, and its options."""
KeyNames = tuple[str, ...]
Use = tuple[KeyNames, "SchemaInfo | None"]
"""What the letters of one producer share: keys for encryption, and their schema."""

# Steps of a move: 1. the copy is stored; 2. it has the durability of the client; 3. the caller acknowledges
# the original. A death before 1 leaves the original, one before 3 leaves both. Before the first letter, the
# topic is created; then it is marked as a topic of letters.
failpoints.declare("letter:before", "letter:stored", "letter:topic")

REAL_TOPIC: Final = "REAL_TOPIC"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
REASON: Final = "DEAD_LETTER_REASON"
"""Why the application failed. Not in Pulsar, whose dead letters do not say it."""
_LONGEST_REASON: Final = 1000
_MOST_REASONS: Final = 10_000


def make_letter(message: Message[Any], properties: dict[str, str], deliver_at: int = 0) -> Letter:
    """Return a copy of a message with other properties; payload (also null), keys and event time are kept.

    Args:
        message: as received.
        properties: of the copy.
        deliver_at: earliest delivery of the copy, in ms since 1970; 0 for at once.
    """
    return message.data(), (
        properties,
        message.partition_key() or None,
        message.ordering_key() or None,
        0,
        message.event_timestamp(),
        deliver_at,
        message.has_null_value(),
    )


def with_origin(message: Message[Any], properties: dict[str, str]) -> dict[str, str]:
    """Add the original topic and id of the message, unless its properties have them already."""
    properties.setdefault(REAL_TOPIC, message.topic_name())
    properties.setdefault(ORIGIN_MESSAGE_ID, str(message.message_id()))
    return properties


def reason_text(reason: str | BaseException | None) -> str:
    """The value of the property with the reason: class and message of an exception, or a text; at most 1,000
    characters.

    >>> reason_text(ValueError("no tea")), reason_text("sold out"), reason_text(None), reason_text(OSError())
    ('ValueError: no tea', 'sold out', '', 'OSError')
    """
    if isinstance(reason, BaseException):
        kind = type(reason)
        name = (
            kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        )
        try:
            text = str(reason)
        except Exception as error:  # noqa: BLE001 - the code of an application
            text = f"its text raised {type(error).__name__}"
        reason = f"{name}: {text}" if text else name
    check_type_or_none(str, reason, "reason")
    # What UTF-8 cannot hold, as in the name of a file, would refuse the whole letter.
    text = (reason or "").encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 3]}..."


def encryption_of(context: EncryptionContext | None) -> KeyNames:
    """Return the names of the keys of an encrypted message; none for plain text and for ciphertext."""
    if context is None or context.is_decryption_failed():
        return ()
    return tuple(key.key for key in context.keys())


class DeadLetterProducer:
    """Publishes copies of messages to one topic, on behalf of a consumer.

    Role: a producer that is made for the first letter and kept until the consumer closes. After `publish`,
    and `sync` of its result, the letters are stored at the client's level of durability, and their originals
    may be acknowledged.

    Thread-safe: letters of one call stay together. The caller gets the error of a failed call, and the next
    call starts anew: with a new producer, if the topic was deleted.

    Args:
        client: the client of the consumer.
        topic: the topic of the letters, which is created if necessary. Partitions are chosen as by any
            producer: by key, or in turn for messages without a key.
        schema: of the consumer. Letters keep the schema that they were written with; a schema that gives
            versions itself gives those of the letters, too.
        name: of the producer; with a random suffix if a producer of that name is connected. None for one
            that the topic makes.
        initial_subscription: created with the producer, so that no letter is removed; ``""`` for none.
        key_reader: of the consumer, for copies of encrypted messages.
    """

    def __init__(
        self,
        client: ClientContext,
        topic: str,
        schema: Any,
        name: str | None = None,
        initial_subscription: str = "",
        key_reader: CryptoKeyReader | None = None,
    ) -> None:
        self.topic: Final = topic
        self._client = client
        # The original may be a chunked message.
        self._versions = type(schema).check_topic is not Schema.check_topic
        schema = schema if self._versions else BYTES
        with late_imports():
            from embeddedpulsar.client.producer.producer_session import LONGEST_NAME, ProducerConfig
        self._config: ProducerConfig = ProducerConfig(
            topic, schema, chunking=True, lazy_start=True, is_of_letters=True
        )
        self._name = name if name is None or len(name.encode()) < LONGEST_NAME - 16 else None
        self._initial_subscription = initial_subscription
        self._lock = threads.RLock()
        self._key_reader = key_reader
        self._opened: dict[Use, Producer[Any]] = {}
        self._is_closed = False
        fork.register(self)

    def publish(
        self, letters: Iterable[Letter], names: KeyNames = (), written: SchemaInfo | None = None
    ) -> EndWords:
        """Append letters in their order.

        Args:
            letters: of one entry.
            names: of the keys with which the entry was encrypted; its letters are encrypted with them, too.
            written: the schema of the entry; None for none.

        Returns:
            The argument of `sync`, if the client's level requires a flush. The caller keeps it: later letters
            do not include a failed flush, or a topic that was deleted.

        Raises:
            CryptoError: a public key cannot be read. An encrypted message is never stored in plain text.
            NotAllowedError: the initial subscription is missing and ``allowAutoSubscriptionCreation`` is off.
            InvalidTopicName, TopicNotFound, ProducerBusy: see `Client.create_producer`.
            PulsarException: see `Producer.send`. Some of the letters may be stored.
        """
        if failpoints.ACTIVE:
            failpoints.hit("letter:before")
        end_words: EndWords = {}
        if self._versions:
            written = None
        try:
            self._lock.acquire()
            for value, options in letters:
                publisher = self._publisher(names, written, value, options)
                out = publisher.store_one(value, options)
                if out.error is not None:
                    raise out.error
                if out.end_word:
                    end_words[publisher.session.ledger] = out.end_word
        except (AlreadyClosed, ProducerFenced, TopicNotFound):
            # The topic was deleted, or the name taken: the next letter opens a producer of its own again.
            self._let_go()
            raise
        finally:
            self._lock.release()
        return end_words

    def sync(self, end_words: EndWords) -> None:
        """Wait until published letters have the durability of the client.

        Args:
            end_words: from `publish`; those of several calls combined.

        Raises:
            PoisonedSegment: a flush failed; some letters may be lost.
            AlreadyClosed: the topic was deleted meanwhile.
        """
        for ledger, end_word in end_words.items():
            ledger.wait_durable(end_word)
        if failpoints.ACTIVE:
            failpoints.hit("letter:stored")

    def _publisher(
        self, names: KeyNames, written: SchemaInfo | None, value: bytes, options: Options
    ) -> Publisher:
        use = names, written
        try:
            producer = self._opened.get(use) or self._open(use, written, self._name)
            return producer._publisher.of_message(value, options)
        except ProducerBusy:
            if self._name is None:
                raise
        # Consumers may share a name, producers may not. The conflict may show late, because a partition is
        # attached with its first letter.
        self._let_go(use)
        producer = self._open(use, written, f"{self._name}-{os.urandom(5).hex()}")
        return producer._publisher.of_message(value, options)

    def _open(self, use: Use, written: SchemaInfo | None, name: str | None) -> Producer[Any]:
        if self._is_closed:
            raise AlreadyClosed("the consumer is closed; subscribe again")
        if self._initial_subscription:
            topic = TopicName.parse(self.topic).full
            for partition in partition_names(topic, self._client.store.topics.resolve(topic)) or [self.topic]:
                _ensure_subscription(self._client, partition, self._initial_subscription)
        config, names = self._config._replace(name=name), use[0]
        if written is not None:
            config = config._replace(schema=CopiedSchema(written))
        if names:
            if self._key_reader is None:
                raise CryptoError("there is no crypto_key_reader; give one with the public key")
            config = config._replace(encryption=Encryption(names, self._key_reader))
        with late_imports():
            from embeddedpulsar.client.producer.producer import open_producer
        opened: Producer[Any] = open_producer(self._client, config)
        self._opened[use] = opened
        try:
            # Without the mark, a topic without a subscription would not keep its letters.
            if failpoints.ACTIVE:
                failpoints.hit("letter:topic")
            self._client.store.note_letters(self.topic)
        except BaseException:
            self._let_go(use)
            raise
        return opened

    def _let_go(self, *uses: Use) -> None:
        for use in uses or list(self._opened):
            opened = self._opened.pop(use, None)
            if opened is not None:
                with contextlib.suppress(AlreadyClosed):  # closed with its client, or fenced out
                    opened.close()

    def close(self) -> None:
        try:
            self._lock.acquire()
            self._is_closed = True
            self._let_go()
        finally:
            self._lock.release()

    def after_fork_in_child(self) -> None:
        self._lock = threads.RLock()
        self._is_closed = True
        self._opened = {}


def _ensure_subscription(client: ClientContext, topic_name: str, name: str) -> None:
    """Create a subscription that starts with the first message, if there is none of that name."""
    use = client.use_topic(topic_name)
    try:
        topic = use.topic
        try:
            subscription = topic.use_subscription(name, False)
        except SubscriptionNotFound:
            policy = client.store.policy(topic.name, AUTO_SUBSCRIPTION_CREATION)
            if not policy.allow_auto_subscription_creation:
                raise NotAllowedError(
                    f"{topic.name} has no subscription {name!r}, which is the initial_subscription_name of a "
                    "dead letter policy, and allowAutoSubscriptionCreation=false holds for it; allow it, or "
                    "leave initial_subscription_name out"
                ) from None
            subscription = topic.use_subscription(name, True, BEFORE_FIRST)
        topic.end_use(subscription, name)
    finally:
        use.release()


_MOST_DEAD: Final = 1000
"""Entries that may wait to be moved. At this number no more are fetched until they are moved."""


class DeadLetters:
    """Applies a dead letter policy to the entries that one consumer fetches and has redelivered.

    Role: the application gets an entry with redelivery counts 0 to ``limit``. An entry with a higher count is
    moved instead. An entry delivered with the count ``limit`` is a candidate: it is moved when it would be
    redelivered, because of a negative acknowledgement, an acknowledgement timeout, or a redelivery of all
    entries. A move publishes every message of the entry that was not acknowledged, then acknowledges the
    entry. A death between the two steps leaves it in both topics. If publishing fails, the entry is delivered
    again, after the delay of a negative acknowledgement.

    Invariants: `fetch`, which runs under the lock of the receiver queue, publishes nothing, and neither does
    the timer thread: both must not wait for the dead letter topic. A separate thread publishes. The
    acknowledgement carries the epoch in which the entry was fetched, so it has no effect after a seek.
    `candidates` holds positions only; payloads are read again for the move.

    `fetch` is called under the lock of the queue; any thread may call the other methods.

    Args:
        session: of the consumer.
        limit: highest redelivery count with which an entry is delivered.
        producer: of the dead letter topic.
        acks: the acknowledged messages of each batch.
        give_back: has an entry delivered again after a delay.
        forget: called with entries before they are moved, so that their messages are not delivered any more.
        on_moved: called when entries were moved, after which more can be fetched.
    """

    def __init__(
        self,
        session: ConsumerSession,
        limit: int,
        producer: DeadLetterProducer,
        acks: AckGroupingTracker,
        give_back: Callable[[int, int], object],
        forget: Callable[[list[RawPosition]], object],
        on_moved: Callable[[], object] = int,
    ) -> None:
        self.producer: Final = producer
        self._session = session
        self._limit = limit
        self._acks = acks
        self._give_back = give_back
        self._forget = forget
        self._on_moved = on_moved
        self._candidates: dict[RawPosition, int] = {}  # with the epoch of each
        # Candidates that the application got; the others are fetched ahead.
        self._handed: set[RawPosition] = set()
        self._reasons: dict[RawPosition, str] = {}  # why the application failed, of candidates
        self._dead: list[tuple[EntryView, int]] = []
        self._moving = threads.RLock()  # one move at a time, so that letters keep their order

    def fetch(self, max_messages: int, max_bytes: int) -> list[EntryView]:
        """`fetch` of the decryption, without the dead letters, which are moved soon."""
        attachment, read = self._session.attachment, self._session.decryption.fetch
        limit = self._limit
        while len(self._dead) < _MOST_DEAD and (views := read(max_messages, max_bytes)):
            epoch = attachment.epoch
            if max(view.redelivery_count for view in views) < limit:
                return views
            shown = []
            for view in views:
                if view.redelivery_count > limit:
                    if self._acks.leaves_any(view):  # else it was acknowledged after it was given back
                        self._dead.append((view, epoch))
                    continue
                shown.append(view)
                if view.redelivery_count == limit:
                    self._candidates[view.ledger_id, view.entry_id] = epoch
            if len(shown) < len(views):
                self._session.call_later(0.0, self._begin_to_move)
            if shown:
                return shown
        return []

    def note_reason(self, position: RawPosition, reason: str | BaseException | None) -> None:
        """Record why the application gave an entry back, for the case that this was the last time."""
        text = reason_text(reason)
        if text and position in self._candidates:
            self._reasons[position] = text
            # Entries that could not be moved may have gone to another consumer.
            if len(self._reasons) > _MOST_REASONS:
                self._reasons.pop(next(iter(self._reasons)), None)

    def note_timeout(self, positions: list[RawPosition], timeout_ms: int) -> None:
        """Record that entries were not acknowledged in time, unless something else is known of them."""
        for position in positions:
            if position not in self._reasons:
                self.note_reason(position, f"not acknowledged within {timeout_ms} ms")

    def note_handed(self, view: EntryView) -> None:
        """Record that the application gets the first message of an entry."""
        if view.redelivery_count == self._limit:
            self._handed.add((view.ledger_id, view.entry_id))

    def take_all(self) -> None:
        """Move the candidates that the application got, before all entries are redelivered.

        Those that cannot be moved are redelivered with the others.
        """
        handed, self._handed = self._handed, set()
        self.take_due(sorted(handed & self._candidates.keys()))

    def has_any(self, positions: list[RawPosition]) -> bool:
        """Whether some of the entries are candidates. Takes no lock."""
        return not self._candidates.keys().isdisjoint(positions)

    def take_due(self, positions: list[RawPosition]) -> list[RawPosition]:
        """Move the candidates among entries that are due for redelivery, and return the others."""
        views = []
        others = []
        for position in positions:
            epoch = self._candidates.pop(position, None)
            self._handed.discard(position)
            view = None
            if epoch is not None:
                session = self._session
                assembler = session.attachment.chunks.assembler
                view = read_whole_entry(session.ledger, Position(*position), assembler)
            view = self._session.decryption.opened(view) if view is not None else None
            if view is None or epoch is None:
                others.append(position)
                continue
            view.acked = self._acks.open.get(position)
            views.append((view, epoch))
        if not views:
            return others
        self._forget([(view.ledger_id, view.entry_id) for view, _ in views])
        return sorted(others + self._move(views))

    def discard(self, position: RawPosition) -> None:
        self._candidates.pop(position, None)
        self._reasons.pop(position, None)
        self._handed.discard(position)
        if self._dead:
            self._dead = [
                (view, epoch) for view, epoch in self._dead if (view.ledger_id, view.entry_id) != position
            ]

    def clear(self) -> None:
        self._candidates.clear()
        self._handed.clear()
        self._reasons.clear()
        self._dead = []

    def close(self) -> None:
        self.clear()
        self.producer.close()

    # -- moving ------------------------------------------------------------------------------------------

    def _begin_to_move(self) -> None:
        self._session.client.workers.start(self._move_dead)

    def _move_dead(self) -> None:
        dead, self._dead = self._dead, []
        for ledger, entry in self._move(dead):
            self._give_back(ledger, entry)
        self._on_moved()

    def _move(self, views: list[tuple[EntryView, int]]) -> list[RawPosition]:
        """Move entries, and return the positions of those that could not be moved."""
        moved: list[tuple[RawPosition, int]] = []
        failed: list[RawPosition] = []
        first_error: Exception | None = None
        end_words: EndWords = {}
        try:
            self._moving.acquire()
            for view, epoch in views:
                position = (view.ledger_id, view.entry_id)
                try:
                    names = encryption_of(getattr(view, "encryption", None))
                    written = self._session.origin.writers[view.schema_version]
                    end_words |= self.producer.publish(self._letters(view), names, written)
                    moved.append((position, epoch))
                except Exception as error:  # noqa: BLE001 - whatever it is, the message must be redelivered
                    first_error = first_error or error
                    failed.append(position)
            try:
                self.producer.sync(end_words)
                self._acknowledge(moved)
            except Exception as error:  # noqa: BLE001 - likewise
                first_error = first_error or error
                failed += [position for position, _ in moved]
        finally:
            self._moving.release()
        if moved and not failed:
            self._session.client.log.info(
                "%d entries of %s, from %s, were delivered %d times without success and moved to %s",
                len(moved),
                self._session.topic_name,
                moved[0][0],
                self._limit + 1,
                self.producer.topic,
                **self._session.log_names(),
            )
        if first_error is not None and not isinstance(first_error, AlreadyClosed):
            self._session.client.log.warning(
                "%d entries of %s, from %s, could not be moved to %s and will be delivered again: %s",
                len(failed),
                self._session.topic_name,
                failed[0],
                self.producer.topic,
                first_error,
                **self._session.log_names(),
            )
        return failed

    def _letters(self, view: EntryView) -> list[Letter]:
        origin, reason = self._session.origin, self._reasons.get((view.ledger_id, view.entry_id), "")
        letters = []
        for index in range(view.count):
            if is_skipped(view.skip, index) or (view.acked is not None and view.acked[index]):
                continue
            message: Message[Any] = Message(view, index, origin)
            properties = with_origin(message, message.properties())
            if reason:
                properties[REASON] = reason
            letters.append(make_letter(message, properties))
        return letters

    def _acknowledge(self, moved: list[tuple[RawPosition, int]]) -> None:
        for epoch in sorted({epoch for _, epoch in moved}):
            positions = [position for position, letter_epoch in moved if letter_epoch == epoch]
            self._session.attachment.acknowledge(positions, epoch=epoch)
            for position in positions:
                self._reasons.pop(position, None)


def dead_letter_topic_name(topic: str, subscription: str) -> str:
    """The default name of a dead letter topic.

    >>> dead_letter_topic_name("persistent://public/default/orders-partition-2", "billing")
    'persistent://public/default/orders-billing-DLQ'
    """
    return f"{TopicName.parse(topic).base}-{subscription}-DLQ"


def dead_letter_producer_name(topic: str, subscription: str, consumer: str) -> str:
    """The name under which a consumer publishes its dead letters.

    >>> dead_letter_producer_name("persistent://public/default/orders", "billing", "till-1")
    'persistent://public/default/orders-billing-till-1-DLQ'
    """
    return f"{TopicName.parse(topic).base}-{subscription}-{consumer}-DLQ"


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

    def publish(
        self,
        message: Message[Any],
        delay_ms: int,
        properties: dict[str, str] | None,
        reason: str | BaseException | None = None,
    ) -> None:
        """Store the copy of a message, to be delivered after the delay.

        Args:
            message, delay_ms, properties: see `Consumer.reconsume_later`.
            reason: why the application failed; None if it is not known.

        Raises:
            ValueError: a wrong type.
            PulsarException: see `DeadLetterProducer.publish`.
        """
        check_type(int, delay_ms, "delay_ms")
        delay_ms = max(0, delay_ms)
        copied = retry_properties(message, delay_ms, properties)
        if text := reason_text(reason):
            copied[REASON] = text
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
    # A consumer with retries has both: what was retried too often is a dead letter.
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
