"""What housekeeping does for one topic: trimming, clearing away, and what is due as time passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from embeddedpulsar._engine.platform import deadline
from embeddedpulsar.exceptions import LockTimeout, StorageError
from embeddedpulsar.topic.expiry import MessageExpiry, SubscriptionExpiry
from embeddedpulsar.topic.housekeeping import (
    NOT_TRIMMED,
    PATIENCE_S,
    ChoresFailed,
    Housekeeping,
    TopicTrimming,
    UpkeptParts,
)
from embeddedpulsar.topic.topic_subscriptions import LOOKED_AT_ONCE

_ROUNDING_S: Final = 1e-3
_NOT_CLEARED: Final = "subscriptions that ended are not cleared away"


class Check(Protocol):
    """Something that is looked at again and again, as long as a policy asks for it.

    Attributes:
        every_s: the time between two looks.
        follows_traffic: whether it is also made when a ledger is closed, or needed no more.
        undone: what does not happen when it fails.
    """

    every_s: float
    follows_traffic: bool
    undone: str

    def is_wanted(self) -> bool:
        """Whether a policy asks for it. Cheap."""

    def look(self, done: list[str]) -> bool:
        """Do what is due; adds what is to be logged to ``done``. True if there is more to do at once."""


class TopicUpkeep:
    """Role: the `Chore` of a topic that is in use in this process. Invariants: a check is made when the topic
    begins to be used, when its policies change, and then at its interval; in whatever process, under the
    housekeeping lock. One that fails keeps none of the others from being made. Callers: any thread;
    `do_chores` the thread of housekeeping.

    Args:
        parts: of the topic; `begin` reads its policies.
        trimming: of the topic.
        checks: what to look at.
        housekeeping: of this process.
    """

    def __init__(
        self,
        parts: UpkeptParts,
        trimming: TopicTrimming,
        checks: Sequence[Check],
        housekeeping: Housekeeping,
    ) -> None:
        self.name: Final = parts.log.name
        self._parts: Final = parts
        self._trimming: Final = trimming
        self._checks: Final = checks
        self._housekeeping: Final = housekeeping
        self._due = [0.0] * len(checks)  # when each is made next; 0 for at once
        self._is_closed = False  # under the lock of the trimming

    @property
    def is_deleted(self) -> bool:
        """Whether the topic was deleted, by whatever process."""
        return self._trimming.is_of_deleted_topic

    def begin(self) -> None:
        """The topic begins to be used."""
        self._parts.policies.listen(self.renew)
        self._housekeeping.join(self)
        try:
            is_wanted = self.chores_every_s() > 0
        except StorageError:  # housekeeping meets it too, and reports it
            is_wanted = True
        if is_wanted:
            self._housekeeping.look_at(self)

    def renew(self) -> None:
        """Look at everything soon: policies changed. Called under locks."""
        self._due = [0.0] * len(self._checks)
        self._housekeeping.look_at(self)

    def suggest(self) -> None:
        """Look soon: a ledger was closed, or a subscription needs one no more. Called under locks."""
        is_wanted = self._trimming.may_find_any()
        try:
            for number, check in enumerate(self._checks):
                if check.follows_traffic and check.is_wanted():
                    self._due[number], is_wanted = 0.0, True
        except (StorageError, OSError):  # as in `begin`: the caller is an append or an acknowledgement
            is_wanted = True
        if is_wanted:
            self._housekeeping.look_at(self)

    def note_full_disk(self) -> None:
        """Have the trimming close the open ledger at the next look, if all of it is acknowledged."""
        self._trimming.note_full_disk()

    def do_chores(self, done: list[str]) -> bool:
        """Do a little of what is due, noted in ``done``. True if there may be more.

        Raises:
            LockTimeout: another process stayed in a lock. What needs it is left for the next call.
            ChoresFailed: part of it failed.
        """
        trimming = self._trimming
        try:
            trimming.lock.acquire()
            return not self._is_closed and self._do_slice(done)
        finally:
            trimming.lock.release()

    def _do_slice(self, done: list[str]) -> bool:
        now, is_unfinished = self._parts.clock.monotonic(), False
        late: LockTimeout | None = None
        failures: dict[str, tuple[Exception, str]] = {}
        steps: list[tuple[str, Callable[[], bool]]] = [
            (check.undone, partial(self._make, number, now, done))
            for number, check in enumerate(self._checks)
        ]
        steps.append((NOT_TRIMMED, lambda: self._trimming.trim_slice(PATIENCE_S, done) > 0))
        steps.append((_NOT_CLEARED, self._clear_away))
        for undone, step in steps:
            try:
                is_unfinished |= step()
            except LockTimeout as error:
                late = error
            except Exception as error:  # noqa: BLE001 - the other steps have their turn
                before = failures.get(str(error))
                failures[str(error)] = error, f"{before[1]}, {undone}" if before else undone
        if failures:
            raise ChoresFailed(list(failures.values()))
        if late is not None:
            raise late
        return is_unfinished

    def _make(self, number: int, now: float, done: list[str]) -> bool:
        """Make a check if it is due. True if it is to be made again at once."""
        check = self._checks[number]
        if not check.is_wanted() or now < self._due[number] - _ROUNDING_S:
            return False
        self._due[number] = now + check.every_s
        try:
            # With a deadline: a thread that closes the topic waits, and holds the table of topics.
            is_again = deadline.within(PATIENCE_S, check.look, done)
        except LockTimeout:
            self._due[number] = 0.0
            raise
        if is_again:
            self._due[number] = 0.0
        return is_again

    def _clear_away(self) -> bool:
        return deadline.within(PATIENCE_S, self._parts.subscriptions.clear_away, LOOKED_AT_ONCE)

    def chores_every_s(self) -> float:
        """How often to look whether something became due as time passed; 0 for never."""
        if self._is_closed:
            return 0.0
        found = [check.every_s for check in self._checks if check.is_wanted()]
        if self._trimming.may_find_any() or self._parts.subscriptions.may_find_leftovers():
            found.append(self._trimming.every_s)
        return min(found, default=0.0)

    def close(self) -> None:
        """Do nothing from here on. Waits for the slice that is under way."""
        self._parts.policies.unlisten(self.renew)
        trimming = self._trimming
        try:
            trimming.lock.acquire()
            self._is_closed = True
        finally:
            trimming.lock.release()
        self._housekeeping.forget(self)
        trimming.close()

    def abandon(self) -> None:
        """Renew the lock in a forked child: it may be held by a thread that does not exist here."""
        self._is_closed = True
        self._trimming.abandon()


def upkeep_of(
    parts: UpkeptParts, trimming: TopicTrimming, own: Sequence[Check], housekeeping: Housekeeping
) -> TopicUpkeep:
    """The upkeep of a topic, with all that policies may ask for: the checks ``own``, and expiry."""
    checks: list[Check] = []
    if not parts.log.is_volatile:
        checks += [MessageExpiry(parts), SubscriptionExpiry(parts), *own]
    return TopicUpkeep(parts, trimming, checks, housekeeping)
