"""The mailbox within one process: generations, leadership, listeners, loops, deaths, close, fork."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from embeddedpulsar import exceptions
from embeddedpulsar._engine.platform import doorbell, lease
from embeddedpulsar._engine.platform.doorbell import FifoDoorbell, PollingDoorbell, PollPoller, QueueDoorbell
from embeddedpulsar._engine.platform.mailbox import Mailbox
from embeddedpulsar._engine.platform.peers import Peers
from embeddedpulsar._engine.platform.threads import system
from tests.support import other_unix
from tests.support.clients import wait_until

PROMPT_S = 0.05 + 0.25 + 0.2  # when the alarm goes off, a quarter of a second, and a loaded machine
KINDS = (
    pytest.param("fifo", marks=pytest.mark.linux("locks of FIFOs")),
    pytest.param("fifo without epoll", marks=pytest.mark.linux("locks of FIFOs")),
    "queue",
    "polling",
)


def make(kind: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Mailbox:
    """A mailbox of one of the kinds."""
    if kind == "polling":
        return Mailbox(PollingDoorbell.create(str(directory)))
    if kind == "queue":
        other_unix.with_kqueue(lambda *names: monkeypatch.setattr(*names, raising=False))
        monkeypatch.setattr(system, "kqueue", other_unix.kqueue)
        monkeypatch.setattr(system, "polls", select)
        return Mailbox(QueueDoorbell.create(str(directory)))
    if kind == "fifo without epoll":
        monkeypatch.setattr("embeddedpulsar._engine.platform.doorbell.make_poller", PollPoller)
    return Mailbox(FifoDoorbell.create(str(directory)))


@pytest.fixture(params=KINDS)
def mailbox(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Mailbox]:
    """A mailbox of every kind, closed afterwards."""
    box = make(request.param, tmp_path, monkeypatch)
    yield box
    box.close()


def descriptors() -> set[str]:
    """What this process has open."""
    gc.collect()
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
        except FileNotFoundError:
            continue  # the listing itself
    return found


def start(target: Callable[[], object]) -> threading.Thread:
    """A started thread."""
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


def wait_for_ever(mailbox: Mailbox) -> None:
    """Wait until something raises."""
    while True:
        mailbox.wait(mailbox.generation, None)


def test_wait_returns_at_once_when_something_happened_before(mailbox: Mailbox):
    """A ring between reading the generation and waiting is not lost."""
    seen = mailbox.generation
    mailbox.ring_self()
    assert mailbox.wait(seen, 5) != seen


def test_wait_times_out_with_the_generation_it_was_given(mailbox: Mailbox):
    """Without a ring the generation stays, and the wait takes as long as it was told."""
    before = time.monotonic()
    assert mailbox.wait(mailbox.generation, 0.02) == mailbox.generation
    assert time.monotonic() - before >= 0.019


def test_a_ring_wakes_every_waiting_thread(mailbox: Mailbox):
    """One thread sleeps on the doorbell, the others on it; all of them return from one ring."""
    seen = mailbox.generation
    woken: list[int] = []
    threads = [start(lambda: woken.append(mailbox.wait(seen, 10))) for _ in range(8)]
    wait_until(lambda: len(mailbox._followers) == 7)
    mailbox.ring_self()
    for thread in threads:
        thread.join(10)
    assert len(woken) == 8 and seen not in woken


def test_leadership_is_handed_on_when_the_leader_times_out(mailbox: Mailbox):
    """The leader leaves without news; one of those that stay takes over and hears the next ring."""
    seen = mailbox.generation
    leader = start(lambda: mailbox.wait(seen, 0.05))
    wait_until(mailbox._is_led)
    woken: list[int] = []
    stays = [start(lambda: woken.append(mailbox.wait(seen, 10))) for _ in range(2)]
    leader.join(10)
    wait_until(lambda: mailbox._is_led() and len(mailbox._followers) == 1)
    os.write(mailbox._doorbell._writer, b"\1") if hasattr(
        mailbox._doorbell, "_writer"
    ) else mailbox.ring_self()
    for thread in stays:
        thread.join(10)
    assert len(woken) == 2 and seen not in woken


def test_waiting_with_timeout_zero_only_looks(mailbox: Mailbox):
    """A wait of no time hears a ring that is pending and sleeps otherwise not at all."""
    seen = mailbox.generation
    assert mailbox.wait(seen, 0) == seen
    mailbox._doorbell.ring()
    assert mailbox.wait(seen, 0) != seen


def test_listeners_hear_every_ring(mailbox: Mailbox):
    """A listener runs once per ring, in the waiting thread; a failing one neither stops the others nor the
    wait."""
    heard: list[int] = []

    def failing() -> None:
        raise RuntimeError("a listener's own fault")

    def hear() -> None:
        heard.append(threading.get_ident())

    mailbox.add_listener(failing)
    mailbox.add_listener(hear)
    mailbox._doorbell.ring()
    mailbox.wait(mailbox.generation, 5)
    assert heard == [threading.get_ident()]
    mailbox.remove_listener(hear)
    mailbox.ring_self()
    assert len(heard) == 1


def test_a_signal_handler_that_raises_ends_the_wait_of_the_leader(mailbox: Mailbox):
    """Ctrl-C during a wait comes through within 250 ms, and the next wait works."""
    seen = mailbox.generation
    before = time.monotonic()
    with pytest.raises(KeyboardInterrupt), alarm(0.05):
        wait_for_ever(mailbox)
    assert time.monotonic() - before < PROMPT_S
    assert not mailbox._is_led() and not mailbox._followers
    mailbox.ring_self()
    assert mailbox.wait(seen, 5) != seen


def test_a_signal_handler_that_raises_ends_the_wait_of_a_follower(mailbox: Mailbox):
    """The same when another thread of the process leads; that thread goes on."""
    stop: list[bool] = []

    def lead() -> None:
        while not stop:
            mailbox.wait(mailbox.generation, 10)

    leader = start(lead)
    wait_until(mailbox._is_led)
    before = time.monotonic()
    with pytest.raises(KeyboardInterrupt), alarm(0.05):
        wait_for_ever(mailbox)
    assert time.monotonic() - before < PROMPT_S
    stop.append(True)
    wait_until(mailbox._is_led)
    mailbox.ring_self()
    leader.join(10)
    assert not leader.is_alive()


def test_a_handler_may_wait_and_close_in_the_middle_of_a_wait(mailbox: Mailbox):
    """A SIGTERM handler that shuts down cleanly runs inside the very wait it interrupts."""

    def shut_down(*_: object) -> None:
        mailbox.wait(mailbox.generation, 0.001)
        mailbox.close()
        raise SystemExit

    with pytest.raises(SystemExit), alarm(0.03, shut_down):
        wait_for_ever(mailbox)
    with pytest.raises(exceptions.AlreadyClosed):
        mailbox.wait(0, 0)


class alarm:
    """Raise (KeyboardInterrupt by default) from a real signal after a while, for a block."""

    def __init__(self, seconds: float, handler: Callable[..., None] | None = None) -> None:
        self.seconds = seconds
        self.handler = handler or self.interrupt

    @staticmethod
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def __enter__(self) -> None:
        self.before = signal.signal(signal.SIGALRM, self.handler)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.before)


def test_interrupts_at_any_instruction_leave_the_mailbox_usable(tmp_path: Path):
    """Two thousand interrupts in a thread that waits and rings; a second thread that waits misses nothing
    after."""
    box = Mailbox.create(tmp_path)
    interrupted = 0

    armed = False

    def interrupt(*_: object) -> None:
        nonlocal armed
        if armed:
            armed = False  # once, until the loop below is back in its try
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
        while interrupted < 2000:
            try:
                armed = True
                while True:
                    seen = box.generation
                    box.wait(seen, 0.0001)
                    box.ring_self()
                    box.wait(seen, 0.0001)
            except KeyboardInterrupt:
                interrupted += 1
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not box._is_led() and not box._followers
    seen = box.generation
    woken: list[int] = []
    threads = [start(lambda: woken.append(box.wait(seen, 10))) for _ in range(3)]
    wait_until(lambda: len(box._followers) == 2)
    began = time.monotonic()
    box.ring_self()
    for thread in threads:
        thread.join(10)
    assert len(woken) == 3 and seen not in woken
    assert time.monotonic() - began < 0.9, "woken by the ring, not by the look once a second"
    box.close()


def test_closing_wakes_the_waiters_and_leaves_nothing(mailbox: Mailbox, tmp_path: Path):
    """A thread that waits for ever returns when the mailbox is closed; the FIFO is gone; a later wait says
    so."""
    seen = mailbox.generation
    threads = [start(lambda: mailbox.wait(seen, None)) for _ in range(3)]
    wait_until(lambda: len(mailbox._followers) == 2)
    mailbox.close()
    mailbox.close()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert os.listdir(tmp_path) == []
    with pytest.raises(exceptions.AlreadyClosed, match="closed in this process"):
        mailbox.wait(seen, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_no_descriptor_is_left_after_close(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Doorbells, bells of others and death watches all go with the mailbox and the peers."""
    gc.collect()  # what tests before this one left is closed now
    before = descriptors()
    box, other = make(kind, tmp_path, monkeypatch), Mailbox.create(tmp_path)
    peers = Peers(tmp_path, box)
    assert peers.ring(other.uuid) and peers.is_alive(other.uuid)
    box.watch(other.uuid, lambda _: None)
    peers.close()
    box.close()
    other.close()
    assert descriptors() == before


