"""What a subscription type decides: whom it admits, under which rules, and which consumer gets which entries.

Every method is a pure function of its arguments: it is called by replicas in different processes and must
answer the same in all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from embeddedpulsar._engine.format.subscription_record import (
    FLAG_RING,
    FLAG_SEVERAL_TOPICS,
    Assign,
    ConsumerRules,
)
from embeddedpulsar.policies import KeySharedPolicy
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.settings import BrokerSettings
from embeddedpulsar.subscription.dispatch.assignment import Claim
from embeddedpulsar.subscription.state.consumer_registry import Consumer, ConsumerRegistry
from embeddedpulsar.subscription.state.dispatch_state import DispatchState


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
    def rules(self, asked: Asked) -> ConsumerRules:
        """What is stored with a consumer that attaches: its requirements, and the settings that apply."""

    def refusal(self, consumers: ConsumerRegistry, new_consumer: Consumer, dispatch: DispatchState) -> str:
        """Why ``new_consumer`` may not attach now; empty if it may."""
        return ""

    def key_refusal(self, new_consumer: Consumer, dispatch: DispatchState) -> str:
        """Why the keys cannot be divided with ``new_consumer`` too; empty if they can."""
        return ""


class ActiveDispatcher(Dispatcher):
    """A type of which one consumer at a time gets everything, in order."""

    def rules(self, asked: Asked) -> ConsumerRules:
        flags = asked.flags | (FLAG_RING if asked.settings.activeConsumerFailoverConsistentHashing else 0)
        return ConsumerRules(flags=flags, partition=asked.partition)

    @abstractmethod
    def active(self, consumers: ConsumerRegistry) -> int:
        """Id of the consumer that gets everything; 0 without any."""


class ClaimDispatcher(Dispatcher):
    """A type whose consumers claim entries.

    Attributes:
        keys_matter: whether the keys of entries are looked at, and stored while they are pending.
    """

    keys_matter: ClassVar[bool] = False

    def rules(self, asked: Asked) -> ConsumerRules:
        settings = asked.settings
        return ConsumerRules(
            flags=asked.flags,
            max_unacked=settings.maxUnackedMessagesPerConsumer,
            max_unacked_in_all=settings.maxUnackedMessagesPerSubscription,
        )

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
