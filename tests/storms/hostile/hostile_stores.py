"""A store directory that is removed and made again while processes keep clients of the old one.

One process, the remover, reads the store, removes it, and lets a new one be made in its place, over and over.
Others send, and note when each send began and when it was answered. Of the messages whose sends began after a
removal and were answered before the next reading, all must be read; and none of an earlier store.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from embeddedpulsar._engine.platform.timing import perf_counter, sleep
from embeddedpulsar.client.client import Client
from embeddedpulsar.exceptions import PulsarException
from embeddedpulsar.message_id import MessageId
from tests.storms.hostile.hostile_roles import HostileRole
from tests.storms.storm_payload import Mark, make_payload, read_payload

_TOPIC: Final = "moving"
_SENT: Final = struct.Struct("<QQQ")
_READ: Final = struct.Struct("<QQQQ")
_PAUSE_S: Final = 0.002
_SHORTEST_LIFE_S: Final = 0.3
_LONGEST_LIFE_S: Final = 1.5
_TRIES: Final = 200


class Sent(NamedTuple):
    """A send that returned: its number, when it began, when it returned, in microseconds."""

    number: int
    began: int
    ended: int


class Tenant:
    """A process that sends, and opens the store anew when a send fails."""

    def __init__(self, role: HostileRole) -> None:
        self._role = role
        self._number = 0

    def run(self) -> None:
        """Send until the page says stop; every error but those of `exceptions` fails the storm."""
        path = sent_path(self._role.folder, self._role.member)
        with open(path, "ab", buffering=0) as file:
            while not self._role.page.is_stopped:
                client = None
                try:
                    client = Client(side_store(self._role.folder))
                    self._send(client, file.write)
                except PulsarException:
                    self._role.page.move(self._role.member)
                if client is not None:
                    with contextlib.suppress(PulsarException):
                        client.close()
                sleep(_PAUSE_S)

    def _send(self, client: Client, write: Callable[[bytes], object]) -> None:
        producer = client.create_producer(_TOPIC)
        while not self._role.page.is_stopped:
            mark = Mark(self._role.member, 0, self._number)
            began = _now_us()
            self._number += 1
            producer.send(make_payload(mark, 100))
            write(_SENT.pack(mark.sequence, began, _now_us()))
            self._role.page.move(self._role.member)
            sleep(_PAUSE_S)


class Remover:
    """The process that removes the store; it keeps clients of removed stores open for a while."""

    def __init__(self, role: HostileRole) -> None:
        self._role = role
        self._random = role.random()
        self._old: list[Client] = []
        self._removals = 0

    def run(self) -> None:
        """Read and remove until the page says stop."""
        with open(f"{self._role.folder}/removals", "ab", buffering=0) as file:
            while not self._role.page.is_stopped:
                sleep(self._random.uniform(_SHORTEST_LIFE_S, _LONGEST_LIFE_S))
                began = _now_us()
                marks = self._read()
                removing = _now_us()
                self._remove()
                head = _READ.pack(began, removing, _now_us(), len(marks))
                file.write(head + b"".join(struct.pack("<IQ", one.producer, one.sequence) for one in marks))
                self._role.page.move(self._role.member)
        for client in self._old:
            with contextlib.suppress(PulsarException):
                client.close()

    def _read(self) -> list[Mark]:
        marks = []
        client = Client(side_store(self._role.folder))
        reader = client.create_reader(_TOPIC, MessageId.earliest)
        while reader.has_message_available():
            mark = read_payload(reader.read_next(timeout_millis=10_000).data())
            if mark is None:
                raise AssertionError("a message is torn")
            marks.append(mark)
        self._old.append(client)
        if len(self._old) > 3:
            with contextlib.suppress(PulsarException):
                self._old.pop(0).close()
        return marks

    def _remove(self) -> None:
        path = side_store(self._role.folder)
        self._removals += 1
        if self._removals % 2:
            aside = f"{path}-{self._removals}"
            os.rename(path, aside)
            if self._random.random() < 0.5:
                os.makedirs(path, exist_ok=True)  # the other process may have made it
            _remove_tree(aside)
        else:
            _remove_tree(path)


def _remove_tree(path: str) -> None:
    """Remove a directory in which others still make files."""
    for _ in range(_TRIES):
        shutil.rmtree(path, ignore_errors=True)
        if not os.path.exists(path):
            return
    raise AssertionError(f"{path} is made again as fast as it is removed")


def judge(folder: str, tenants: list[int]) -> tuple[str, list[str]]:
    """What was removed, in words, and what is wrong."""
    sent = {member: list(_read_sent(folder, member)) for member in tenants}
    problems = []
    removed_at, removals, read = 0, 0, 0
    removing_before = 0
    for began, removing, removed, marks in _read_removals(folder):
        removals, read = removals + 1, read + len(marks)
        for member, sends in sent.items():
            found = [number for producer, number in marks if producer == member]
            if len(found) != len(set(found)):
                problems.append(f"store {removals}: messages of process {member} stand there twice")
            there = set(found)
            lost = [one for one in sends if one.began >= removed_at and one.ended <= began]
            lost = [one for one in lost if one.number not in there]
            if lost:
                problems.append(f"store {removals}: {len(lost)} stored messages are not there: {lost[0]}")
            old = [one for one in sends if one.ended < removing_before and one.number in there]
            if old:
                problems.append(f"store {removals}: {len(old)} messages are of an earlier store: {old[0]}")
        removed_at, removing_before = removed, removing
    total = sum(map(len, sent.values()))
    return f"{removals} times; {total} messages stored, {read} read before a removal", problems


def _read_sent(folder: str, member: int) -> Iterator[Sent]:
    try:
        with open(sent_path(folder, member), "rb") as file:
            yield from map(Sent._make, _SENT.iter_unpack(file.read()))
    except FileNotFoundError:
        return


def _read_removals(folder: str) -> Iterator[tuple[int, int, int, list[tuple[int, int]]]]:
    try:
        with open(f"{folder}/removals", "rb") as file:
            while head := file.read(_READ.size):
                began, removing, removed, count = _READ.unpack(head)
                yield began, removing, removed, list(struct.iter_unpack("<IQ", file.read(12 * count)))
    except FileNotFoundError:
        return


def side_store(folder: str) -> str:
    """The store that is removed."""
    return f"{folder}/side"


def sent_path(folder: str, member: int) -> str:
    """What a tenant sent."""
    return f"{folder}/sent-{member}"


def _now_us() -> int:
    return int(perf_counter() * 1_000_000)
