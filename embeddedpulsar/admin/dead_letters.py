"""The dead letters of a subscription: looking at them, publishing them again, and giving them up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar._engine.format.acknowledgement import AckBatch
from embeddedpulsar._engine.format.entry_decoder import EntryView, SealedView
from embeddedpulsar._engine.format.sealed_entry import raw_view
from embeddedpulsar._engine.log.position import BEFORE_FIRST, Position
from embeddedpulsar._engine.platform import failpoints, timing
from embeddedpulsar._engine.store.topic_access import log_names
from embeddedpulsar.absent_methods import SaysWhatThereIs
from embeddedpulsar.admin.topic_calls import SelectedMessages, check_number, skip_all, with_messages
from embeddedpulsar.exceptions import NotAllowedError, SubscriptionNotFound, TopicNotFound
from embeddedpulsar.message import Message, MessageOrigin, messages_left
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.schema.schema import BYTES, CopiedSchema, origin_of
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from embeddedpulsar._engine.log.log import Log
    from embeddedpulsar._engine.store.store import Store
    from embeddedpulsar._engine.store.topic import Topic
    from embeddedpulsar._engine.subscription.subscription import Subscription
    from embeddedpulsar.client.client import Client
    from embeddedpulsar.client.producer.producer import Producer

OPERATOR: Final = "__dead_letters"
"""The subscription of a dead letter topic that acknowledges what was published again or given up."""

_REAL_TOPIC: Final = "REAL_TOPIC"
_ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
_REASON: Final = "DEAD_LETTER_REASON"
_Messages = list[Message[bytes]]  # in `DeadLetters`, `list` is the method
_Names = list[str]
# Properties that Pulsar's clients add to a dead letter or a retry. A message that is published again is to
# look as it did.
_OF_LETTERS: Final = {
    _REAL_TOPIC,
    _ORIGIN_MESSAGE_ID,
    "ORIGIN_MESSAGE_IDY_TIME",
    "RECONSUMETIMES",
    "DELAY_TIME",
    _REASON,
}
# Entries with letters that are published before they are acknowledged together: after a kill in between they
# are published again. And bytes of one read of the log.
_AT_ONCE: Final = 100
_BYTES_AT_ONCE: Final = 1 << 20

# Between the publication of dead letters and their acknowledgement: a death here leaves them in both topics.
failpoints.declare("replay:published")


class DeadLetter(NamedTuple):
    """One dead letter.

    Attributes:
        message_id: in the dead letter topic; the argument of `DeadLetters.replay`.
        origin_topic: full name of the topic, or partition, that it comes from.
        origin_message_id: text of its id there; empty if it is not known.
        publish_timestamp: when it became a dead letter, in ms since 1970.
        properties: all of them.
        size: of the payload, in bytes.
        reason: why the application failed the last time, as far as it is known: the class and the message of
            an exception, or the text that `Consumer.negative_acknowledge` got; else empty.
    """

    message_id: MessageId
    origin_topic: str
    origin_message_id: str
    publish_timestamp: int
    properties: dict[str, str]
    size: int
    reason: str = ""


class DeadLetters(SaysWhatThereIs):
    """The dead letters of one subscription. `Admin.dead_letters` returns it. Thread-safe. Not in Pulsar.

    A message is published to its topic again before its dead letter is acknowledged: if the process is killed
    in between, it is published again by the next call, and never lost. The acknowledgements belong to a
    durable subscription of the dead letter topic, ``__dead_letters``, which the first `replay` or `purge`
    makes. Other subscriptions of that topic have their own: what they acknowledge stays listed here, and what
    is replayed here stays with them.

    All methods raise `TopicNotFound` if there is neither the topic nor its dead letter topic,
    `AlreadyClosed` if the Admin is closed, and a `StorageError` if files cannot be used.

    Attributes:
        topic: full name of the dead letter topic.
    """

    def __init__(
        self, store: Callable[[], Store], topic: str, subscription: str, dead_letter_topic: str | None
    ) -> None:
        self._store = store
        self._topic: Final = topic
        self._subscription: Final = subscription
        self._origin: Final = TopicName.parse(topic).base
        # The name that Pulsar's consumers give to a dead letter topic.
        default = f"{self._origin}-{subscription}-DLQ"
        self.topic: Final = TopicName.parse(dead_letter_topic or default).full

    def __repr__(self) -> str:
        return f"<DeadLetters {self.topic}>"

    # -- looking -----------------------------------------------------------------------------------------

    def list(self, limit: int = 1000) -> list[DeadLetter]:
        """Return what is known of the first dead letters, in the order in which they were stored. Changes
        nothing.

        Args:
            limit: how many at most.

        Raises:
            ValueError: ``limit`` is not above 0.

        Example:
            >>> from embeddedpulsar import Admin, Client
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     _ = client.create_producer("parcels-van-DLQ").send(b"one that failed")
            ...     consumer = client.subscribe("parcels", "van")
            ...     letters = admin.dead_letters("parcels", "van")
            ...     letters.replay(letters.list()[0].message_id)
            ...     consumer.receive().data(), letters.peek(), letters.purge()
            (b'one that failed', [], 0)
        """
        return [self._described(message) for message in self._first("limit", limit)]

    def peek(self, count: int = 1) -> _Messages:
        """Return the first dead letters as messages. Changes nothing. Those that are encrypted come with the
        ciphertext and their `Message.encryption_context`.

        Args:
            count: how many at most.

        Raises:
            ValueError: ``count`` is not above 0.
        """
        return self._first("count", count)

    def _described(self, message: Message[bytes]) -> DeadLetter:
        properties = message.properties()
        return DeadLetter(
            message.message_id(),
            properties.get(_REAL_TOPIC, self._origin),
            properties.get(_ORIGIN_MESSAGE_ID, ""),
            message.publish_timestamp(),
            properties,
            len(message.data()),
            properties.get(_REASON, ""),
        )

    def _first(self, name: str, limit: int) -> _Messages:
        check_number(name, limit, 1)
        messages: _Messages = []
        with timing.translated:
            store = self._store()
            for log_name in self._logs(store):
                use = store.use_topic(log_name, create=False, to_look=True)
                try:
                    messages += _left_in(use.topic, limit - len(messages))
                finally:
                    use.release()
                if len(messages) >= limit:
                    break
        return messages

    def _logs(self, store: Store) -> _Names:
        """The full names of the dead letter topic, or of its partitions; none before the first letter."""
        # Three cases: the dead letter topic exists; only the origin does, and no letter was written yet;
        # neither, which is a mistake in the name.
        topics = store.topics
        if topics.has(self.topic):
            names = log_names(self.topic, topics.partitions(self.topic))
            # A partition that was never used has no files, and reading it would make some.
            return [name for name in names if topics.was_used(name)]
        if not topics.has(self._origin):
            raise TopicNotFound(f"there is neither {self._origin} nor {self.topic} in {store.root}")
        return []

    # -- moving ------------------------------------------------------------------------------------------

    def replay(self, message_id: MessageId) -> None:
        """Publish one dead letter to the topic, or partition, that it comes from, and take it off the list.

        The new message has the payload, keys, event time and properties of the original one. Every
        subscription of the topic receives it.

        Args:
            message_id: as `list` and `peek` return it.

        Raises:
            NotAllowedError: there is no such dead letter; or it is encrypted, and only a consumer with the
                key can publish it.
            TopicNotFound: the topic that it comes from was deleted.
            TopicTerminated: that topic was terminated.
        """
        with timing.translated:
            store = self._store()
            # The partitions are tried one after the other until one has the letter.
            if not any(self._move(store, name, message_id) for name in self._logs(store)):
                raise NotAllowedError(
                    f"{self.topic} has no dead letter {message_id}; list() returns the ids of those it has"
                )

    def replay_all(self) -> int:
        """Do `replay` with all dead letters that are there when it begins, in their order.

        Returns:
            How many there were.

        Raises:
            NotAllowedError, TopicNotFound, TopicTerminated: as `replay`. Those before were replayed.

        Example:
            >>> from embeddedpulsar import Admin, Client
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     _ = client.create_producer("jobs-worker-DLQ").send(b"one that failed")
            ...     consumer = client.subscribe("jobs", "worker")
            ...     admin.dead_letters("jobs", "worker").replay_all()
            ...     consumer.receive().data()
            1
            b'one that failed'
        """
        with timing.translated:
            store = self._store()
            return sum(self._move(store, name, None) for name in self._logs(store))

    def add(self, message_id: MessageId, reason: str = "") -> None:
        """Move a message of the subscription to the dead letters: it is not delivered any more.

        A consumer that holds it keeps it; that it acknowledges it then, or not, has no effect. A process that
        is killed meanwhile leaves the message in the subscription, or in both places.

        Args:
            message_id: of a message, or of an entry: then all messages of that batch. For a partitioned topic
                it names the partition.
            reason: becomes the property ``DEAD_LETTER_REASON``, at most 1,000 characters.

        Raises:
            NotAllowedError: the subscription has acknowledged the message, or the topic does not have it; or
                it is encrypted, and only a consumer with the key can publish it.
            SubscriptionNotFound: there is no such subscription.
            ValueError: an argument has a wrong type.

        Example:
            >>> from embeddedpulsar import Admin, Client
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     consumer = client.subscribe("pots", "kiln")
            ...     message_id = client.create_producer("pots").send(b"a cracked one")
            ...     letters = admin.dead_letters("pots", "kiln")
            ...     letters.add(message_id, "cracked")
            ...     [letter.reason for letter in letters.list()], consumer.receive_nowait()
            (['cracked'], None)
        """
        if not isinstance(reason, str):
            raise ValueError(f"reason is a text, not {reason!r}")

        def move(topic: Topic, subscription: Subscription, selected: SelectedMessages) -> None:
            if isinstance(selected.view, SealedView):
                raise NotAllowedError(
                    f"the message {message_id} of {topic.name} is encrypted; receive it with a consumer that "
                    "has the key, and give it back until its dead letter policy moves it"
                )
            # First the letter, then the acknowledgement: a death between the two leaves the message in both.
            self._publish_letters(topic, selected, reason)
            selected.acknowledge(subscription)

        with timing.translated:
            with_messages(self._store, self._topic, self._subscription, message_id, move)

    def _publish_letters(self, topic: Topic, selected: SelectedMessages, reason: str) -> None:
        from embeddedpulsar.client.client import Client  # not by those that only look
        from embeddedpulsar.client.consumer.dead_letter import (
            DeadLetterProducer,
            make_letter,
            reason_text,
            with_origin,
        )

        store = self._store()
        origin, letters = origin_of(lambda: store, topic.name), []
        for message in selected.messages(origin):
            properties = with_origin(message, message.properties())
            properties.pop(_REASON, None)
            if reason:
                properties[_REASON] = reason_text(reason)
            letters.append(make_letter(message, properties))
        # As in `_move`.
        with Client(store.root, durability=store.durability, allow_network_fs=True) as client:
            producer = DeadLetterProducer(client._core, self.topic, BYTES)
            try:
                written = origin.writers[selected.view.schema_version]
                producer.sync(producer.publish(letters, (), written))
            finally:
                producer.close()

    def purge(self) -> int:
        """Give up all dead letters that are there now.

        Returns:
            How many there were.
        """
        purged = 0
        with timing.translated:
            store = self._store()
            for name in self._logs(store):
                use = store.use_topic(name, create=False)
                try:
                    with _Operator(use.topic) as subscription:
                        purged += subscription.backlog()
                        skip_all(use.topic, subscription)
                finally:
                    use.release()
        return purged

    def _move(self, store: Store, name: str, wanted: MessageId | None) -> int:
        """Publish the dead letters of one log, or one of them, and acknowledge them; returns how many."""
        from embeddedpulsar.client.client import Client  # not by those that only look

        use = store.use_topic(name, create=False)
        try:
            # Letters that arrive while this runs stay for the next call. Otherwise a consumer that fails at
            # once would be fed for ever.
            last = use.topic.ledger.last_position()
            if last is None:
                return 0
            with (
                _Operator(use.topic) as subscription,
                # A client of its own, because an Admin has no producers. The network file system was accepted
                # when the Admin was opened.
                Client(store.root, durability=store.durability, allow_network_fs=True) as client,
            ):
                mover = _Mover(store, client, subscription, self._origin)
                try:
                    for view in subscription.operator_commands().unacked_entries():
                        is_over = wanted is not None and mover.moved > 0
                        if is_over or Position(view.ledger_id, view.entry_id) > last:
                            break  # what follows came since, perhaps because of this
                        mover.move(view, use.topic.name, wanted)
                # Also after an error in the middle: what was published is taken off the list, or it would be
                # published again.
                finally:
                    mover.acknowledge()
                return mover.moved
        finally:
            use.release()


class _Mover:
    """Publishes dead letters, then acknowledges them, some at a time. One thread."""

    def __init__(self, store: Store, client: Client, subscription: Subscription, origin: str) -> None:
        self.moved = 0
        self._store: Final = store
        self._client: Final = client
        self._commands: Final = subscription.operator_commands()
        self._origin: Final = origin
        self._producers: Final[dict[tuple[str, Any], Producer[Any]]] = {}
        self._entries: list[Position] = []
        self._batches: list[AckBatch] = []

    def move(self, view: EntryView, topic: str, wanted: MessageId | None) -> None:
        """Publish the messages of an entry, or the one that is wanted."""
        sealed, position = isinstance(view, SealedView), Position(view.ledger_id, view.entry_id)
        if isinstance(view, SealedView):
            view = raw_view(view, topic)
        # Messages of the entry that an earlier call has not acknowledged yet: a batch may have been replayed
        # in part.
        unacknowledged = messages_left(view, view.skip, origin_of(lambda: self._store, topic))
        messages = [letter for letter in unacknowledged if wanted is None or letter.message_id() == wanted]
        # The key is with the consumers. Published as it is, the ciphertext would be taken for a payload.
        if sealed and messages:
            raise NotAllowedError(
                f"the dead letter {messages[0].message_id()} of {topic} is encrypted; receive it with a "
                "consumer that has the key, and send it again"
            )
        indexes = 0
        try:
            for message in messages:
                self._publish(message)
                indexes |= 1 << message._index
                self.moved += 1
        finally:
            # The whole rest of an entry is acknowledged by its position; a part of a batch by its indexes.
            if messages and indexes.bit_count() == len(unacknowledged):
                self._entries.append(position)
            elif indexes:
                self._batches.append(AckBatch(*position, view.count, indexes))
        if len(self._entries) + len(self._batches) >= _AT_ONCE:
            self.acknowledge()

    def _publish(self, message: Message[bytes]) -> None:
        properties = message.properties()
        topic = properties.get(_REAL_TOPIC, self._origin)
        written = message.writer_schema()
        # One producer for each topic and schema: the letter keeps the schema with which it was written.
        key = topic, written
        producer = self._producers.get(key)
        if producer is None:
            if not self._store.topics.has(topic):
                raise TopicNotFound(
                    f"{topic}, where the dead letter {message.message_id()} comes from, does not exist any "
                    "more; create it, or purge the dead letters"
                )
            # The schema is taken whatever the strategy of the topic says: its messages had it before.
            schema = BYTES if written is None else CopiedSchema(written)
            # Chunked, because a letter may have been a chunked message.
            producer = self._client.create_producer(topic, schema=schema, chunking_enabled=True)
            self._producers[key] = producer
        producer.send(
            None if message.has_null_value() else message.data(),
            {name: value for name, value in properties.items() if name not in _OF_LETTERS},
            message.partition_key() or None,
            message.ordering_key() or None,
            event_timestamp=message.event_timestamp() or None,
        )

    def acknowledge(self) -> None:
        """Take what was published off the list."""
        if failpoints.ACTIVE:
            failpoints.hit("replay:published")
        # Emptied first: an error of the acknowledgement must not acknowledge them again with the next ones.
        entries, self._entries = self._entries, []
        batches, self._batches = self._batches, []
        self._commands.acknowledge_messages(entries, batches)


class _Operator:
    """The subscription of a dead letter topic that acknowledges for operators, while it is used; made if need
    be, at the first letter."""

    def __init__(self, topic: Topic) -> None:
        self._topic: Final = topic

    def __enter__(self) -> Subscription:
        # From the first message on, also if it is made late: letters that were stored before are on the list.
        self._topic.create_subscription(OPERATOR, BEFORE_FIRST)
        self._subscription = self._topic.use_subscription(OPERATOR, create=False)
        return self._subscription

    def __exit__(self, *_: object) -> None:
        self._topic.end_use(self._subscription, OPERATOR)


def _left_in(topic: Topic, limit: int) -> list[Message[bytes]]:
    """The first dead letters of a log; all that is stored counts before `OPERATOR` was made."""
    try:
        views = topic.view.subscription(OPERATOR).unacked_entries(topic.ledger)
    # Nothing was replayed or purged yet, and looking makes no subscription.
    except SubscriptionNotFound:
        views = _stored_entries(topic.ledger)
    origin, messages = MessageOrigin(topic.name, BYTES), list[Message[bytes]]()
    for view in views:
        if isinstance(view, SealedView):
            view = raw_view(view, topic.name)
        messages += messages_left(view, view.skip, origin)
        if len(messages) >= limit:
            break
    return messages[:limit]


def _stored_entries(log: Log) -> Iterator[EntryView]:
    """All entries of a log, chunked messages whole."""
    chunks, cursor = log.chunks(), log.cursor(BEFORE_FIRST, inclusive=False)
    while views := cursor.read(_AT_ONCE, _AT_ONCE, _BYTES_AT_ONCE):
        views, rest = chunks.complete(views, _BYTES_AT_ONCE)
        # The cursor goes back to a chunked message that did not end in this read.
        if rest is not None:
            cursor.seek(Position(rest.ledger_id, rest.entry_id))
        yield from views
