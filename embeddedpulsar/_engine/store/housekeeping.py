"""Work on behalf of all processes of a store, done by whichever of them finds it due: trimming.

It is found due when this process closes a ledger, acknowledges the last entry of one, deletes a subscription,
or opens a topic that has closed ledgers; and from then on every ``retentionCheckIntervalInSeconds`` as long
as the topic is open here and has any.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Sequence

from embeddedpulsar._engine.format.control import TopicWord, split_tail
from embeddedpulsar._engine.log.segment import SMALL_LOG
from embeddedpulsar._engine.log.topic_control import is_deleted
from embeddedpulsar._engine.platform import failpoints, fork, package_log, threads
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.package_log import DamageChannel
from embeddedpulsar._engine.platform.timing import Clock, is_idle
from embeddedpulsar.damage import TOPIC_FILES, Damage
from embeddedpulsar.exceptions import CorruptionError, LockTimeout, PulsarException, TopicTerminated
from embeddedpulsar.message_id import Position
from embeddedpulsar.policies import Retention
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from typing import Any, Final

    from embeddedpulsar._engine.log.log import Log
    from embeddedpulsar._engine.platform.timing import SchedulerLike, Timer
    from embeddedpulsar._engine.store.policies.policy_documents import HeldPolicies
    from embeddedpulsar._engine.store.topic_subscriptions import TopicSubscriptions
    from embeddedpulsar._engine.store.topic_view import TopicView
    from embeddedpulsar.settings import BrokerSettings

failpoints.declare("closing:decided", "closing:rolled")

GATHER_S: Final = 0.05
"""How long to wait for more to do: ledgers that are closed in quick succession are trimmed together."""
PAUSE_S: Final = 0.005
"""How long to leave locks and disk to others between two slices. With small ledgers one producer fills
hundreds a second; if they are trimmed more slowly than that, they pile up."""
_FIRST_RETRY_S: Final = 0.2
_GRID_S: Final = 0.25
"""Topics are looked at again at multiples of this: with many topics, one wake-up is for many of them."""
_ROUNDING_S: Final = 1e-3
_MOST_REPORTED: Final = 100
NOT_TRIMMED: Final = "nothing of the topic is trimmed"
_UNDONE: Final = "the topic is not looked after"
_EXTRA_EVERY_S: Final = 60.0
"""How often a chore of a package above is looked at, at most."""
SLICE: Final = 64
"""Segments removed at once. Large ones take some milliseconds each, therefore `SLICE_S`."""
SLICE_S: Final = 0.01
"""How long a slice removes ledgers."""
PATIENCE_S: Final = 0.2
"""How long housekeeping waits for the topic lock: a process that closes the topic waits for housekeeping."""


class Chore(Protocol):
    """A topic, as housekeeping sees it."""

    @property
    def name(self) -> str: ...

    @property
    def is_deleted(self) -> bool: ...

    def do_chores(self, done: list[str]) -> bool:
        """Do a slice of what is due, some milliseconds long. True if there is more to do.

        What is to be logged of it is added to ``done``: the housekeeping lock is held.
        """

    def chores_every_s(self) -> float:
        """How often to look whether work became due as time passed; 0 for never."""


class ExtraChore(Protocol):
    """What a package above the engine does for a store, under the housekeeping lock."""

    def do_chores(self, done: list[str]) -> bool:
        """As of `Chore`."""


class DiskUser(Chore, Protocol):
    """A topic that can give back disk space."""

    def note_full_disk(self) -> None:
        """Give back at the next look what a full disk needs. Must not wait."""


class ChoresFailed(Exception):
    """Part of what was due failed; the rest was done.

    Attributes:
        failures: errors, and what is not done because of them, in the words of `Housekeeping`.
    """

    def __init__(self, failures: Sequence[tuple[Exception, str]]) -> None:
        super().__init__("; ".join(f"{undone}: {error}" for error, undone in failures))
        self.failures: Final = failures


class UpkeptParts(NamedTuple):
    """The parts of a topic that its upkeep looks at."""

    log: Log
    policies: HeldPolicies
    subscriptions: TopicSubscriptions
    view: Callable[[], TopicView]
    clock: Clock
    settings: BrokerSettings


class LateChore:
    """The `Chore` of a package above the engine: imported and made when the store has a directory of it.

    Args:
        directory: of the store; until it is there, nothing is due.
        make: makes the chore.
    """

    is_deleted: Final = False

    def __init__(self, directory: str, make: Callable[[], ExtraChore]) -> None:
        self.name: Final = os.path.basename(directory)
        self._directory: Final = directory
        self._make: Final = make
        self._made: ExtraChore | None = None
        self._every_s = _EXTRA_EVERY_S

    def begin(self, housekeeping: Housekeeping, interval_s: float, is_there: bool) -> None:
        """The store is opened. One without the directory is looked at when its topics are: it may get one.

        Args:
            housekeeping: of the store.
            interval_s: how often topics are looked after; this is no less often.
            is_there: whether the store has the directory.
        """
        self._every_s = min(interval_s, _EXTRA_EVERY_S)
        if is_there:
            housekeeping.look_at(self)
        else:
            housekeeping.watch(self)

    def chores_every_s(self) -> float:
        """How often to look."""
        return self._every_s

    def do_chores(self, done: list[str]) -> bool:
        """As of `Chore`. Errors are those of `late_imports`, too."""
        if not os.path.isdir(self._directory):
            return False
        if self._made is None:
            self._made = self._make()
        return self._made.do_chores(done)


class HasChores(Protocol):
    """The part of `StoreSession` that housekeeping needs."""

    chores: SchedulerLike
    damage: DamageChannel

    def check_in_place(self) -> None:
        """Raise if the store is not the one that was opened."""


class Housekeeping:
    """The work that is due in one process.

    Role: collects topics to look at, and looks at them on a timer thread of its own, while it holds
    ``housekeeping.lock``. Invariants: nothing waits for that lock; a process that does not get it tries again
    later. A topic that is closed meanwhile is forgotten: the next process that opens it looks at it again.
    Callers: any thread, also one that holds locks; `look_at` waits for nothing. In a forked child it
    does nothing: the child has its own.
    """

    def __init__(
        self, lock_path: str, timers: HasChores, interval_s: float, monotonic: Callable[[], float]
    ) -> None:
        self._lock_path: Final = lock_path
        self._timers: Final = timers
        self._interval_s: Final = interval_s
        self._monotonic: Final = monotonic
        self._fork_generation: Final = fork.GENERATION
        self._due: dict[str, Chore] = {}
        self._topics: dict[str, DiskUser] = {}
        """The topics that are in use in this process."""
        self._is_relieving = False
        self._watched: dict[str, tuple[Chore, float, float]] = {}
        """Topics to look at again and again: how often, and when next."""
        self._soon: Timer | None = None
        self._later: Timer | None = None
        self._later_at = 0.0
        self._retry_s = _FIRST_RETRY_S
        self._reported: set[str] = set()

    def look_at(self, topic: Chore) -> None:
        """Note that there may be work for a topic."""
        if self._fork_generation == fork.GENERATION:
            self._due[topic.name] = topic
            if is_idle(self._soon):
                self._set_timer(GATHER_S)

    def watch(self, chore: Chore) -> None:
        """Look at a chore now and then, from the next look at a topic on."""
        self._watch(chore.name, chore, chore.chores_every_s())

    def _watch(self, name: str, chore: Chore, every_s: float) -> None:
        at = math.ceil((self._monotonic() + every_s) / _GRID_S) * _GRID_S
        self._watched[name] = chore, every_s, at

    def join(self, topic: DiskUser) -> None:
        """A topic begins to be used in this process."""
        self._topics[topic.name] = topic

    def relieve_disk(self) -> None:
        """An append found no room on the disk: look at every topic of this process, which closes its open
        ledger if all messages in it are acknowledged. Called under locks."""
        if self._fork_generation != fork.GENERATION or self._is_relieving:
            return
        self._is_relieving = True  # until the next look: appends that go on failing cost nothing
        for topic in list(self._topics.values()):
            topic.note_full_disk()
            self._due[topic.name] = topic
        if is_idle(self._soon):
            self._set_timer(GATHER_S)

    def discard(self, topic: Chore) -> None:
        """Forget a topic that is being closed."""
        if self._topics.get(topic.name) is topic:
            self._topics.pop(topic.name, None)
        if self._due.get(topic.name) is topic:
            self._due.pop(topic.name, None)
        if self._watched.get(topic.name, (None,))[0] is topic:
            self._watched.pop(topic.name, None)

    def _set_timer(self, delay_s: float) -> None:
        self._soon = self._timer(delay_s, self._run)

    def _timer(self, delay_s: float, function: Callable[[], object]) -> Timer | None:
        try:
            return self._timers.chores.call_later(delay_s, function)
        except RuntimeError:
            return None  # the store is being closed, or no thread can be started; the next look tries again

    def _run(self) -> None:
        self._soon = None  # first: what becomes due from here on arms again
        self._is_relieving = False
        is_unfinished = False
        try:
            is_unfinished = self._try()
        finally:
            self._arm_next(is_unfinished)

    def _try(self) -> bool:
        """Do what is due, unless another process does. True if there is more to do at once."""
        is_unfinished = False
        notes: list[str] = []
        done: list[str] = []
        try:
            self._timers.check_in_place()
            lock = FileLock(self._lock_path)
            try:
                if lock.try_acquire():
                    is_unfinished = self._work(notes, done)
            finally:
                lock.release()
                lock.close()
        except (PulsarException, OSError) as e:  # the lock cannot be opened
            notes.append(f"nothing is trimmed, and no topic is looked after: {e}")
        self._log(notes)
        self._timers.damage.hand_on()
        for text in done:
            package_log.info(text)
        return is_unfinished

    def _arm_next(self, is_unfinished: bool) -> None:
        if is_unfinished:
            self._go_on()
        if not self._due:
            self._retry_s = _FIRST_RETRY_S
        elif is_idle(self._soon):  # another process does it, or stays in the lock of a topic
            self._set_timer(self._retry_s)
            self._retry_s = min(2 * self._retry_s, self._interval_s)
        next_at = min((at for _, _, at in list(self._watched.values())), default=math.inf)
        if next_at < math.inf and (is_idle(self._later) or next_at < self._later_at):
            if self._later is not None:
                self._later.cancel()
            delay_s = max(next_at - self._monotonic(), GATHER_S)
            self._later, self._later_at = self._timer(delay_s, self._look_again), next_at

    def _go_on(self) -> None:
        later = self._soon  # its topics were closed meanwhile
        if later is not None:
            later.cancel()
        self._set_timer(PAUSE_S)

    def _look_again(self) -> None:
        """Look at what is due."""
        self._later = None
        now = self._monotonic()
        for name, (topic, every_s, at) in list(self._watched.items()):
            if at <= now + _ROUNDING_S:
                self._due[name] = topic
                self._watch(name, topic, every_s)  # if another process does it, tries follow by `_retry_s`
        if self._due and is_idle(self._soon):
            self._run()
        else:
            self._arm_next(False)

    def _work(self, notes: list[str], done: list[str]) -> bool:
        """Do a slice for each topic; returns whether there is more to do at once."""
        is_any_unfinished = False
        for name, topic in list(self._due.items()):
            self._due.pop(name, None)
            try:
                is_unfinished = topic.do_chores(done)
                every_s = topic.chores_every_s()
            except LockTimeout:
                self._due[name] = topic
                continue
            except Exception as e:  # noqa: BLE001 - the other topics have their turn
                is_unfinished, every_s = False, self._interval_s
                if topic.is_deleted:
                    every_s = 0.0  # its files are gone, which is no failure
                else:
                    for error, undone in e.failures if isinstance(e, ChoresFailed) else [(e, _UNDONE)]:
                        self._note_failure(name, error, undone, notes)
            if every_s:
                self._watch(name, topic, every_s)
            else:
                self._watched.pop(name, None)
            if is_unfinished:
                self._due[name] = topic
                is_any_unfinished = True
        return is_any_unfinished

    def _note_failure(self, name: str, error: Exception, undone: str, notes: list[str]) -> None:
        if not isinstance(error, CorruptionError):
            notes.append(package_log.Note(f"{name}: {undone}: {error}", topic=name))
            return
        self._timers.damage.enqueue(
            Damage(
                error.path or name,
                offset=error.offset or 0,
                reason=error.reason,
                kind=TOPIC_FILES,
                topic=name,
                done=undone,
                remedy=error.remedy,
            )
        )

    def _log(self, notes: list[str]) -> None:
        """Log each text once."""
        news = [note for note in notes if note not in self._reported]
        if not news:
            return
        if len(self._reported) > _MOST_REPORTED:
            self._reported.clear()
        self._reported.update(news)
        for note in news:
            package_log.warning(note)


class TopicTrimming:
    """Asks every subscription which entries it needs, and gives up the ledgers that none needs.

    Invariants: the subscriptions are looked at without their locks, which is safe because a trim point that
    was chosen before one of them was made or put back is not published (`_engine.log.trimming`).
    Callers: any thread, holding no lock of the topic or below.

    Args:
        ledger: the log.
        policies: the retention, and whether everything is kept until there is a durable subscription.
        marks: how far the durable subscriptions have come, by their control words.
        confirmed: the same by their journals; asked before ledgers are given up.
        holds: up to where others let ledgers go, in the same form; asked whether the trimming is forced.
        clock: says how old a ledger is.
        every_s: the time between two looks for what may be trimmed.

    Attributes:
        lock: held during a slice of the upkeep of the topic, which this is a part of.
    """

    def __init__(
        self,
        ledger: Log,
        policies: Callable[[], Sequence[Any]],
        marks: Callable[[], Sequence[Position]],
        confirmed: Callable[[], Sequence[Position]],
        holds: Callable[[bool], Sequence[Position]],
        clock: Clock,
        every_s: float,
    ) -> None:
        self._ledger: Final = ledger
        self._policies: Final = policies
        self._marks: Final = marks
        self._confirmed: Final = confirmed
        self._holds: Final = holds
        self._clock: Final = clock
        self.every_s: Final = every_s
        self.lock = threads.RLock()  # held during a slice, so that the log is not closed in the middle
        self._is_closed = ledger.is_volatile  # such a log gives up its oldest ledgers by itself
        self._is_disk_full = False  # the open ledger is to be closed if all of it is acknowledged

    @property
    def is_of_deleted_topic(self) -> bool:
        return is_deleted(self._ledger.words)

    def may_find_any(self) -> bool:
        """Whether there are closed ledgers that might go, now or later. Cheap: whatever the policy says now,
        any process may change it."""
        return not self._is_closed and self._ledger.trimming.has_closed_ledgers

    def trim(self, *, ignore_retention: bool = False) -> int:
        """Give up what may go and remove the files of a slice of it; return how many ledgers went.

        0 means that there is nothing more to do now.

        Args:
            ignore_retention: keep only what a durable subscription needs.

        Raises:
            StorageError: the position of a subscription is unknown. Nothing was given up.
            LockTimeout: another process stayed in the topic lock.
        """
        done: list[str] = []
        try:
            self.lock.acquire()
            removed = self.trim_slice(None, done, ignore_retention=ignore_retention)
        finally:
            self.lock.release()
        for text in done:
            package_log.info(text)
        return removed

    def trim_slice(
        self, lock_timeout_s: float | None, done: list[str], *, ignore_retention: bool = False
    ) -> int:
        """`trim`, under `lock`. Waits ``lock_timeout_s`` for the topic lock, or as long as the topic says;
        what is to be logged is added to ``done``."""
        if self._is_closed:
            return 0
        trimming = self._ledger.trimming
        if trimming.has_closed_ledgers:
            self._give_up(ignore_retention, lock_timeout_s)
        removed = trimming.remove(SLICE, SLICE_S)
        if not removed and self._is_disk_full:  # what the closed ledgers took did not suffice
            self._is_disk_full = False
            if self.close_acknowledged(ignore_retention=ignore_retention):
                self._give_up(ignore_retention, lock_timeout_s)
                removed = trimming.remove(SLICE, SLICE_S)
        if removed:
            name = self._ledger.name
            text = f"{name}: {removed} ledgers that nothing needs were removed"
            done.append(package_log.Note(text, topic=name))
        return removed

    def note_full_disk(self) -> None:
        """Have the next slice close the open ledger, if that lets it go. Cheap, without a lock."""
        self._is_disk_full = True

    def close_acknowledged(self, *, ignore_retention: bool = False) -> bool:
        """Close the open ledger if every durable subscription has acknowledged all of it, and retention does
        not keep it: then it can be given up. One of a few messages stays, because the next takes as much.

        Closing loses nothing, whatever is appended or put back meanwhile: what may go is decided afterwards.

        Returns:
            Whether it was closed.

        Raises:
            StorageFullError: there is not even room for the next ledger.
        """
        log = self._ledger
        tail = log.tail
        ledger_id, end = split_tail(tail)
        last = log.last_position()
        if self._is_closed or end <= SMALL_LOG or last is None or last.ledger_id != ledger_id:
            return False
        retention = Retention() if ignore_retention else self._policies()[0]
        now_ms = self._clock.wall_ms()
        age_ms = now_ms - log.words[TopicWord.LAST_PUBLISH_MS]
        if not (retention.is_none or retention.is_over_time(age_ms)):
            return False
        marks = self._marks()
        if not marks:
            return False  # no subscription has acknowledged anything
        pinned = log.trimming.pinned(now_ms, removes=False, with_readers=not ignore_retention)
        if min([*marks, *self._holds(ignore_retention), *pinned]) < last:
            return False
        failpoints.hit("closing:decided")
        with contextlib.suppress(TopicTerminated):
            is_closed = log.roll() != ledger_id
            failpoints.hit("closing:rolled")
            return is_closed
        return False

    def _give_up(self, ignore_retention: bool, lock_timeout_s: float | None) -> None:
        trimming = self._ledger.trimming
        retention, keeps_until_subscribed = (Retention(), False) if ignore_retention else self._policies()
        if retention.is_unlimited:
            return
        is_decided = False
        while not is_decided:
            seen = trimming.rewind_count(lock_timeout_s)
            marks = self._marks()
            if keeps_until_subscribed and not marks:
                return
            now_ms = self._clock.wall_ms()
            pinned = trimming.pinned(now_ms, removes=True, with_readers=not ignore_retention)
            marks = [*marks, *self._holds(ignore_retention), *pinned]
            first = trimming.first_needed(marks, retention, now_ms)
            if first > trimming.first_retained:
                # Words without a checksum do not suffice to remove messages.
                first = trimming.first_needed([*marks, *self._confirmed()], retention, now_ms)
            if first > trimming.first_retained:
                first = trimming.snapshot_before(first, lock_timeout_s)
            is_decided = first <= trimming.first_retained or trimming.give_up(first, seen, lock_timeout_s)

    def close(self) -> None:
        """Trim nothing from here on. Waits for the slice that is under way."""
        try:
            self.lock.acquire()
            self._is_closed = True
        finally:
            self.lock.release()

    def abandon(self) -> None:
        """Renew the lock in a forked child: it may be held by a thread that does not exist here."""
        self.lock = threads.renewed(self.lock)
        self._is_closed = True
