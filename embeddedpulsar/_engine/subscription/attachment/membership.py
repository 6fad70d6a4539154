"""A consumer's place among the consumers of its subscription: what it asks for, and how it gets it."""

from __future__ import annotations

from collections.abc import Callable

from embeddedpulsar._engine.format import subscription_record as record
from embeddedpulsar._engine.format.control import ConsumerSlotWord
from embeddedpulsar._engine.format.subscription_record import CONSUMER_TYPES, Attach, ConsumerRules
from embeddedpulsar._engine.platform import threads
from embeddedpulsar._engine.platform.peers import Peers
from embeddedpulsar._engine.subscription.dispatch.dispatchers import dispatcher_for
from embeddedpulsar._engine.subscription.liveness_monitor import (
    KeepAlives,
    commit_detach_commands,
    detach_commands_for_dead,
    detach_commands_for_silent,
    processes_of,
)
from embeddedpulsar._engine.subscription.log_queries import ledgers_of, news_for, news_since
from embeddedpulsar._engine.subscription.shared_state import SharedState
from embeddedpulsar._engine.subscription.state.dispatch_state import Consumer, ConsumerRegistry
from embeddedpulsar._engine.subscription.state.entry_states import OWNERS
from embeddedpulsar._engine.subscription.state.replica import SubscriptionState
from embeddedpulsar._engine.subscription.subscription_files import StateOptions, acked_word, slot_of
from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.exceptions import ConsumerAssignError, ConsumerBusy
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple, Protocol, TypeVar
from embeddedpulsar.settings import BrokerSettings

if TYPE_CHECKING:
    from typing import Final

    from embeddedpulsar._engine.log.log import Log

_ALIVE: Final = ConsumerSlotWord.ALIVE_MS
_CONSUMER_ID: Final = ConsumerSlotWord.CONSUMER_ID
R = TypeVar("R")
_FEW: Final = 16
"""Up to so many consumers are all looked at, under the lock, when another one joins."""


class Admission(Protocol):
    """Says how many consumers there may be, of the subscription and of the topic."""

    def most_consumers(self) -> int:
        """How many the subscription may have; 0 for any number."""

    def admit(self, attach: Callable[[], R]) -> R:
        """Attach a consumer with ``attach``, if the topic may have one more; else raise ConsumerBusy."""


class AttachRequest(NamedTuple):
    """A consumer that has not attached yet.

    Attributes:
        name: for statistics, and to order consumers by.
        consumer_type: must be that of the consumers attached already.
        client_uuid: the lease of its process.
        priority: priority level, 0 being the best.
        receiver_queue_size: messages it is ready to take at once.
        rules: its requirements for dispatch.
        max_consumers: how many consumers the subscription may have; 0 for any number.
    """

    name: str
    consumer_type: int
    client_uuid: bytes
    priority: int
    receiver_queue_size: int
    rules: ConsumerRules
    max_consumers: int = 0

    def command(self, consumer_id: int, now_ms: int, rules: ConsumerRules) -> Attach:
        """The command by which it attaches."""
        return Attach(
            consumer_id, self.name, self.consumer_type, self.priority, self.client_uuid, now_ms, rules
        )


def check_admission(state: SubscriptionState, new_consumer: Consumer, max_consumers: int) -> None:
    """Refuse a new consumer that the attached consumers do not admit.

    Args:
        state: after the detachment of dead consumers.
        new_consumer: the consumer that is to be attached.
        max_consumers: how many consumers may be attached; 0 for any number.

    Raises:
        ConsumerBusy: the text names the consumer that prevents it.
        ConsumerAssignError: the keys cannot be divided with this one.
    """
    consumers, kind = state.consumers, state.consumers.consumer_type
    # From what concerns all subscriptions to what concerns one type: the first refusal is the one
    # that is reported.
    if kind not in (None, new_consumer.consumer_type):
        name = next(
            (str(kind_of_type) for kind_of_type in ConsumerType if kind_of_type == kind), f"type {kind}"
        )
        raise ConsumerBusy(f"Subscription is of different type: {names_of(consumers)} attached as {name}")
    if max_consumers and len(consumers) >= max_consumers:
        raise ConsumerBusy(
            f"the subscription has {max_consumers} consumers, as many as maxConsumersPerSubscription allows"
        )
    if not consumers.free_code():
        raise ConsumerBusy(f"the subscription has {OWNERS} consumers, as many as it can have")
    dispatcher = dispatcher_for(new_consumer.consumer_type)
    refusal = dispatcher.refusal(consumers, new_consumer, state.dispatch)
    if refusal:
        raise ConsumerBusy(refusal)
    refusal = dispatcher.key_refusal(new_consumer, state.dispatch)
    if refusal:
        raise ConsumerAssignError(refusal)


