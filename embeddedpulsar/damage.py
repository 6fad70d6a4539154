"""Damage to the files of a store, as it is reported to the application. Nothing is ever cut away."""

from __future__ import annotations

from collections.abc import Callable

from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Final

# Kinds of damage, also the words in logs and in the output of a check.
HOLE: Final = "hole"
"""Entries between readable ones are damaged, or were never written before a power loss."""
LOST_TAIL: Final = "lost tail"
"""The last entries of a ledger did not survive a power loss, or the file was cut."""
MISSING_SEGMENT: Final = "missing segment"
"""A ledger that others refer to has no file."""
SEGMENT_HEADER: Final = "segment header"
"""Both copies of a segment's header are damaged. It was derived, or else the segment is skipped."""
INDEX: Final = "index"
"""An index did not fit its segment; it was derived again, nothing is lost."""
JOURNAL: Final = "journal"
"""The journal or a snapshot of a subscription, or of the producers of a topic, cannot be read completely."""
CATALOG: Final = "catalog"
"""The list of the topics of the store."""
TOPIC_FILES: Final = "topic files"
"""The directory of a topic, or the documents in it: what topic it is, and its policies."""
CONTROL: Final = "control file"
"""Words in shared memory; they were derived from the files again, nothing is lost."""

REPLACE_POLICIES: Final = (
    "restore the file from a backup; or set the policies at another topic or namespace, and put a copy of "
    "its file in the place of this one. Do not remove it: the defaults would hold at once"
)
"""What to do about damaged policies."""
COMPACT_AGAIN: Final = (
    "restore compaction and compacted.<number> from a backup; or move both out of the store, and compact "
    "again: what the log has is read again, and only what was trimmed from it is lost"
)
"""What to do about a damaged compacted ledger."""
_RESTORE: Final = "restore the file from a backup if the messages matter"
_NOTHING: Final = "nothing needs to be done"

# What was done, and what the user can do, where the report does not say it more precisely.
_CONSEQUENCES: Final = {
    HOLE: ("these entries are skipped", _RESTORE),
    LOST_TAIL: ("the log continues with a new ledger", "send these messages again, or restore the file"),
    MISSING_SEGMENT: ("the ledger is skipped", "put the file back"),
    SEGMENT_HEADER: ("it is derived when the segment is read, or the segment is skipped", _RESTORE),
    INDEX: ("it is derived from the log", _NOTHING),
    JOURNAL: ("commands that cannot be read are skipped", "expect messages that were acknowledged again"),
    CATALOG: ("it was written again from the descriptions of the topics", "check that no topic is missing"),
    TOPIC_FILES: ("they were left as they are", "restore the directory from a backup, or remove it"),
    CONTROL: ("it was derived from the other files", _NOTHING),
}


class _Fields(NamedTuple):
    path: str
    ledger_id: int
    first_entry: int
    last_entry: int
    offset: int
    end_offset: int
    reason: str
    kind: str
    topic: str
    subscription: str
    done: str
    remedy: str


class Damage(_Fields):
    """One place in the files of a store that is not as it was written. Immutable.

    ``Client(on_damage=...)`` and ``Admin(on_damage=...)`` pass it to the application. ``str`` gives one line
    for a log.

    Args:
        path: the file or directory.
        ledger_id: of the ledger; 0 if the file is not part of a log.
        first_entry, last_entry: the entries that are lost with it, both included; ``last_entry`` is -1 where
            unknown, and 0 to -1 means none.
        offset: where in the file it begins.
        end_offset: where reading continues; 0 if it continues in another file.
        reason: what is wrong.
        kind: one of the words ``hole``, ``lost tail``, ``missing segment``, ``segment header``, ``index``,
            ``journal``, ``catalog``, ``topic files`` and ``control file``.
        topic: full name of the topic; ``""`` if it belongs to the store.
        subscription: name of the subscription; ``""`` if none is concerned.
        done: what was done about it; default: what is always done about this kind.
        remedy: what the user can do; likewise.

    Example:
        >>> found = Damage("t/7.log", 7, 3, 3, 4096, 4192, "body checksum mismatch")
        >>> found.kind, found.done
        ('hole', 'these entries are skipped')
        >>> print(found)
        t/7.log: hole, entries 3 to 3 of ledger 7 at offset 4096: body checksum mismatch; these entries ...
    """

    __slots__ = ()

    def __new__(
        cls,
        path: str,
        ledger_id: int = 0,
        first_entry: int = 0,
        last_entry: int = -1,
        offset: int = 0,
        end_offset: int = 0,
        reason: str = "",
        kind: str = HOLE,
        topic: str = "",
        subscription: str = "",
        done: str = "",
        remedy: str = "",
    ) -> Damage:
        # What follows from damage of a kind is mostly the same, so callers state only what differs.
        usual = _CONSEQUENCES[kind]
        place = (path, ledger_id, first_entry, last_entry, offset, end_offset)
        return super().__new__(
            cls, *place, reason, kind, topic, subscription, done or usual[0], remedy or usual[1]
        )

    def __str__(self) -> str:
        place = self.kind
        if self.ledger_id:
            # Entry -1 is "unknown"; a range that ends before it begins is none.
            entries = "unknown entries"
            if self.last_entry >= 0:
                entries = f"entries {self.first_entry} to {self.last_entry}"
            elif self.kind == INDEX or self.first_entry > self.last_entry:
                entries = "no entries"
            place += f", {entries} of ledger {self.ledger_id}"
        # Offset 0 of a file that is no log says nothing.
        if self.ledger_id or self.offset:
            place += f" at offset {self.offset}"
        owner = f"{self.topic}: " if self.topic else ""
        if self.subscription:
            owner += f"subscription {self.subscription!r}: "
        return f"{owner}{self.path}: {place}: {self.reason}; {self.done}; {self.remedy}"


DamageHook = Callable[[Damage], object]
