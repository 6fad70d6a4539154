"""The state of a reader of one topic behind its interface: its position, and what was fetched from there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from embeddedpulsar._engine.log.log_positions import has_chunks
from embeddedpulsar._engine.log.position import BEFORE_FIRST, Position
from embeddedpulsar._engine.platform import fork
from embeddedpulsar._engine.store.policies.creation_policy import check_subscription_type
from embeddedpulsar._engine.store.schema_registry import origin_of
from embeddedpulsar.client.common.opened_parts import OPENED
from embeddedpulsar.client.consumer.closing import CloseGuard
from embeddedpulsar.client.consumer.consumer_session import last_or_start, resolve
from embeddedpulsar.client.consumer.decryption import Decryption
from embeddedpulsar.client.consumer.delivery import Delivery
from embeddedpulsar.client.consumer.message_receiver import MessageReceiver
from embeddedpulsar.client.consumer.rate_follower import rate_follower
from embeddedpulsar.client.consumer.receiver_queue import ReceiverQueue
from embeddedpulsar.enums import ConsumerCryptoFailureAction, ConsumerType
from embeddedpulsar.exceptions import NotAllowedError
from embeddedpulsar.message_id import LARGEST_ID, MessageId, make

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from embeddedpulsar._engine.format.compacted import Block
    from embeddedpulsar._engine.format.entry import EntryView
    from embeddedpulsar._engine.store.topic import Topic
    from embeddedpulsar.client.common.client_context import ClientContext
    from embeddedpulsar.client.consumer.consumer_config import ReaderConfig

_MANY: Final = 1 << 30
_DISCARD, _FAIL = ConsumerCryptoFailureAction.DISCARD, ConsumerCryptoFailureAction.FAIL


class ReaderCore:
    """The operations of the reader of one topic.

    Role: reads on from its position in the log, which is kept in memory only. After a fork the child's copy
    is closed, because the fetched messages and the position belong to the parent.
    """

    def __init__(self, client: ClientContext, config: ReaderConfig) -> None:
        self.client = client
        self.config = config
        self._close_guard = CloseGuard(client)
        self._use = client.use_topic(config.topic, to_look=client.store.is_read_only)
        try:
            opened = OPENED.get()
            if opened is not None:
                opened.append(self._close_opened)
            self._begin(self._use.topic)
        except BaseException:
            self._use.release()
            raise
        fork.register(self)

    def _close_opened(self) -> None:
        """Close the reader of an interrupted call, if it had begun."""
        if getattr(self, "receiver", None) is not None:
            self.close()

    def _begin(self, topic: Topic) -> None:
        client, config = self.client, self.config
        check_subscription_type(topic, ConsumerType.Exclusive)
        self.topic_name = topic.name
        self.ledger = topic.ledger
        self._source = topic.compaction if config.is_read_compacted else topic.ledger
        first = self._stand_at(config.start)
        decryption = Decryption(
            client,
            topic.name,
            config.key_reader,
            config.crypto_failure_action,
            f"The reader {config.name}",
            self._fetch,
        )
        self._chunks = topic.ledger.chunks()
        self._chunks.reader.opened = decryption.open
        origin = origin_of(lambda: client.store, topic.name, config.schema)
        self.writers = origin.writers
        self._queue = ReceiverQueue(
            decryption.fetch,
            config.receiver_queue_size,
            origin,
        )
        self._queue.start_within(*first)
        self.delivery = Delivery(self._queue, topic.ledger, client.store.mailbox, client.store.clock)
        clock, call_later = client.store.clock, client.scheduler.call_later
        self._follows = rate_follower(topic, clock, None, self._queue, self.delivery, call_later)
        self.take = self._queue.take
        self.receiver = MessageReceiver(client, config, self.delivery, self.take)

    @property
    def readers(self) -> list[ReaderCore]:
        """The readers of the single topics, as those of a `ReaderGroup`."""
        return [self]

    def start(self) -> None:
        """Do nothing: the partitions of a topic are watched by `ReaderGroup`."""

    def _stand_at(self, target: MessageId | int) -> tuple[int, int, int]:
        """Continue at an id or a time. Returns the entry and its first message to deliver."""
        ledger = self.ledger
        if ledger.is_volatile:  # whatever is asked for: only what is sent from now on
            target = MessageId.latest
        if isinstance(target, int):
            position, inclusive, first = self._source.find_by_publish_time(target), True, 0
        else:
            position, inclusive, first = resolve(ledger, target, self.config.start_inclusive)
        self._cursor = self._source.cursor(position, inclusive=inclusive)
        self._floor = None
        if isinstance(target, int) or 0 <= target._ledger < LARGEST_ID:
            # The reader waits for an id that does not exist yet.
            last = last_or_start(ledger)
            if position.ledger_id == last.ledger_id and position > last:
                self._floor = Position(position.ledger_id, position.entry_id + (not inclusive))
        return position.ledger_id, position.entry_id, first

    def _fetch(self, most: int, most_bytes: int) -> list[EntryView]:
        views = self._read(most, most_bytes)
        while (floor := self._floor) is not None and views:
            wanted = [view for view in views if (view.ledger_id, view.entry_id) >= floor]
            if wanted:
                self._floor = None
                return wanted
            views = self._read(most, most_bytes)
        return views

    def _read(self, most: int, most_bytes: int) -> list[EntryView]:
        while has_chunks(views := self._cursor.read(_MANY, most, most_bytes)):
            views, rest = self._chunks.complete(views, most_bytes)
            if rest is not None:
                self._cursor.seek(Position(rest.ledger_id, rest.entry_id))
            if views:
                break
        return views

    def compacted_columns(self) -> Iterator[tuple[Sequence[str | None], bytes, Sequence[int]]]:
        """The keys, payloads and offsets of whole blocks that compaction left, as long as such come next. For
        a reader that nothing was read from yet. Encrypted entries are left out."""
        take: Callable[[], Block | None] | None = getattr(self._cursor, "take_block", None)
        while take is not None and (block := take()) is not None:
            content = block.content
            keys = None if block.is_sealed else content.keys()
            if keys is not None:
                yield keys, content.payload, content.offsets

    def has_message_available(self) -> bool:
        queue = self._queue
        self.delivery.check_open()
        if queue.messages:
            return True
        try:
            queue.lock.acquire()
            return queue.fill() or (queue.is_throttled and not self._cursor.is_at(self.ledger.tail))
        finally:
            queue.lock.release()

    def seek(self, target: MessageId | int) -> None:
        queue = self._queue
        try:
            queue.lock.acquire()
            self.delivery.check_open()
            first = self._stand_at(target)
            queue.clear()
            queue.start_within(*first)
        finally:
            queue.lock.release()
        self.delivery.renew()

    def to_arrow(self, columns: Sequence[str] | None) -> pa.Table:
        if self.config.is_read_compacted:
            raise NotAllowedError("to_arrow() reads the log; make a reader without is_read_compacted")
        from embeddedpulsar import arrow  # pyarrow is large, and rarely needed

        queue, store = self._queue, self.client.store
        try:
            queue.lock.acquire()
            if not queue.is_dry and queue.fill():
                start = queue.messages[0].message_id()
            else:
                ledger, entry = max(self._cursor.position, self._floor or BEFORE_FIRST)
                start = make(ledger, entry, queue.first_within(ledger, entry) or -1, -1, 0)
            last = last_or_start(self.ledger)
            end = make(last.ledger_id, last.entry_id + 1, -1, -1, 0)
            table = arrow.read_topic(
                store.root,
                self.topic_name,
                columns,
                start=min(start, end),
                end=end,
                crypto_key_reader=self.config.key_reader,
                crypto_failure_action=_DISCARD if self.config.crypto_failure_action == _DISCARD else _FAIL,
            )
            self._cursor = self.ledger.cursor(last, inclusive=False)
            queue.clear()
        finally:
            queue.lock.release()
        return table

    def close(self) -> None:
        """Close the reader.

        Raises:
            AlreadyClosed: it was closed before.
        """
        if not self._close_guard.begin(self.delivery.closed_text):
            return
        self.delivery.close("the reader is closed; make a new one")
        self.receiver.stop()
        self.client.wake()
        self._use.topic.policies.unlisten(self._follows)
        self._use.release()

    def after_fork_in_child(self) -> None:
        self._queue.after_fork_in_child()
        self._close_guard.after_fork_in_child()
        self.delivery.close_in_child(f"the reader {self.config.name}", self.config.words.again)
