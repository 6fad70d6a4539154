"""What a check of a store found, what it means, and what can be done about it."""

from __future__ import annotations

import os
from typing import Any, Final

from embeddedpulsar import damage
from embeddedpulsar._engine.log import log_check
from embeddedpulsar._engine.log.log_check import CheckReport, Problem
from embeddedpulsar.records import NamedTuple

META: Final = "meta"
"""A document that names a store or topic is damaged, missing, or says something else than its place."""
LEFTOVER: Final = "leftover"
"""A file of an operation that died. Harmless: the next process that needs the name removes it."""
IN_USE: Final = "in use"
"""A lock is held or a process lives, although the store should be closed."""
ID_REUSE: Final = "ledger id"
"""The store could give out a ledger id that a topic has already."""
POLICIES: Final = "policies"
"""A document with the policies of a topic or namespace is damaged."""
SCHEMAS: Final = "schemas"
DOCUMENT: Final = "document"
"""The document with the schemas of a topic is damaged."""
COMPACTED: Final = "compacted"
"""The compacted ledger of a topic, or the document that names it, is damaged or missing."""
SETTINGS: Final = "settings"
"""``broker.conf`` cannot be read, or asks for what there is not; the store cannot be opened."""
UNKNOWN_SETTING: Final = "unknown setting"
"""A name in ``broker.conf`` that is no setting here."""

UNVERIFIED: Final = frozenset((log_check.UNREADABLE, log_check.NEWER))
"""Kinds of problems that say nothing of what is in a file: they are no damage, and nothing is repaired."""
NOTES: Final = frozenset((LEFTOVER, IN_USE, log_check.STRAY, UNKNOWN_SETTING))
"""Kinds of problems that harm nothing: what they name goes away by itself, or should not be here."""

REPAIR: Final = "repair the store"
_RESTORE: Final = "restore the files of the ledger from a backup if the messages matter"
_NONE: Final = "nothing"

MEANINGS: Final = {
    damage.HOLE: ("these messages are lost; readers report them and continue behind them", _RESTORE),
    damage.LOST_TAIL: ("what stood behind is lost", _RESTORE),
    damage.MISSING_SEGMENT: ("the messages of this ledger are lost", _RESTORE),
    damage.SEGMENT_HEADER: ("the header is derived from the entries where they are whole", REPAIR),
    damage.INDEX: ("nothing is lost: the index is derived again when it is needed", REPAIR),
    damage.CONTROL: ("nothing is lost: the words are derived again when the topic is opened", REPAIR),
    log_check.COLD: (
        "reading these messages raises an error until the location has the objects",
        "make the location readable, or put back a copy of the objects",
    ),
    log_check.LINK: ("readers verify the entries themselves", _RESTORE),
    log_check.TRAILER: ("the messages themselves are whole", REPAIR),
    damage.JOURNAL: (
        "what it said is lost from there on: acknowledged messages may be delivered again",
        REPAIR,
    ),
    META: ("this is not found or opened", "repair the store, or restore the file from a backup"),
    POLICIES: (
        "its policies are unknown, so nothing is trimmed or expires, and no one opens it",
        damage.REPLACE_POLICIES,
    ),
    SCHEMAS: (
        "producers and consumers with a schema cannot use the topic; its messages are whole",
        "restore the file from a backup",
    ),
    DOCUMENT: (
        "what it says of objects in a location or of a write by Spark is unknown; the file is kept",
        "restore the file from a backup",
    ),
    COMPACTED: (
        "those who read compacted step over what is damaged, and the topic is not compacted any more",
        damage.COMPACT_AGAIN,
    ),
    SETTINGS: ("the store cannot be opened", "correct the line"),
    ID_REUSE: ("messages could get ids that others have", "stop all writers, and repair the store"),
    LEFTOVER: ("harmless", _NONE),
    IN_USE: ("harmless", _NONE),
    UNKNOWN_SETTING: ("it has no effect", "remove the line, or correct the name"),
    log_check.STRAY: ("harmless: a later append to the topic removes it", _NONE),
    log_check.UNREADABLE: ("what is in it is unknown; nothing says that it is damaged", "make it readable"),
    log_check.NEWER: ("this release can neither verify nor use it, and leaves it as it is", "upgrade"),
}
"""By kind of problem: what it means, and what to do."""


class TopicReport(NamedTuple):
    """What was found in one topic; `name` is "" where nothing says it."""

    name: str
    directory: str
    found: CheckReport
    subscriptions: int

    @property
    def damage(self) -> list[Problem]:
        """What was read and found wrong, without the notes."""
        return _damage_in(self.found.problems)


class StoreReport(NamedTuple):
    """What was found in a store, and how much there is.

    Attributes:
        problems: what is wrong: each with its kind, path, offset and text; with the topic, ledger and entries
            concerned; and with what it means and what to do. The notes among them harm nothing.
        topics, ledgers, frames, messages: how much was read.
        of_topics: the same for each topic.
        living: how many processes had the store open.
        path: the directory of the store.
        format_version: of the store, as ``store.meta`` says; 0 if that cannot be read.

    Example:
        >>> from embeddedpulsar import Client
        >>> from embeddedpulsar.testing import check_store
        >>> with Client("./data") as client:
        ...     message_id = client.create_producer("orders").send(b"tea")
        >>> report = check_store("./data")
        >>> report.is_clean, report.damage, report.unverified, report.notes, report.json()["is_whole"]
        (True, [], [], [], True)
    """

    problems: list[Problem]
    topics: int
    ledgers: int
    frames: int
    messages: int
    of_topics: tuple[TopicReport, ...] = ()
    living: int = 0
    path: str = ""
    format_version: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found."""
        return not self.problems

    @property
    def damage(self) -> list[Problem]:
        """What was read and found wrong, without the notes."""
        return _damage_in(self.problems)

    @property
    def unverified(self) -> list[Problem]:
        """What could not be read, or was written by a newer release. Each has its own remedy."""
        return [problem for problem in self.problems if problem.kind in UNVERIFIED]

    @property
    def notes(self) -> list[Problem]:
        """What was found that harms nothing."""
        return [problem for problem in self.problems if problem.kind in NOTES]

    def json(self) -> dict[str, Any]:
        """Return the fields as dicts, lists, strings and numbers. Paths are relative to that of the store."""
        return {
            "path": self.path,
            "format_version": self.format_version,
            "is_whole": not (self.damage or self.unverified),
            "living_processes": self.living,
            "topics": [
                {
                    "name": topic.name,
                    "directory": os.path.relpath(topic.directory, self.path),
                    "subscriptions": topic.subscriptions,
                    "ledgers": topic.found.ledgers,
                    "entries": topic.found.frames,
                    "messages": topic.found.messages,
                    "will_be_recovered": topic.found.is_unclean,
                }
                for topic in self.of_topics
            ],
            "problems": [
                {
                    **problem._asdict(),
                    "path": os.path.relpath(problem.path, self.path),
                    "is_damage": problem.kind not in NOTES | UNVERIFIED,
                }
                for problem in self.problems
            ],
        }


def explained(problem: Problem, topic: str = "") -> Problem:
    """A problem with its topic, what it means and what to do."""
    meaning, remedy = MEANINGS.get(problem.kind, ("", ""))
    remedy = problem.remedy or remedy
    return problem._replace(topic=problem.topic or topic, meaning=meaning, remedy=remedy)


def _damage_in(problems: list[Problem]) -> list[Problem]:
    return [problem for problem in problems if problem.kind not in NOTES | UNVERIFIED]
