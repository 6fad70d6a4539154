"""What Shared and Key_Shared need besides acknowledgements: each entry's consumer, and which entries wait.

What one consumer of a Shared or Key_Shared subscription was assigned, in order.

The consumers attached to a subscription, as every replica knows them.

Redeliveries of entries that were given to an application, while no consumer is attached.
"""

from __future__ import annotations

import contextlib
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from embeddedpulsar._engine.format.subscription_record import (
    DETACH_CLOSED,
    FLAG_CLASSIC,
    FLAG_OUT_OF_ORDER,
    NO_RULES,
    STAY,
    Assign,
    ConsumerRules,
    FreshRun,
    Redeliver,
    Share,
)
from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar._engine.subscription.state.entry_states import (
    FIRST_OWNER,
    IN_TRANSACTION,
    LAST_OWNER,
    PART,
    WAITING,
    runs_of,
)
from embeddedpulsar._engine.subscription.state.ledger_acks import AckBitmaps
from embeddedpulsar._engine.subscription.state.pending_acks import PendingAcks
from embeddedpulsar._engine.subscription.state.pending_entries import DelayedDeliveryTracker, PendingEntries
from embeddedpulsar._engine.subscription.state.sticky_key_selector import (
    KeyOwners,
    StickyKeySelector,
    make_selector,
    selector_of,
)
from embeddedpulsar.message_id import BEFORE_FIRST, Position
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any, Final

    from sortedcontainers import SortedDict


Range = tuple[int, int, int]
Scattered = tuple[int, int, bytes, int]
"""Entries between those of other consumers: (ledger, first, the code of the consumer of each from there on,
how many are this one's)."""
# Stands where entries were taken away. Ids of ledgers are never negative, so no lookup meets it.
_NO_LEDGER: Final = -1


