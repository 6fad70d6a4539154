"""The producers of a consumer, which publish to its dead letter and retry topics."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar._engine.log.position import BEFORE_FIRST
from embeddedpulsar._engine.platform import failpoints, fork, threads
from embeddedpulsar._engine.platform.descriptors import late_import
from embeddedpulsar._engine.store.catalog.topic_list import partition_names
from embeddedpulsar._engine.store.policies.admitting import AUTO_SUBSCRIPTION_CREATION
from embeddedpulsar.client.common.message_options import Options
from embeddedpulsar.crypto.key_reader import Encryption
from embeddedpulsar.exceptions import (
    AlreadyClosed,
    CryptoError,
    NotAllowedError,
    ProducerBusy,
    ProducerFenced,
    SubscriptionNotFound,
    TopicNotFound,
)
from embeddedpulsar.schema.schema import BYTES, CopiedSchema, Schema
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Iterable

    from embeddedpulsar._engine.log.log import Log
    from embeddedpulsar.client.common.client_context import ClientContext
    from embeddedpulsar.client.producer.bulk.bulk_publisher import Target
    from embeddedpulsar.client.producer.producer import Producer
    from embeddedpulsar.client.producer.producer_config import ProducerConfig
    from embeddedpulsar.crypto.key_reader import CryptoKeyReader
    from embeddedpulsar.encryption import EncryptionContext
    from embeddedpulsar.message import Message
    from embeddedpulsar.schema.schema import SchemaInfo

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
        late = late_import("embeddedpulsar.client.producer.producer_config")
        self._config: ProducerConfig = late.ProducerConfig(
            topic, schema, chunking=True, lazy_start=True, is_of_letters=True
        )
        self._name = name if name is None or len(name.encode()) < late.LONGEST_NAME - 16 else None
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
                publisher, ledger, _ = self._target(names, written, value, options)
                out = publisher.singles.publish_one(value, options)
                if out.error is not None:
                    raise out.error
                if out.end_word:
                    end_words[ledger] = out.end_word
        except (AlreadyClosed, ProducerFenced, TopicNotFound):
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

    def _target(self, names: KeyNames, written: SchemaInfo | None, value: bytes, options: Options) -> Target:
        use = names, written
        try:
            producer = self._opened.get(use) or self._open(use, written, self._name)
            return producer._publisher.target_of(value, options)
        except ProducerBusy:
            if self._name is None:
                raise
        # Consumers may share a name, producers may not. The conflict may show late, because a partition is
        # attached with its first letter.
        self._let_go(use)
        producer = self._open(use, written, f"{self._name}-{os.urandom(5).hex()}")
        return producer._publisher.target_of(value, options)

    def _open(self, use: Use, written: SchemaInfo | None, name: str | None) -> Producer[Any]:
        if self._is_closed:
            raise AlreadyClosed("the consumer is closed; subscribe again")
        if self._initial_subscription:
            topic = TopicName.parse(self.topic).full
            for one in partition_names(topic, self._client.store.topics.resolve(topic)) or [self.topic]:
                _ensure_subscription(self._client, one, self._initial_subscription)
        config, names = self._config._replace(name=name), use[0]
        if written is not None:
            config = config._replace(schema=CopiedSchema(written))
        if names:
            if self._key_reader is None:
                raise CryptoError("there is no crypto_key_reader; give one with the public key")
            config = config._replace(encryption=Encryption(names, self._key_reader))
        late = late_import("embeddedpulsar.client.producer.producer_opening")
        opened: Producer[Any] = late.open_producer(self._client, config)
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
        for one in uses or list(self._opened):
            opened = self._opened.pop(one, None)
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
            found = topic.use_subscription(name, False)
        except SubscriptionNotFound:
            policy = client.store.policy(topic.name, AUTO_SUBSCRIPTION_CREATION)
            if not policy.allow_auto_subscription_creation:
                raise NotAllowedError(
                    f"{topic.name} has no subscription {name!r}, which is the initial_subscription_name of a "
                    "dead letter policy, and allowAutoSubscriptionCreation=false holds for it; allow it, or "
                    "leave initial_subscription_name out"
                ) from None
            found = topic.use_subscription(name, True, BEFORE_FIRST)
        topic.end_use(found, name)
    finally:
        use.release()
