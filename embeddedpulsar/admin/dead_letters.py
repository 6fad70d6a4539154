"""The dead letters of a subscription: looking at them, publishing them again, and giving them up.

What calls of an operator do in one topic: where they put a subscription, and which messages they show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar._engine.format.acknowledgement import AckBatch
from embeddedpulsar._engine.format.entry_decoder import EntryView, SealedView
from embeddedpulsar._engine.format.sealed_entry import raw_view
from embeddedpulsar._engine.log.log_positions import read_whole_entry
from embeddedpulsar._engine.platform import failpoints, timing
from embeddedpulsar._engine.store.topic_access import SaysWhatThereIs, TopicAccess, log_names
from embeddedpulsar._engine.subscription.log_queries import unacked
from embeddedpulsar.exceptions import InvalidMessage, NotAllowedError, SubscriptionNotFound, TopicNotFound
from embeddedpulsar.message import Message, MessageOrigin, is_skipped, messages_left
from embeddedpulsar.message_id import BEFORE_FIRST, MessageId, Position
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


def skip_all(topic: Topic, subscription: Subscription) -> None:
    """Acknowledge all messages that are stored now."""
    # Read before the command: messages that are stored later stay, and so do those that wait for their
    # transactions.
    last = topic.ledger.max_read_position()
    if last is not None:
        subscription.operator_commands().skip_through(last)


def skip_before(topic: Topic, subscription: Subscription, cutoff_ms: int) -> None:
    """Acknowledge the messages that were published before a time, as expired."""
    first = topic.ledger.find_by_publish_time(cutoff_ms)
    subscription.operator_commands().skip_through(first.previous(), is_expiry=True)


def reset(log: Log, subscription: Subscription, target: int | MessageId) -> None:
    """Move a subscription to a time in ms since 1970, or to a message of a log."""
    if log.is_volatile:
        raise NotAllowedError(f"{log.name}: a subscription of a non-persistent topic has no earlier place")
    if isinstance(target, int):
        subscription.seek(log.find_by_publish_time(target), inclusive=True)
        return
    place = _place(log, target)
    subscription.seek(place, inclusive=target != MessageId.latest)
    # A cursor moves by entries. The messages of the batch before the target are acknowledged one by one
    # behind it. A kill in between delivers those again, and loses none.
    if target.batch_index() <= 0:
        return
    for view in log.cursor(place, inclusive=True).read(1, 1, 1):
        if view.batched and (view.ledger_id, view.entry_id) == place:
            earlier = (1 << min(target.batch_index(), view.count)) - 1
            batch = AckBatch(view.ledger_id, view.entry_id, view.count, earlier)
            subscription.operator_commands().acknowledge((), [batch])


def _place(log: Log, message_id: MessageId) -> Position:
    """The entry of a message, the first one if it is chunked; before the first entry, or the last one."""
    if message_id == MessageId.latest:
        return log.max_read_position() or BEFORE_FIRST
    if message_id.ledger_id() < 0:
        return BEFORE_FIRST
    # A chunked message begins at its first chunk; the id that its consumer gets is that of the last.
    message_id = getattr(message_id, "_first_chunk", message_id)
    return Position(message_id.ledger_id(), message_id.entry_id())


def mark_delete_before(log: Log, message_id: MessageId) -> Position:
    """The mark-delete position with which a subscription begins at a message."""
    place, last = _place(log, message_id), log.last_position() or BEFORE_FIRST
    # An id behind the end is no position yet. The subscription begins at the end.
    if message_id == MessageId.latest or place > last:
        return log.max_read_position() or BEFORE_FIRST
    # A mark-delete position is the last entry that is acknowledged. Before the first entry that is still
    # stored it would name one that is gone.
    return place.previous() if place >= log.first_position() else BEFORE_FIRST


def check_place(topic: str, partitions: int, target: int | MessageId) -> None:
    """Refuse the id of a message for a partitioned topic."""
    if partitions and isinstance(target, MessageId) and target not in (MessageId.earliest, MessageId.latest):
        raise NotAllowedError(
            f"{TopicName.parse(topic).full} is partitioned, and {target} is a message of one partition; name "
            f"that, such as {TopicName.parse(topic).of_partition(0).full}"
        )


def check_id(message_id: object, wanted: str = "a subscription begins at a MessageId") -> None:
    """Refuse what is not the id of a message."""
    if not isinstance(message_id, MessageId):
        raise ValueError(f"{wanted}, not {message_id!r}")


def check_number(name: str, number: int, least: int) -> None:
    """Refuse what is no integer, or below ``least``."""
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise ValueError(f"{name} is an integer from {least} on, not {number!r}")


# Ledger and entry ids have 32 bits; larger ones name nothing.
_MOST_ID: Final = 1 << 32


def checked_number(name: str, value: int, least: int) -> int:
    """Return the argument of a call; raises ValueError if it is no number, or below ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} is a number from {least}, not {value!r}")
    return value


