"""Which consumers of a subscription sleep, and which to wake: as few as can deal with what happened.

Which of several consumers sees to what is appended while messages come fast.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from embeddedpulsar._engine.format.control import CONSUMER_SLOT_SIZE, ConsumerSlotWord, SubscriptionWord
from embeddedpulsar._engine.format.subscription_record import FLAG_SEVERAL_TOPICS
from embeddedpulsar._engine.platform.peers import Peers
from embeddedpulsar._engine.subscription.dispatch.dispatch_rules import permits_of
from embeddedpulsar._engine.subscription.dispatch.dispatchers import ACTIVE_DISPATCHERS
from embeddedpulsar._engine.subscription.state.dispatch_state import Consumer
from embeddedpulsar._engine.subscription.state.entry_states import FIRST_OWNER
from embeddedpulsar._engine.subscription.state.replica import (
    CLAIMABLE,
    MEMBERS,
    REWOUND,
    UNBLOCKED,
    SubscriptionState,
)
from embeddedpulsar._engine.subscription.subscription_files import (
    BITMAP_WORDS,
    Granted,
    SubscriptionControl,
    slot_of,
)
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Final

    from embeddedpulsar._engine.subscription.dispatch.look_ahead import LogEnd

STRANGER: Final = FIRST_OWNER + 255
"""Stands for consumers that are not attached any more, and wait until they may join again."""
_BITS: Final = 64
_WAITERS: Final = SubscriptionWord.WAITERS
_ASSIGNED: Final = SubscriptionWord.ASSIGNED
_DUE_WATCH: Final = SubscriptionWord.DUE_WATCH
_NEXT_DUE_MS: Final = SubscriptionWord.NEXT_DUE_MS
_CODE_BITS: Final = 10
_CODE_MASK: Final = (1 << _CODE_BITS) - 1


class WaitingConsumers:
    """The bits in the ctl of one subscription, by the codes of its consumers.

    Role: a consumer sets its bit under the subscription's lock after it has looked once more; a process that
    has entries for it clears the bit under the lock and rings its process afterwards. Callers: of methods
    that change something, the holder of the lock; of those that ask, any thread.
    """

    __slots__ = ("_words",)

    def __init__(self, control: SubscriptionControl) -> None:
        self._words: Final = control.words

    def code_of(self, code: int, consumer_id: int) -> int:
        """The code of a consumer if it is attached, else `STRANGER`."""
        is_attached = self._words[slot_of(code) + ConsumerSlotWord.CONSUMER_ID] == consumer_id
        return code if is_attached else STRANGER

    def is_asleep(self, code: int, consumer_id: int) -> bool:
        """Whether that consumer is attached and sleeps, and no process has woken it."""
        words, number = self._words, code - FIRST_OWNER
        return bool(
            words[_WAITERS + number // _BITS] >> number % _BITS & 1  # first: seldom set if messages come fast
            and words[slot_of(code) + ConsumerSlotWord.CONSUMER_ID] == consumer_id  # as `code_of`
        )

    def is_announced(self, code: int) -> bool:
        """Whether the consumer sleeps and no process has woken it."""
        return self._has(_WAITERS, code)

    @property
    def has_any(self) -> bool:
        """Whether any consumer sleeps."""
        return any(self._words[_WAITERS : _WAITERS + BITMAP_WORDS])

    def announce(self, code: int) -> None:
        """The consumer goes to sleep."""
        self._set(_WAITERS, code)

    def withdraw(self, code: int) -> bool:
        """Note that the consumer is to be woken or does not sleep. True if it slept."""
        return self._clear(_WAITERS, code)

    def rank(self, code: int) -> int:
        """How many sleep that have a lower code. By it they take turns looking whether something was lost."""
        number, bit = divmod(code - FIRST_OWNER, _BITS)
        # The words before its own, and in that the bits below its own.
        below = sum(self._words[_WAITERS + word].bit_count() for word in range(number))
        return int(below + (self._words[_WAITERS + number] & (1 << bit) - 1).bit_count())

    def note_assigned(self, code: int) -> None:
        """Note that another process assigns entries to the consumer."""
        self._set(_ASSIGNED, code)

    def has_assigned(self, code: int) -> bool:
        """Whether others assigned entries to the consumer since it looked."""
        return self._has(_ASSIGNED, code)

    def clear_assigned(self, code: int) -> None:
        """Note that the consumer looked."""
        self._clear(_ASSIGNED, code)

    def clear_code(self, code: int) -> None:
        """Clear the bits of a code that another consumer gets."""
        self._clear(_WAITERS, code)
        self._clear(_ASSIGNED, code)
        # The consumer that had the code before wakes no more.
        if self.watcher == code:
            self.watch(0)

    # -- delayed entries ---------------------------------------------------------------------------

    @property
    def watcher(self) -> int:
        """Code of the consumer that wakes when the next delayed entry is due, or sees to it that another
        does; 0 for none."""
        return int(self._words[_DUE_WATCH] & _CODE_MASK)

    def is_watched(self, code: int) -> bool:
        """Whether another consumer waits for the next delayed entry, so that ``code`` need not."""
        due_ms, word = self._words[_NEXT_DUE_MS], self._words[_DUE_WATCH]
        # Its own watch must be for this very time. Another's suffices if it ends no later.
        if code and word & _CODE_MASK == code:
            return bool(due_ms and word >> _CODE_BITS == due_ms)
        return bool(not due_ms or (word and word >> _CODE_BITS <= due_ms))

    def watch(self, code: int) -> None:
        """The consumer ``code`` goes to sleep until the next entry is due; 0 for no consumer."""
        due_ms = self._words[_NEXT_DUE_MS]
        # Time and code stand in one word, because others read it without the lock.
        self._words[_DUE_WATCH] = due_ms << _CODE_BITS | code if due_ms and code else 0

    # -- bits --------------------------------------------------------------------------------------

    def _has(self, bitmap: int, code: int) -> bool:
        number, bit = divmod(code - FIRST_OWNER, _BITS)
        return bool(self._words[bitmap + number] >> bit & 1)

    def _set(self, bitmap: int, code: int) -> None:
        number, bit = divmod(code - FIRST_OWNER, _BITS)
        # Read, changed and stored, which is not one step: only under the lock of the subscription.
        self._words[bitmap + number] |= 1 << bit

    def _clear(self, bitmap: int, code: int) -> bool:
        if not self._has(bitmap, code):
            return False
        number, bit = divmod(code - FIRST_OWNER, _BITS)
        self._words[bitmap + number] &= ~(1 << bit)
        return True


assert BITMAP_WORDS * _BITS > STRANGER - FIRST_OWNER


def is_apart(consumer: Consumer) -> bool:
    """Whether a consumer is woken beside the one that is chosen: see `SharedSleep`."""
    return bool(consumer.rules.flags & FLAG_SEVERAL_TOPICS)


class Wakeups:
    """Chooses consumers that sleep, and rings their processes.

    Role: entries for any consumer wake one that is ready for them; it passes the rest on when
    it claims. Entries for a certain consumer wake that one. Of Exclusive and Failover the active consumer is
    woken. Callers: the holder of the subscription's lock, on the state as it is afterwards; `ring`
    without it.

    Attributes:
        waiting: the consumers that sleep.
    """

    __slots__ = ("_control", "_is_for_all", "_peers", "_to_ring", "waiting")

    def __init__(self, control: SubscriptionControl, peers: Peers) -> None:
        self.waiting: Final = WaitingConsumers(control)
        self._control: Final = control
        self._peers: Final = peers
        self._to_ring: deque[bytes] = deque()
        self._is_for_all = False

    def after(self, state: SubscriptionState, effects: int) -> None:
        """Wake what commands with these effects concern."""
        if effects & MEMBERS and self.waiting.withdraw(STRANGER):
            self.everybody()  # a consumer that was taken for dead may attach now; its process is unknown
        if state.dispatch.assigned_by_consumer:
            if effects & UNBLOCKED:
                for consumer in state.consumers.each():
                    self._wake(consumer)  # those did not wait for entries that are appended
            elif effects & CLAIMABLE:
                self.claimers(state)
            self._watch(state, effects)
        # Of Exclusive and Failover only the active consumer has something to do.
        elif effects & (REWOUND | MEMBERS | CLAIMABLE):
            kind = state.consumers.consumer_type
            if kind is not None and kind in ACTIVE_DISPATCHERS:
                active = state.consumers.get(ACTIVE_DISPATCHERS[kind].active(state.consumers))
                if active is not None:
                    self._wake(active)

    def claimers(self, state: SubscriptionState, but: int = 0) -> None:
        """Wake a consumer for entries that can be claimed. With keys, wake those of waiting entries too."""
        dispatch, keys = state.dispatch, state.dispatch.pending.waiting_keys
        # Waiting entries of a key can be claimed by its consumer alone.
        if dispatch.selector is not None and len(keys):
            for consumer_id in keys.owners(dispatch.owner_of):
                if consumer_id is not None and consumer_id != but:
                    self.consumers(state, (consumer_id,))
        self.one(state, but)

    def one(self, state: SubscriptionState, but: int = 0) -> bool:
        """Wake one that could claim, of the best priority level, and those that stand apart; False if none of
        those sleeps.
        """
        if not self.waiting.has_any:
            return False
        best: Consumer | None = None
        granted = Granted(self._control, state.consumers)
        for consumer in state.consumers.each():
            if consumer.consumer_id == but or not self.waiting.is_announced(consumer.code):
                continue
            # The lower the number, the better the level, and 0 is the best.
            if best is not None and consumer.priority_level >= best.priority_level:
                continue
            # Asked last, because it costs most: a consumer without room cannot claim.
            if permits_of(state.dispatch, granted, consumer) > 0:
                if is_apart(consumer):
                    self._wake(consumer)
                    continue
                best = consumer
                if not consumer.priority_level:
                    break
        return best is not None and self._wake(best)

    def assigned(self, state: SubscriptionState, ids: Iterable[int]) -> None:
        """Wake these consumers, to which another assigns entries: before the commit."""
        for consumer_id in ids:
            consumer = state.consumers.get(consumer_id)
            if consumer is not None:
                self.waiting.note_assigned(consumer.code)

    def consumers(self, state: SubscriptionState, ids: Iterable[int]) -> None:
        """Wake these, as far as they sleep."""
        for consumer_id in ids:
            consumer = state.consumers.get(consumer_id)
            if consumer is not None:
                self._wake(consumer)

    def _watch(self, state: SubscriptionState, effects: int) -> None:
        watcher = self.waiting.watcher
        if (
            watcher
            and effects & MEMBERS
            and all(consumer.code != watcher for consumer in state.consumers.each())
        ):
            self.waiting.watch(0)
        if not self.waiting.is_watched(0):
            self.hand_watch_on(state)

    def processes(self, uuids: Iterable[bytes]) -> None:
        """Wake these processes, whatever their consumers do."""
        self._to_ring.extend(uuids)

    def hand_watch_on(self, state: SubscriptionState, but: int = 0) -> None:
        """Wake a sleeper to wait for the next delayed entry, if none does: it does when it sleeps again."""
        if self.waiting.has_any:
            for consumer in state.consumers.each():
                if consumer.consumer_id != but and self._wake(consumer) and not is_apart(consumer):
                    return

    def everybody(self) -> None:
        """Wake all processes of the store: the subscription is gone."""
        self._is_for_all = True

    def _wake(self, consumer: Consumer) -> bool:
        # The bit goes under the lock, the ring comes after it: if a kill prevents that, the sleeper
        # wakes by its back stop.
        if not self.waiting.withdraw(consumer.code):
            return False
        self._to_ring.append(consumer.client_uuid)
        return True

    @property
    def has_any(self) -> bool:
        """Whether there is a process to ring."""
        return bool(self._to_ring) or self._is_for_all

    def ring(self) -> None:
        """Ring those that were woken. A dead process is detached from the subscription soon, and that
        wakes another."""
        # Cleared before it rings: what is noted meanwhile is rung by the next call.
        for_all, self._is_for_all = self._is_for_all, False
        if for_all:
            self._peers.ring_all()
        rung = b""
        while True:
            try:
                uuid = self._to_ring.popleft()
            except IndexError:
                return
            if uuid != rung:  # a process has several reasons in a row
                self._peers.ring(uuid)
                rung = uuid


STAND_BY_S: Final = 8e-3
"""How long a consumer sleeps while another one sees to what is appended."""
WINDOW_S: Final = 3e-3
"""Time over which the rate is measured, at least."""
LED_PER_MS: Final = 2.0
"""Entries in a millisecond from which on one consumer sees to what is appended."""
_LATE_MS: Final = 4.0
"""A consumer is late if more entries lie there than are claimed in so many ms."""
_READ_LEDGER: Final = SubscriptionWord.READ_LEDGER
_READ_ENTRY: Final = SubscriptionWord.READ_ENTRY
_FIRST_GRANTED: Final = slot_of(FIRST_OWNER) + ConsumerSlotWord.GRANTED
_SLOT_WORDS: Final = CONSUMER_SLOT_SIZE // 8


class Traffic:
    """How fast the entries of a subscription are claimed, and by whom.

    Role: an append rings one consumer that sleeps. Where messages come fast, the next append rings the next
    one before the first has looked, until all are awake, each for a few entries. So there is a *leader* then:
    of the consumers that claim, the first by its code. It alone is rung by appends; it wakes others if it
    leaves entries behind, or deals some to them. The others stand by: they sleep for some milliseconds at a
    time, and claim when the leader is late or claims no more. Invariants: no consumer depends on a leader
    that is slow, stopped or dead for longer than that; all of it is a hint, of words that others publish
    without a lock, and decides who wakes when, never who gets what. Callers: the threads of one consumer.
    """

    __slots__ = (
        "_claimed",
        "_control",
        "_end",
        "_is_led",
        "_monotonic",
        "_per_ms",
        "_read",
        "_since",
    )

    def __init__(self, control: SubscriptionControl, end: LogEnd, monotonic: Callable[[], float]) -> None:
        self._control: Final = control
        self._end: Final = end
        self._monotonic: Final = monotonic
        self._since = float("-inf")
        self._read = (0, 0)
        self._claimed = b""
        self._per_ms = 0.0
        self._is_led = False

    def is_led(self, code: int) -> bool:
        """Whether messages come fast, and a consumer with a lower code than ``code`` claims them in time."""
        self._measure(code)
        return self._is_led and self._per_ms >= LED_PER_MS and not self._is_late()

    def _measure(self, code: int) -> None:
        """Compare the words with what they were some milliseconds ago; sooner than that, what was measured
        then holds."""
        now = self._monotonic()
        elapsed = now - self._since
        if elapsed < WINDOW_S:
            return
        words = self._control.words
        read = words[_READ_LEDGER], words[_READ_ENTRY]
        # The word of each consumer with a lower code: it stores there, with every claim, how much it can take
        # beyond all it ever was assigned.
        claimed = words[_FIRST_GRANTED : slot_of(code) : _SLOT_WORDS].tobytes()
        entries = read[1] - self._read[1] if read[0] == self._read[0] else 0
        self._per_ms = entries / (elapsed * 1000)
        self._is_led = claimed != self._claimed
        self._since, self._read, self._claimed = now, read, claimed

    def _is_late(self) -> bool:
        """Whether more entries lie there than are claimed in some milliseconds."""
        last, read = self._end.last_position(), self._control.read_position
        if last is None or last < read:
            return False
        return last.ledger_id != read.ledger_id or last.entry_id - read.entry_id >= self._per_ms * _LATE_MS
