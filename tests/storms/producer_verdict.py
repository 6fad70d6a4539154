"""The log that several producers of one topic left, held against what they were promised.

Whoever was killed whenever:

* what was answered is in the log, and under each name the numbers of its source follow each other: with
  deduplication each is there exactly once, without it none is missing;
* a topic that one producer at a time has for itself was written by one at a time: epochs rise along the log,
  and all entries of an epoch are of one life of one process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tests.storms.producer_workload import StoredEntry
from tests.storms.storm_payload import read_payload

_MOST_PROBLEMS: Final = 50


class ProducerVerdict:
    """The log, entry by entry.

    Args:
        deduplicates: whether the topic dropped duplicates.
        is_exclusive: whether one producer at a time had it for itself.

    Attributes:
        problems: what is wrong.
        messages: how many there are.
        duplicates: messages that are there once more.
        grants: how many epochs left an entry.
    """

    def __init__(self, *, deduplicates: bool, is_exclusive: bool) -> None:
        self.problems: list[str] = []
        self.messages = 0
        self.duplicates = 0
        self.grants = 0
        self._deduplicates = deduplicates
        self._is_exclusive = is_exclusive
        self._reached: dict[str, int] = {}
        self._epoch = 0
        self._writer: tuple[int, int] | None = None

    def judge(self, log: Iterable[StoredEntry], answered: Mapping[str, int]) -> None:
        """Read the whole log; ``answered``: by name how many messages of the source were answered."""
        for number, entry in enumerate(log):
            self._judge(number, entry)
        for name, count in answered.items():
            reached = self._reached.get(name, 0)
            if reached < count:
                self._complain(f"{name}: {count} messages were answered, the log ends at {reached}")

    def _complain(self, text: str) -> None:
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(text)

    def _judge(self, number: int, entry: StoredEntry) -> None:
        for sequence_id, payload in zip(entry.sequence_ids, entry.payloads, strict=True):
            mark = read_payload(payload)
            if mark is None:
                self._complain(f"entry {number} of {entry.name} is torn")
                continue
            self._judge_number(number, entry.name, mark.sequence, sequence_id)
            if self._is_exclusive:
                self._judge_writer(number, entry.epoch, (mark.producer, mark.run))
        self.messages += len(entry.payloads)

    def _judge_number(self, number: int, name: str, sequence: int, sequence_id: int) -> None:
        reached = self._reached.get(name, 0)
        if self._deduplicates and sequence != sequence_id:
            self._complain(f"entry {number} of {name}: number {sequence} has sequence id {sequence_id}")
        if sequence > reached:
            self._complain(f"entry {number} of {name}: {sequence} follows {reached - 1}")
        elif sequence < reached:
            self.duplicates += 1
            if self._deduplicates:
                self._complain(f"entry {number} of {name}: {sequence} is there twice")
        self._reached[name] = max(reached, sequence + 1)

    def _judge_writer(self, number: int, epoch: int, writer: tuple[int, int]) -> None:
        if epoch < self._epoch:
            self._complain(f"entry {number}: epoch {epoch} writes after epoch {self._epoch}")
        elif epoch > self._epoch:
            self.grants += 1
            self._epoch, self._writer = epoch, writer
        elif writer != self._writer:
            self._complain(f"entry {number}: {writer} writes in epoch {epoch} of {self._writer}")
