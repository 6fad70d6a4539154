"""The open range of a consumer that is alone: it reads on without claims, and what it took is assigned later.

A claim costs a lock, a command and the publication of its outcome, and decides which consumer gets an entry.
While a single consumer is attached to a Shared or Key_Shared subscription there is nothing to decide. So its
entries are assigned afterwards: by the next transaction on the subscription, in whatever process, before that
decides anything.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from embeddedpulsar._engine.format import subscription_record as record
from embeddedpulsar._engine.format.acknowledgement import Ack
from embeddedpulsar._engine.format.control import SubscriptionWord
from embeddedpulsar._engine.format.key_hash import sticky_key_hash
from embeddedpulsar._engine.format.subscription_record import Assign, FreshRun
from embeddedpulsar._engine.log.position import Isolation, Position
from embeddedpulsar._engine.platform import timing
from embeddedpulsar._engine.subscription.dispatch.dispatchers import CLAIM_DISPATCHERS
from embeddedpulsar._engine.subscription.dispatch.look_ahead import NO_KEY
from embeddedpulsar._engine.subscription.state.replica import SubscriptionState
from embeddedpulsar._engine.subscription.subscription_files import (
    HANDED_MASK,
    SubscriptionControl,
    handed_tag,
)
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Final

    from embeddedpulsar._engine.log.log import Log

_OWNER: Final = SubscriptionWord.RANGE_OWNER
_TAKEN: Final = SubscriptionWord.RANGE_TAKEN
CLOSING: Final = 1 << 63
_STORES_ARRIVE_S: Final = 1e-4
"""A store of another processor is seen after a microsecond at most; a process that is interrupted has no
store under way. See `OpenRange.close_for_others`."""
_AT_ONCE: Final = 256
_MANY_BYTES: Final = 1 << 30
_HARMLESS: Final = frozenset(
    (record.Assign, record.Redeliver, record.Checkpoint, record.Summary, record.Expired, record.OpenRange)
)
"""Commands that neither move the read position nor acknowledge anything behind it; an assignment is made by
the consumer itself, or of what it took."""


class OpenRange:
    """The two words of the open range of a subscription, and what they mean.

    Role: while RANGE_OWNER is the id of the only consumer, the entries from the read position on are its own,
    as many as RANGE_TAKEN says. Invariants:

    * The owner stores RANGE_TAKEN first, then compares RANGE_OWNER, then gives the entries to its
      application. Who closes the range stores RANGE_OWNER first, then loads RANGE_TAKEN. So of the two, one
      sees the other: either the entries are assigned to the owner, or it drops them and claims.
    * What was taken lies behind the read position in one ledger, without a gap; each entry is due, no part of
      a chunked message, and not acknowledged. So a count says which they are.
    * The range is closed before a command is committed that moves the read position, acknowledges
      something behind it, or changes the consumers.

    Crash order of closing: the word is marked with CLOSING, then the assignment is committed, then the word
    is cleared. A process that finds the mark goes on there; the owner finds another word than its id from
    the mark on. Of an owner that was killed, the words tell what it took, as HANDED tells what of that its
    application was given. After a power loss they are void, and what was taken is delivered again.
    Callers: the holder of the subscription's lock; the owner's reading thread uses the words without it.

    Attributes:
        consumer_id: of the owner, if the range was opened through this object; else 0.
    """

    __slots__ = ("_control", "_log", "_words", "consumer_id")

    def __init__(self, control: SubscriptionControl, log: Log) -> None:
        self._control: Final = control
        self._words: Final = control.words
        self._log: Final = log
        self.consumer_id = 0

    @property
    def owner(self) -> int:
        """Id of the consumer that reads on without claims, also if its range is being closed; 0 for none."""
        return int(self._words[_OWNER] & ~CLOSING)

    @property
    def is_own(self) -> bool:
        """Whether the owner reads in this process, so that the interpreter orders its stores and ours."""
        return bool(self.consumer_id and self._words[_OWNER] == self.consumer_id)

    def open(self, consumer_id: int, taken: int) -> None:
        """Let a consumer read on. What it was assigned so far are ``taken`` entries."""
        words = self._words
        words[_TAKEN] = handed_tag(consumer_id) | taken
        words[_OWNER] = self.consumer_id = consumer_id

    def mark_closing(self) -> None:
        """First step of closing: from here on the owner takes nothing more that would count.

        The store of an owner in another process may be under way when the word is marked: it has stored
        RANGE_TAKEN and compared RANGE_OWNER, but another processor does not see the store yet. It does after
        the pause. (Where comparing comes before the mark is seen, the store came before, too.)
        """
        is_own = self.is_own
        self._words[_OWNER] |= CLOSING
        self.consumer_id = 0
        if not is_own:
            timing.sleep(_STORES_ARRIVE_S)

    def clear(self) -> None:
        """Last step of closing: what the owner took is assigned to it."""
        self._words[_OWNER] = self.consumer_id = 0

    def admits(self, commands: Sequence[record.Command], state: SubscriptionState) -> bool:
        """Whether the range may stay open while these are committed."""
        read = state.dispatch.read
        for command in commands:
            if type(command) in _HARMLESS:
                continue
            if type(command) is record.TransactionEnd and state.pending_acks.last_touched < read:
                continue  # what it acknowledges, or gives back, lies before what was taken
            if type(command) is record.TransactionAck and command.through is None:
                command = command.ack
            if type(command) is not Ack:
                return False
            ends = [(group.ledger_id, group.last) for group in command.groups]
            ends += [(batch.ledger_id, batch.entry_id) for batch in command.batches]
            if ends and max(ends) >= read:
                return False
        return True

    def assignment(self, state: SubscriptionState) -> Assign | None:
        """The assignment of what the owner took since the last one; None if that is nothing."""
        owner, taken = self.owner, self._words[_TAKEN]
        consumer = state.consumers.get(owner)
        assigned = state.dispatch.assigned_by_consumer.get(owner)
        if consumer is None or assigned is None or taken & ~HANDED_MASK != handed_tag(owner):
            return None  # detached, or never attached: the words of an earlier life
        count = (taken & HANDED_MASK) - assigned.end
        if count <= 0:
            return None
        ledger_id, first = state.dispatch.read
        keys_matter = CLAIM_DISPATCHERS[consumer.consumer_type].keys_matter
        run = self._run(Position(ledger_id, first), count, keys_matter)
        handed = self._control.handed(consumer.code, owner)
        return Assign(
            (ledger_id, first + count),
            0,
            (run,),
            (),
            ((owner, ledger_id, first, first + count - 1),),
            ((owner, handed),) if handed else (),
        )

    def _run(self, start: Position, count: int, keys_matter: bool) -> FreshRun:
        """What dispatch needs to know of the entries: by the index, or where that does not say, by the
        frames. Of an entry that was damaged since it was taken it is one message without a key."""
        no_key = sticky_key_hash(NO_KEY)
        columns = self._log.columns(start, count)
        # A count of 0 is an entry that the index does not describe; then the frames of all are read. An entry
        # without a readable frame keeps what the lists begin with.
        if columns is not None and 0 not in columns.counts:
            counts, hashes = columns.counts, [one or no_key for one in columns.key_hashes]
        else:
            counts, hashes = [1] * count, [no_key] * count
            cursor = self._log.cursor(start, inclusive=True, isolation=Isolation.EVERYTHING)
            end = start.entry_id + count
            while cursor.position < (start.ledger_id, end):
                views = cursor.read(_AT_ONCE, _AT_ONCE, _MANY_BYTES)
                if not views:
                    break
                for view in views:
                    if view.ledger_id == start.ledger_id and view.entry_id < end:
                        counts[view.entry_id - start.entry_id] = view.count
                        hashes[view.entry_id - start.entry_id] = view.key_hash or no_key
        return FreshRun(
            start.ledger_id,
            start.entry_id,
            start.entry_id + count - 1,
            None if counts.count(1) == count else array("I", counts),
            array("I", hashes) if keys_matter else None,
        )