class AssignedEntries:
    """The entries assigned to a consumer that its application may not have been given yet.

    Role: part of the replicated state; pure. Entries are numbered in the order of assignment, from 0. The
    consumer fetches them in that order, and says now and then how many its application was given: those
    before are forgotten here. What is left are, when the consumer dies, the entries that were not delivered.

    Attributes:
        code: of the consumer, in `EntryStates`.
        start: number of the first entry that is left.
        end: number the next assigned entry gets.
        messages: messages ever assigned; compared with what the consumer is ready to take.
        is_blocked: it holds too many unacknowledged messages.

    >>> assigned = AssignedEntries(4)
    >>> assigned.assign(7, 0, 9, messages=10)
    >>> assigned.drop_handed(4)
    >>> assigned.behind(6), assigned.end
    ([(7, 6, 9)], 10)
    """

    __slots__ = ("_pieces", "_skip", "code", "end", "is_blocked", "messages", "start")

    def __init__(self, code: int) -> None:
        self.code = code
        self.start = 0
        self.end = 0
        self.messages = 0
        self.is_blocked = False
        self._pieces: deque[Range | Scattered] = deque()
        self._skip = 0  # entries of the first piece that are forgotten, if it is scattered

    @property
    def ranges(self) -> list[Range]:
        """What is left, as few ranges as possible."""
        return self.behind(self.start)

    def hold(self, ranges: Iterable[Range]) -> None:
        """Take over what `ranges` returned."""
        self._pieces = deque(ranges)
        self._skip = 0

    def assign(self, ledger_id: int, first: int, last: int, messages: int) -> None:
        pieces = self._pieces
        # Entries that follow the last piece lengthen it: a consumer that is alone has one piece,
        # however much it is assigned.
        before = pieces[-1] if pieces else None
        if before and len(before) == 3 and before[0] == ledger_id and before[2] + 1 == first:
            pieces[-1] = (ledger_id, before[1], last)
        else:
            pieces.append((ledger_id, first, last))
        self.end += last - first + 1
        self.messages += messages

    def share(self, ledger_id: int, first: int, codes: bytes, messages: int) -> None:
        """Note that the consumer got the entries from ``first`` on that have its code in ``codes``."""
        # All consumers of a share keep the same bytes, which cost each of them one count. The runs in
        # them are searched only when ranges are asked for.
        number = codes.count(self.code)
        self._pieces.append((ledger_id, first, codes, number))
        self.end += number
        self.messages += messages

    def drop_handed(self, handed: int) -> None:
        """Forget everything before number ``handed``: the application was given it."""
        pieces = self._pieces
        while pieces and self.start < handed:
            piece = pieces[0]
            number = piece[3] - self._skip if len(piece) == 4 else piece[2] - piece[1] + 1
            # The border lies inside the piece. A range is shortened. A scattered piece stays whole,
            # because finding the border in it is a search; `_skip` counts instead.
            if self.start + number > handed:
                if len(piece) == 4:
                    self._skip += handed - self.start
                else:
                    pieces[0] = (piece[0], piece[1] + handed - self.start, piece[2])
                self.start = handed
                return
            pieces.popleft()
            self._skip = 0
            self.start += number

    def drop(self, ledger_id: int, entries: Sequence[int]) -> None:
        """Take entries from the consumer, if they are among these ranges. Numbers stay as they are:
        in place of what is dropped stand ranges of a ledger that is none."""
        if not entries:
            return
        first, last = min(entries), max(entries)
        if not any(piece[0] == ledger_id and _meets(piece, first, last) for piece in self._pieces):
            return  # as ever: it was given them before it gave them back
        # The numbers of the entries behind must not shift, as the consumer says by number how many it
        # handed out. So each entry that is taken leaves a place without a ledger.
        dropped, kept = frozenset(entries), deque[Range | Scattered]()
        for owner_ledger, a, b in self.ranges:
            if owner_ledger != ledger_id or a > last or b < first:
                kept.append((owner_ledger, a, b))
                continue
            for entry in range(a, b + 1):
                owner = _NO_LEDGER if entry in dropped else ledger_id
                before = kept[-1] if kept else None
                if before and len(before) == 3 and before[0] == owner and before[2] + 1 == entry:
                    kept[-1] = (owner, before[1], entry)
                else:
                    kept.append((owner, entry, entry))
        self._pieces = kept
        self._skip = 0

    def behind(self, number: int) -> list[Range]:
        """The ranges from that entry on, as few as possible."""
        ranges: list[Range] = []
        # ``at`` is the number of the first entry of a piece that is left, ``skipped`` how many before
        # it are forgotten; only the first piece has such.
        at, skipped = self.start, self._skip
        for piece in self._pieces:
            if len(piece) == 3:
                ledger_id, first, last = piece
                skip = max(number - at, 0)
                at += last - first + 1
                runs = [(ledger_id, first + skip, last)] if first + skip <= last else []
            else:
                end = at + piece[3] - skipped
                runs = _runs_behind(piece, self.code, skipped + max(number - at, 0)) if number < end else []
                at, skipped = end, 0
            # Neighbours become one range: a snapshot must not show in how many steps they were
            # assigned.
            if ranges and runs and ranges[-1][0] == runs[0][0] and ranges[-1][2] + 1 == runs[0][1]:
                runs[0] = (runs[0][0], ranges.pop()[1], runs[0][2])
            ranges += runs
        return ranges

    def clear(self) -> None:
        self._pieces.clear()
        self._skip = 0
        self.start = self.end

    def pack(self) -> list[Any]:
        ranges = [list(each) for each in self.ranges]
        return [self.code, self.start, self.end, self.messages, self.is_blocked, ranges]

    @classmethod
    def unpack(cls, packed: Sequence[Any]) -> AssignedEntries:
        code, start, end, messages, is_blocked, ranges = packed
        assigned = cls(code)
        assigned.start, assigned.end, assigned.messages, assigned.is_blocked = (
            start,
            end,
            messages,
            is_blocked,
        )
        assigned.hold((ledger_id, first, last) for ledger_id, first, last in ranges)
        # A consumer that counts differently from the others would hand out entries twice, or never.
        if start + sum(last - first + 1 for _, first, last in ranges) != end:
            raise ValueError(f"assigned entries from {start} to {end} that do not add up")
        return assigned


def _meets(piece: Range | Scattered, first: int, last: int) -> bool:
    """Whether entries of the piece may lie within ``first..last``."""
    end = piece[2] if len(piece) == 3 else piece[1] + len(piece[2]) - 1
    return piece[1] <= last and end >= first


def _runs_behind(piece: Scattered, code: int, skip: int) -> list[Range]:
    """The runs of a consumer's entries in a piece, without the first ``skip`` entries. Hot."""
    ledger_id, base, codes, _ = piece
    # One search in C finds all runs of the consumer; the loop only counts off those that are skipped.
    spans = [match.span() for match in runs_of(code).finditer(codes)]
    at = 0
    while skip and at < len(spans):
        first, end = spans[at]
        if skip < end - first:
            spans[at] = (first + skip, end)
            break
        skip -= end - first
        at += 1
    return [(ledger_id, base + first, base + end - 1) for first, end in (spans[at:] if at else spans)]


class Consumer(NamedTuple):
    """One attached consumer.

    Attributes:
        epoch: what its acknowledgements must carry to count.
        code: marks its entries (`entry_states`), and its slot in the ctl.
        rules: what it asks of dispatch.
    """

    consumer_id: int
    name: str
    consumer_type: int
    priority_level: int
    client_uuid: bytes
    attached_ms: int
    epoch: int
    code: int = 0
    rules: ConsumerRules = NO_RULES


