"""The moment of a backup: positions of all topics first, then the ends of all logs, then what was written.

A message that is acknowledged has its effects: an output, a dead letter, a retry letter, a change of a
function's state was stored before. So the positions of all subscriptions, and the tables of the producers,
are taken before the end of any log is read. What was acknowledged by then has its effects before these ends;
what was not comes again. The bytes below the ends do not change, so they are copied afterwards, however long
that takes, and the documents that messages refer to come last.

Two kinds of commits write to several logs, and say in one place that they did: batches of sinks, and runs of
effectively-once functions, whose state topic has positions and outputs in one entry, stored before the
outputs. There is no order of the logs that would suit them. The ends of all logs are read while no such
commit begins: the record of each is read before and after, and where it changed, all ends are read again,
after some attempts under the lock of that sink or function. The ends are words, some 20 us each.

What is trimmed between the positions of its topic and the copy of its log, a topic that is new, a compacted
ledger that is replaced: then the positions of that topic are taken again, and *all* ends are read again. What
was copied is not copied again, so each attempt takes less time than the one before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from embeddedpulsar._engine.format.catalog_record import TopicEntry
from embeddedpulsar._engine.log import filenames
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar.exceptions import StorageError, TopicNotFound
from embeddedpulsar.topic.care.care_progress import ProgressMeter
from embeddedpulsar.topic.care.sinks_cut import SinksCut, hold_for
from embeddedpulsar.topic.care.topic_cut import TopicCut

_ATTEMPTS: Final = 50
_UNLOCKED: Final = 3
"""So often without locks; then sinks and functions that committed meanwhile wait while the ends are read."""
_FUNCTIONS: Final = "functions"
_SINKS: Final = "sinks"
_TOPICS: Final = "topics"
_REASONS: Final = {
    _FUNCTIONS: "functions committed whenever the ends of the logs were read",
    _SINKS: "Spark committed batches whenever the topics were copied",
    _TOPICS: "topics were made, trimmed or compacted whenever they were copied",
}

failpoints.declare("backup:journals_taken", "backup:sinks_taken", "backup:cut", "backup:logs_taken")


class StoreCut:
    """Role: the order above, over the topics of a backup. Invariant: when `take` returns, every log that was
    taken ends behind all positions that were. One thread; the store may be in use.

    Args:
        root: of the store, for errors.
        list_topics: the topics of the backup that exist now; the argument says whether it is the first call.
        open_cut: the files of a topic.
        drop: forgets what was taken of a topic.
        sinks: the records of the sinks.
        meter: told which topic is copied.
    """

    def __init__(
        self,
        root: str,
        *,
        list_topics: Callable[[bool], list[TopicEntry]],
        open_cut: Callable[[TopicEntry], TopicCut],
        drop: Callable[[TopicEntry], object],
        sinks: SinksCut,
        meter: ProgressMeter,
    ) -> None:
        self._root: Final = root
        self._list: Final = list_topics
        self._open: Final = open_cut
        self._drop: Final = drop
        self._sinks: Final = sinks
        self._meter: Final = meter
        self._cuts: dict[TopicEntry, TopicCut | None] = {}  # None: it has no directory
        self._due: list[TopicEntry] = []  # their positions are to be taken
        self._busy: set[TopicEntry] = set()  # functions that committed during an attempt
        self._reason = _TOPICS
        self._missing: FileNotFoundError | None = None

    def take(self) -> list[TopicEntry]:
        """Take everything; return the topics that were taken.

        Raises:
            StorageError: something went on in every attempt that allows no cut; or a file is damaged.
        """
        self._follow_list(is_first=True)
        for attempt in range(_ATTEMPTS):
            self._take_positions()
            failpoints.hit("backup:journals_taken")
            if self._cut_logs(with_locks=attempt >= _UNLOCKED) and self._take_logs():
                break
        else:
            raise self._error() from self._missing
        failpoints.hit("backup:logs_taken")
        self._each(lambda _, cut: cut.take_documents())
        present = {(entry.name, entry.incarnation) for entry in self._list(False)}
        for entry in list(self._cuts):
            if (entry.name, entry.incarnation) not in present:  # deleted while its files were copied
                self._forget(entry)
        return [
            entry if cut is not None else entry._replace(is_made=False) for entry, cut in self._cuts.items()
        ]

    def _follow_list(self, *, is_first: bool = False) -> None:
        entries = self._list(is_first)
        for gone in self._cuts.keys() - set(entries):
            self._forget(gone)
        self._due += [entry for entry in entries if entry not in self._cuts]
        for entry in self._due:
            if entry not in self._cuts:
                self._cuts[entry] = self._open(entry) if entry.is_made else None

    def _take_positions(self) -> None:
        due, self._due = dict.fromkeys(self._due), []
        for entry in due:
            cut = self._cuts.get(entry)
            if cut is not None:
                self._guarded(entry, cut, lambda _, one: one.take_positions())

    def _cut_logs(self, *, with_locks: bool) -> bool:
        """Read the ends of all logs. False if they are no moment: then it is to be done again."""
        with contextlib.ExitStack() as locks:
            if with_locks:
                self._sinks.hold(locks)
            self._sinks.take()
            failpoints.hit("backup:sinks_taken")
            held = self._hold_functions(locks) if with_locks else set()
            before = self._tails_of_functions()
            self._follow_list()
            if self._due:
                self._reason = _TOPICS
                return False
            self._each(self._cut_log)
            failpoints.hit("backup:cut")
            after = self._tails_of_functions()
            moved = {one for one in after if after[one] != before.get(one)} - held
            self._busy |= moved
            if not self._sinks.is_current():
                self._reason = _SINKS
            elif moved:
                self._reason = _FUNCTIONS
            elif self._due:
                self._reason = _TOPICS
            else:
                return True
            return False

    def _cut_log(self, entry: TopicEntry, cut: TopicCut) -> None:
        if not cut.cut():
            self._due.append(entry)

    def _hold_functions(self, locks: contextlib.ExitStack) -> set[TopicEntry]:
        """Keep functions from committing that did before; returns those that do not."""
        held = set()
        for entry in sorted(self._busy & self._cuts.keys()):
            cut = self._cuts[entry]
            if cut is not None and hold_for(filenames.function_lock_path(cut.directory), locks):
                held.add(entry)
        return held

    def _tails_of_functions(self) -> dict[TopicEntry, int]:
        tails: dict[TopicEntry, int] = {}

        def note(entry: TopicEntry, cut: TopicCut) -> None:
            if cut.is_of_function:
                tails[entry] = cut.tail()

        self._each(note)
        return tails

    def _take_logs(self) -> bool:
        """Copy up to the ends. False if a ledger went before it was copied."""
        # What went once is copied first: it may be trimmed again soon.
        count = len(self._cuts)
        for number, (entry, cut) in enumerate(sorted(self._cuts.items(), key=_copied_last)):
            self._meter.topic(number + 1, count)
            if cut is not None and not self._guarded(entry, cut, lambda _, one: one.take_log()):
                cut.went += 1
                self._due.append(entry)
                self._reason = _TOPICS
                return False
        return True

    def _each(self, work: Callable[[TopicEntry, TopicCut], object]) -> None:
        for entry, cut in list(self._cuts.items()):
            if cut is not None:
                self._guarded(entry, cut, work)

    def _guarded(
        self, entry: TopicEntry, cut: TopicCut, work: Callable[[TopicEntry, TopicCut], object]
    ) -> object:
        """Do ``work`` with a topic, which may have been deleted: then there is nothing left to do."""
        with contextlib.suppress(TopicNotFound):
            try:
                return work(entry, cut)
            except FileNotFoundError as e:
                if cut.is_there():  # of a subscription that ended, perhaps
                    self._missing = e
                    self._due.append(entry)
                    return False
        self._cuts[entry] = None  # the list will say whether it was deleted
        self._drop(entry)
        return True

    def _forget(self, entry: TopicEntry) -> None:
        del self._cuts[entry]
        self._drop(entry)

    def _error(self) -> StorageError:
        reason = _REASONS[self._reason]
        if self._missing is not None:
            reason = f"a file is missing whenever it is to be copied: {self._missing.filename}"
        remedy = "check the store, or make the backup when less goes on; the one before is as it was"
        return StorageError(path=self._root, reason=reason, remedy=remedy)


def _copied_last(item: tuple[TopicEntry, TopicCut | None]) -> int:
    return 0 if item[1] is None else -item[1].went
