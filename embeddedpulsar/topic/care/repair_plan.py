"""What a repair will do about the findings of a check."""

from __future__ import annotations

import os
import stat
from typing import Any, Final

from embeddedpulsar import damage
from embeddedpulsar._engine.log import filenames, log_check
from embeddedpulsar._engine.log.log_check import Problem
from embeddedpulsar._engine.platform import descriptors, nofollow
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.topic.care.store_report import ID_REUSE, LEFTOVER, META, NOTES, StoreReport
from embeddedpulsar.topic.care.topic_repair import redelivery
from embeddedpulsar.topic.catalog import root_layout
from embeddedpulsar.topic.catalog.topic_places import is_place_of
from embeddedpulsar.topic_name import NON_DURABLE_PREFIX

WRITE_META: Final = "write store.meta again, from the headers of the segments"
REMOVE: Final = "remove the doorbell of a process that is gone"
PUT_AWAY: Final = "move it to the quarantine"
WRITE_CATALOG: Final = "write the catalog again, from what is left of it and the topics that are there"
REPLACE_WORDS: Final = "move it to the quarantine; its words are derived again"
WRITE_HEADER: Final = "write the header of the segment again, from its entries"
WRITE_INDEX: Final = "write the index and the end marks again, from the entries"
WRITE_JOURNAL: Final = "write the journal again, from the commands that can be read"
RECOVER: Final = "find the end of the log again, from the entries"
DESCRIBE: Final = (
    "write again which topic this is, as the catalog says; if nothing says it, as a rescued topic"
)

ORDER: Final = (
    WRITE_META,
    REMOVE,
    PUT_AWAY,
    WRITE_CATALOG,
    REPLACE_WORDS,
    WRITE_HEADER,
    WRITE_INDEX,
    WRITE_JOURNAL,
    RECOVER,
    DESCRIBE,
)
"""The order in which they are done: each relies on those before."""
_OF_LEDGERS: Final = {
    damage.INDEX: WRITE_INDEX,
    log_check.TRAILER: WRITE_INDEX,
    damage.SEGMENT_HEADER: WRITE_HEADER,
}


class RepairStep(NamedTuple):
    """One thing that a repair does, or would do.

    Attributes:
        what: what is done.
        path: the file or directory.
        topic: full name of the topic; "" if it belongs to the store, or nothing says it.
        ledger_id: the ledger; 0 for none.
        note: what follows from it, where that is not the same each time.
    """

    what: str
    path: str
    topic: str = ""
    ledger_id: int = 0
    note: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.what}{self.note and '; '}{self.note}"


class RepairReport(NamedTuple):
    """What a repair did, or would do.

    Attributes:
        path: the directory of the store.
        steps: what was done; of a dry run, what would be done.
        is_dry_run: nothing was changed.
        quarantine: the directory with what was taken out of use; "" if nothing was.
        left: damage that cannot be repaired from what is in the store; of a dry run, all that was found.
    """

    path: str
    steps: tuple[RepairStep, ...]
    is_dry_run: bool
    quarantine: str
    left: tuple[Problem, ...]

    def json(self) -> dict[str, Any]:
        """Return the fields as dicts, lists, strings and numbers."""
        return {
            "path": self.path,
            "is_dry_run": self.is_dry_run,
            "quarantine": self.quarantine,
            "steps": [step._asdict() for step in self.steps],
            "left": [problem._asdict() for problem in self.left],
        }


def planned(report: StoreReport) -> tuple[RepairStep, ...]:
    """The steps that are to be taken, in their order. The files are looked at, and not changed."""
    found = {step: None for problem in report.problems for step in _steps(report.path, problem)}
    return tuple(sorted(found, key=lambda step: ORDER.index(step.what)))


def _steps(root: str, problem: Problem) -> list[RepairStep]:
    path, kind = problem.path, problem.kind
    directory = os.path.dirname(path)

    def step(what: str, at: str = path) -> RepairStep:
        return RepairStep(what, at, problem.topic, problem.ledger_id if at == path else 0)

    if os.path.dirname(path) == root or path == root:
        return [step(what) for what in _of_root(os.path.basename(path), problem)]
    if kind == LEFTOVER:
        is_topic = is_place_of(path, root_layout.in_root(root, root_layout.TOPICS))
        if is_topic and not problem.text.endswith("was deleted"):
            return [step(DESCRIBE)]  # made, and not in the catalog yet
        return [step(REMOVE if _is_fifo(path) else PUT_AWAY)]
    if kind in NOTES:
        return [step(PUT_AWAY), step(PUT_AWAY, _index_beside(path))] if kind == log_check.STRAY else []
    if kind == META:
        return [step(DESCRIBE, directory if os.path.basename(path) == filenames.TOPIC_META else path)]
    if kind in _OF_LEDGERS:
        ledger = filenames.parse_ledger(os.path.basename(path).replace(filenames.INDEX_SUFFIX, ".log"))
        steps = [step(_OF_LEDGERS[kind])]
        is_newest = ledger is not None and ledger == max(
            filenames.ledgers_of(descriptors.names_in(directory)), default=0
        )
        return [*steps, step(RECOVER, directory)] if is_newest or kind == damage.SEGMENT_HEADER else steps
    if kind in (damage.LOST_TAIL, damage.MISSING_SEGMENT):
        return [step(RECOVER, directory)]
    if kind == damage.CONTROL:
        return [step(REPLACE_WORDS)]
    if kind == damage.JOURNAL:
        is_volatile = os.path.basename(directory).startswith(NON_DURABLE_PREFIX)
        if is_volatile:
            return [step(PUT_AWAY, directory)]
        is_topic = os.path.basename(os.path.dirname(directory)) != filenames.SUBSCRIPTIONS
        note = "" if is_topic else f"the subscription delivers again {redelivery(directory)}"
        return [step(WRITE_JOURNAL, directory)._replace(note=note)]
    return []


def _of_root(name: str, problem: Problem) -> list[str]:
    if name == root_layout.META or problem.kind == META:
        return [WRITE_META]
    if name == root_layout.CATALOG_INDEX:
        return [PUT_AWAY]
    if name == root_layout.CATALOG:
        return [WRITE_CATALOG]
    if name == root_layout.CONTROL and problem.kind in (damage.CONTROL, ID_REUSE):
        return [REPLACE_WORDS]
    if problem.kind == LEFTOVER and name.endswith((".tmp", filenames.NEW_SUFFIX)):
        return [PUT_AWAY]
    return []


def _index_beside(path: str) -> str:
    return path.removesuffix(filenames.LOG_SUFFIX) + filenames.INDEX_SUFFIX


def _is_fifo(path: str) -> bool:
    try:
        return stat.S_ISFIFO(nofollow.status(path).st_mode)
    except FileNotFoundError:
        return False