class ConsumerRegistry:
    """Attached consumers by id, in order of attachment.

    Role: part of the replicated state; pure, guarded by the subscription's lock. Invariants: all consumers
    have the same type; ids are never used twice in the life of the subscription.

    >>> registry = ConsumerRegistry()
    >>> registry.add(Consumer(1, "c", 0, 0, bytes(16), 0, epoch=4))
    >>> registry.raise_epochs(5)
    >>> registry.is_current(1, 4), registry.is_current(1, 5)
    (False, True)

    Attributes:
        limits: most unacknowledged messages of each consumer that has a limit, by id.
        least_limit: the lowest of them; 0 if there is none.
        levels: priority levels, the best first.
    """

    __slots__ = ("_by_id", "least_limit", "levels", "limits")

    def __init__(self) -> None:
        self._by_id: dict[int, Consumer] = {}
        self.limits: dict[int, int] = {}
        self.least_limit = 0
        self.levels: list[int] = []

    def __len__(self) -> int:
        return len(self._by_id)

    def all(self) -> list[Consumer]:
        """The attached consumers, the longest attached first."""
        return list(self._by_id.values())

    def each(self) -> Iterable[Consumer]:
        """The same, to be looked through before anything changes."""
        return self._by_id.values()

    def get(self, consumer_id: int) -> Consumer | None:
        return self._by_id.get(consumer_id)

    def is_current(self, consumer_id: int, epoch: int) -> bool:
        """Whether a command of that consumer and epoch still counts."""
        consumer = self._by_id.get(consumer_id)
        return consumer is not None and consumer.epoch == epoch

    @property
    def consumer_type(self) -> int | None:
        """Type of the attached consumers; None without any: then the next may have any type."""
        for consumer in self._by_id.values():
            return consumer.consumer_type
        return None

    def free_code(self) -> int:
        """The code the next consumer gets; 0 if there are as many as a subscription can have."""
        # The lowest free one: `DispatchState.may_block` sums over all codes up to the highest that
        # was ever used.
        used = set()
        for consumer in self._by_id.values():
            used.add(consumer.code)
        for code in range(FIRST_OWNER, LAST_OWNER + 1):
            if code not in used:
                return code
        return 0

    def add(self, consumer: Consumer) -> None:
        self._by_id[consumer.consumer_id] = consumer
        if consumer.priority_level not in self.levels:
            insort(self.levels, consumer.priority_level)
        # `least_limit` spares the look at all consumers: while they hold less, none can be blocked.
        limit = consumer.rules.max_unacked
        if limit:
            self.limits[consumer.consumer_id] = limit
            self.least_limit = min(self.least_limit or limit, limit)

    def remove(self, consumer_id: int) -> bool:
        """Remove a consumer that left; False if it was not attached."""
        consumer = self._by_id.pop(consumer_id, None)
        if consumer is None:
            return False
        # A level goes with its last consumer, and so does the lowest limit: both are found anew.
        self.levels = sorted({other.priority_level for other in self._by_id.values()})
        if self.limits.pop(consumer_id, 0):
            self.least_limit = min(self.limits.values(), default=0)
        return True

    def limit(self, most: int) -> None:
        """Give all consumers the same limit of unacknowledged messages; 0 for none."""
        self._by_id = {
            each: consumer._replace(rules=consumer.rules._replace(max_unacked=most))
            for each, consumer in self._by_id.items()
        }
        self.limits = dict.fromkeys(self._by_id, most) if most else {}
        self.least_limit = most if self._by_id else 0

    def raise_epochs(self, epoch: int) -> None:
        """Void what all consumers were handed before: their commands count again from ``epoch`` on."""
        self._by_id = {each: consumer._replace(epoch=epoch) for each, consumer in self._by_id.items()}


