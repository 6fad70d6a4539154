"""The options of a streaming read: those of a batch read without an end, and limits of its batches."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.spark.options import ReadOptions, known_options, number, read_options, size, switch

NO_LIMIT: Final = sys.maxsize
_ENDS: Final = {"endingoffsets": "endingOffsets", "endingtime": "endingTime"}


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What is to be read, and how much of it at once.

    Attributes:
        read: topics, start, columns, tasks and keys.
        max_messages: most messages of a batch, of all topics together.
        max_bytes: most bytes of log of a batch.
        subscription: the subscription that follows the query; empty for none.
        waits: whether topics may be named that do not exist yet.
    """

    read: ReadOptions
    max_messages: int
    max_bytes: int
    subscription: str
    waits: bool


def parse_stream_options(given: Mapping[str, str]) -> StreamOptions:
    """Check the options of a streaming read; names are not case-sensitive.

    Raises:
        InvalidConfiguration: as `parse_options`; also an end, which a stream does not have.
        NotAllowedError: it is a store in memory that no process which started this one has open.

    Example:
        >>> parse_stream_options({"path": "/data", "topic": "t", "maxBytesPerTrigger": "8m"}).max_bytes
        8388608
    """
    options = known_options(given)
    for name in _ENDS.keys() & options.keys():
        raise InvalidConfiguration(
            f"option {_ENDS[name]} is for batch reads, and this is a streaming read; leave it out. "
            "trigger(availableNow=True) ends where the topics end at the start of the query"
        )
    messages = options.get("maxoffsetspertrigger")
    most = NO_LIMIT if messages is None else number("maxOffsetsPerTrigger", messages)
    if most == 0:
        raise InvalidConfiguration("option maxOffsetsPerTrigger: 0 would read nothing; give 1 or more")
    most_bytes = options.get("maxbytespertrigger")
    subscription = options.get("subscription")
    if subscription == "":
        raise InvalidConfiguration("option subscription: a subscription has a name")
    read = read_options(options, None)
    return StreamOptions(
        read,
        most,
        NO_LIMIT if most_bytes is None else size("maxBytesPerTrigger", most_bytes),
        subscription or "",
        read.pattern is not None
        or switch("waitingForNonExistedTopic", options.get("waitingfornonexistedtopic", "false")),
    )
