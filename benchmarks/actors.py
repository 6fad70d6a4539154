"""Work in other processes: an actor is created in a fresh interpreter and told to run, round after round."""

from __future__ import annotations

import importlib
import mmap
import multiprocessing
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.contest import Contestant, Unavailable

# A fresh interpreter, not a fork: no peer inherits another's sockets, threads or locks.
CONTEXT = multiprocessing.get_context("spawn")
PATIENCE_SECONDS = 120.0


class Actor:
    """A process that holds one object of `module:Class` and calls its `run` on demand."""

    def __init__(self, target: str, **arguments: Any) -> None:
        self._pipe, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_serve, args=(theirs, target, arguments), daemon=True)
        self._process.start()
        theirs.close()

    def wait_ready(self) -> None:
        """Return when the object is open; its exception otherwise."""
        self.finish()

    def begin(self, **command: Any) -> None:
        """Start one run without waiting for its end."""
        self._pipe.send(command)

    def finish(self) -> dict[str, Any]:
        """The answer of the run that was begun."""
        if not self._pipe.poll(PATIENCE_SECONDS):
            raise TimeoutError("the other process did not answer in time")
        try:
            answer: dict[str, Any] = self._pipe.recv()
        except EOFError:
            self._process.join(5)
            raise RuntimeError(f"the other process died with exit code {self._process.exitcode}") from None
        if "missing" in answer:
            raise Unavailable(answer["missing"])
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def stop(self) -> None:
        """End the process, politely first."""
        self._pipe.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(pipe: Connection, target: str, arguments: dict[str, Any]) -> None:
    module, _, name = target.partition(":")
    try:
        actor = getattr(importlib.import_module(module), name)(**arguments)
    except (Unavailable, ImportError) as error:
        pipe.send({"missing": str(error)})
        return
    except Exception as error:
        pipe.send({"error": f"{type(error).__name__}: {error}"})
        raise
    pipe.send({})
    try:
        while True:
            command = pipe.recv()
            try:
                pipe.send(actor.run(**command))
            except Exception as error:
                pipe.send({"error": f"{type(error).__name__}: {error}"})
                raise
    except EOFError:
        return
    finally:
        actor.close()


class Sender:
    """Half of a pair; a peer fills in how to send one and how to send many."""

    def run(self, operations: int, gap: float | None, size: int) -> dict[str, Any]:
        """Send messages of `size` bytes as fast as possible, or a stamped one each `gap` seconds."""
        if gap is None:
            begun = time.monotonic()
            self.send_many(operations, b"x" * size)
            return {"begun": begun}
        filler = b"x" * max(0, size - 8)
        for _ in range(operations):
            time.sleep(gap)
            self.send_one(time.monotonic_ns().to_bytes(8, "little") + filler)
        return {}

    def send_one(self, payload: bytes) -> None:
        """Send at once."""
        raise NotImplementedError

    def send_many(self, operations: int, payload: bytes) -> None:
        """Send as fast as this peer's client can, and leave nothing in its buffers."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what the constructor opened."""


class Receiver:
    """The other half; a peer fills in how to receive, and acknowledges each message where it can."""

    def run(self, operations: int, stamped: bool, idle: float = 0.0) -> dict[str, Any]:
        """Receive `operations` messages; with `stamped`, also how old each was when it came.

        With `idle` the process then waits that long for a message that does not come and reports the share
        of one core it burnt meanwhile.
        """
        if not stamped:
            self.receive_many(operations)
            return {"ended": time.monotonic()}
        ages = []
        for _ in range(operations):
            payload = self.receive_one()
            ages.append(time.monotonic_ns() - int.from_bytes(payload[:8], "little"))
        return {"ages": ages, "burnt": self._burn(idle) if idle else 0.0}

    def _burn(self, idle: float) -> float:
        cpu, wall = time.process_time(), time.monotonic()
        self.receive_nothing(idle)
        return (time.process_time() - cpu) / (time.monotonic() - wall)

    def receive_one(self) -> bytes:
        """Block until a message is there; acknowledge it; return its payload."""
        raise NotImplementedError

    def receive_many(self, operations: int) -> None:
        """Receive, look at the payload of, and acknowledge each of `operations` messages."""
        raise NotImplementedError

    def receive_nothing(self, seconds: float) -> None:
        """Block in the peer's own receive call for about `seconds` while nothing comes."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what the constructor opened."""


