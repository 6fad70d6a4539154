"""One word of the slots of consumers, looked up when it is asked for: there may be hundreds of consumers."""

from __future__ import annotations

from typing import Final, Protocol

from embeddedpulsar.format.control import ConsumerSlotWord
from embeddedpulsar.subscription.control import SubscriptionControl
from embeddedpulsar.subscription.state.consumer_registry import ConsumerRegistry


class Facts(Protocol):
    """A number for each consumer; a dict has this method, too."""

    def get(self, consumer_id: int, default: int, /) -> int: ...


class Granted:
    """Messages each attached consumer is ready to be assigned, counted from its attachment on."""

    __slots__ = ("_consumers", "_control")

    def __init__(self, control: SubscriptionControl, consumers: ConsumerRegistry) -> None:
        self._control: Final = control
        self._consumers: Final = consumers

    def get(self, consumer_id: int, default: int = 0, /) -> int:
        """The word of one consumer; ``default`` if it is not attached."""
        consumer = self._consumers.get(consumer_id)
        if consumer is None:
            return default
        return self._control.slot_word(consumer.code, consumer_id, ConsumerSlotWord.GRANTED)


class Handed(Granted):
    """Entries each application was given, counted likewise."""

    __slots__ = ()

    def get(self, consumer_id: int, default: int = 0, /) -> int:
        """The word of one consumer; ``default`` if it is not attached."""
        consumer = self._consumers.get(consumer_id)
        return default if consumer is None else self._control.handed(consumer.code, consumer_id)
