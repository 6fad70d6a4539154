"""Which sequence ids are stored under which producer name: a pure state machine over the topic's journal."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, NamedTuple

from embeddedpulsar.format.topic_record import (
    ForgetProducer,
    RememberProducer,
    SetDeduplication,
)


class Remembered(NamedTuple):
    """What is known of one name.

    Attributes:
        highest: sequence id stored under it, as far as accounted for; -1 for none.
        word: a tail word: what of this name lies before it is accounted for.
        final: whether nothing of this name lies behind it, unless a producer took the name since.
        since_ms: when this was last heard of, in ms since the epoch.
    """

    highest: int
    word: int
    final: bool
    since_ms: int


class SequenceTable:
    """The memory of deduplication.

    Role: replayed by `ProducerTable`, which it is a part of. It knows enough to find the rest in the log:
    a producer that takes a name reads what lies behind `Remembered.word`.
    Invariants: while it is on, every name in use is in `names`, since before its first append; what is
    known of a name never shrinks, but is forgotten as a whole. `base` covers all names: one that is not in
    the table has no entry before it, or was forgotten. After a reboot it counts as off, until a process has
    read what the log holds behind `base`: a power loss may have taken the end of the journal.
    """

    def __init__(self) -> None:
        self.was_on = False
        self.boot = b""
        self.base = 0
        self.names: dict[str, Remembered] = {}

    def switch(self, command: SetDeduplication, time_ms: int) -> None:
        """Follow the command that switches deduplication."""
        self.was_on, self.boot = command.on, command.boot
        self.base = max(self.base, command.base)

    def forget(self, command: ForgetProducer, time_ms: int) -> None:
        """Follow the command that forgets a name."""
        self.names.pop(command.name, None)

    def remember(self, command: RememberProducer, time_ms: int) -> None:
        """Follow the command that says what is stored under a name."""
        highest, word = command.highest, command.word
        known = self.names.get(command.name)
        if known is not None:
            highest, word = max(highest, known.highest), max(word, known.word)
        self.names[command.name] = Remembered(highest, word, command.final, time_ms)

    def is_on(self, boot: bytes) -> bool:
        """Whether duplicates are dropped, and the names are complete."""
        return self.was_on and self.boot == boot

    def note_left(self, name: str, time_ms: int) -> None:
        """Note when the producer left that had the name."""
        known = self.names.get(name)
        if known is not None:
            self.names[name] = known._replace(since_ms=time_ms)

    def surplus(self, in_use: Container[str], most: int, before_ms: int) -> list[ForgetProducer]:
        """The commands that forget names unused since ``before_ms``, and the oldest beyond ``most``.

        Args:
            in_use: names that are not forgotten.
            most: how many names may be remembered.
            before_ms: ms since the epoch.
        """
        idle = [(known.since_ms, name) for name, known in self.names.items() if name not in in_use]
        forgotten = [name for since_ms, name in idle if since_ms < before_ms]
        too_many = len(self.names) - len(forgotten) - most
        if too_many > 0:
            left = sorted((since_ms, name) for since_ms, name in idle if since_ms >= before_ms)
            forgotten += [name for _, name in left[:too_many]]
        return [ForgetProducer(name) for name in forgotten]

    # -- snapshots ---------------------------------------------------------------------------------

    def to_fields(self) -> dict[str, Any]:
        """The state as part of a document."""
        return {
            "on": self.was_on,
            "boot": self.boot,
            "base": self.base,
            "names": [[name, *known] for name, known in self.names.items()],
        }

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> SequenceTable:
        """The state of a part of a document.

        Raises:
            KeyError, TypeError, ValueError: it is malformed.
        """
        table = cls()
        table.was_on, table.base = bool(fields["on"]), int(fields["base"])
        table.boot = bytes(fields["boot"])
        for name, highest, word, final, since_ms in fields["names"]:
            table.names[str(name)] = Remembered(int(highest), int(word), bool(final), int(since_ms))
        return table
