"""Dead letters: messages that were redelivered too often move to another topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar._engine.log.log_positions import read_whole_entry
from embeddedpulsar._engine.log.position import Position
from embeddedpulsar._engine.platform import threads
from embeddedpulsar.client.consumer.dead_letter.dead_letter_producer import (
    DeadLetterProducer,
    encryption_of,
    make_letter,
    with_origin,
)
from embeddedpulsar.exceptions import AlreadyClosed
from embeddedpulsar.message import Message, is_skipped
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Callable

    from embeddedpulsar._engine.format.entry import EntryView
    from embeddedpulsar.client.consumer.ack_grouping_tracker import AckGroupingTracker
    from embeddedpulsar.client.consumer.consumer_session import ConsumerSession
    from embeddedpulsar.client.consumer.dead_letter.dead_letter_producer import EndWords, Letter

_Place = tuple[int, int]
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
        forget: Callable[[list[_Place]], object],
        on_moved: Callable[[], object] = int,
    ) -> None:
        self.producer: Final = producer
        self._session = session
        self._limit = limit
        self._acks = acks
        self._give_back = give_back
        self._forget = forget
        self._on_moved = on_moved
        self._candidates: dict[_Place, int] = {}  # with the epoch of each
        self._handed: set[_Place] = set()  # candidates that the application got; the others are fetched ahead
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

    def has_any(self, positions: list[_Place]) -> bool:
        """Whether some of the entries are candidates. Takes no lock."""
        return not self._candidates.keys().isdisjoint(positions)

    def take_due(self, positions: list[_Place]) -> list[_Place]:
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

    def discard(self, position: _Place) -> None:
        self._candidates.pop(position, None)
        self._handed.discard(position)
        if self._dead:
            self._dead = [
                (view, epoch) for view, epoch in self._dead if (view.ledger_id, view.entry_id) != position
            ]

    def clear(self) -> None:
        self._candidates.clear()
        self._handed.clear()
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

    def _move(self, views: list[tuple[EntryView, int]]) -> list[_Place]:
        """Move entries, and return the positions of those that could not be moved."""
        moved: list[tuple[_Place, int]] = []
        failed: list[_Place] = []
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
            )
        if first_error is not None and not isinstance(first_error, AlreadyClosed):
            self._session.client.log.warning(
                "%d entries of %s, from %s, could not be moved to %s and will be delivered again: %s",
                len(failed),
                self._session.topic_name,
                failed[0],
                self.producer.topic,
                first_error,
            )
        return failed

    def _letters(self, view: EntryView) -> list[Letter]:
        origin = self._session.origin
        letters = []
        for index in range(view.count):
            if is_skipped(view.skip, index) or (view.acked is not None and view.acked[index]):
                continue
            message: Message[Any] = Message(view, index, origin)
            letters.append(make_letter(message, with_origin(message, message.properties())))
        return letters

    def _acknowledge(self, moved: list[tuple[_Place, int]]) -> None:
        for epoch in sorted({epoch for _, epoch in moved}):
            positions = [position for position, one in moved if one == epoch]
            self._session.attachment.acknowledge(positions, epoch=epoch)


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
