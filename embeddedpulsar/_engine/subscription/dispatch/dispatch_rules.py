"""What a subscription type decides: whom it admits, under which rules, and which consumer gets which entries.

Every method is a pure function of its arguments: it is called by replicas in different processes and must
answer the same in all of them.

One assignment in the making: which of the available entries go to which consumer, in order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter, ne

from embeddedpulsar._engine.format.subscription_record import (
    FLAG_RING,
    FLAG_SEVERAL_TOPICS,
    MAX_OWNERS,
    STAY,
    Assign,
    ConsumerRules,
    FreshRun,
    Share,
)
from embeddedpulsar._engine.subscription.state.dispatch_state import Consumer, ConsumerRegistry, DispatchState
from embeddedpulsar._engine.subscription.subscription_files import Facts
from embeddedpulsar.message_id import Position
from embeddedpulsar.policies import KeySharedPolicy
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple
from embeddedpulsar.settings import BrokerSettings

if TYPE_CHECKING:
    from typing import ClassVar, Final

_MANY_RANGES: Final = 8
_GAP: Final = 256
"""Entries that a share may skip: a byte for each, while another share costs its head."""
_NEVER: Final = (-1, -1)
_PLAIN: Final = {(1, 0)}
_messages_and_time: Final = itemgetter(2, 4)
_messages: Final = itemgetter(2)
_key_hash: Final = itemgetter(3)


class FreshEntry(NamedTuple):
    """What dispatch needs to know of an entry behind the read position.

    Attributes:
        ledger_id, entry_id: where it is.
        messages: how many it holds; 0 for a part of a chunked message that is not the last.
        key_hash: 31-bit hash of its sticky key.
        deliver_at: ms since the epoch before which it is not to be delivered; 0 for at once.
    """

    ledger_id: int
    entry_id: int
    messages: int
    key_hash: int
    deliver_at: int


class Claim(NamedTuple):
    """The facts that a claiming consumer adds to what the state knows.

    Attributes:
        consumer_id: of the consumer.
        room: messages it can take.
        fresh: the entries behind the read position, in order and without a gap, as far as it has looked.
        backlog: messages behind the read position, about.
        granted: messages each consumer is ready to be assigned, counted from its attachment on.
        handed: entries each application was given, counted likewise.
        cutoff_ms: entries that are to be delivered later than this are delayed.
        turn: messages that it handles in less time than it takes to wake another consumer; 0 if unknown.
    """

    consumer_id: int
    room: int
    fresh: Sequence[FreshEntry]
    backlog: int
    granted: Facts
    handed: Facts
    cutoff_ms: int
    turn: int = 0


class Assignment:
    """An assignment in the making.

    Role: a stack of decisions for a dispatcher, turned into one command. Pure. Invariants: every fresh entry
    that was `pass`ed is in the command, also if no consumer gets it. What `deal` gave is all there is, or it
    is in the ranges, so that the entries of a consumer stay in order.
    """

    __slots__ = ("_dealt", "_delayed", "_fresh", "_keys_matter", "_passed", "_ranges", "given", "room")

    def __init__(self, fresh: Sequence[FreshEntry], room: int, *, keys_matter: bool) -> None:
        self._fresh = fresh
        self._keys_matter = keys_matter
        self._passed = 0
        self._delayed: list[tuple[int, int, int]] = []
        self._ranges: dict[int, list[tuple[int, int, int]]] = {}
        self._dealt: list[int] = []  # consumers of the first fresh entries
        self.given: dict[int, int] = {}
        """Messages for each consumer so far."""
        self.room = room
        """Messages that all consumers together may still get."""

    def give(self, consumer_id: int, ledger_id: int, entry_id: int, messages: int) -> None:
        """Give an entry to a consumer, behind those it gets already."""
        if self._dealt:
            self._note_dealt()
        ranges = self._ranges.get(consumer_id)
        if ranges is None:
            ranges = self._ranges[consumer_id] = []
            self.given[consumer_id] = 0
        if ranges and ranges[-1][2] + 1 == entry_id and ranges[-1][0] == ledger_id:
            ranges[-1] = (ledger_id, ranges[-1][1], entry_id)
        else:
            ranges.append((ledger_id, entry_id, entry_id))
        self.given[consumer_id] += messages
        self.room -= messages

    def give_range(self, consumer_id: int, ledger_id: int, first: int, last: int, messages: int) -> None:
        """Give several entries to a consumer, likewise."""
        if self._dealt:
            self._note_dealt()
        ranges = self._ranges.setdefault(consumer_id, [])
        if ranges and ranges[-1][0] == ledger_id and ranges[-1][2] + 1 == first:
            ranges[-1] = (ledger_id, ranges[-1][1], last)
        else:
            ranges.append((ledger_id, first, last))
        self.given[consumer_id] = self.given.get(consumer_id, 0) + messages
        self.room -= messages

    def next_fresh(self, cutoff_ms: int) -> FreshEntry | None:
        """The next fresh entry that is due; those before it are passed and delayed. It is not passed yet.

        Entries without messages are parts of chunked ones: they are passed and given to no consumer.
        """
        fresh = self._fresh
        while self._passed < len(fresh):
            entry = fresh[self._passed]
            if not entry.messages:
                self._passed += 1
                continue
            if entry.deliver_at <= cutoff_ms:
                return entry
            self._delayed.append((entry.deliver_at, entry.ledger_id, entry.entry_id))
            self._passed += 1
        return None

    def give_plain(self, consumer_id: int, most: int) -> int:
        """Give fresh entries of one message each that are not delayed, as many as there are next, at most
        ``most``. Returns how many: a step for all, where `give` takes one for each."""
        run = self._fresh[self._passed : self._passed + most]
        if not run or set(map(_messages_and_time, run)) != _PLAIN:
            return 0
        first, count = run[0], len(run)
        if run[-1][:2] != (first.ledger_id, first.entry_id + count - 1):
            return 0
        self._passed += count
        self.give_range(consumer_id, first.ledger_id, first.entry_id, run[-1].entry_id, count)
        return count

    def plain_run(self) -> Sequence[FreshEntry]:
        """All fresh entries, if each is of one message and not delayed, they lie in one ledger without a gap,
        and nothing is given yet; else none."""
        run = self._fresh
        if not run or self._passed or self.given or set(map(_messages_and_time, run)) != _PLAIN:
            return ()
        ledger_id, first = run[0][:2]
        return run if run[-1][:2] == (ledger_id, first + len(run) - 1) else ()

    def deal(self, consumers: list[int]) -> None:
        """Give the first entries of `plain_run`, each to a consumer, in one step for all: where there are
        keys, neighbours go to different ones."""
        self._dealt, self._passed = consumers, len(consumers)
        self.given = dict(Counter(consumers))
        self.room -= len(consumers)

    def _note_dealt(self) -> None:
        """Have what was dealt in the ranges, before something is given behind it."""
        consumers, self._dealt = self._dealt, []
        ledger_id, first = self._fresh[0][:2]
        for consumer_id, run in groupby(consumers):
            end = first + len(list(run))
            self._ranges.setdefault(consumer_id, []).append((ledger_id, first, end - 1))
            first = end

    def due(self, cutoff_ms: int) -> Iterator[FreshEntry]:
        """The fresh entries that are due, one after the other; each is passed."""
        fresh, delayed = self._fresh, self._delayed
        while self._passed < len(fresh):
            entry = fresh[self._passed]
            self._passed += 1
            if not entry[2]:
                continue
            if entry[4] <= cutoff_ms:
                yield entry
            else:
                delayed.append((entry[4], entry[0], entry[1]))

    def pass_one(self) -> None:
        """Move the read position past the entry that `next_fresh` returned."""
        self._passed += 1

    def command(self, claim: Claim) -> Assign | None:
        """The assignment; None if it changes nothing."""
        fresh = self._fresh
        while self._passed < len(fresh) and not fresh[self._passed].messages:
            self._passed += 1  # else they would lie there until a message comes that a consumer wants
        if not self._passed and not self._ranges:
            return None
        passed = fresh[: self._passed]
        dealt = self._dealt_share() if self._dealt else None
        read = Position(passed[-1].ledger_id, passed[-1].entry_id + 1) if passed else STAY
        shares = (dealt,) if dealt else self._shares(passed[0][:2] if passed else _NEVER)
        ranges = tuple(
            (consumer_id, *each)
            for consumer_id in self._ranges
            for each in self._ranges[consumer_id]
            if not shares
        )
        seen = ((consumer_id, claim.handed.get(consumer_id, 0)) for consumer_id in self.given)
        handed = tuple((consumer_id, number) for consumer_id, number in seen if number)
        runs = tuple(_fresh_runs(passed, self._keys_matter))
        return Assign(read, 0, runs, tuple(self._delayed), ranges, handed, shares)

    def _dealt_share(self) -> Share | None:
        """What was dealt, as a share; None if its ranges are shorter."""
        consumers, owners = self._dealt, tuple(self.given)
        if len(owners) > MAX_OWNERS or sum(map(ne, consumers, consumers[1:])) < _MANY_RANGES - 1:
            self._note_dealt()
            return None
        picks = {consumer_id: number for number, consumer_id in enumerate(owners, 1)}
        ledger_id, first = self._fresh[0][:2]
        return Share(ledger_id, first, owners, bytes(map(picks.__getitem__, consumers)))

    def _shares(self, fresh: tuple[int, int]) -> tuple[Share, ...]:
        """What all consumers get, as shares: where keys scatter it, so that its ranges are many. None of them
        has entries both before ``fresh`` and from there on: replicas take these in together with the run."""
        owners = tuple(self._ranges)
        if len(owners) > MAX_OWNERS or sum(map(len, self._ranges.values())) < _MANY_RANGES:
            return ()
        if any(ranges != sorted(ranges) for ranges in self._ranges.values()):
            return ()  # a share gives to each in ascending order
        shares, picks, following = list[Share](), bytearray(), _NEVER
        for (ledger_id, first, last), owner in sorted(
            (run, number) for number, ranges in enumerate(self._ranges.values(), 1) for run in ranges
        ):
            gap = first - following[1]
            if ledger_id != following[0] or gap > _GAP or following <= fresh <= (ledger_id, first):
                if picks:
                    shares.append(Share(following[0], following[1] - len(picks), owners, bytes(picks)))
                picks, gap = bytearray(), 0
            picks += bytes(gap) + bytes((owner,)) * (last - first + 1)
            following = ledger_id, last + 1
        return (*shares, Share(following[0], following[1] - len(picks), owners, bytes(picks)))


def _fresh_runs(passed: Sequence[FreshEntry], keys_matter: bool) -> Iterator[FreshRun]:
    start, count = 0, len(passed)
    if not count:
        return
    # They ascend: where the first and the last of a ledger are as far apart as there are entries, all are in.
    is_whole = passed[-1][:2] == (passed[0].ledger_id, passed[0].entry_id + count - 1)
    for at in range(count if is_whole else 1, count + 1):
        if at < count and passed[at][:2] == (passed[at - 1].ledger_id, passed[at - 1].entry_id + 1):
            continue
        run = passed[start:at]
        messages = array("I", map(_messages, run))
        hashes = array("I", map(_key_hash, run)) if keys_matter else None
        plain = messages.count(1) == len(messages)
        yield FreshRun(
            run[0].ledger_id, run[0].entry_id, run[-1].entry_id, None if plain else messages, hashes
        )
        start = at


def others_are_ready(consumers: ConsumerRegistry, dispatch: DispatchState, claim: Claim) -> bool:
    """Whether a consumer that is not the claimer could be assigned something."""
    return any(
        permits_of(dispatch, claim.granted, other) > 0
        for other in consumers.each()
        if other.consumer_id != claim.consumer_id
    )


def permits_of(dispatch: DispatchState, granted: Facts, consumer: Consumer) -> int:
    """Messages a consumer could be assigned now, without holding more than it may; 0 if it is full, or
    blocked.
    """
    consumer_id = consumer.consumer_id
    assigned = dispatch.assigned_by_consumer.get(consumer_id)
    if assigned is None or assigned.is_blocked or dispatch.is_blocked:
        return 0
    permits = granted.get(consumer_id, 0) - assigned.messages
    max_unacked = consumer.rules.max_unacked
    if max_unacked:
        permits = min(permits, max_unacked - dispatch.holds(consumer_id))
    return max(0, permits)


class Asked(NamedTuple):
    """What a consumer asks for that is to be attached.

    Attributes:
        settings: of the store.
        key_shared: its Key_Shared policy; None for the default one.
        topic: full name of the topic.
        partition: of the topic, -1 for none.
        several_topics: whether the consumer is one of a consumer of several topics.
    """

    settings: BrokerSettings
    key_shared: KeySharedPolicy | None
    topic: str
    partition: int
    several_topics: bool

    @property
    def flags(self) -> int:
        """The flags that hold for every subscription type."""
        return FLAG_SEVERAL_TOPICS if self.several_topics else 0


class Dispatcher(ABC):
    """The rules of one subscription type, without a state."""

    @abstractmethod
    def rules(self, request: Asked) -> ConsumerRules:
        """What is stored with a consumer that attaches: its requirements, and the settings that apply."""

    def refusal(self, consumers: ConsumerRegistry, new_consumer: Consumer, dispatch: DispatchState) -> str:
        """Why ``new_consumer`` may not attach now; empty if it may."""
        return ""

    def key_refusal(self, new_consumer: Consumer, dispatch: DispatchState) -> str:
        """Why the keys cannot be divided with ``new_consumer`` too; empty if they can."""
        return ""


class ActiveDispatcher(Dispatcher):
    """A type of which one consumer at a time gets everything, in order."""

    def rules(self, request: Asked) -> ConsumerRules:
        flags = request.flags | (FLAG_RING if request.settings.activeConsumerFailoverConsistentHashing else 0)
        return ConsumerRules(flags=flags, partition=request.partition)

    @abstractmethod
    def active(self, consumers: ConsumerRegistry) -> int:
        """Id of the consumer that gets everything; 0 without any."""


class ClaimDispatcher(Dispatcher):
    """A type whose consumers claim entries.

    Attributes:
        keys_matter: whether the keys of entries are looked at, and stored while they are pending.
    """

    keys_matter: ClassVar[bool] = False

    def rules(self, request: Asked) -> ConsumerRules:
        settings = request.settings
        return ConsumerRules(
            flags=request.flags,
            max_unacked=settings.maxUnackedMessagesPerConsumer,
            max_unacked_in_all=settings.maxUnackedMessagesPerSubscription,
        )

    def gives_all_to_one(self, dispatch: DispatchState) -> bool:
        """Whether a consumer gets each entry as long as it is the only one, in the order of the log. Then it
        need not claim them: see `_engine.subscription.shared_state`."""
        return False

    @abstractmethod
    def assign(self, consumers: ConsumerRegistry, dispatch: DispatchState, claim: Claim) -> Assign | None:
        """The assignment for a claim; None if it changes nothing."""

    @abstractmethod
    def leaves_more(
        self, consumers: ConsumerRegistry, dispatch: DispatchState, claim: Claim, has_beyond: bool
    ) -> bool:
        """Whether others could claim something of what is left after this claim.

        Args:
            consumers, dispatch: the state afterwards.
            claim: what the claimer said.
            has_beyond: whether something stands behind the read position.
        """
