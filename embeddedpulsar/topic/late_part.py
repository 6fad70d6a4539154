"""A part of a topic that is imported and made when the topic has to do with it: most have not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from embeddedpulsar._engine.platform.clock import Clock

if TYPE_CHECKING:
    from embeddedpulsar._engine.log.log import Log
    from embeddedpulsar.topic.policies.held_policies import HeldPolicies
    from embeddedpulsar.topic.topic_view import TopicView


class HasParts(Protocol):
    """What such a part needs of a `Topic`."""

    @property
    def directory(self) -> str: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def ledger(self) -> Log: ...
    @property
    def policies(self) -> HeldPolicies: ...
    @property
    def view(self) -> TopicView: ...


class PartLike(Protocol):
    """A part that works in the background; see `ExclusiveWork`."""

    def start_if_due(self) -> None: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...


Part = TypeVar("Part", bound=PartLike)


class LatePart(ABC, Generic[Part]):
    """Role: answers for the part as long as it is not made, by the names in the directory of the topic. A
    `Check` of the upkeep. Callers: any thread.

    Args:
        topic: that it is a part of.
        clock: of the store.
        every_s: the time between two looks whether something is due.
    """

    follows_traffic = False
    undone = ""

    def __init__(self, topic: HasParts, clock: Clock, every_s: float) -> None:
        self.every_s = every_s
        self._topic: Final = topic
        self._clock: Final = clock
        self._made: Final[dict[None, Part]] = {}  # one at most; of threads that make it at once, one wins

    @abstractmethod
    def _make(self) -> Part:
        """Import and make it."""

    @abstractmethod
    def is_wanted(self) -> bool:
        """Whether something may become due by itself."""

    def get(self) -> Part:
        """The part. Errors are those of `_make`."""
        return self._made[None] if self._made else self._made.setdefault(None, self._make())

    def look(self, done: list[str]) -> bool:
        """Begin what is due. Always False: it goes on in the background, which logs it."""
        self.get().start_if_due()
        return False

    def close(self) -> None:
        """See `ExclusiveWork.close`."""
        for made in self._made.values():
            made.close()

    def abandon(self) -> None:
        """See `ExclusiveWork.abandon`."""
        for made in self._made.values():
            made.abandon()