class RestingCounts:
    """Counts that outlive the consumers: dispatch forgets its entries with the last one, and reads them anew.

    Role: part of the replicated state; pure. Invariants: only entries that came back at least once are here,
    none before the mark-delete position, and none that dispatch knows.

    >>> counts = RestingCounts()
    >>> counts.keep([(7, 3, 2), (7, 9, 1)])
    >>> counts.pop_range(7, 0, 5), len(counts)
    ([(3, 2)], 1)
    """

    __slots__ = ("_ledgers",)

    def __init__(self) -> None:
        self._ledgers: dict[int, SortedDict[int, int]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._ledgers.values()))

    def __bool__(self) -> bool:
        return bool(self._ledgers)

    def keep(self, counted: Iterable[tuple[int, int, int]]) -> None:
        for ledger_id, entry, count in counted:
            known = self._ledgers.get(ledger_id)
            if known is None:
                # Late: few subscriptions have such counts, and the package takes 1 MB.
                with late_imports():
                    from sortedcontainers import SortedDict
                known = self._ledgers[ledger_id] = SortedDict()
            known[entry] = count

    def pop_range(self, ledger_id: int, first: int, last: int) -> list[tuple[int, int]]:
        """Remove and return the counts of the entries ``first..last`` of a ledger, which were read: (entry,
        count)."""
        known = self._ledgers.get(ledger_id)
        if known is None:
            return []
        # The list comes first: removing entries while `irange` walks over them would break its walk.
        taken = [(entry, known.pop(entry)) for entry in list(known.irange(first, last))]
        if not known:
            del self._ledgers[ledger_id]
        return taken

    def count(self, ledger_id: int, entry: int) -> int:
        """How often an entry came back."""
        known = self._ledgers.get(ledger_id)
        return 0 if known is None else known.get(entry, 0)

    def drop_before(self, position: Position) -> None:
        """Forget everything before a position: it is acknowledged.

        Called each time the mark-delete position moves, so it costs as much as it drops and no more.
        """
        for ledger_id in [each for each in self._ledgers if each < position.ledger_id]:
            del self._ledgers[ledger_id]
        known = self._ledgers.get(position.ledger_id)
        if known is None:
            return
        while known and known.peekitem(0)[0] < position.entry_id:
            known.popitem(0)
        if not known:
            del self._ledgers[position.ledger_id]

    def clear(self) -> None:
        self._ledgers = {}

    def pack(self) -> list[Any]:
        """The content for a snapshot; equal contents give equal values."""
        return [
            [ledger_id, *map(list, self._ledgers[ledger_id].items())] for ledger_id in sorted(self._ledgers)
        ]

    @classmethod
    def unpack(cls, packed: Sequence[Any]) -> RestingCounts:
        counts = cls()
        for ledger_id, *pairs in packed:
            if ledger_id < 0 or any(entry < 0 or count < 1 for entry, count in pairs):
                raise ValueError(f"redelivery counts of ledger {ledger_id}")
            counts.keep((ledger_id, entry, count) for entry, count in pairs)
        return counts


_NO_SHARES: Final[tuple[tuple[int, ...], tuple[tuple[int, bytes], ...]]] = (), ()
# Stands for no limit where numbers are compared.
UNLIMITED: Final = 1 << 62
MOST_DUE: Final = 10_000
"""Delayed entries that one command makes due: it is applied under the lock, at about 1 us each. Part of what
the command means."""


