"""What all consumers of one subscription did, held against the log and the promises of its type.

For every type, whoever was killed whenever:

* a message whose acknowledgement was written does not come again;
* every message is received, and in the end acknowledged by somebody.

On Exclusive and Failover one consumer at a time receives, in the order of the log, leaving nothing out; the
next one begins when that one closed or died. On Key_Shared the entries of a key are received for the first
time in the order of the log.

A process that was stopped for longer than the keep-alive interval has been taken for dead. When it goes on it
may still hand out what it had fetched, which others may have got meanwhile: that much is forgiven.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from embeddedpulsar.enums import ConsumerType
from tests.storms import storm_diary
from tests.storms.storm_diary import Line

Place = tuple[int, int, int]
Life = tuple[int, int]
_SINGLE_ACTIVE: Final = (ConsumerType.Exclusive, ConsumerType.Failover)
_MOST_PROBLEMS: Final = 50


class TypeVerdict:
    """The diary of one subscription, line by line.

    Args:
        consumer_type: of the subscription.
        places: the place of every message, in log order.
        keys: the key of each of them.
        forgiven: messages a consumer may have fetched ahead.

    Attributes:
        problems: what is wrong.
        redelivered: messages received more than once, counted each time.
        changes: how often another consumer became the active one.
    """

    def __init__(
        self, consumer_type: ConsumerType, places: Sequence[Place], keys: Sequence[int], forgiven: int
    ) -> None:
        self.problems: list[str] = []
        self.redelivered = 0
        self.changes = 0
        self._type = consumer_type
        self._places = places
        self._keys = keys
        self._index: Final = {place: index for index, place in enumerate(places)}
        self._forgiven: Final = forgiven
        self._received = bytearray(len(places))
        self._acknowledging = bytearray(len(places))
        self._acknowledged_at = [0] * len(places)
        self._unwritten: dict[Life, list[int]] = {}
        self._given_back_at: dict[tuple[int, int], int] = {}
        self._grace: dict[Life, int] = {}
        self._doubtful: dict[Life, set[int]] = {}
        self._in_hand: dict[Life, int] = {}
        self._number = 0
        self._active: Life | None = None
        self._is_over = True
        self._last: dict[Life, int] = {}
        self._frontier = 0
        self._queues = _entries_by_key(places, keys)

    def judge(self, diary: Iterable[Line]) -> None:
        """Read the whole diary."""
        for line in diary:
            self._number += 1
            self._judge(line)
        for what, marks in (("received", self._received), ("acknowledged", self._acknowledging)):
            missing = marks.count(0)
            if missing:
                first = self._places[marks.index(0)]
                self._complain(f"{missing} messages were never {what}, the first at {first}")

    def _complain(self, text: str) -> None:
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(f"{self._type.name}: {text}")

    def _judge(self, line: Line) -> None:
        life = (line.member, line.life)
        kind = line.kind
        if kind in (storm_diary.CLOSING, storm_diary.KILLED, storm_diary.STOPPED):
            self._is_over = self._is_over or life == self._active
        elif kind == storm_diary.RESUMED:
            self._grace[life] = self._forgiven
            self._last.pop(life, None)
            self._doubtful[life] = {self._in_hand[life]} if life in self._in_hand else set()
            self._unwritten.pop(life, None)  # of who was taken for dead they never count
        elif kind == storm_diary.INTERRUPTED:
            self._last.pop(life, None)
        elif kind == storm_diary.CLOSED:
            for index in self._unwritten.pop(life, ()):
                self._acknowledged_at[index] = self._acknowledged_at[index] or self._number
        elif kind != storm_diary.ATTACHED:
            self._judge_message(life, line)

    def _judge_message(self, life: Life, line: Line) -> None:
        index = self._index.get((line.ledger_id, line.entry_id, line.batch_index))
        if index is None:
            self._complain(f"line {self._number}: {line} is of no message in the log")
        elif line.kind == storm_diary.RECEIVED:
            self._receive(life, index)
        elif line.kind == storm_diary.GIVEN_BACK:
            self._given_back_at[self._places[index][:2]] = self._number
        elif index not in self._doubtful.get(
            life, ()
        ):  # what it had when it was taken for dead does not count
            if line.kind == storm_diary.ACKNOWLEDGED:
                self._acknowledged_at[index] = self._acknowledged_at[index] or self._number
            else:
                self._acknowledging[index] = 1
                self._unwritten.setdefault(life, []).append(index)
        else:
            self._acknowledging[index] = 1

    # -- receiving ---------------------------------------------------------------------------------

    def _receive(self, life: Life, index: int) -> None:
        is_first = not self._received[index]
        self._received[index] = 1
        self.redelivered += not is_first
        self._in_hand[life] = index
        if self._grace.get(life):
            self._grace[life] -= 1
            self._doubtful[life].add(index)
            self._note_order(index)
            return
        self._doubtful.get(life, set()).discard(index)
        if self._is_acknowledged(index):
            self._complain(
                f"line {self._number}: {self._places[index]} came to {life} again after its acknowledgement "
                f"was written (line {self._acknowledged_at[index]})"
            )
        if self._type in _SINGLE_ACTIVE:
            self._receive_alone(life, index)
        elif self._type == ConsumerType.KeyShared:
            self._receive_in_order_of_key(life, index)

    def _is_acknowledged(self, index: int) -> bool:
        """Whether it should not come. While a batch is on its way back, its consumer may still take messages
        of it, and acknowledge them too late to spare the next one."""
        given_back = self._given_back_at.get(self._places[index][:2])
        return 0 < self._acknowledged_at[index] and (
            given_back is None or self._acknowledged_at[index] < given_back
        )

    def _receive_alone(self, life: Life, index: int) -> None:
        place = self._places[index]
        if life != self._active:
            if not self._is_over:
                self._complain(f"line {self._number}: {life} received {place} while {self._active} is active")
            self._active, self._is_over = life, False
            self.changes += 1
            self._last.pop(life, None)
        if index <= self._last.get(life, -1):
            self._complain(
                f"line {self._number}: {life} received {place} after {self._places[self._last[life]]}"
            )
        if index > self._frontier:
            self._complain(
                f"line {self._number}: {life} received {place} before {self._places[self._frontier]}, which "
                "nobody received yet"
            )
        self._last[life] = index
        self._frontier = max(self._frontier, index + 1)

    def _receive_in_order_of_key(self, life: Life, index: int) -> None:
        ahead = self._queues.ahead(self._keys[index], self._places[index][:2])
        if ahead:
            self._complain(
                f"line {self._number}: {life} received {self._places[index]} of key {self._keys[index]} "
                f"before {ahead[0]}, which nobody received yet"
            )
        self._note_order(index)

    def _note_order(self, index: int) -> None:
        self._frontier = max(self._frontier, index + 1)
        self._queues.note(self._keys[index], self._places[index][:2])


class _KeyQueues:
    """Per key the entries nobody received yet, in order."""

    def __init__(self, entries: Mapping[int, list[tuple[int, int]]]) -> None:
        self._entries = entries
        self._next = dict.fromkeys(entries, 0)

    def ahead(self, key: int, entry: tuple[int, int]) -> list[tuple[int, int]]:
        """The first entry that should have come before this one; none if all did."""
        entries, at = self._entries[key], self._next[key]
        return entries[at : at + 1] if at < len(entries) and entries[at] < entry else []

    def note(self, key: int, entry: tuple[int, int]) -> None:
        """An entry was received."""
        entries = self._entries[key]
        while self._next[key] < len(entries) and entries[self._next[key]] <= entry:
            self._next[key] += 1


def _entries_by_key(places: Sequence[Place], keys: Sequence[int]) -> _KeyQueues:
    entries: dict[int, list[tuple[int, int]]] = {}
    for place, key in zip(places, keys, strict=True):
        queue = entries.setdefault(key, [])
        if not queue or queue[-1] != place[:2]:
            queue.append(place[:2])
    return _KeyQueues(entries)
