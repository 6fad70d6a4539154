"""Comparing what a storm was promised with what is there.

The promises, for every producer and consumer, whoever was killed whenever:

* a message whose send returned is in the log exactly once per life of its producer, whole, in the order sent;
  only messages under way at a kill may be there unacknowledged or once more in the next life;
* a consumer sees the log in its order, from its first unacknowledged message on, in every life;
* it sees every message, and none again that it had acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.storms.storm_pages import ACKNOWLEDGED, ACKNOWLEDGED_UP_TO, ATTACHED, RECEIVED, Receipt
from tests.storms.storm_payload import Mark, read_payload
from tests.storms.storm_workload import Stored

Place = tuple[int, int, int]


class LogVerdict:
    """The log as it is in the end, message by message.

    Attributes:
        places: the place of each message, in log order.
        problems: what is wrong.
        duplicates: messages stored in more than one life of their producer.
        in_flight: messages stored although their send never returned.
    """

    def __init__(self, log: Iterable[Stored], stored: dict[int, int]) -> None:
        self.places: list[Place] = []
        self.problems: list[str] = []
        self.duplicates = 0
        self.in_flight = 0
        self._seen: dict[int, Mark] = {}
        self._reached: dict[int, int] = {}
        for message in log:
            self._judge(message)
        for producer, count in stored.items():
            reached = self._reached.get(producer, 0)
            if reached < count:
                self.problems.append(
                    f"producer {producer}: {count} messages were acknowledged, the log ends at {reached}"
                )
            self.in_flight += max(0, reached - count)

    def _judge(self, message: Stored) -> None:
        place = (message.ledger_id, message.entry_id, message.batch_index)
        if self.places and place <= self.places[-1]:
            self.problems.append(f"{place} follows {self.places[-1]}")
        self.places.append(place)
        mark = read_payload(message.payload)
        if mark is None:
            self.problems.append(f"{place} is torn ({len(message.payload)} bytes)")
            return
        before = self._seen.get(mark.producer)
        reached = self._reached.get(mark.producer, 0)
        if before is not None and mark.run == before.run and mark.sequence != before.sequence + 1:
            self.problems.append(f"{place}: {mark} follows {before} of the same life")
        elif before is not None and mark.run < before.run:
            self.problems.append(f"{place}: {mark} of an earlier life follows {before}")
        elif mark.sequence > reached:
            self.problems.append(f"{place}: {mark}, but only {reached} messages of the producer came before")
        if mark.sequence < reached:
            self.duplicates += 1
        self._seen[mark.producer] = mark
        self._reached[mark.producer] = max(reached, mark.sequence + 1)


class ConsumerVerdict:
    """One consumer's diary, held against the log.

    Attributes:
        problems: what is wrong.
        redelivered: messages received again because their acknowledgement had not been written.
        assumed: messages not received again although no acknowledgement is in the diary: those under way at a
            kill.
    """

    def __init__(self, name: str, places: list[Place], diary: Iterable[Receipt]) -> None:
        self.problems: list[str] = []
        self.redelivered = 0
        self.assumed = 0
        self.gaps = 0
        self.lives = 0
        self._name = name
        self._places = places
        self._index = {place: index for index, place in enumerate(places)}
        self._received = bytearray(len(places))
        self._acknowledged = bytearray(len(places))
        self._last = -1
        self._acknowledged_up_to = 0
        is_cumulative = False
        for line in diary:
            self._judge(line)
            is_cumulative = is_cumulative or line.kind == ACKNOWLEDGED_UP_TO
        if self.gaps > self.lives or (self.assumed > self.gaps and not is_cumulative):
            self._complain(
                f"skipped {self.assumed} messages in {self.gaps} places without an acknowledgement"
            )
        missing = self._received.count(0)
        if missing:
            first = places[self._received.index(0)]
            self._complain(f"never received {missing} messages, the first at {first}")

    def _complain(self, text: str) -> None:
        self.problems.append(f"{self._name}: {text}")

    def _judge(self, line: Receipt) -> None:
        if line.kind == ATTACHED:
            self.lives += 1
            self._last = -1
            return
        place = (line.ledger_id, line.entry_id, line.batch_index)
        index = self._index.get(place)
        if index is None:
            self._complain(f"received {place}, which is not in the log")
        elif line.kind == ACKNOWLEDGED:
            self._acknowledged[index] = 1
        elif line.kind == ACKNOWLEDGED_UP_TO:
            start = self._acknowledged_up_to
            if index >= start:
                self._acknowledged[start : index + 1] = b"\1" * (index + 1 - start)
                self._acknowledged_up_to = index + 1
        elif line.kind == RECEIVED:
            self._receive(index, place)

    def _receive(self, index: int, place: Place) -> None:
        if index <= self._last:
            self._complain(f"received {place} after {self._places[self._last]} in one life")
            return
        if self._acknowledged[index]:
            self._complain(f"received {place} again after it was acknowledged")
        assumed = self.assumed
        for skipped in range(self._last + 1, index):
            if not self._received[skipped]:
                self._complain(f"skipped {self._places[skipped]} on the way to {place}")
                self._received[skipped] = 1  # once is enough
            elif not self._acknowledged[skipped]:
                self._acknowledged[skipped] = 1
                self.assumed += 1
        self.gaps += self.assumed > assumed
        if self._received[index]:
            self.redelivered += 1
        self._received[index] = 1
        self._last = index