def test_death_of_a_watched_owner_is_reported_once(mailbox: Mailbox, tmp_path: Path):
    """When the other doorbell closes, its watchers are told, each once, in the thread that waits."""
    other = Mailbox.create(tmp_path)
    told: list[bytes] = []
    assert mailbox.watch(other.uuid, told.append)
    assert mailbox.watch(other.uuid, told.append)
    assert mailbox.wait(mailbox.generation, 0.01) == mailbox.generation
    other.close()
    deadline = time.monotonic() + 5
    while len(told) < 2 and time.monotonic() < deadline:
        mailbox.wait(mailbox.generation, 0.1)
    mailbox.wait(mailbox.generation, 0.06)
    assert told == [other.uuid, other.uuid]


def test_watching_the_dead_tells_at_the_next_wait(mailbox: Mailbox):
    """A process that is gone already is reported, and `watch` says so at once."""
    told: list[bytes] = []
    gone = os.urandom(16)
    assert mailbox.watch(gone, told.append) is False
    assert told == []
    mailbox.wait(mailbox.generation, 0)
    mailbox.wait(-1, 0)
    deadline = time.monotonic() + 5
    while not told and time.monotonic() < deadline:
        mailbox.wait(mailbox.generation, 0.01)
    assert told == [gone]


def test_a_glance_tells_of_deaths_without_waiting(mailbox: Mailbox, tmp_path: Path):
    """Who never sleeps hears of the death of a peer when it glances at the bell."""
    other = Mailbox.create(tmp_path)
    told: list[bytes] = []
    mailbox.watch(other.uuid, told.append)
    mailbox.glance()
    assert told == []
    other.close()
    deadline = time.monotonic() + 5
    while not told and time.monotonic() < deadline:
        mailbox.glance()
    assert told == [other.uuid]


