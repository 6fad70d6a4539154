"""Offsets of a streaming read: a place in each log, as they stand in Spark's checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.spark.options import parse_place


class LogOffset(NamedTuple):
    """The first message of a log that was not read. Of one incarnation, they are in the order of the log.

    Attributes:
        incarnation: which life of the topic; one that was deleted and made again has another.
        ledger, entry: the entry; ledger 0 is before everything that is ever published.
        done: messages of the entry that were read.
    """

    incarnation: int
    ledger: int = 0
    entry: int = 0
    done: int = 0

    @property
    def place(self) -> MessageId:
        """As a limit of a plan."""
        return MessageId(-1, self.ledger, self.entry, self.done or -1)

    @property
    def text(self) -> str:
        """As in option startingOffsets."""
        return f"{self.ledger}:{self.entry}:{self.done}" if self.done else f"{self.ledger}:{self.entry}"


Offsets = dict[str, LogOffset]
"""By the full name of the topic or partition."""


def encode_offsets(offsets: Offsets) -> dict[str, Any]:
    """Offsets as what Spark writes as JSON. In the order of names, because Spark compares the text.

    Example:
        >>> encode_offsets({"persistent://public/default/t": LogOffset(3, 7, 5)})
        {'persistent://public/default/t': {'incarnation': 3, 'position': '7:5'}}
    """
    return {
        name: {"incarnation": offsets[name].incarnation, "position": offsets[name].text}
        for name in sorted(offsets)
    }


def decode_offsets(found: Mapping[str, Any]) -> Offsets:
    """The opposite of `encode_offsets`.

    Raises:
        InvalidConfiguration: another source or release wrote the checkpoint.
    """
    offsets: Offsets = {}
    for name, one in found.items():
        if not isinstance(one, Mapping) or not isinstance(one.get("incarnation"), int):
            raise InvalidConfiguration(f"the checkpoint's offset {one!r} of {name} is of another source")
        place = parse_place(f"the checkpoint's offset of {name}", one.get("position"))
        at = place.ledger_id(), place.entry_id(), max(0, place.batch_index())
        offsets[name] = LogOffset(one["incarnation"], *at)
    return offsets
