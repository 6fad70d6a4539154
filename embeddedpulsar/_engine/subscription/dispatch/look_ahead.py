"""The entries behind the read position of a Shared or Key_Shared subscription, read before it is claimed.

Reading from the log what a consumer was assigned. Hot.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby, repeat, takewhile

from embeddedpulsar._engine.format.acknowledgement import FORM_RANGE, AckGroup
from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.format.entry import EntryView, sticky_key_hash
from embeddedpulsar._engine.format.frame import FLAG_CHUNK, FLAG_DELAYED, FLAG_TXN, SlotColumns
from embeddedpulsar._engine.subscription.dispatch.dispatch_rules import FreshEntry
from embeddedpulsar._engine.subscription.log_queries import skipped_entries
from embeddedpulsar._engine.subscription.state.replica import SubscriptionState
from embeddedpulsar._engine.subscription.subscription_files import SubscriptionControl
from embeddedpulsar.message_id import Isolation, Position
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any, Final

    from embeddedpulsar._engine.log.log import Log

NO_KEY: Final = "NON_KEY"
_FEW: Final = 8
"""Entries, which are batches then, that are read rather than looked up: their messages bear the cost."""
_SPECIAL_FLAGS: Final = FLAG_CHUNK | FLAG_DELAYED
_SPECIAL: Final = (_SPECIAL_FLAGS | FLAG_TXN) >> 16
_PLAIN: Final = bytes(flags for flags in range(256) if not flags & _SPECIAL)
_new: Final[Any] = tuple.__new__


class LogEnd:
    """The last entry of a log that can be read, determined once for each value of its tail word, unless a
    transaction is open.

    Finding it takes the frame before the tail, some ten calls; the hint whether there is work and the
    look-ahead of one consumer need it in turns. Callers: any thread; two at a time may both determine it.
    """

    __slots__ = ("_last", "_log", "_tail")

    def __init__(self, log: Log) -> None:
        self._log: Final = log
        self._tail: int | None = None
        self._last: Position | None = None

    def last_position(self) -> Position | None:
        """The last entry, or one that was appended since; None if nothing was ever appended."""
        tail = self._log.tail  # before the position, which then is never older than the word
        if tail != self._tail:
            # Before the position, too: while a transaction is open, that may change by itself.
            is_open = self._log.words[TopicWord.FIRST_OPEN_TXN]
            self._last = self._log.last_readable()
            self._tail = None if is_open else tail
        return self._last


class LookAhead:
    """What is known of the next entries of the log before they are claimed.

    Role: keeps the log out of the subscription's lock. Looking is cheap and takes no lock; what another
    consumer claims first is thrown away. What dispatch needs to know stands in the index; frames are read
    where that is not enough (delayed entries, chunked messages), where the index does not say, and where
    there are few entries. Invariants: `_facts` are the readable entries from `_start` on, in order, without a
    gap but for damage; some that turn out to be unreadable may be among them. Callers: the consumer's reading
    thread.
    """

    def __init__(self, log: Log, control: SubscriptionControl, keys_matter: bool, end: LogEnd) -> None:
        self._log: Final = log
        self._end: Final = end
        self._control: Final = control
        self._cursor: Final = log.cursor(Position(0, 0), inclusive=True)
        self._no_key: Final = sticky_key_hash(NO_KEY) if keys_matter else 0
        self._keys_matter: Final = keys_matter
        self._start: Position | None = None
        self._next = Position(0, 0)
        self._facts: list[FreshEntry] = []
        self._views: dict[tuple[int, int], EntryView] = {}
        self._passed: dict[tuple[int, int], EntryView] = {}
        self._at_tail = False
        self._read_on_to: tuple[int, int] | None = None  # where `read_on` left the cursor
        self._each = 1  # messages of an entry, as of the last look
        self.chunks: list[EntryView] = []
        """Entries of chunked messages that the read position passed; for the owner to take."""

    def clear(self) -> None:
        """Forget everything."""
        self._start = None
        self._drop_facts()
        self._passed = {}

    def _drop_facts(self) -> None:
        self._facts, self._views = [], {}

    @property
    def messages(self) -> int:
        """Messages in what was looked at."""
        return sum([entry.messages for entry in self._facts])

    @property
    def last_ledger(self) -> int:
        """Ledger of the last entry that was read ahead."""
        return self._facts[-1].ledger_id if self._facts else 0

    def read_on(self, start: Position, most: int, max_bytes: int) -> list[EntryView] | None:
        """Read entries that need no claim: not delayed, of the ledger of ``start``, one behind the other, and
        no parts of chunked messages. Nothing of them is kept here.

        Returns:
            None if what comes next needs a claim; no entries if there is nothing.
        """
        cursor = self._cursor
        if self._read_on_to != start:
            cursor.seek(start)
        self._read_on_to = None  # until it is known where the cursor stands
        views = cursor.read(most, most, max_bytes)
        ledger_id, entry_id = start
        for number, view in enumerate(views):
            if view.entry_id != entry_id or view.ledger_id != ledger_id or view.flags & _SPECIAL_FLAGS:
                return views[:number] or None
            entry_id += 1
        self._read_on_to = ledger_id, entry_id
        return views

    def read_ahead(self, max_messages: int, max_bytes: int, hint: Position) -> None:
        """Read from ``hint`` on, where the subscription reads on; what is there already is kept."""
        self._read_on_to = None
        if self._start is None or not self._start <= hint <= self._next:
            self._start = None  # first: after an interrupt, nothing may stand for entries from elsewhere
            self._drop_facts()
            self._next = hint
            self._start = hint
        elif self._start < hint:
            self.drop_before(hint)
        if self._facts:
            # They may be of an earlier call. An entry that was appended since, while no consumer slept, woke
            # none; and this one must not go to sleep over it if it cannot have what is left of the facts.
            if self._at_tail:
                end = self._end.last_position()
                self._at_tail = end is None or end < self._next
            return
        # The end is determined before the entries are read: what is appended meanwhile wakes a consumer of
        # its own, so it need not count as left behind.
        most, start, end = max(max_messages, 1), self._next, self._end.last_position()
        is_few = end is not None and end.ledger_id == start.ledger_id and end.entry_id - start.entry_id < _FEW
        if most > _FEW * self._each and not is_few:
            slots = self._log.upcoming(start, most, max_bytes)
            if slots is not None:
                self._facts = self._indexed(*start, slots, max_bytes)
        if not self._facts:
            self._facts = self._read(start, most, max_bytes)
        self._at_tail = True
        if self._facts:
            last = self._facts[-1]
            self._next = Position(last.ledger_id, last.entry_id + 1)
            self._at_tail = end is None or end < self._next
        self._each = self.messages // max(len(self._facts), 1)

    def _indexed(self, ledger_id: int, first: int, slots: SlotColumns, max_bytes: int) -> list[FreshEntry]:
        """What the index says of entries; the frames are read of those of which it does not say enough."""
        counts, hashes = slots.counts, slots.key_hashes
        if not self._keys_matter:
            hashes = [0] * len(counts)
        elif 0 in hashes:
            hashes = [key_hash or self._no_key for key_hash in hashes]
        ids = range(first, first + len(counts))
        rows = zip(repeat(ledger_id), ids, counts, hashes, repeat(0), strict=False)
        facts = list(map(_new, repeat(FreshEntry), rows))
        if 0 not in counts and not slots.flags.translate(None, _PLAIN):
            return facts
        entries: list[FreshEntry] = []
        specials = [not count or flags & _SPECIAL for count, flags in zip(counts, slots.flags, strict=True)]
        for is_special, pairs in groupby(zip(facts, specials, strict=True), lambda pair: bool(pair[1])):
            run = [fact for fact, _ in pairs]
            if is_special:
                try:
                    views = self._cursor.read_spans(
                        ledger_id, [(run[0].entry_id, run[-1].entry_id)], max(max_bytes, 1)
                    )
                except ImportError:
                    if not entries:
                        raise
                    return entries
                max_bytes -= sum([len(view.payload) for view in views])
                entries += self._facts_of(views)
                if self._cursor.position != (ledger_id, run[-1].entry_id + 1):
                    return entries  # what follows is read, stepped over or waited for next time
            else:
                entries += run
        return entries

    def _read(self, position: Position, most: int, max_bytes: int) -> list[FreshEntry]:
        if self._cursor.position != position:
            self._cursor.seek(position)
        return self._facts_of(self._cursor.read(most, most, max_bytes))

    def _facts_of(self, views: list[EntryView]) -> list[FreshEntry]:
        self._views.update({(view.ledger_id, view.entry_id): view for view in views})
        return [self._fact(view) for view in views]

    def _fact(self, view: EntryView) -> FreshEntry:
        deliver_at = 0
        if view.flags & FLAG_DELAYED:
            times = view.deliver_at()
            deliver_at = max(times) if times else 0
        key_hash = (view.key_hash or self._no_key) if self._keys_matter else 0
        return FreshEntry(view.ledger_id, view.entry_id, view.count, key_hash, deliver_at)

    def backlog(self, room: int) -> int:
        """Messages behind the read position, exact where it matters: if they are few."""
        messages = self.messages
        if messages < room or not self._facts:
            return messages
        last = self._facts[-1]
        return messages + self._log.messages_after(Position(last.ledger_id, last.entry_id))

    def covers(self, read: Position) -> bool:
        """Whether what was read ahead is what stands behind ``read``."""
        return self._start is not None and self._start <= read <= self._next

    def entries_from(self, read: Position) -> Sequence[FreshEntry]:
        """What stands behind ``read``, as far as it was read."""
        skip = self._index_of(read)
        return self._facts[skip:] if skip else self._facts

    def gaps_from(self, read: Position) -> list[AckGroup]:
        """Entries behind ``read`` that cannot be read, as far as that is known."""
        facts = self.entries_from(read)
        if not facts:
            return []
        first, last = facts[0], facts[-1]
        if first[:2] == read and last.entry_id - first.entry_id + 1 == len(facts):
            return []
        return skipped_entries(self._log, read, facts)

    def is_exhausted_at(self, read: Position) -> bool:
        """Whether nothing of what was read ahead stands behind ``read``, though there may be more."""
        return self._index_of(read) >= len(self._facts) and not self._at_tail

    def has_beyond(self, read: Position) -> bool:
        """Whether there is, as far as is known, something behind ``read``."""
        return self._index_of(read) < len(self._facts) or not self._at_tail or not self.covers(read)

    def drop_before(self, read: Position) -> None:
        """Drop the entries that the read position has passed: they need no assignment."""
        if self._start is None or read <= self._start:
            return
        skip = self._index_of(read)
        self._start = read  # first: entries that are dropped and not passed would never be assigned
        del self._facts[:skip]
        views, self._passed = self._views, {}
        if views:
            self._passed = {place: views.pop(place) for place in list(views) if place < read}
            self.chunks += [view for view in self._passed.values() if view.flags & FLAG_CHUNK]

    def _index_of(self, read: Position) -> int:
        return bisect_left(self._facts, read)  # a fact begins as its position does

    def pop_passed(self, ledger_id: int, first: int, last: int) -> list[EntryView] | None:
        """The entries ``first..last`` if `drop_before` just dropped them; None if they must be read again."""
        passed = self._passed
        if (ledger_id, first) not in passed:
            return None
        try:
            return [passed.pop((ledger_id, entry_id)) for entry_id in range(first, last + 1)]
        except KeyError:
            return None


_NO_INDEXES: Final = dict[int, int]()
_NO_CODES: Final = bytearray()
_MANY: Final = 1 << 30


class FetchedRange(NamedTuple):
    """A run of entries, with what the state says of them.

    Attributes:
        ledger_id, first, last: the entries.
        number: of the first one in the consumer's assigned.
        messages: of all of them.
        counts: redeliveries of each, or None for none.
        indexes: acknowledged batch indexes, by entry.
    """

    ledger_id: int
    first: int
    last: int
    number: int
    messages: int
    counts: Sequence[int] | None
    indexes: Mapping[int, int]

    def starting_at(self, first: int) -> FetchedRange:
        """The same from a later entry on."""
        skip = first - self.first
        counts = None if self.counts is None else self.counts[skip:]
        return self._replace(first=first, number=self.number + skip, counts=counts)

    @property
    def end(self) -> int:
        """The number behind that of the last one."""
        return self.number + self.last - self.first + 1

    def stamp(self, views: Sequence[EntryView]) -> None:
        """Write what the state says into the entries."""
        counts, indexes = self.counts, self.indexes
        if counts is None and not indexes:
            ahead = self.number - self.first + 1
            for view in views:
                view.number = view.entry_id + ahead
            return
        for view in views:
            at = view.entry_id - self.first
            view.number = self.number + at + 1
            if counts is not None:
                view.redelivery_count = counts[at]
            if indexes:
                view.skip = indexes.get(view.entry_id)


def ranges_for(state: SubscriptionState, consumer_id: int, number: int, most: int) -> list[FetchedRange]:
    """What a consumer was assigned from entry ``number`` of its assigned entries on, and still holds; of
    that, as many ranges as make up ``most`` messages."""
    dispatch, pending_acks = state.dispatch, state.pending_acks
    assigned = dispatch.assigned_by_consumer[consumer_id]
    ranges: list[FetchedRange] = []
    remaining = most
    at = max(number, assigned.start)
    known, states, acks = -1, None, None
    partial: Collection[int] = ()
    code, codes, base = assigned.code, _NO_CODES, 0
    for ledger_id, first, last in assigned.behind(at):
        if ledger_id != known:
            known = ledger_id
            states, acks = dispatch.pending.ledger(ledger_id), state.acks.ledger(ledger_id)
            partial = acks.partial if acks is not None else ()
            if pending_acks.transactions:
                partial = {*partial, *pending_acks.partial_in(ledger_id)}
            is_plain = states is not None and states.counts is states.messages is None and not partial
            codes, base = (states.states, states.base) if states is not None and is_plain else (_NO_CODES, 0)
        # Hot where keys scatter what each consumer gets: one entry, of which nothing is to be said.
        if first == last and base <= first < base + len(codes) and codes[first - base] == code:
            ranges.append(_new(FetchedRange, (ledger_id, first, first, at, 1, None, _NO_INDEXES)))
            at += 1
            remaining -= 1
            if remaining <= 0:
                break
            continue
        for start, end in () if states is None else states.held(code, first, last):
            assert states is not None
            skip = start - states.base
            counts = None if states.counts is None else states.counts[skip : skip + end - start + 1]
            messages = end - start + 1
            if states.messages is not None:
                messages = sum(states.messages[skip : skip + messages])
            indexes = _NO_INDEXES
            if partial and acks is not None:
                indexes = {
                    entry_id: acks.indexes(entry_id) for entry_id in partial if start <= entry_id <= end
                }
                if pending_acks.transactions:
                    for entry_id in indexes:
                        indexes[entry_id] = pending_acks.skip(
                            Position(ledger_id, entry_id), indexes[entry_id]
                        )
            ranges.append(FetchedRange(ledger_id, start, end, at + start - first, messages, counts, indexes))
            remaining -= messages
        if remaining <= 0:
            break
        at += last - first + 1
    return ranges


class RangeReader:
    """Reads assigned ranges, from what was read ahead where that is possible.

    Role: between a consumer's ranges and the log; keys scatter the entries of a consumer, so its ranges in
    a ledger are read in one go, and nothing between them. Callers: the consumer's reading thread.

    Attributes:
        missing: entries that are not in the log any more, or damaged; for the owner to take.
    """

    def __init__(self, log: Log, ahead: LookAhead) -> None:
        # What was assigned is committed.
        self._cursor: Final = log.cursor(Position(0, 0), inclusive=True, isolation=Isolation.EVERYTHING)
        self._ahead: Final = ahead
        self._ranges: deque[FetchedRange] = deque()
        self.missing: list[AckGroup] = []

    def read(
        self, ready: Sequence[FetchedRange], number: int, max_bytes: int
    ) -> tuple[list[EntryView], int, bool]:
        """The entries of ``ready``, about ``max_bytes`` of them.

        Args:
            ready: ranges, of the numbers from ``number`` on.
            number: of the first entry that was not read before.
            max_bytes: of payload.

        Returns:
            The entries, the number of the first one that was not read, and whether anything of ``ready`` is
            left.
        """
        views: list[EntryView] = []
        ranges, size = deque(ready), 0
        self._ranges = ranges
        while ranges and size < max_bytes:
            part = ranges[0]
            entries = self._ahead.pop_passed(part.ledger_id, part.first, part.last)
            if entries is not None:
                ranges.popleft()
                part.stamp(entries)
            else:
                try:
                    entries = self._read_some(max(max_bytes - size, 1))
                except ImportError:  # packed by a codec that is not installed: what comes before is good
                    if not views:
                        raise
                    break
            views += entries
            size += sum([len(view.payload) for view in entries])
        if ranges:
            return views, ranges[0].number, True
        return views, ready[-1].end if ready else number, False

    def _read_some(self, max_bytes: int) -> list[EntryView]:
        """The first entries that are not read yet, of the ledger of the first."""
        ranges, ledger_id = self._ranges, self._ranges[0].ledger_id
        parts = list(takewhile(lambda part: part.ledger_id == ledger_id, ranges))
        entries = self._cursor.read_spans(ledger_id, [(part.first, part.last) for part in parts], max_bytes)
        if not entries:
            return self._read_around_damage(max_bytes)
        at = 0
        for part in parts:
            if part.first == part.last and at < len(entries) and part.counts is None and not part.indexes:
                entries[at].number = part.number + 1  # as `stamp`
                at += 1
                ranges.popleft()
                continue
            views = entries[at : at + part.last - part.first + 1]
            if not views:
                break
            at += len(views)
            part.stamp(views)
            ranges.popleft()
            if views[-1].entry_id < part.last:
                ranges.appendleft(part.starting_at(views[-1].entry_id + 1))
                break
        return entries

    def _read_around_damage(self, max_bytes: int) -> list[EntryView]:
        """The first entries of the first range; what of it the read did not reach is left."""
        part = self._ranges[0]
        ledger_id, first, last = part.ledger_id, part.first, part.last
        if self._cursor.position != (ledger_id, first):
            self._cursor.seek(Position(ledger_id, first))
        span = self._cursor.read(last - first + 1, _MANY, max_bytes)
        views = [view for view in span if view.ledger_id == ledger_id and view.entry_id <= last]
        # What another ledger, or a later entry, was read instead of cannot be read.
        end = views[-1].entry_id + 1 if views and len(views) == len(span) else last + 1
        self.missing += _missing(part, views, end)
        part.stamp(views)
        self._ranges.popleft()
        if end <= last:
            self._ranges.appendleft(part.starting_at(end))
        return views


def _missing(part: FetchedRange, views: Sequence[EntryView], end: int) -> list[AckGroup]:
    """The entries before ``end`` that could not be read."""
    gaps, expected = [], part.first
    for entry_id in [*(view.entry_id for view in views), end]:
        if entry_id > expected:
            gaps.append(AckGroup(part.ledger_id, expected, entry_id - 1, FORM_RANGE, b""))
        expected = entry_id + 1
    return gaps