def test_a_glance_publishes_rings_and_leaves_the_bell_to_a_sleeper(mailbox: Mailbox):
    """A ring that a glance finds is news for all; while a thread sleeps on the bell it does nothing."""
    seen = mailbox.generation
    mailbox._doorbell.ring()
    mailbox.glance()
    assert mailbox.generation != seen
    woken: list[int] = []
    thread = start(lambda: woken.append(mailbox.wait(mailbox.generation, 10)))
    while not mailbox._is_led():
        os.sched_yield()
    mailbox.glance()
    mailbox._doorbell.ring()
    thread.join(10)
    assert len(woken) == 1
    mailbox.close()
    mailbox.glance()


def test_unwatch_withdraws_one_callback_or_all(mailbox: Mailbox, tmp_path: Path):
    """Only the callbacks that are left hear of the death."""
    other = Mailbox.create(tmp_path)
    told: list[str] = []

    def first(_: bytes) -> None:
        told.append("first")

    def second(_: bytes) -> None:
        told.append("second")

    mailbox.watch(other.uuid, first)
    mailbox.watch(other.uuid, second)
    mailbox.unwatch(other.uuid, first)
    other.close()
    deadline = time.monotonic() + 5
    while not told and time.monotonic() < deadline:
        mailbox.wait(mailbox.generation, 0.1)
    assert told == ["second"]
    third = Mailbox.create(tmp_path)
    mailbox.watch(third.uuid, first)
    mailbox.unwatch(third.uuid)
    third.close()
    mailbox.wait(mailbox.generation, 0.06)
    assert told == ["second"]