class DispatchState:
    """The dispatch half of a subscription's replicated state.

    Role: applies what was decided about entries and consumers; decides nothing. Pure, guarded by the
    subscription's lock. Invariants: with no consumer it is empty but for `counts`, and `read` is the entry
    behind the mark-delete position; each consumer has an `AssignedEntries` whose code marks its entries in
    `pending`.

    Attributes:
        read: the entry that is read next: no consumer has it, and nothing behind it is known.
        pending: entries that were read and are not acknowledged.
        counts: redeliveries of entries that are not in `pending`: they were, before the last consumer left.
        delayed: those of them that are not due, by time.
        assigned_by_consumer: by consumer id.
        selector: which consumer gets which key; None on Shared.
        membership: how often consumers came or went, as far as this replica has seen; not stored.
        joined: where consumers joined that get nothing from behind there before everything before there is
            acknowledged (the classic rule of Key_Shared).
        most_unacked: messages that all consumers together may hold; 0 for any number.
        is_blocked: the consumers together hold too many unacknowledged messages.
        has_blocked: `is_blocked` is true, or a consumer is blocked; derived, not stored.
    """

    def __init__(self) -> None:
        self.pending = PendingEntries()
        self.counts = RestingCounts()
        self.delayed = DelayedDeliveryTracker()
        self.assigned_by_consumer: dict[int, AssignedEntries] = {}
        self.joined: dict[int, Position] = {}
        self.selector: StickyKeySelector | None = None
        self.selector_kind = 0
        self.most_unacked = 0
        self.membership = 0
        self._owners: KeyOwners | None = None
        self._codes_end = FIRST_OWNER  # behind the codes of all consumers there were
        self.read = BEFORE_FIRST
        self.is_blocked = self.has_blocked = False

    def seek(self, mark_delete: Position) -> None:
        """Forget everything: the subscription was moved."""
        # Counts belong to deliveries before the seek. Without consumers nothing else is kept, and the
        # first one that joins restarts the rest.
        self.counts.clear()
        if self.assigned_by_consumer:
            self._restart(mark_delete)

    def clamp(self, mark_delete: Position) -> None:
        """Forget entries that do not exist any more."""
        # The entries that still exist are read again; their counts wait for them.
        self.counts.keep(self.pending.counted())
        self.counts.drop_before(mark_delete.next())
        self._restart(mark_delete)

    def _restart(self, mark_delete: Position) -> None:
        """Forget what was read behind ``mark_delete``: it is to be read again."""
        self.pending.clear()
        self.delayed.clear()
        self.read = mark_delete.next()
        self.is_blocked = self.has_blocked = False
        # Consumers keep their numbers: what was assigned before is void, and what comes next is
        # counted on from there.
        for assigned in self.assigned_by_consumer.values():
            assigned.clear()
            assigned.is_blocked = False
        # No entry is in flight any more, so no consumer has to wait for those of others.
        self.joined.clear()

    # -- consumers ---------------------------------------------------------------------------------

    @property
    def owner_of(self) -> Callable[[int], int | None]:
        """Gives the consumer that the selector names for the hash of a key. Only where keys matter."""
        owners = self._owners
        if owners is None:
            assert self.selector is not None
            owners = self._owners = KeyOwners(self.selector.select)
        return owners.__getitem__

    def join(self, consumer: Consumer, mark_delete: Position) -> None:
        """Add a consumer that attached. The first one decides how keys are divided."""
        self._divide_anew()
        rules = consumer.rules
        # The first consumer decides for all. A selector or a common limit that later ones ask for has
        # no effect.
        if not self.assigned_by_consumer:
            self._restart(mark_delete)
            self.most_unacked = rules.max_unacked_in_all
            self.selector_kind = rules.selector
            self.selector = make_selector(rules.selector, rules.points) if rules.selector else None
        elif rules.flags & (FLAG_CLASSIC | FLAG_OUT_OF_ORDER) == FLAG_CLASSIC:
            # The classic rule: others still hold entries of keys that belong to this consumer from
            # now on. It gets nothing from the read position on until all before is acknowledged;
            # without such entries it need not wait.
            if mark_delete.next() < self.read:
                self.joined[consumer.consumer_id] = self.read
        self.assigned_by_consumer[consumer.consumer_id] = AssignedEntries(consumer.code)
        self._codes_end = max(self._codes_end, consumer.code + 1)
        if self.selector is not None:
            with contextlib.suppress(ValueError):  # refused before the command was written
                self.selector.add(consumer.consumer_id, consumer.name, rules.ranges)

    def _divide_anew(self) -> None:
        self.membership += 1
        self._owners = None
        self.pending.waiting_keys.divide_anew()

    def remove_consumer(self, consumer_id: int, reason: int, handed: int, mark_delete: Position) -> None:
        """Remove a consumer; its entries wait for others. With the last one all but the counts is forgotten.

        Entries its application was given count as redelivered unless it closed in good order.
        """
        assigned = self.assigned_by_consumer.pop(consumer_id, None)
        if assigned is None:
            return
        self._divide_anew()
        self.joined.pop(consumer_id, None)
        if self.selector is not None:
            self.selector.remove(consumer_id)
        # Entries from ``handed`` on never reached the application: they come again uncounted,
        # whatever the reason of the departure.
        unseen = assigned.behind(handed)
        self.pending.give_back_all(assigned.code, unseen, counted=reason != DETACH_CLOSED)
        # With the last consumer the states of the entries go, because the first one that comes reads
        # them anew. The counts stay.
        if not self.assigned_by_consumer:
            self.counts.keep(self.pending.counted())
            self._restart(mark_delete)
            self.selector = None
            return
        # What it held does not count any more for the limit of all consumers together. The single
        # ones hold what they held, so their limits are left out.
        self.check_limits({})

    # -- entries -----------------------------------------------------------------------------------

    def assign(self, command: Assign, acks: AckBitmaps, in_transactions: PendingAcks | None) -> None:
        """Note that entries were read, delayed, or given to consumers; ``in_transactions`` is what open
        transactions acknowledged, None for nothing."""
        pending = self.pending
        # The order is part of what the command means, as each replica applies it: what comes due,
        # what was read, what of that is delayed, what is given to consumers.
        if command.due_ms:
            for ledger_id, entry_id in self.delayed.pop_due(command.due_ms, MOST_DUE):
                pending.come_due(ledger_id, entry_id)
                if in_transactions is not None:
                    self._hold(in_transactions, acks, ledger_id, entry_id, entry_id)
        given, shared = self._read(command, acks, in_transactions)
        for deliver_at, ledger_id, entry_id in command.delayed:
            # An entry that was acknowledged before it was read does not wait, and is not delayed
            # either. One that an open transaction acknowledged is: if that aborts, it must not come early.
            if pending.delay(ledger_id, entry_id):
                self.delayed.add(deliver_at, ledger_id, entry_id)
        if command.read != STAY:
            self.read = max(self.read, Position(*command.read))
        # What the application was given goes before more is added, so the pieces stay few.
        for consumer_id, handed in command.handed:
            if consumer_id in self.assigned_by_consumer:
                self.assigned_by_consumer[consumer_id].drop_handed(handed)
        for number, (consumer_id, ledger_id, first, last) in enumerate(command.ranges):
            assigned = self.assigned_by_consumer.get(consumer_id)
            if assigned is not None:
                # -1 says that the range was not given along with the reading, as not all of it waits.
                # Then those of its entries that wait are given.
                messages = given.get(number, -1)
                if messages < 0:
                    messages = pending.assign(ledger_id, first, last, assigned.code)
                assigned.assign(ledger_id, first, last, messages)
        for number, share in enumerate(command.shares):
            self._share(share, shared.get(number))

    def _share(self, share: Share, given: dict[int, int] | None) -> None:
        """Note that entries go to several consumers; ``given`` is what each got, if that is done."""
        pending = self.pending
        codes = self._codes_of(share)
        given = pending.share(share.ledger_id, share.first, codes) if given is None else given
        if given is None:  # some are acknowledged already
            for consumer_id, ledger_id, first, last in share.ranges():
                if consumer_id in self.assigned_by_consumer:
                    assigned = self.assigned_by_consumer[consumer_id]
                    messages = pending.assign(ledger_id, first, last, assigned.code)
                    assigned.assign(ledger_id, first, last, messages)
            return
        # A consumer that left meanwhile gets nothing, and its entries go on waiting (`_codes_of`).
        for consumer_id in share.owners:
            if consumer_id in self.assigned_by_consumer:
                assigned = self.assigned_by_consumer[consumer_id]
                if assigned.code in given:
                    assigned.share(share.ledger_id, share.first, codes, given[assigned.code])

    def _codes_of(self, share: Share) -> bytes:
        """The code of the consumer that gets each entry, 0 for none."""
        consumers = self.assigned_by_consumer
        # The picks number the owners from 1 on, and 0 is none. One table turns all of them into
        # codes.
        codes = [
            consumers[consumer_id].code if consumer_id in consumers else 0 for consumer_id in share.owners
        ]
        return share.picks.translate(bytes((0, *codes)).ljust(256, b"\0"))

    def _read(
        self, command: Assign, acks: AckBitmaps, in_transactions: PendingAcks | None
    ) -> tuple[dict[int, int], dict[int, dict[int, int] | None]]:
        """Note that entries were read.

        Returns:
            The ranges and the shares of the command, by their numbers, that are given to their consumers
            with that, and how many messages they are: at half the cost of giving what waits.
        """
        runs = command.fresh
        # The usual case, one run of which nothing is acknowledged: the entries get their final state
        # at once, without waiting before.
        if (
            len(runs) == 1
            and not self._has_acked(runs[0], acks)
            and (in_transactions is None or not in_transactions.meets(*runs[0][:3]))
        ):
            run, assigned_by_consumer = runs[0], self.assigned_by_consumer
            numbers, ranges = [], []
            for number, (consumer_id, ledger_id, first, last) in enumerate(command.ranges):
                # Ranges of entries that were read earlier are left to the caller.
                if ledger_id == run.ledger_id and run.first <= first and last <= run.last:
                    if consumer_id in assigned_by_consumer:
                        numbers.append(number)
                        ranges.append((first, last, assigned_by_consumer[consumer_id].code))
            inside, shares = self._shares_in(run, command.shares) if command.shares else _NO_SHARES
            given, shared = self.pending.deal(run, ranges, shares)
            self._recall(run)
            return dict(zip(numbers, given, strict=True)), dict(zip(inside, shared, strict=True))
        # Otherwise all entries wait first, and those that were acknowledged before they were read are
        # taken out again.
        for run in runs:
            self.pending.add(run)
            self._recall(run)
            self._drop_acked(run, acks)
            if in_transactions is not None:
                self._hold(in_transactions, acks, *run[:3])
        return {}, {}

    def _hold(self, acked: PendingAcks, acks: AckBitmaps, ledger_id: int, first: int, last: int) -> None:
        self.pending.hold(ledger_id, acked.held_in(ledger_id, first, last, acks))

    def take_back(self, ledger_id: int, entries: Sequence[int], *, is_counted: bool) -> None:
        """Let entries wait of which an aborted transaction acknowledged something, and which are not
        acknowledged; they count as redelivered if ``is_counted``."""
        known = self.pending.release(ledger_id, entries, counted=is_counted)
        # From the consumers that they were assigned to before: they are assigned anew.
        for assigned in self.assigned_by_consumer.values():
            assigned.drop(ledger_id, known)
        if is_counted and len(known) < len(entries):
            unread = sorted(set(entries).difference(known))
            self.counts.keep((ledger_id, entry, self.counts.count(ledger_id, entry) + 1) for entry in unread)

    def let_go(self, in_transactions: PendingAcks, acks: AckBitmaps) -> None:
        """Let entries wait that no open transaction holds any more."""
        for ledger_id, first, last in list(self.pending.runs(IN_TRANSACTION)):
            held = frozenset(in_transactions.held_in(ledger_id, first, last, acks))
            free = [entry for entry in range(first, last + 1) if entry not in held]
            if free:
                self.take_back(ledger_id, free, is_counted=False)

    def _shares_in(
        self, run: FreshRun, shares: Sequence[Share]
    ) -> tuple[Sequence[int], Sequence[tuple[int, bytes]]]:
        """Those of its entries: their numbers, and their first entries and codes."""
        inside = [
            number
            for number, (ledger_id, first, _, picks) in enumerate(shares)
            if ledger_id == run.ledger_id and run.first <= first and first + len(picks) <= run.last + 1
        ]
        return inside, [(shares[index].first, self._codes_of(shares[index])) for index in inside]

    def _recall(self, run: FreshRun) -> None:
        # A count moves from the resting ones to its entry, so that it is in one of the two places
        # only.
        if self.counts:
            self.pending.recall(run.ledger_id, self.counts.pop_range(run.ledger_id, run.first, run.last))

    def _has_acked(self, run: FreshRun, acks: AckBitmaps) -> bool:
        known = acks.ledger(run.ledger_id)
        # A ledger before the mark-delete position is acknowledged as a whole; one that is not known
        # yet has no acknowledgements.
        if known is None:
            return run.ledger_id < acks.mark_delete.ledger_id
        return 0 <= known.next_acked(run.first) <= run.last

    def _drop_acked(self, run: FreshRun, acks: AckBitmaps) -> None:
        """Remove entries that were acknowledged before they were read: they do not wait."""
        known = acks.ledger(run.ledger_id)
        if known is None:
            if run.ledger_id < acks.mark_delete.ledger_id:
                self.pending.acknowledge_range(run.ledger_id, run.first, run.last)
            return
        entry = run.first
        while 0 <= (entry := known.next_acked(entry)) <= run.last:
            end = known.next_unacked(entry)
            # The last acknowledged run may go on behind what was read.
            self.pending.acknowledge_range(run.ledger_id, entry, min(end - 1, run.last))
            entry = end

    def redeliveries(self, ledger_id: int, entry: int) -> int:
        """How often an entry that is not acknowledged came back."""
        return self.pending.redeliveries(ledger_id, entry) or self.counts.count(ledger_id, entry)

    def redeliver(self, command: Redeliver) -> None:
        assigned = self.assigned_by_consumer.get(command.consumer_id)
        if assigned is None:
            return
        # The entries are dropped from the assigned ranges, too: the consumer would fetch them
        # although they wait for any.
        if command.groups:
            assigned.drop_handed(command.handed)
            for group in command.groups:
                assigned.drop(group.ledger_id, self.pending.give_back(assigned.code, group))
        else:
            self.pending.give_back_all(assigned.code, assigned.behind(command.handed), counted=True)
            assigned.clear()

    def advance(self, mark_delete: Position, acks: AckBitmaps) -> bool:
        """The mark-delete position moved up: nothing before it matters. True if consumers that joined late
        are held back no more."""
        ledger_id, last = mark_delete
        # These run each time the position moves, and cost next to nothing where there is nothing to
        # drop.
        self.pending.trim(ledger_id, last + 1)
        self.delayed.drop_before(ledger_id, last + 1)
        # The position may pass the read position, by a cumulative acknowledgement of entries that no
        # consumer has read.
        if self.read <= mark_delete:
            self.read = mark_delete.next()
        return bool(self.joined) and self.admit(mark_delete, acks)

    def admit(self, mark_delete: Position, acks: AckBitmaps) -> bool:
        """End the wait of consumers before whose joining position all is acknowledged. True if any waited."""
        if not self.joined:
            return False
        first = self._first_message(mark_delete, acks)
        admitted = [joiner for joiner, position in self.joined.items() if position <= first]
        for consumer_id in admitted:
            del self.joined[consumer_id]
        return bool(admitted)

    def _first_message(self, mark_delete: Position, acks: AckBitmaps) -> Position:
        """The first entry that is not acknowledged and no part of a chunked message that ends further on: a
        consumer that waits for such a part may be the one that gets that message."""
        position = mark_delete.next()
        while self.pending.state(*position) == PART:
            position = acks.next_unacked(position.next())
        return position

    def may_block(self, least: int) -> bool:
        """Whether `check_limits` could change anything after entries were assigned: seldom, and it looks at
        hundreds of consumers. ``least`` is the lowest limit of a consumer; 0 if there is none."""
        least = min(least or UNLIMITED, self.most_unacked or UNLIMITED)
        # While a consumer is blocked every change matters, as it may be the one that frees it.
        return self.has_blocked or sum(self.pending.totals[FIRST_OWNER : self._codes_end]) >= least

    def check_limits(self, limits: Mapping[int, int]) -> bool:
        """Block consumers that hold too much, unblock those at half of that. True if one was unblocked."""
        totals = self.pending.totals
        is_free, has_blocked, held = False, False, 0
        for consumer_id, assigned in self.assigned_by_consumer.items():
            holds = totals[assigned.code]
            held += holds
            limit = limits.get(consumer_id, 0)
            # Blocked at the limit and free at half of it, as in Pulsar: else a consumer would be
            # stopped and woken for each message.
            if limit and assigned.is_blocked and holds <= limit // 2:
                assigned.is_blocked, is_free = False, True
            elif limit and holds >= limit:
                assigned.is_blocked = True
            has_blocked |= assigned.is_blocked
        limit = self.most_unacked
        if limit and self.is_blocked and held <= limit // 2:
            self.is_blocked, is_free = False, True
        elif limit and held >= limit:
            self.is_blocked = True
        self.has_blocked = has_blocked or self.is_blocked
        return is_free

    # -- looking -----------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Messages that wait for a consumer, of those that were read."""
        return self.pending.totals[WAITING]

    def is_due(self, cutoff_ms: int) -> bool:
        """Whether delayed entries are due by then."""
        next_due = self.delayed.next_due()
        return next_due is not None and next_due <= cutoff_ms

    def holds(self, consumer_id: int) -> int:
        """Messages a consumer has not acknowledged."""
        assigned = self.assigned_by_consumer.get(consumer_id)
        return 0 if assigned is None else self.pending.totals[assigned.code]

    @property
    def room(self) -> int:
        """Messages that consumers may get before they hold too many together."""
        if not self.most_unacked:
            return UNLIMITED
        return max(0, self.most_unacked - sum(self.pending.totals[FIRST_OWNER : LAST_OWNER + 1]))

    # -- snapshots ---------------------------------------------------------------------------------

    def pack(self, acks: AckBitmaps) -> list[Any]:
        """The whole state as lists and bytes; equal states give equal values."""
        floors = {ledger_id: ledger.floor for ledger_id, ledger in acks.ledgers()}
        return self._pack(self.pending.pack(floors), self.delayed.pack())

    def outline(self) -> list[Any]:
        """The state without its long columns, of which there may be a million elements."""
        totals = [[code, total] for code, total in enumerate(self.pending.totals) if total]
        return self._pack(totals, [len(self.delayed), self.delayed.next_due()])

    # The order of the elements is the format: docs/format/subscription.md.
    def _pack(self, pending: list[Any], delayed: Any) -> list[Any]:
        return [
            list(self.read),
            pending,
            delayed,
            [[consumer_id, *assigned.pack()] for consumer_id, assigned in self.assigned_by_consumer.items()],
            [[consumer_id, *position] for consumer_id, position in self.joined.items()],
            self.most_unacked,
            self.selector_kind,
            None if self.selector is None else self.selector.pack(),
            self.is_blocked,
        ]

    def unpack(self, packed: Sequence[Any]) -> None:
        read, pending, delayed, assigned_by_consumer, joined, limit, kind, selector, self.is_blocked = packed
        self.read = Position(*read)
        self.pending.unpack(pending)
        self.delayed = DelayedDeliveryTracker.unpack(delayed)
        self.assigned_by_consumer = {
            consumer_id: AssignedEntries.unpack(rest) for consumer_id, *rest in assigned_by_consumer
        }
        # `_codes_end` and `has_blocked` are derived from the rest, and not stored.
        codes = [assigned.code for assigned in self.assigned_by_consumer.values()]
        self._codes_end = max(codes, default=FIRST_OWNER) + 1
        self.has_blocked = self.is_blocked or any(
            assigned.is_blocked for assigned in self.assigned_by_consumer.values()
        )
        self.joined = {consumer_id: Position(*position) for consumer_id, *position in joined}
        self.most_unacked, self.selector_kind = limit, kind
        self.selector = None if selector is None else selector_of(kind, selector)
        self._owners = None
