"""What the processes of a kill storm do, over the log alone.

A workload is used by many processes at once, each for one role; nothing is opened before a role begins.
Subclasses
choose the level of the storm: `LedgerWorkload` here, the public client in `client_workload`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from embeddedpulsar._engine.format.entry import ProducerPrefix, encode_plain, encode_single
from embeddedpulsar._engine.log.log_check import check_topic
from embeddedpulsar._engine.log.log_opening import LedgerOptions
from embeddedpulsar._engine.log.managed_ledger import ManagedLedger
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.mailbox import Mailbox
from embeddedpulsar._engine.platform.mapped_file import MappedFile
from embeddedpulsar._engine.platform.peers import Peers
from embeddedpulsar._engine.platform.timing import SYSTEM_CLOCK, sleep
from embeddedpulsar.message_id import Position
from tests.storms.storm_pages import (
    ACKNOWLEDGED,
    ATTACHED,
    RECEIVED,
    Page,
    Receipts,
    last_acknowledged,
)
from tests.storms.storm_payload import Mark, make_payload

STORE_ID = b"a store in storm"
_LARGEST_BATCH = 40


class Stored(NamedTuple):
    """One message of the log."""

    ledger_id: int
    entry_id: int
    batch_index: int
    payload: bytes


class Role(NamedTuple):
    """One process of the storm: its number, its life, and where it reports.

    ``may_go_on()`` is False while too much is unread; then a producer waits.
    """

    member: int
    life: int
    page: Page
    diary: str
    may_go_on: Callable[[], bool]

    def random(self) -> random.Random:
        return random.Random(self.member * 1_000_003 + self.life)


class Workload(Protocol):
    """What `kill_storm` needs."""

    def prepare(self) -> None:
        """Make the store, in a process of its own."""

    def produce(self, role: Role) -> None:
        """Send until the page says stop; report what is stored."""

    def consume(self, role: Role) -> None:
        """Receive and acknowledge until nothing comes after the page said drain; report each."""

    def archive(self, page: Page) -> bool:
        """Keep what is trimmed, in a process that is not killed, until the page says drain; False if nothing
        is."""

    def read_log(self) -> Iterator[Stored]:
        """Everything that ever was in the topic, at the end."""

    def audit(self) -> list[str]:
        """What the auditor finds, at the end."""


def sizes(rng: random.Random) -> int:
    """Payload sizes: mostly small, sometimes many pages (those are copied longest under the lock)."""
    return rng.choice((30, 100, 100, 1000, 5000, 30_000)) if rng.random() < 0.98 else 60_000


class LedgerWorkload:
    """Producers append to a `ManagedLedger`, consumers follow it with a cursor; rolls all the time."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._topic = f"{root}/topic"

    def prepare(self) -> None:
        os.mkdir(self._topic)
        os.mkdir(f"{self._root}/clients")

    def _open(self) -> ManagedLedger:
        clients = f"{self._root}/clients"
        mailbox = Mailbox.create(clients)
        ids = _SharedIds(f"{self._root}/ids")
        return ManagedLedger.open(
            self._topic,
            name="persistent://public/default/storm",
            incarnation=1,
            store_id=STORE_ID,
            allocate_ledger_id=ids.allocate,
            mailbox=mailbox,
            peers=Peers(clients, mailbox),
            options=LedgerOptions(segment_size=4 << 20, allocation_step=1 << 20, max_entries=700),
            clock=SYSTEM_CLOCK,
        )

    def produce(self, role: Role) -> None:
        ledger = self._open()
        page, member, rng = role.page, role.member, role.random()
        prefix = ProducerPrefix(f"producer-{member}")
        sequence = page.stored(member)
        while not page.is_stopped:
            if not role.may_go_on():
                sleep(0.0002)
                continue
            count = rng.randint(1, _LARGEST_BATCH) if member % 2 else 1
            payloads = [
                make_payload(Mark(member, role.life, sequence + i), sizes(rng) // count) for i in range(count)
            ]
            if member % 2:
                ledger.append(encode_plain(payloads, sequence, prefix))
            else:
                ledger.append(encode_single(payloads[0], sequence, prefix))
            sequence += count
            page.set_stored(member, sequence)
            page.move(member)
        ledger.close()

    def consume(self, role: Role) -> None:
        ledger = self._open()
        page, member = role.page, role.member
        last = last_acknowledged(role.diary)
        receipts = Receipts(role.diary, role.life)
        receipts.write(ATTACHED)
        cursor = ledger.cursor(Position(last[0], max(last[1], 0)), inclusive=True)
        while True:
            tail = ledger.tail
            is_draining = page.is_draining
            views = cursor.read(20, 1000, 1 << 20)
            for view in views:
                for index in range(view.count):
                    batch_index = index if view.batched else -1
                    place = (view.ledger_id, view.entry_id, batch_index)
                    if place > last:
                        receipts.write(RECEIVED, *place)
                        receipts.write(ACKNOWLEDGED, *place)
                        page.move(member)
            if not views:
                if is_draining:
                    break
                ledger.wait(tail, 0.2)
        ledger.close()

    def archive(self, page: Page) -> bool:
        return False

    def read_log(self) -> Iterator[Stored]:
        ledger = self._open()
        cursor = ledger.cursor(Position(0, 0), inclusive=True)
        while views := cursor.read(100, 10_000, 1 << 22):
            for view in views:
                for index, payload in enumerate(view.values()):
                    batch_index = index if view.batched else -1
                    yield Stored(view.ledger_id, view.entry_id, batch_index, payload)
        damaged = ledger.statistics().damage_here
        ledger.close()
        if damaged:
            raise AssertionError(f"{damaged} stretches of the log could not be read")

    def audit(self) -> list[str]:
        return [str(problem) for problem in check_topic(self._topic).problems]


class _SharedIds:
    """Ledger ids for processes that share no store."""

    def __init__(self, path: str) -> None:
        self._words = MappedFile.open(path, writable=True, size=4096, create=True).words
        self._lock = FileLock(f"{path}.lock")

    def allocate(self, above: int) -> int:
        try:
            self._lock.acquire()
            self._words[0] = ledger_id = max(self._words[0], above) + 1
            return int(ledger_id)
        finally:
            self._lock.release()