class Pair(Contestant):
    """A sender process and a receiver process; what is timed is first send to last receipt."""

    sender = ""
    receiver = ""

    def __init__(self, size: int = 100) -> None:
        super().__init__()
        self.size = size
        self.actors: list[Actor] = []

    def open_pair(self, **arguments: Any) -> None:
        """Start both processes; the receiver first, so that nothing is sent to nobody."""
        for target in (self.receiver, self.sender):
            actor = Actor(target, **arguments)
            self.actors.append(actor)
            actor.wait_ready()

    def run(self, operations: int) -> float:
        receiver, sender = self.actors
        receiver.begin(operations=operations, stamped=False)
        sender.begin(operations=operations, gap=None, size=self.size)
        begun = sender.finish()["begun"]
        seconds: float = receiver.finish()["ended"] - begun
        return seconds

    def stop(self) -> None:
        for actor in reversed(self.actors):
            actor.stop()
        self.actors.clear()


class Tally:
    """Words of memory that the processes of a crowd share: what each has received, and whether to stop."""

    def __init__(self, path: str) -> None:
        with open(path, "ab") as file:
            file.truncate(mmap.PAGESIZE)
        with open(path, "r+b") as file:
            self.words = memoryview(mmap.mmap(file.fileno(), mmap.PAGESIZE)).cast("Q")


class Crowd(Contestant):
    """Several senders and several receivers over one queue; timed is first send to last receipt.

    Nobody knows how much each receiver gets, so they count, and stop when they are told.
    """

    sender = ""
    receiver = ""
    senders = receivers = 2

    def __init__(self, size: int = 100) -> None:
        super().__init__()
        self.size = size
        self.actors: list[Actor] = []

    def open_crowd(self, place: Path, **arguments: Any) -> None:
        """Start all processes, the receivers first; nobody sends before all are ready."""
        path = str(place / "tally")
        self._words = Tally(path).words
        for number in range(self.receivers):
            self.actors.append(Actor(self.receiver, number=number, tally=path, **arguments))
        for _ in range(self.senders):
            self.actors.append(Actor(self.sender, **arguments))
        for actor in self.actors:
            actor.wait_ready()

    def run(self, operations: int) -> float:
        words = self._words
        receivers, senders = self.actors[: self.receivers], self.actors[self.receivers :]
        for word in range(1 + self.receivers):
            words[word] = 0
        for receiver in receivers:
            receiver.begin()
        share, rest = divmod(operations, len(senders))
        for number, sender in enumerate(senders):
            sender.begin(operations=share + (number < rest), gap=None, size=self.size)
        begun = min(sender.finish()["begun"] for sender in senders)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while sum(words[1 : 1 + self.receivers]) < operations:
            if time.monotonic() > deadline:
                raise TimeoutError("the receivers did not get everything in time")
            time.sleep(0.001)
        ended = time.monotonic()
        counts = list(words[1 : 1 + self.receivers])
        words[0] = 1
        self.call_off()
        for receiver in receivers:
            receiver.finish()
        self.notes = {"least share %": 100 * min(counts) / max(1, sum(counts))}
        return float(ended - begun)

    def call_off(self) -> None:
        """Wake receivers that block without a time limit; everything was received."""

    def stop(self) -> None:
        for actor in reversed(self.actors):
            actor.stop()
        self.actors.clear()


class CrowdReceiver:
    """One receiver of a crowd; a peer fills in how to receive and acknowledge some."""

    def __init__(self, number: int, tally: str) -> None:
        self._tally = Tally(tally)
        self._word = 1 + number

    def run(self) -> dict[str, Any]:
        """Receive until it is over."""
        words = self._tally.words
        while not words[0]:
            words[self._word] += self.receive_some(0.02)
        return {}

    def receive_some(self, seconds: float) -> int:
        """Receive and acknowledge what there is, waiting about that long; returns how many messages."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what the constructor opened."""


class Latency(Contestant):
    """A pair whose messages are sent `gap` seconds apart; the figure is their median age at receipt."""

    def __init__(self, pair: Pair, gap: float, idle: float) -> None:
        super().__init__()
        self.key, self.name, self.survives = pair.key, pair.name, pair.survives
        self._pair, self._gap, self._idle = pair, gap, idle

    def start(self, place: Path) -> None:
        self._pair.start(place)

    def run(self, operations: int) -> float:
        receiver, sender = self._pair.actors
        receiver.begin(operations=operations, stamped=True, idle=self._idle)
        sender.begin(operations=operations, gap=self._gap, size=self._pair.size)
        sender.finish()
        answer = receiver.finish()
        ages = sorted(answer["ages"])
        self.notes = {"p99 us": ages[int(len(ages) * 0.99)] / 1e3}
        if self._idle:
            self.notes["idle CPU %"] = answer["burnt"] * 100
        middle: float = ages[len(ages) // 2] / 1e9
        return middle

    def stop(self) -> None:
        self._pair.stop()