def messages_at(topic: Topic, position: Position, store: Callable[[], Store]) -> list[Message[bytes]]:
    """The messages of the entry at a position; raises InvalidMessage if it has none to show."""
    view = None
    if max(position) < _MOST_ID:
        view = read_whole_entry(topic.ledger, position, topic.ledger.chunks())
    if view is None:
        raise InvalidMessage(
            f"{topic.name} has no message in entry {position}: it was never stored, was trimmed, is damaged, "
            "or is a part of a chunked message that is not its last"
        )
    return messages_of_entry(view, topic.name, store)


def messages_of_entry(
    view: EntryView | SealedView, topic: str, store: Callable[[], Store]
) -> list[Message[bytes]]:
    """The messages of an entry that are not acknowledged; one with the ciphertext if it is encrypted."""
    if isinstance(view, SealedView):
        # An Admin has no keys: the ciphertext is shown, as one message.
        view = raw_view(view, topic)
    return messages_left(view, view.skip, origin_of(store, topic))


class SelectedMessages(NamedTuple):
    """Messages of one entry that a subscription has not acknowledged, and that an operator named by an id.

    Attributes:
        view: the entry, of a chunked message the whole of it.
        indexes: the messages.
        is_rest: whether these are all that the subscription has of the entry.
    """

    view: EntryView
    indexes: list[int]
    is_rest: bool

    def messages(self, origin: Any) -> list[Message[Any]]:
        """The messages."""
        return [Message(self.view, index, origin) for index in self.indexes]

    def acknowledge(self, subscription: Subscription) -> None:
        """Acknowledge them for all consumers."""
        view, commands = self.view, subscription.operator_commands()
        position = Position(view.ledger_id, view.entry_id)
        if self.is_rest:
            commands.acknowledge_messages([position])
        else:
            mask = sum(1 << index for index in self.indexes)
            commands.acknowledge_messages([], [AckBatch(*position, view.count, mask)])


def select_messages(
    topic: Topic, subscription: Subscription, name: str, message_id: MessageId
) -> SelectedMessages:
    """The message of an id, or those of an entry, that a subscription has not acknowledged.

    Args:
        topic: that has it.
        subscription: which is in use.
        name: of the subscription.
        message_id: of a message; without an index, of all messages of the entry.

    Raises:
        NotAllowedError: there is none.
    """
    # What consumers acknowledged and did not write counts as acknowledged.
    subscription.operator_commands().skip(0)
    position = Position(message_id.ledger_id(), message_id.entry_id())
    view = None
    if BEFORE_FIRST < position <= (topic.ledger.max_read_position() or BEFORE_FIRST):
        view = read_whole_entry(topic.ledger, position, topic.ledger.chunks())
    selected: list[int] = []
    rest: list[int] = []
    # The entry with what is acknowledged of it; nothing if that is all of it.
    views = [] if view is None else [view]
    for entry in topic.view.subscription(name).read_state(partial(unacked, views=views)) or ():
        view = entry
        rest = [index for index in range(entry.count) if not is_skipped(entry.skip, index)]
        selected = [index for index in rest if message_id.batch_index() in (-1, index)]
    if view is None or not selected:
        raise NotAllowedError(
            f"the subscription {name!r} of {topic.name} has no message {message_id} to be delivered: it is "
            "acknowledged, was trimmed, waits for a transaction, or was never stored; peek_messages shows "
            "the first ones that it has"
        )
    return SelectedMessages(view, selected, selected == rest)


def with_messages(
    store: Callable[[], Store],
    topic: str,
    subscription: str,
    message_id: MessageId,
    work: Callable[[Topic, Subscription, SelectedMessages], object],
) -> None:
    """Do ``work`` with the messages of `select_messages`.

    Raises:
        NotAllowedError: there are none; or the topic is partitioned, and the id names no partition.
        SubscriptionNotFound: there is no such subscription.
        ValueError: the id is none.
    """
    check_id(message_id, "a message is named by its MessageId")
    partitions, parsed = store().topics.partitions(topic), TopicName.parse(topic)
    if partitions and not 0 <= message_id.partition() < partitions:
        raise NotAllowedError(
            f"{parsed.full} is partitioned, and {message_id} names none of its {partitions} partitions; name "
            f"the partition, such as {parsed.of_partition(0).full}"
        )
    log_name = parsed.of_partition(message_id.partition()).full if partitions else topic
    TopicAccess(store).in_each(
        log_name,
        subscription,
        lambda used, cursor: work(used, cursor, select_messages(used, cursor, subscription, message_id)),
    )


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
