"""Where each entry of one ledger stands in dispatch: one byte per entry. Hot: runs for every claim and every
acknowledgement of a Shared or Key_Shared subscription.

All of it that can be is one C call over a slice: a byte table gives the new value of each state.

Which keys are in flight, and which entries wait for the consumer of their key.
"""

from __future__ import annotations

import re
import sys
from array import array
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import compress, repeat

from embeddedpulsar._engine.format.entry_decoder import RawPosition
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Final

NONE: Final = 0
"""Acknowledged, or not read yet."""
WAITING: Final = 1
"""Read and not assigned: any consumer that may have it can claim it."""
DELAYED: Final = 2
"""Read, and not due yet."""
PART: Final = 3
"""Read, and no message: a part of a chunked one that is not the last. It goes when that one goes."""
FIRST_OWNER: Final = 4
"""This and all higher codes: some consumer's, until it acknowledges the entry or gives it back."""
LAST_OWNER: Final = 253
OWNERS: Final = LAST_OWNER - FIRST_OWNER + 1
IN_TRANSACTION: Final = 254
"""Read, and acknowledged by open transactions: no consumer's, until one of them aborts."""
# Counts up to this are kept in one byte each.
_LARGEST_BYTE: Final = 255
# Turns each code but 0 into 1.
_ONES: Final = bytes((0, *(1,) * 255))
# Where the lower half of a 32-bit number lies in memory, of two.
_LOW_HALF: Final = 0 if sys.byteorder == "little" else 1

_KEEP: Final = bytes(range(256))
SETTLE: Final = bytes(256)
"""Every state becomes `NONE`."""
_IS_ANYBODYS: Final = frozenset((WAITING, *range(FIRST_OWNER, LAST_OWNER + 1)))
# Delayed entries and parts of chunked messages keep their states: neither goes to a consumer as it is.
HOLD: Final = bytes(IN_TRANSACTION if code in _IS_ANYBODYS else code for code in range(256))
"""What waits or has a consumer becomes `IN_TRANSACTION`."""
DELAY: Final = bytes(DELAYED if code in (WAITING, IN_TRANSACTION) else code for code in range(256))
"""What waits or is `IN_TRANSACTION` becomes `DELAYED`."""
_IS_OR_WAS_ANYBODYS: Final = _IS_ANYBODYS | {IN_TRANSACTION}
RELEASE: Final = bytes(WAITING if code in _IS_OR_WAS_ANYBODYS else code for code in range(256))
"""That, and what has a consumer, becomes `WAITING`."""


@cache
def moving(before: int, after: int) -> bytes:
    """The table that turns one state into another and leaves all others."""
    table = bytearray(_KEEP)
    table[before] = after
    return bytes(table)


@cache
def changing(table: bytes) -> bytes:
    """The table that turns each state that ``table`` changes into itself, and all others into 0."""
    return bytes(code if table[code] != code else 0 for code in range(256))


def numbers_of(codes: bytes) -> Iterator[tuple[int, int]]:
    """How often each state but `NONE` occurs."""
    # One count and one removal for each state that occurs, which are few, in place of a look at each
    # byte.
    rest = codes.translate(None, b"\0")
    while rest:
        state = rest[:1]
        yield rest[0], rest.count(state)
        rest = rest.translate(None, state)


@cache
def runs_of(code: int) -> re.Pattern[bytes]:
    """Finds the runs of a state."""
    return re.compile(re.escape(bytes((code,))) + b"+")


