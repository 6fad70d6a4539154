"""What all consumers of one subscription saw and did, in one order.

Everyone appends to one file, one write call per line, so a line is there or not, and the order of the lines
is an order in which things happened: who writes a line before it lets go of a message writes it before
whoever gets the message next.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from embeddedpulsar._engine.platform.timing import perf_counter

ATTACHED: Final = 1
"""The consumer is attached."""
RECEIVED: Final = 2
"""It was given a message."""
ACKNOWLEDGING: Final = 3
"""It is about to acknowledge."""
ACKNOWLEDGED: Final = 4
"""The acknowledgement is written."""
GIVEN_BACK: Final = 5
"""It is about to acknowledge negatively."""
CLOSING: Final = 6
"""It is about to close."""
CLOSED: Final = 7
"""It closed, and so wrote all its acknowledgements."""
KILLED: Final = 8
"""Written by the supervisor, while the process is stopped and before it is killed."""
STOPPED: Final = 9
"""By the supervisor: stopped for longer than the others put up with."""
RESUMED: Final = 10
"""By the supervisor, before it lets the process go on."""
INTERRUPTED: Final = 11
"""An interrupt struck; it is about to give back what it has not acknowledged."""

_LINE: Final = struct.Struct("<HHIQQiI")


class Line(NamedTuple):
    """One thing that happened, to which process in which of its lives, with which message, and when (ms of
    the boot's clock, the low 32 bits)."""

    kind: int
    member: int
    life: int
    ledger_id: int
    entry_id: int
    batch_index: int
    at_ms: int = 0


class Diary:
    """The pen of one process in one of its lives."""

    def __init__(self, path: str, member: int, life: int) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._member = member
        self._life = life

    def write(self, kind: int, ledger_id: int = 0, entry_id: int = 0, batch_index: int = -1) -> None:
        """Append a line."""
        now_ms = int(perf_counter() * 1000) & 0xFFFFFFFF
        who = self._member, self._life
        os.write(self._fd, _LINE.pack(kind, *who, ledger_id, entry_id, batch_index, now_ms))

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def read_diary(path: str) -> Iterator[Line]:
    """All lines, in order."""
    if not os.path.exists(path):
        return
    with open(path, "rb") as file:
        while lines := file.read(_LINE.size * 4096):
            yield from map(Line._make, _LINE.iter_unpack(lines))
