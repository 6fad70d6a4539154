"""Daemons amid the hostile storm: processes that fork twice and close every descriptor.

The parent keeps a client and a producer. Each daemon inherits both, opens files of its own at the numbers
that it closed, sends and receives, and ends. Its files must hold what it wrote and nothing else, at the
descriptors where it opened them.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
import traceback
from typing import Final

from embeddedpulsar._engine.platform.timing import perf_counter, sleep
from embeddedpulsar.client.client import Client
from embeddedpulsar.client.producer.producer import Producer
from embeddedpulsar.enums import ConsumerType, InitialPosition
from embeddedpulsar.exceptions import Timeout
from tests.storms import storm_diary
from tests.storms.hostile.hostile_roles import (
    DAEMON_STREAM,
    DAEMONS,
    SUBSCRIPTION,
    HostileRole,
    diary_of,
)
from tests.storms.hostile.hostile_workload import close_in_time, consume_one
from tests.storms.storm_diary import Diary
from tests.storms.storm_payload import Mark, make_payload

_FILES: Final = 40
_MOST_SENT: Final = 8
_LARGEST: Final = 60_000
_ENDS_WITHIN_S: Final = 60.0
_PAUSE_S: Final = 0.3
_DRAINED_AFTER_MS: Final = 2000


class DaemonParent:
    """The process that makes daemons, one after the other, and receives in the end what they left."""

    def __init__(self, role: HostileRole) -> None:
        self._role = role
        self._random = role.random()
        self._daemons = 0

    def run(self) -> None:
        """Make daemons until the page says stop, one at least."""
        client = Client(self._role.root)
        producer: Producer[bytes] = client.create_producer(DAEMONS)
        while not (self._daemons and self._role.page.is_stopped):
            self._send(producer, self._random, self._role.new_run())
            self._make(client, producer)
            self._role.board.count("daemons")
            self._role.page.move(self._role.member)
            sleep(self._random.uniform(0, _PAUSE_S))
        self._receive(client, 0, None)
        close_in_time(self._role, client)

    def _send(self, producer: Producer[bytes], chance: random.Random, run: int) -> None:
        page = self._role.page
        for _ in range(chance.randint(1, _MOST_SENT)):
            number = page.stored(DAEMON_STREAM)
            producer.send(make_payload(Mark(DAEMON_STREAM, run, number), chance.randint(28, _LARGEST)))
            page.set_stored(DAEMON_STREAM, number + 1)

    def _receive(self, client: Client, life: int, most: int | None) -> None:
        """Acknowledge ``most`` messages, or until none comes."""
        diary = Diary(diary_of(self._role.folder, DAEMONS), self._role.member, life)
        consumer = client.subscribe(
            DAEMONS, SUBSCRIPTION, ConsumerType.Shared, initial_position=InitialPosition.Earliest
        )
        diary.write(storm_diary.ATTACHED)
        taken = 0
        while most is None or taken < most:
            try:
                consume_one(consumer, diary, _DRAINED_AFTER_MS)
            except Timeout:
                break
            taken += 1
        diary.write(storm_diary.CLOSING)
        consumer.close()
        diary.write(storm_diary.CLOSED)
        diary.close()

    def _make(self, client: Client, producer: Producer[bytes]) -> None:
        """Fork a daemon; wait until it has written what it found."""
        self._daemons += 1
        chance = random.Random(self._random.getrandbits(64))
        folder = f"{self._role.folder}/daemon-{self._daemons}"
        os.mkdir(folder)
        pid = os.fork()
        if pid == 0:
            self._become_daemon(client, producer, chance, folder)
        os.waitpid(pid, 0)
        deadline = perf_counter() + _ENDS_WITHIN_S
        while not os.path.exists(f"{folder}/done"):
            if perf_counter() > deadline:
                raise AssertionError(f"daemon {self._daemons} did not end within {_ENDS_WITHIN_S:.0f} s")
            sleep(0.01)
        with open(f"{folder}/done", encoding="utf-8") as file:
            said = file.read()
        if said:
            raise AssertionError(f"daemon {self._daemons}: {said}")
        self._check_files(folder)
        shutil.rmtree(folder)

    def _become_daemon(
        self, client: Client, producer: Producer[bytes], chance: random.Random, folder: str
    ) -> None:
        """Of a forked child: never returns."""
        said = "it broke off"
        try:
            os.setsid()
            if os.fork():
                os._exit(0)
            os.closerange(0, 4096)
            for _ in range(3):
                os.open(os.devnull, os.O_RDWR)
            files = [os.open(_path(folder, number), os.O_RDWR | os.O_CREAT) for number in range(_FILES)]
            _write_lines(files, "before")
            # Its run is above its parent's: they take turns, so each has the number that follows.
            self._send(producer, chance, self._role.new_run())
            self._receive(client, self._daemons, chance.randint(0, 2 * _MOST_SENT))
            _write_lines(files, "after")
            end = chance.choice(("close", "drop", "exit"))
            if end == "close":
                client.close()
            elif end == "drop":
                del client, producer
                gc.collect()
            said = "; ".join(_wrong_descriptors(files, folder))
        except BaseException:
            said = traceback.format_exc()
        finally:
            with open(f"{folder}/said", "w", encoding="utf-8") as file:
                file.write(said)
            os.rename(f"{folder}/said", f"{folder}/done")
            os._exit(0)

    def _check_files(self, folder: str) -> None:
        for number in range(_FILES):
            with open(_path(folder, number), "rb") as file:
                text = file.read()
            if text != f"{number} before\n{number} after\n".encode():
                raise AssertionError(
                    f"{_path(folder, number)} has {len(text)} bytes that are not all the daemon's"
                )


def _path(folder: str, number: int) -> str:
    return f"{folder}/app-{number}"


def _write_lines(files: list[int], text: str) -> None:
    for number, descriptor in enumerate(files):
        os.write(descriptor, f"{number} {text}\n".encode())


def _wrong_descriptors(files: list[int], folder: str) -> list[str]:
    """Those that are closed, or another file's."""
    wrong = []
    for number, descriptor in enumerate(files):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:
            target = "closed"
        if target != os.path.realpath(_path(folder, number)):
            wrong.append(f"app-{number} is {target}")
    return wrong