class EntryStates:
    """The entries of one ledger from `base` on.

    Role: part of the replicated state; pure, guarded by the subscription's lock. Invariants: `messages`,
    `hashes` and `counts`, where they are kept, have one number per byte of `states`; what they say of an
    entry in state NONE means nothing. `totals` is shared by all ledgers: messages in each state.

    Attributes:
        messages: messages of each entry; None while every entry has one.
        hashes: key hash of each entry; None where keys do not matter.
        counts: redeliveries of each entry; None while there were none. Bytes while they suffice.
    """

    __slots__ = ("base", "counts", "hashes", "messages", "states", "totals")

    def __init__(self, base: int, totals: list[int]) -> None:
        self.base = base
        self.totals = totals
        self.states = bytearray()
        self.messages: array[int] | None = None
        self.hashes: array[int] | None = None
        self.counts: bytearray | array[int] | None = None

    @property
    def end(self) -> int:
        """The entry behind the last one known."""
        return self.base + len(self.states)

    def add(
        self, first: int, last: int, messages: Sequence[int] | None, hashes: Sequence[int] | None
    ) -> None:
        """Add entries that were read: they wait. ``first`` is not below `end`."""
        # A gap is no error: the reader stepped over damaged entries.
        self._extend(first - self.end)
        number = last - first + 1
        # An entry without messages is a part of a chunked message. It waits for the last part, and
        # for no consumer.
        if messages is not None and 0 in messages:
            self.states += bytes([WAITING if number_of_messages else PART for number_of_messages in messages])
        else:
            self.states += b"\x01" * number
        # A column is made when the first entry needs it: without batches and keys an entry costs one
        # byte. Entries before had one message each, or the column would be there.
        if messages is not None and self.messages is None:
            self.messages = array("I", (1,)) * (len(self.states) - number)
        if self.messages is not None:
            self.messages.extend(messages if messages is not None else array("I", (1,)) * number)
        # Entries that came without hashes have hash 0.
        if hashes is not None and self.hashes is None:
            self.hashes = array("I", (0,)) * (len(self.states) - number)
        if self.hashes is not None:
            self.hashes.extend(hashes if hashes is not None else array("I", (0,)) * number)
        if self.counts is not None:
            self.counts.extend(bytes(number))
        # Parts have no messages, so the sum is right although they do not wait.
        self.totals[WAITING] += number if messages is None else sum(messages)

    def _extend(self, gap: int) -> None:
        """Skip entries that no consumer will ever claim: they are damaged."""
        if gap <= 0:
            return
        self.states += bytes(gap)
        for numbers in (self.messages, self.hashes):
            if numbers is not None:
                numbers.extend(array("I", (0,)) * gap)
        if self.counts is not None:
            self.counts.extend(bytes(gap))

    def move(self, first: int, last: int, table: bytes) -> bytes:
        """Give the entries ``first..last`` the states ``table`` has for theirs; returns the old states.

        Entries that are not known are left out; the result then begins at the first that is.
        """
        start, stop = max(first - self.base, 0), max(last + 1 - self.base, 0)
        # A range that begins below the base begins at the base: what is below is acknowledged.
        old = bytes(self.states[start:stop])
        if not old:
            return old
        self.states[start:stop] = old.translate(table)
        totals, messages = self.totals, self.messages
        # Every entry is one message, so a count for each state that occurs suffices. Mostly there is
        # only one, and no set is made.
        if messages is None:
            codes = set(old) if old.count(old[0]) != len(old) else old[:1]
            for code in codes:
                if table[code] != code:
                    number = old.count(code)
                    totals[code] -= number
                    totals[table[code]] += number
        else:
            for number, code in zip(messages[start:stop], old, strict=True):
                totals[code] -= number
                totals[table[code]] += number
        # NONE was counted along to spare the loop a branch; its total means nothing.
        totals[NONE] = 0
        return old

    def move_some(self, entries: Sequence[int], table: bytes) -> list[tuple[int, int]]:
        """The same for scattered entries; returns those whose state changed, with the old state."""
        changed = []
        states, base, totals, messages = self.states, self.base, self.totals, self.messages
        for entry in entries:
            at = entry - base
            # Acknowledged long ago, not read yet, or made up: no state to change.
            if not 0 <= at < len(states):
                continue
            code = states[at]
            after = table[code]
            if after != code:
                states[at] = after
                number = 1 if messages is None else messages[at]
                totals[code] -= number
                totals[after] += number
                changed.append((entry, code))
        totals[NONE] = 0
        return changed

    def give(self, first: int, last: int, code: int) -> int:
        """Give known entries that wait to the consumer ``code``; returns how many messages.

        Returns:
            -1, and nothing is changed, if not all of them wait.
        """
        start, stop = first - self.base, last + 1 - self.base
        number = stop - start
        if self.states.count(WAITING, start, stop) != number:
            return -1
        self.states[start:stop] = bytes((code,)) * number
        if self.messages is not None:
            number = sum(self.messages[start:stop])
        self.totals[WAITING] -= number
        self.totals[code] += number
        return number

    def share(self, first: int, codes: bytes) -> dict[int, int] | None:
        """Give waiting entries to consumers: from ``first`` on, each to the one whose code stands in
        ``codes``, or to none.

        Returns:
            How many messages each got, by code. None, and nothing is changed, if not all of them wait.
        """
        at, end = first - self.base, first - self.base + len(codes)
        if at < 0 or end > len(self.states):
            return None
        # All bytes are handled as one big integer, a few operations in C for any number of entries.
        # WAITING is 1, so that an entry that waits and is given becomes 0 by the exclusive or.
        given = int.from_bytes(codes.translate(_ONES), "little")
        others = int.from_bytes(self.states[at:end], "little") ^ given  # 0 where one waits and is given
        # ``given * 255`` is 255 in each byte that is given: another state than WAITING shows there.
        if others & given * 255:
            return None
        # The bytes that are given are 0 in ``others`` now, so an or stores their codes; all others
        # keep their state.
        self.states[at:end] = (others | int.from_bytes(codes, "little")).to_bytes(len(codes), "little")
        totals, messages = self.totals, self.messages
        if messages is None:
            got = dict(numbers_of(codes))
        else:
            got = dict.fromkeys(codes.translate(None, b"\0"), 0)
            for number, code in zip(messages[at:end], codes, strict=True):
                if code:
                    got[code] += number
        for code, number in got.items():
            totals[WAITING] -= number
            totals[code] += number
        return got

    def acknowledge_masked(self, first: int, mask: bytes) -> tuple[int, bytes]:
        """Note that entries were acknowledged: from ``first`` on, those whose byte in ``mask`` is 255.

        Returns:
            An entry, and for each from there on the state it had if it was acknowledged now, else 0.
        """
        at = first - self.base
        # What is below the base is acknowledged already.
        if at < 0:
            at, mask = 0, mask[-at:]
        old = int.from_bytes(self.states[at : at + len(mask)], "little")
        size = min(len(mask), len(self.states) - at)
        # Each byte of the mask is 0 or 255: the and keeps the states of acknowledged entries whole,
        # and the exclusive or turns them into NONE.
        moved = old & int.from_bytes(mask[:size], "little")
        if not moved:
            return first, b""
        self.states[at : at + size] = (old ^ moved).to_bytes(size, "little")
        changed = moved.to_bytes(size, "little")
        self._subtract(at, changed)
        if self.counts is not None:
            for offset in compress(range(at, at + size), changed):
                self.counts[offset] = 0
        return self.base + at, changed

    def _subtract(self, at: int, changed: bytes) -> None:
        """Subtract the messages of entries, given by the states that they had."""
        totals, messages = self.totals, self.messages
        if messages is None:
            for code, number in numbers_of(changed):
                totals[code] -= number
        else:
            for number, code in zip(messages[at : at + len(changed)], changed, strict=True):
                totals[code] -= number
            totals[NONE] = 0

    def slots(self, first: int, number: int) -> array[int]:
        """The low 16 bits of the hashes of known entries. Only where keys matter."""
        assert self.hashes is not None
        at = first - self.base
        # The 32-bit hashes are read as twice as many 16-bit numbers, of which every second one is a
        # slot: no Python loop.
        halves = array("H", self.hashes[at : at + number].tobytes())
        return halves[_LOW_HALF::2]

    def acknowledge_one(self, entry: int) -> int:
        """Note that one entry was acknowledged; returns the state it had."""
        at = entry - self.base
        if not 0 <= at < len(self.states):
            return NONE
        code = self.states[at]
        if code != NONE:
            self.states[at] = NONE
            self.totals[code] -= 1 if self.messages is None else self.messages[at]
            if self.counts is not None:
                self.counts[at] = 0
        return code

    def count_redelivery(self, entries: Sequence[int]) -> None:
        """Count that each of these known entries came back once more."""
        counts = self.counts
        if counts is None:
            # The first redelivery makes the column, one byte for each entry; the first count above
            # 255 widens it.
            counts = self.counts = bytearray(len(self.states))
        base = self.base
        for entry in entries:
            if counts[entry - base] == _LARGEST_BYTE and isinstance(counts, bytearray):
                counts = self.counts = array("I", list(counts))
            counts[entry - base] += 1

    def set_count(self, entry: int, count: int) -> None:
        """Set how often a known entry came back."""
        counts = self.counts
        if counts is None:
            counts = self.counts = bytearray(len(self.states))
        if count > _LARGEST_BYTE and isinstance(counts, bytearray):
            counts = self.counts = array("I", list(counts))
        counts[entry - self.base] = count

    def counted(self) -> Iterator[tuple[int, int]]:
        """Entries that came back and are not acknowledged, as (entry, count)."""
        if self.counts is not None:
            for at, (count, code) in enumerate(zip(self.counts, self.states, strict=True)):
                if count and code:
                    yield self.base + at, count

    def forget_counts(self, first: int, last: int) -> None:
        """Forget the counts of entries that were acknowledged."""
        counts = self.counts
        if counts is None:
            return
        start, stop = max(first - self.base, 0), max(last + 1 - self.base, 0)
        if isinstance(counts, bytearray):
            counts[start:stop] = bytes(len(counts[start:stop]))
        else:
            counts[start:stop] = array("I", (0,)) * len(counts[start:stop])

    def set_counts(self, counted: Sequence[tuple[int, int]]) -> None:
        """Take over the counts of a snapshot: pairs of offset and count."""
        if any(number > _LARGEST_BYTE for _, number in counted):
            self.counts = array("I", (0,)) * len(self.states)
        else:
            self.counts = bytearray(len(self.states))
        for at, number in counted:
            self.counts[at] = number

    def state(self, entry: int) -> int:
        at = entry - self.base
        return self.states[at] if 0 <= at < len(self.states) else NONE

    def redeliveries(self, entry: int) -> int:
        return 0 if self.counts is None else self.counts[entry - self.base]

    def messages_of(self, entry: int) -> int:
        return 1 if self.messages is None else self.messages[entry - self.base]

    def waiting(self, entry: int) -> tuple[int, int] | None:
        """The first run of waiting entries at or after ``entry``, as (first, last)."""
        match = runs_of(WAITING).search(self.states, max(entry - self.base, 0))
        return None if match is None else (self.base + match.start(), self.base + match.end() - 1)

    def runs(self, code: int, first: int = 0, last: int | None = None) -> Iterator[tuple[int, int]]:
        """All runs of a state within ``first..last``, as (first, last)."""
        base = self.base
        stop = len(self.states) if last is None else max(last + 1 - base, 0)
        # The list comes first: callers change the states while they go through the runs.
        for match in list(runs_of(code).finditer(self.states, max(first - base, 0), stop)):
            yield base + match.start(), base + match.end() - 1

    def held(self, code: int, first: int, last: int) -> Iterable[tuple[int, int]]:
        """The runs of a consumer's entries within ``first..last``: nearly always all of them."""
        start, stop = first - self.base, last + 1 - self.base
        # A negative start would count from the end of the bytes.
        if start >= 0 and self.states.count(code, start, stop) == stop - start:
            return ((first, last),)
        return self.runs(code, first, last)

    def trim(self, floor: int) -> None:
        """Let go of entries below ``floor``, which are acknowledged."""
        surplus = min(floor - self.base, len(self.states))
        if surplus <= 0:
            return
        # A bytearray lets go of its front at no cost, but an array moves all that is behind:
        # `PendingEntries` calls this for thousands of entries at once.
        for numbers in (self.states, self.messages, self.hashes, self.counts):
            if numbers is not None:
                del numbers[:surplus]
        self.base += surplus


