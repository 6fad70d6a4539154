"""Hung workers amid the hostile storm.

A function hangs for some of its inputs, in a call that no signal ends. Then its supervisor gets SIGTERM or
SIGKILL: no worker may be left behind after the grace, and the workers of the next supervisor get what the
hung one held. Every input has an output in the end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Final

from embeddedpulsar import Admin
from embeddedpulsar._engine.platform.timing import perf_counter, sleep
from embeddedpulsar.client.client import Client
from embeddedpulsar.client.consumer.reader import Reader
from embeddedpulsar.client.producer.producer import Producer
from embeddedpulsar.enums import InitialPosition
from embeddedpulsar.exceptions import Timeout
from embeddedpulsar.functions import FunctionConfig
from embeddedpulsar.message_id import MessageId
from tests.children import ROOT
from tests.storms.hostile.hostile_roles import HostileRole
from tests.storms.hostile.hostile_workload import close_in_time

_INPUT: Final = "hung-inputs"
_OUTPUT: Final = "hung-outputs"
_GRACE_S: Final = 0.5
_GONE_WITHIN_S: Final = 20.0
"""After the grace: the processes of the storm leave little of the machine."""
_PROCESSED_WITHIN_S: Final = 90.0
_MOST_SENT: Final = 6
_CODE: Final = '''
import os, threading, time
class Job:
    """Hangs for an input while there is a file of its name."""

    def process(self, input, context):
        if os.path.exists(f"hang-{input}"):
            with open(f"calling-{input}", "w") as file:
                file.write(str(os.getpid()))
            if int(input) % 2:
                threading.Semaphore(0).acquire()
            while True:
                time.sleep(3600)
        return input
'''
_SUPERVISOR: Final = """
import os, sys, threading
from embeddedpulsar.functions.supervisor import run
def end_with_storm():
    os.read(0, 1)
    os._exit(1)
threading.Thread(target=end_with_storm, daemon=True).start()
run(sys.argv[1], None, float(sys.argv[2]))
"""


class FunctionKeeper:
    """The process that starts supervisors, ends them while a worker hangs, and looks at what comes out."""

    def __init__(self, role: HostileRole) -> None:
        self._role = role
        self._random = role.random()
        self._folder = os.path.realpath(f"{role.folder}/functions")
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._sent = 0
        self._came: set[int] = set()

    def run(self) -> None:
        """Hang workers until the page says stop, one at least."""
        os.mkdir(self._folder)
        with open(f"{self._folder}/job.py", "w", encoding="utf-8") as file:
            file.write(_CODE)
        client = Client(self._role.root)
        producer = client.create_producer(_INPUT)
        reader = client.create_reader(_OUTPUT, MessageId.earliest)
        with Admin(self._role.root) as admin:
            config = FunctionConfig(
                "job.Job",
                py=f"{self._folder}/job.py",
                inputs=[_INPUT],
                output=_OUTPUT,
                subscription_position=InitialPosition.Earliest,
            )
            admin.functions().create_function(config)
        try:
            self._supervise()
            while not (self._came and self._role.page.is_stopped):
                self._hang(producer)
                self._end(self._random.choice((signal.SIGTERM, signal.SIGKILL)))
                self._cure()
                self._supervise()
                self._wait_for_outputs(reader)
                self._role.board.count("hung workers")
                self._role.page.move(self._role.member)
            self._wait_for_acknowledgements()
            self._end(signal.SIGTERM)
        finally:
            if self._supervisor is not None:
                self._supervisor.kill()
        close_in_time(self._role, client)

    def _supervise(self) -> None:
        self._supervisor = subprocess.Popen(
            [
                sys.executable,
                "-W",
                "ignore",
                "-c",
                _SUPERVISOR,
                os.path.realpath(self._role.root),
                str(_GRACE_S),
            ],
            cwd=self._folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,  # whoever kills this process ends the supervisor, too
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _hang(self, producer: Producer[bytes]) -> None:
        """Send some inputs, and wait until the worker hangs in one of them."""
        count = self._random.randint(1, _MOST_SENT)
        hung = self._sent + self._random.randrange(count)
        with open(f"{self._folder}/hang-{hung}", "w", encoding="utf-8"):
            pass
        for number in range(self._sent, self._sent + count):
            producer.send(b"%d" % number)
        self._sent += count
        deadline = perf_counter() + _PROCESSED_WITHIN_S
        while not os.path.exists(f"{self._folder}/calling-{hung}"):
            if perf_counter() > deadline:
                raise AssertionError(f"input {hung} came to no worker within {_PROCESSED_WITHIN_S:.0f} s")
            self._role.page.move(self._role.member)
            sleep(0.05)

    def _wait_for_acknowledgements(self) -> None:
        """No input is left in the subscription of the function."""
        deadline = perf_counter() + _PROCESSED_WITHIN_S
        with Admin(self._role.root) as admin:
            while backlogs := [
                one.msg_backlog
                for one in admin.topics().get_stats(_INPUT).subscriptions.values()
                if one.msg_backlog
            ]:
                if perf_counter() > deadline:
                    raise AssertionError(f"{backlogs} inputs of the function are not acknowledged")
                self._role.page.move(self._role.member)
                sleep(0.05)

    def _end(self, number: signal.Signals) -> None:
        """End the supervisor; no worker may be left after the grace."""
        supervisor = self._supervisor
        assert supervisor is not None
        supervisor.send_signal(number)
        supervisor.wait(_GRACE_S + _GONE_WITHIN_S)
        if supervisor.stdin is not None:
            supervisor.stdin.close()
        self._supervisor = None
        deadline = perf_counter() + _GRACE_S + _GONE_WITHIN_S
        while left := self._workers():
            if perf_counter() > deadline:
                for pid in left:
                    os.kill(pid, signal.SIGKILL)
                raise AssertionError(
                    f"workers {left} are left behind after {number.name} of their supervisor"
                )
            sleep(0.05)

    def _workers(self) -> list[int]:
        """The worker processes of this storm."""
        workers = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    is_worker = b"functions.worker" in file.read()
                if is_worker and os.readlink(f"/proc/{name}/cwd") == self._folder:
                    workers.append(int(name))
            except OSError:
                continue  # it has ended
        return workers

    def _cure(self) -> None:
        for name in os.listdir(self._folder):
            if name.startswith("hang-"):
                os.unlink(f"{self._folder}/{name}")

    def _wait_for_outputs(self, reader: Reader[bytes]) -> None:
        """Each input has an output; inputs of a worker that was killed may have two."""
        deadline = perf_counter() + _PROCESSED_WITHIN_S
        while len(self._came) < self._sent:
            if perf_counter() > deadline:
                missing = sorted(set(range(self._sent)) - self._came)
                raise AssertionError(f"inputs {missing} have no output after {_PROCESSED_WITHIN_S:.0f} s")
            try:
                number = int(reader.read_next(timeout_millis=500).data())
            except Timeout:
                continue
            finally:
                self._role.page.move(self._role.member)
            if not 0 <= number < self._sent:
                raise AssertionError(f"output {number} is of no input")
            self._came.add(number)