@pytest.mark.parametrize("kind", KINDS)
def test_asyncio_loops_hear_rings_and_deaths_without_a_thread(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A loop that was added is called after every ring, and runs the death callbacks."""
    box = make(kind, tmp_path, monkeypatch)
    other = Mailbox.create(tmp_path) if kind != "queue" else make(kind, tmp_path, monkeypatch)
    peers = Peers(tmp_path, other)
    dead: list[bytes] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        rung = asyncio.Event()
        box.add_loop(loop, rung.set)
        for _ in range(3):
            assert peers.ring(box.uuid)
            await asyncio.wait_for(rung.wait(), 5)
            rung.clear()
        box.ring_self()
        await asyncio.wait_for(rung.wait(), 5)
        rung.clear()
        box.watch(other.uuid, lambda uuid: (dead.append(uuid), rung.set())[0])
        other.close()
        if kind == "fifo without epoll":
            box._doorbell.ring()  # deaths are not visible to the loop there, only its next look finds them
        deadline = loop.time() + 5
        while not dead and loop.time() < deadline:
            await asyncio.wait([asyncio.ensure_future(rung.wait())], timeout=0.1)
        box.remove_loop(loop, rung.set)
        assert not box._loops

    asyncio.run(main())
    assert dead == [other.uuid]
    peers.close()
    box.close()


def test_loops_and_threads_hear_the_same_rings(tmp_path: Path):
    """Whoever empties the doorbell first tells the others: a thread that leads, and the loops of two
    threads."""
    box = Mailbox.create(tmp_path)
    counts = [0, 0, 0]
    stop = threading.Event()

    def in_loop(index: int) -> None:
        async def main() -> None:
            loop = asyncio.get_running_loop()
            changed = asyncio.Event()
            box.add_loop(loop, changed.set)
            ready.release()
            while not stop.is_set():
                await changed.wait()
                changed.clear()
                counts[index] = box.generation
            box.remove_loop(loop, changed.set)

        asyncio.run(main())

    def in_thread() -> None:
        ready.release()
        seen = box.generation
        while not stop.is_set():
            seen = box.wait(seen, 5)
            counts[2] = seen

    ready = threading.Semaphore(0)
    threads = [start(lambda: in_loop(0)), start(lambda: in_loop(1)), start(in_thread)]
    for _ in threads:
        ready.acquire()
    for _ in range(200):
        box.ring_self()
        wait_until(lambda: min(counts) >= box.generation)
    stop.set()
    box.ring_self()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    box.close()


def test_a_loop_that_was_closed_is_forgotten(mailbox: Mailbox):
    """A loop that ended without `remove_loop` costs a ring nothing but its removal."""
    loop = asyncio.new_event_loop()
    mailbox.add_loop(loop, lambda: None)
    loop.close()
    mailbox._publish()
    assert not mailbox._loops


def test_create_falls_back_to_polling_where_there_are_no_fifos(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """`mkfifo` that is missing, or refused by the file system, gives a polling mailbox; other errors come
    out."""
    for refusal in (AttributeError("mkfifo"), PermissionError(1, "EPERM")):

        def refuse(*_: object, refusal: Exception = refusal, **__: object) -> None:
            raise refusal

        monkeypatch.setattr(os, "mkfifo", refuse)
        box = Mailbox.create(tmp_path)
        assert isinstance(box._doorbell, PollingDoorbell)
        box.close()
    assert not doorbell.means_no_fifos(FileNotFoundError(2, "ENOENT"))
    monkeypatch.undo()
    with pytest.raises(FileNotFoundError):
        Mailbox.create(tmp_path / "absent")


def test_a_forked_child_lets_go_of_everything(tmp_path: Path):
    """In the child the mailbox says whose it is; the lease stays the parent's and goes with the parent
    alone."""
    box = Mailbox.create(tmp_path)
    peers = Peers(tmp_path, box)
    path = lease.lease_path(str(tmp_path), box.uuid)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        outcome = b"?"
        try:
            box.wait(0, 0)
        except exceptions.AlreadyClosed as e:
            inherited = [one for one in descriptors() if str(tmp_path) in one]
            outcome = b"ok" if "parent" in str(e) and not inherited else repr((e, inherited)).encode()
        finally:
            os.write(write, outcome)
            os._exit(0)
    assert os.read(read, 1000) == b"ok"
    os.waitpid(pid, 0)
    os.close(read)
    os.close(write)
    assert lease.is_held(path)
    seen = box.generation
    assert peers.ring(box.uuid) and box.wait(seen, 5) != seen
    peers.close()
    box.close()


def test_the_lease_cannot_be_taken_while_the_owner_lives(tmp_path: Path):
    """`flock` on the FIFO excludes everybody else, and the sweep leaves it alone."""
    box = Mailbox.create(tmp_path)
    path = lease.lease_path(str(tmp_path), box.uuid)
    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    with pytest.raises(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(fd)
    assert not lease.remove_if_orphan(path)
    assert os.path.exists(path)
    box.close()
    assert not lease.is_held(path)


def test_repr_says_the_state(mailbox: Mailbox):
    """`repr` shows whether it is open."""
    assert "open" in repr(mailbox)
    mailbox.close()
    assert "closed" in repr(mailbox)


def test_a_leader_that_leaves_while_another_begins_is_not_remembered(mailbox: Mailbox):
    """The one that begins must not put back, when it ends, what it saw before the leadership was its own."""
    leadership = mailbox._leadership

    class HandOver:
        """The leadership, given up by another thread at the very moment somebody asks for it."""

        release = staticmethod(leadership.release)

        @staticmethod
        def acquire(blocking: bool) -> bool:
            mailbox._leader = None
            return leadership.acquire(blocking=blocking)

    mailbox._leadership = HandOver()  # type: ignore[assignment]
    mailbox._leader = "the thread that is about to leave"
    mailbox.wait(mailbox.generation, 0.001)
    assert not mailbox._is_led()
    mailbox._leadership = leadership