Waiting = tuple[RawPosition, int]
OwnerOf = Callable[[int], int | None]
# Once more entries changed than `_FEW` and a quarter of those that wait, counting anew is cheaper
# than taking in the changes.
_CROWD: Final = 4
_FEW: Final = 64
_NO_GENERATION: Final = -1
SLOT: Final = 0xFFFF
"""The bits of a hash that count here."""
_IS_WAITING: Final = bytes(code == WAITING for code in range(256))
IS_OWNED: Final = bytes(FIRST_OWNER <= code <= LAST_OWNER for code in range(256))
"""Whether a state is some consumer's."""
_UNOWNED: Final = bytes(code for code in range(256) if not IS_OWNED[code])


class KeyHolds:
    """Entries in flight per key, counted by the low 16 bits of the key's hash.

    Role: derived from `EntryStates`, never stored. Pure, guarded as those are. Two keys that share
    a slot wait for each other now and then, which costs a little time and no order; in return a million keys
    take no more room than 65,536. Where order does not matter (out of order, sticky) a slot may have several
    holders, and `holder` names the last.

    >>> holds = KeyHolds()
    >>> holds.holder(7)
    0
    """

    __slots__ = ("_holders", "_numbers")

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}  # by slot
        self._numbers: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._holders)

    def holder(self, key_hash: int) -> int:
        """Code of the consumer that holds entries of this key, 0 for none."""
        return self._holders.get(key_hash & SLOT, 0)

    @property
    def holders(self) -> Mapping[int, int]:
        """Code of the consumer by slot. Not to be kept."""
        return self._holders

    def number(self, key_hash: int) -> int:
        return self._numbers[key_hash & SLOT]

    def pack(self) -> dict[int, tuple[int, int]]:
        """The whole content, for comparison."""
        return {slot: (code, self._numbers[slot]) for slot, code in self._holders.items()}

    def hold(self, slots: Sequence[int], code: int) -> None:
        """Note that the consumer ``code`` got entries with these slots."""
        self._holders.update(dict.fromkeys(slots, code))
        self._numbers.update(slots)

    def hold_one(self, slot: int, code: int) -> None:
        """Note that the consumer ``code`` got an entry with this slot."""
        # Neighbours mostly have different keys, so most ranges are one entry: this spares them a dict
        # and an update.
        self._holders[slot] = code
        self._numbers[slot] = self._numbers.get(slot, 0) + 1

    def deal(self, slots: Sequence[int], codes: bytes) -> None:
        """Note that consumers got entries with these slots: for each its code."""
        self._holders.update(zip(slots, codes, strict=True))
        self._numbers.update(slots)

    def release(self, slots: Iterable[int]) -> list[int]:
        """Note that entries with these slots are not in flight any more.

        Returns:
            The slots that are free now.
        """
        numbers, free = self._numbers, []
        for slot in slots:
            remaining = numbers[slot] - 1
            if remaining > 0:
                numbers[slot] = remaining
            elif remaining == 0:
                numbers.pop(slot)  # faster than `del` for a Counter
                del self._holders[slot]
                free.append(slot)
        return free

    def learn(self, states: EntryStates) -> None:
        """Count the entries that a snapshot has in flight."""
        if states.hashes is not None:
            codes = bytes(states.states).translate(None, _UNOWNED)
            owned = states.states.translate(IS_OWNED)
            self.deal(list(compress(states.slots(states.base, len(owned)), owned)), codes)