def names_of(consumers: ConsumerRegistry, but: int = 0) -> str:
    """The attached consumers, for messages; without the consumer ``but``."""
    return ", ".join(repr(consumer.name) for consumer in consumers.all() if consumer.consumer_id != but)


class Membership:
    """Attaches one consumer, again if need be.

    Role: between an attachment and the settings and surroundings of its subscription. Callers: methods
    that take a state inside a transaction; the rest any thread.

    Attributes:
        uuid: the lease of this process.
        facts: the ledgers there were when it was made.
        monotonic, wall_ms, call_later: the time, and timers.
        joined: the threads of this process that attached consumers, by the ids of these; closing the
            subscription detaches them.
        tried: ids that the consumer has, or would have had if a `join` had not been interrupted. None while
            it is refused: then the id goes to the next consumer, perhaps of another process.
    """

    def __init__(
        self,
        attach_request: AttachRequest,
        uuid: bytes,
        log: Log,
        shared: SharedState,
        options: StateOptions,
        settings: BrokerSettings,
        keep_alives: KeepAlives,
        joined: dict[int, str],
    ) -> None:
        self.uuid: Final = uuid
        self.joined: Final = joined
        self.facts = ledgers_of(log)
        self.tried: Final = set[int]()
        self._thread: Final = threads.current_name()
        self._attach_request: Final = attach_request
        self._log: Final = log
        self._shared: Final = shared
        self._peers: Final = options.peers
        self._clock: Final = options.clock
        self._settings: Final = settings
        self._keep_alives: Final = keep_alives
        self.monotonic: Final = options.clock.monotonic
        self.wall_ms: Final = options.clock.wall_ms
        self.call_later: Final = options.scheduler.call_later

    def join(self, state: SubscriptionState, birth: record.Create | None = None) -> Consumer:
        """Attach the consumer, once those that are dead or silent are detached.

        Args:
            state: of the subscription.
            birth: makes the subscription in the same commit; None for one that exists.

        Raises:
            ConsumerBusy, ConsumerAssignError: the consumers that are attached do not admit this one.
        """
        shared, attach_request = self._shared, self._attach_request
        # Of many consumers the lost ones are looked for only if the new one is refused: each costs a
        # look at a lease, under the lock.
        if 0 < len(state.consumers) <= _FEW:
            self._detach_lost(state)
        # No earlier consumer has this id, not even one of a deleted subscription of the same name.
        epoch = state.epoch if birth is None else birth.epoch
        attach = attach_request.command(epoch + 1, self._clock.wall_ms(), self._rules())
        trial = Consumer(*attach[:-1], 0, state.consumers.free_code(), attach.rules)
        try:
            check_admission(state, trial, attach_request.max_consumers)
        except (ConsumerBusy, ConsumerAssignError):
            # Once more only if consumers went, so this ends.
            if len(state.consumers) <= _FEW or not self._detach_lost(state):
                raise
            return self.join(state, birth)
        # Those that are not attached any more need not be detached when the subscription is closed.
        if self.joined:
            for number in self.joined.keys() - {other.consumer_id for other in state.consumers.all()}:
                self.joined.pop(number, None)
        self.joined[trial.consumer_id] = self._thread  # first: only this process could detach it
        self.tried.add(trial.consumer_id)
        # The code may have been another consumer's. Slot and bits are set before the commit: from
        # then on other processes assign entries to it.
        shared.wakeups.waiting.clear_code(trial.code)
        shared.control.take_slot(
            trial.code, trial.consumer_id, attach_request.receiver_queue_size, self._now_ms()
        )
        # From before the commit, which adds this process to the ring.
        ring = processes_of(state.consumers.all())
        if birth is None:
            shared.commit([attach, *news_for(state, self.facts)])
        else:
            shared.create(birth, attach, *news_since(birth.ledger_id, birth.ledger_id, self.facts))
        if attach.client_uuid not in ring:
            shared.wakeups.processes(ring[-1:])  # it has another neighbour to watch
        consumer = shared.state.consumers.get(attach.consumer_id)
        assert consumer is not None
        return consumer

    def _rules(self) -> ConsumerRules:
        """The rules with the limits of now, under the lock: a change from here on finds the consumer."""
        rules, settings = self._attach_request.rules, self._settings
        # Consumers of Exclusive and Failover claim nothing, and have no limits.
        if not CONSUMER_TYPES[self._attach_request.consumer_type]:
            return rules
        return rules._replace(
            max_unacked=settings.maxUnackedMessagesPerConsumer,
            max_unacked_in_all=settings.maxUnackedMessagesPerSubscription,
        )

    def _detach_lost(self, state: SubscriptionState) -> bool:
        before = len(state.consumers)
        detach_lost(state, self._shared, self._log, self._peers, self._keep_alives)
        return len(state.consumers) < before

    def rejoin(self, state: SubscriptionState, consumer_id: int) -> Consumer:
        """Attach the consumer again: its process was taken for dead."""
        self.facts = ledgers_of(self._log)
        return self.join(state)

    def cutoff_ms(self) -> int:
        """Entries to be delivered later than this are delayed."""
        settings = self._settings
        # Later than any time: nothing is delayed.
        if not settings.delayedDeliveryEnabled or self._log.is_volatile:
            return (1 << 64) - 1
        now = self._clock.wall_ms()
        if settings.isDelayedDeliveryDeliverAtTimeStrict:
            return now
        # As in Pulsar, what is due within a tick need not wait for it.
        return now + settings.delayedDeliveryTickTimeMillis

    def show_alive(self, code: int, consumer_id: int) -> None:
        """Show that the process of this consumer runs; nothing if it was taken for dead.

        Other processes compare the word with its previous value, never with their clock."""
        words, base = self._shared.control.words, slot_of(code)
        # The slot may be another consumer's by now. No lock guards this: at worst that one seems to
        # live for an interval longer.
        if words[base + _CONSUMER_ID] == consumer_id:
            words[base + _ALIVE] = self._now_ms()

    def show_acknowledged(self, code: int, consumer_id: int) -> None:
        """`show_alive`, and show that this consumer acknowledges now."""
        words, base = self._shared.control.words, slot_of(code)
        if words[base + _CONSUMER_ID] == consumer_id:
            words[base + _ALIVE] = int(self.monotonic() * 1000)
            if not self._log.is_volatile:
                words[acked_word(code)] = self.wall_ms()

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)


def detach_lost(
    state: SubscriptionState, shared: SharedState, log: Log, peers: Peers, keep_alives: KeepAlives | None
) -> None:
    """Journal the detachment of consumers whose process is gone, or has been stopped for too long by
    ``keep_alives``; None leaves the latter for another time."""
    lost = detach_commands_for_dead(state, shared.control, peers.is_alive)
    if keep_alives is not None:
        # A consumer whose process is gone is reported as that, and not as silent too.
        silent = keep_alives.find_silent(state, shared.control) - {command.consumer_id for command in lost}
        lost += detach_commands_for_silent(state, shared.control, silent)
    for command in lost:
        why = "process is gone" if command.reason == record.DETACH_DEAD else "process is silent"
        consumer = state.consumers.get(command.consumer_id)
        shared.log_later(
            f"consumer {consumer.name if consumer else command.consumer_id} is detached: its {why}"
        )
    commit_detach_commands(state, shared, log, lost)
