"""Reading what compaction left of the entries of a topic that a subscription has not acknowledged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from embeddedpulsar._engine.format.acknowledgement import AckGroup
from embeddedpulsar._engine.format.document import KIND_COMPACTED_START, decode_document, encode_document
from embeddedpulsar._engine.format.entry import EntryView
from embeddedpulsar._engine.format.subscription_record import Ledgers
from embeddedpulsar._engine.log.filenames import compacted_start_path
from embeddedpulsar._engine.log.log import Cursor, Log
from embeddedpulsar._engine.log.position import BEFORE_FIRST, Position
from embeddedpulsar._engine.platform import disk
from embeddedpulsar.damage import JOURNAL, Damage
from embeddedpulsar.exceptions import CorruptionError, ForeignFileError
from embeddedpulsar.subscription.attachment.unacked_reader import UnackedReader, unacked
from embeddedpulsar.subscription.shared_state import SharedState
from embeddedpulsar.subscription.state.state_machine import SubscriptionState


def note_start(directory: str, position: Position) -> None:
    """Note that a subscription begins with the first compacted message as long as it stands at ``position``.
    Before it is put there: a crash between leaves a note without effect."""
    data = encode_document(KIND_COMPACTED_START, {"ledger": position.ledger_id, "entry": position.entry_id})
    disk.DISK.atomic_write(compacted_start_path(directory), data, False)


def _noted_start(directory: str) -> Position | None:
    """None without a note.

    Raises:
        CorruptionError, ForeignFileError: it is damaged.
    """
    try:
        data = disk.DISK.read_file(compacted_start_path(directory))
    except FileNotFoundError:  # it may be missing after a power loss, too
        return None
    fields = decode_document(data, KIND_COMPACTED_START)
    return Position(int(fields.get("ledger", -1)), int(fields.get("entry", -1)))


def note_first(directory: str, state: SubscriptionState, facts: Ledgers) -> None:
    """`note_start` for a subscription that was made at the earliest message and never had a consumer."""
    if state.mark_delete == BEFORE_FIRST and facts.listed:
        first = next((ledger_id for ledger_id, entries in facts.listed if entries), facts.listed[-1][0])
        note_start(directory, Position(first, -1))


class CompactedSource(Protocol):
    """What has the compacted ledger of a topic, with its log behind it."""

    @property
    def cursor(self) -> Callable[..., Cursor]:
        """As `Log.cursor`."""


class CompactedReader(UnackedReader):
    """The read position of an active consumer that reads compacted.

    Role: entries that compaction removed are stepped over, and acknowledged as damaged ones are. A
    subscription at the earliest message begins with the first message of the compacted ledger, be it trimmed
    from the log. Acknowledgements of these cannot be kept, so a consumer that comes back before any other was
    acknowledged begins there again. Until then the removed entries are acknowledged only with an entry that
    the log retains.
    Callers: as of `UnackedReader`.
    """

    __slots__ = ("_deferred", "_is_from_start", "_is_trimmed")

    def __init__(
        self, log: Log, shared: SharedState, state: SubscriptionState, source: CompactedSource
    ) -> None:
        self._deferred: list[AckGroup] = []
        self._is_from_start = self._is_trimmed = False
        super().__init__(log, shared, state, source.cursor(BEFORE_FIRST, inclusive=False))

    def rewind(self, state: SubscriptionState) -> None:
        super().rewind(state)
        self._deferred = []
        self._is_trimmed = False
        is_untouched = state.acks.last_touched() <= state.mark_delete
        self._is_from_start = is_untouched and self._begins_at(state.mark_delete)
        if self._is_from_start:
            start = BEFORE_FIRST.next()
            self._cursor.seek(start)
            self.position = start

    def _begins_at(self, mark_delete: Position) -> bool:
        """Whether a subscription that stands there begins with the first compacted message.

        If the note is damaged it does: some messages come again, and none that only the compacted ledger has
        is passed over. The note is written again, so that they do not come each time.
        """
        directory = self._shared.directory
        try:
            return _noted_start(directory) == mark_delete
        except (CorruptionError, ForeignFileError) as e:
            note_start(directory, mark_delete)
            path, done = compacted_start_path(directory), "it reads again from the first compacted message"
            self._shared.note_damage(
                Damage(path, reason=e.reason, kind=JOURNAL, done=done, remedy="expect messages again")
            )
            return True

    def before_seek(self, position: Position) -> None:
        first = self._log.first_position()
        if position < first:
            note_start(self._shared.directory, first.previous())

    def take_deferred(self, ledger_id: int) -> list[AckGroup]:
        groups = [group for group in self._deferred if group.ledger_id <= ledger_id]
        if groups:
            self._deferred = [group for group in self._deferred if group.ledger_id > ledger_id]
        return groups

    def _advance(self, views: list[EntryView]) -> None:
        super()._advance(views)
        if self._is_from_start and not self._is_trimmed:
            self._is_trimmed = views[0].ledger_id < self._log.first_position().ledger_id
        if self._is_trimmed and self.has_jumped:
            self._deferred += self.skipped
            self.has_jumped, self.skipped = False, []

    def _next_stretch(self, state: SubscriptionState, most: int) -> tuple[Position, int]:
        if self.position[0] < state.mark_delete.ledger_id:  # what is trimmed is not acknowledged
            return self._cursor.position, most
        return super()._next_stretch(state, most)

    def _leave_out_acked(self, views: list[EntryView]) -> list[EntryView]:
        def body(state: SubscriptionState) -> list[EntryView]:
            if views[0].ledger_id < state.mark_delete.ledger_id:
                return views
            found = unacked(state, views)
            for view in found:
                removed: int = getattr(view, "removed", 0)
                if removed:
                    view.skip = removed | (view.skip or 0)  # type: ignore[operator]  # `unacked` sets an int
            return found

        return self._shared.transact(body)