class WaitingKeys:
    """Waiting entries of a Key_Shared subscription by key, and by the consumer of the key.

    Role: derived from `EntryStates`, never stored. Pure, guarded by the subscription's lock. It holds as many
    entries as dispatch looks ahead, and those that came back. A replica that only follows the commands of
    others is not asked, so changes are noted here, and taken in when it is; after many of them everything is
    found anew in the states. The consumer of a key changes only when consumers come and go; until then the
    entries of each are kept in order, so that a claim costs what it gives, and not what waits.

    Attributes:
        is_replay: commands of others are applied: `waits_in` may answer True when nothing waits there.

    >>> WaitingKeys({}).number_of(7)
    0
    """

    __slots__ = (
        "_count",
        "_generation",
        "_has_slots",
        "_is_built",
        "_lanes",
        "_ledgers",
        "_noted",
        "_notes",
        "_numbers",
        "_owner_of",
        "_slots",
        "is_replay",
    )

    def __init__(self, ledgers: Mapping[int, EntryStates]) -> None:
        self.is_replay = False
        self._ledgers: Final = ledgers
        self._count = 0
        self._is_built = False
        self._notes: list[tuple[int, int, Sequence[int], list[int]]] = []
        self._noted = 0  # entries in the notes
        self._numbers: Counter[int] = Counter()  # entries by hash
        self._slots: Counter[int] = Counter()  # entries by the low 16 bits, once it was asked for them
        self._has_slots = False
        self._lanes: dict[int | None, list[Waiting]] = {}  # by consumer, ascending
        self._owner_of: OwnerOf | None = None
        self._generation = _NO_GENERATION

    def __len__(self) -> int:
        return self._count

    def number_of(self, key_hash: int) -> int:
        """How many entries of a key wait."""
        return self.numbers().get(key_hash, 0)

    def waits_in(self, slot: int) -> bool:
        """Whether entries wait whose key has these low 16 bits."""
        # A process that applies commands of others wakes consumers if something may wait. True wakes
        # one too many at worst, and spares it the count by key.
        if self.is_replay or not self._count:
            return self._count > 0
        keys = self.numbers()
        # Made at the first question and kept by `_change` from then on.
        if not self._has_slots:
            self._slots.clear()
            for key_hash, number in keys.items():
                self._slots[key_hash & SLOT] += number
            self._has_slots = True
        return self._slots[slot] > 0

    # -- changes -----------------------------------------------------------------------------------

    def add(self, ledger_id: int, states: EntryStates, entries: Sequence[int]) -> None:
        """Note that entries wait now."""
        self._record(1, ledger_id, states, entries)

    def remove(self, ledger_id: int, states: EntryStates, entries: Sequence[int]) -> None:
        """Note that entries wait no more."""
        self._record(-1, ledger_id, states, entries)

    def _record(self, change: int, ledger_id: int, states: EntryStates, entries: Sequence[int]) -> None:
        hashes, base = states.hashes, states.base
        if hashes is None:
            return
        self._count += change * len(entries)
        # There is nothing to correct: `numbers` counts the states as they are when it is asked.
        if not self._is_built:
            return
        self._noted += len(entries)
        if self._noted > _FEW + self._count // _CROWD:
            self._is_built = False
            self._notes.clear()
            return
        # With the hashes of now: the columns may be trimmed before the note is taken in.
        self._notes.append((change, ledger_id, entries, [hashes[entry - base] for entry in entries]))

    def numbers(self) -> Mapping[int, int]:
        """How many entries of each key wait, by hash, with all changes. 0 stands for none, too."""
        if not self._is_built:
            self._notes.clear()
            self._numbers.clear()
            self._has_slots = False
            for states in self._ledgers.values():
                if states.hashes is not None and self._count:
                    waiting = states.states.translate(_IS_WAITING)
                    self._numbers.update(compress(states.hashes, waiting))
            # The lanes were made of the earlier content.
            self._generation = _NO_GENERATION
            self._is_built, self._noted = True, 0
        elif self._noted:
            self._is_built = False  # an interrupt may strike: no note may be taken in twice
            for change, ledger_id, entries, hashes in self._notes:
                for entry_id, key_hash in zip(entries, hashes, strict=True):
                    self._change(change, (ledger_id, entry_id), key_hash)
            self._notes.clear()
            self._is_built, self._noted = True, 0
        return self._numbers

    def _change(self, change: int, entry: RawPosition, key_hash: int) -> None:
        _count_by(change, self._numbers, key_hash)
        if self._has_slots:
            _count_by(change, self._slots, key_hash & SLOT)
        # Without valid lanes there is nothing to keep in order: they are made when a consumer asks.
        if self._owner_of is None or self._generation == _NO_GENERATION:
            return
        lane = self._lanes.get(self._owner_of(key_hash))
        if lane is None:
            return
        if change < 0:
            del lane[bisect_left(lane, (entry, key_hash))]
        # Entries that were just read lie behind all others; those that came back are inserted.
        elif not lane or lane[-1][0] < entry:
            lane.append((entry, key_hash))
        else:
            insort(lane, (entry, key_hash))

    # -- whose they are ----------------------------------------------------------------------------

    def divide_anew(self) -> None:
        """Forget whose they are: consumers came or went."""
        self._generation = _NO_GENERATION

    def of_consumer(self, consumer_id: int, owner_of: OwnerOf, generation: int) -> Sequence[Waiting]:
        """The waiting entries of a consumer's keys, ascending, each with the hash of its key.

        The first time after consumers came or went costs a look at every entry. Not to be changed.
        """
        keys = self.numbers()
        # Consumers came or went, so each lane may hold keys that are another's now.
        if generation != self._generation:
            self._lanes = {}
            self._owner_of, self._generation = owner_of, generation
        lane = self._lanes.get(consumer_id)
        if lane is None:
            # The selector is asked once for each key, not for each entry.
            own = {key_hash for key_hash in keys if owner_of(key_hash) == consumer_id}
            lane = self._lanes[consumer_id] = self._entries_of(own) if own else []
        return lane

    def _entries_of(self, own: set[int]) -> list[Waiting]:
        own_entries: list[Waiting] = []
        for ledger_id in sorted(self._ledgers):
            states = self._ledgers[ledger_id]
            if states.hashes is not None:
                # The columns are filtered by `compress`, so that the loops over all entries run in C.
                waiting = states.states.translate(_IS_WAITING)
                hashes = list(compress(states.hashes, waiting))
                is_own = list(map(own.__contains__, hashes))
                entries = compress(compress(range(states.base, states.end), waiting), is_own)
                own_entries += zip(
                    zip(repeat(ledger_id), entries, strict=False), compress(hashes, is_own), strict=True
                )
        return own_entries

    def owners(self, owner_of: OwnerOf) -> set[int | None]:
        """The consumers that have waiting entries."""
        return set(map(owner_of, self.numbers()))


def _count_by(change: int, counter: Counter[int], key: int) -> None:
    counter[key] += change
    if not counter[key]:
        del counter[key]
