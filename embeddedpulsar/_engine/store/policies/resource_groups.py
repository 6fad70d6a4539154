"""Resource groups: rates of publishing and delivering that topics keep together, of whatever namespaces.

The groups are one policy of `OWNER`. Which of them a topic is in is a policy of the topic or its namespace.

Rates that several processes keep together: what may be published or delivered now, and when more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from embeddedpulsar._engine.format.control import (
    RESOURCE_GROUP_SIZE,
    RESOURCE_GROUP_TABLE_OFFSET,
    RESOURCE_GROUPS,
)
from embeddedpulsar._engine.format.control import ResourceGroupWord as _Word
from embeddedpulsar._engine.store.policies.policy import OWNER, TopicPolicy
from embeddedpulsar.exceptions import CorruptionError, InvalidConfiguration, NotAllowedError
from embeddedpulsar.policy_values import ResourceGroup, from_fields, to_fields
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from typing import Any, Final

BOUNDLESS: Final = 1 << 50
"""What may be taken of something that is not limited."""
_SECOND_NS: Final = 1_000_000_000
_LONGEST_NS: Final = 1 << 62
WORDS: Final = 3
"""How many words a rate has, from its first one."""
_STAMP, _MESSAGES, _BYTES = 0, 1, 2


class Lock(Protocol):
    """The lock that guards the words of a rate."""

    def acquire(self, timeout_s: float = 30.0) -> None: ...
    def release(self) -> object: ...


class Unshared:
    """Stands for the lock where one thread at a time uses the words."""

    def acquire(self, timeout_s: float = 30.0) -> None: ...
    def release(self) -> object: ...


class Rate(NamedTuple):
    """What is allowed in a period; 0 for what is not limited."""

    messages: int
    size: int
    period_ns: int = _SECOND_NS


class SharedRate:
    """A rate in three words of shared memory, which processes keep together.

    Role: a token bucket that holds the tokens of one period. A word is not the number of tokens but the time
    at which the bucket was, or will be, empty when nothing flows in: one store changes it, and a process that
    dies at any instruction leaves a bucket that is right. Tokens may be owed: then the time is ahead.
    Invariants: the first word is the time of the last look. If the clock was set back since, the other two
    are set back as much, so that no time passes.
    Callers: any thread; the lock guards the words.

    Args:
        words: shared memory.
        first: the index of the first word.
        lock: guards them.
        rate: called at each look; what is allowed may change.
        on_throttled: called under the lock when tokens are missing that were there before.
    """

    __slots__ = ("_first", "_rate", "_words", "lock", "on_throttled")

    def __init__(
        self,
        words: Any,
        first: int,
        lock: Lock,
        rate: Callable[[], Rate],
        on_throttled: Callable[[], object] = int,
    ) -> None:
        self._words = words
        self._first = first
        self._rate = rate
        self.lock: Final = lock
        self.on_throttled: Final = on_throttled

    def room(self, now_ns: int) -> tuple[int, int]:
        """Messages and bytes that may pass now; 0 or less if none. Under the lock."""
        words, first, rate = self._words, self._first, self._rate()
        # The clock was set back since the last look: the times of the buckets go back as much, so that the
        # level of each stays.
        back = words[first + _STAMP] - now_ns
        if back > 0:
            for word in (first + _MESSAGES, first + _BYTES):
                words[word] = max(0, words[word] - back)
        words[first + _STAMP] = now_ns
        return (
            self._tokens(first + _MESSAGES, rate.messages, rate.period_ns, now_ns),
            self._tokens(first + _BYTES, rate.size, rate.period_ns, now_ns),
        )

    def _tokens(self, word: int, rate: int, period_ns: int, now_ns: int) -> int:
        # 0 is no limit.
        if rate <= 0:
            return BOUNDLESS
        # Tokens are time: as much as has passed since the bucket was empty, and no more than one period.
        return int((now_ns - max(self._words[word], now_ns - period_ns)) * rate // period_ns)

    def take_tokens(self, messages: int, size: int, now_ns: int) -> None:
        """Take tokens, more than there are if need be; give them back if negative. Under the lock."""
        rate, floor = self._rate(), now_ns - self._rate().period_ns
        # More than there are may be taken: an entry is one step, however large; its tokens are owed, and the
        # next steps wait.
        for word, allowed, count in ((_MESSAGES, rate.messages, messages), (_BYTES, rate.size, size)):
            if allowed > 0 and count:
                empty = max(self._words[self._first + word], floor) + count * rate.period_ns // allowed
                # A bucket that is owed without end would never be full again after a mistake in a rate.
                self._words[self._first + word] = min(max(0, empty), _LONGEST_NS)

    def due_ns(self) -> int:
        """When the next token of each kind is there."""
        rate, due = self._rate(), 0
        for word, allowed in ((_MESSAGES, rate.messages), (_BYTES, rate.size)):
            if allowed > 0:
                # Rounded up: a token that is there only in part does not help.
                due = max(due, self._words[self._first + word] + -(-rate.period_ns // allowed))
        return due


class RateLimiter:
    """The rates that hold for one producer or consumer together.

    Role: `reserve` takes tokens from each of them before anything is stored or read, and `give_back` returns
    what was not used. Between the two a process may die: then the tokens of this one step are lost, and come
    back with time.
    Callers: any thread that may wait for the locks.

    Attributes:
        due_ns: when to look again after a `reserve` that got nothing, wall time; 0 otherwise.

    Args:
        rates: from the outermost lock to the innermost.
        wall_ns: the time.
        count: called with the messages and bytes of each step that were used; None for nothing.
    """

    __slots__ = ("_asked_ns", "_count", "_got", "_rates", "_wall_ns", "due_ns")

    def __init__(
        self,
        rates: Sequence[SharedRate],
        wall_ns: Callable[[], int],
        count: Callable[[int, int], object] | None = None,
    ) -> None:
        self._rates: Final = tuple(rates)
        self._wall_ns: Final = wall_ns
        self._count: Final = count
        self._got = (0, 0)
        self.due_ns = self._asked_ns = 0

    def reserve(self, messages: int, size: int) -> tuple[int, int]:
        """Take up to these numbers of messages and bytes. Returns what was taken; 0 and 0 if not both.

        Raises:
            LockTimeout: a lock was not free in time; nothing was taken.
        """
        # From one rate to the next, with what the one before has granted.
        now_ns, got = self._wall_ns(), (messages, size)
        taken: list[tuple[int, int]] = []
        try:
            for rate in self._rates:
                got = self._take_from(rate, *got, now_ns)
                taken.append(got)
                # Nothing of this rate: what others have granted is given back below.
                if not got[0]:
                    return got
            self.due_ns = 0
            self._got = got
            return got
        except BaseException:
            # An error, a lock that was not free for example: all that was taken is given back.
            got = 0, 0
            raise
        finally:  # of those that had more
            # What a rate granted beyond the smallest of all is given back to it.
            for rate, (had, had_size) in zip(self._rates, taken, strict=False):
                self._change(rate, got[0] - had, got[1] - had_size, now_ns)

    def _take_from(self, rate: SharedRate, messages: int, size: int, now_ns: int) -> tuple[int, int]:
        try:
            rate.lock.acquire()
            room, room_size = rate.room(now_ns)
            if room <= 0 or room_size <= 0:
                # Counted once for each wait, not for each look.
                if not self.due_ns:
                    rate.on_throttled()
                self._asked_ns, self.due_ns = now_ns, max(rate.due_ns(), now_ns + 1)
                return 0, 0
            messages, size = min(messages, room), min(size, room_size)
            rate.take_tokens(messages, size, now_ns)
            return messages, size
        finally:
            rate.lock.release()

    def _change(self, rate: SharedRate, messages: int, size: int, now_ns: int) -> None:
        if messages or size:
            try:
                rate.lock.acquire()
                rate.take_tokens(messages, size, now_ns)
            finally:
                rate.lock.release()

    def give_back(self, messages: int, size: int) -> None:
        """Return what was taken and not used; negative for what was used in addition.

        Raises:
            LockTimeout: a lock was not free in time; some rates were not changed.
        """
        # What passed is what was taken less what was not used.
        got, self._got = self._got, (0, 0)
        if messages or size:
            now_ns = self._wall_ns()
            for rate in self._rates:
                self._change(rate, -messages, -size, now_ns)
        if self._count is not None and got != (messages, size):
            self._count(got[0] - messages, got[1] - size)

    @property
    def is_waiting(self) -> bool:
        """Whether the last `reserve` got nothing, and it is not due again."""
        return self.left_ns > 0

    @property
    def left_ns(self) -> int:
        """Nanoseconds until `due_ns`; 0 or less if it is due. It is due at once when the clock was set back
        since the last `reserve`: the next one sets the times of the rate back, too."""
        now_ns = self._wall_ns()
        return self.due_ns - now_ns if now_ns >= self._asked_ns else 0

    @property
    def due_ms(self) -> int:
        """When to look again, in milliseconds, rounded up."""
        return -(-(self._wall_ns() + self.left_ns) // 1_000_000)


class _Policies(Protocol):
    def of_namespace(self, namespace: str) -> dict[str, Any]: ...
    def own(self, policy: TopicPolicy[Any], name: str) -> Any: ...
    def owners(self, key: str) -> Sequence[str] | None: ...


class _Catalog(Protocol):
    def namespaces(self) -> list[str]: ...
    def listed_in(self, namespace: str | None) -> list[tuple[str, int]]: ...


class Session(Protocol):
    """What a change of groups needs of a `StoreSession`."""

    @property
    def policies(self) -> _Policies: ...
    @property
    def catalog(self) -> _Catalog: ...
    @property
    def group_words(self) -> GroupWords: ...


_IN_NAMES: Final = "-=:._"
_LONGEST_NAME: Final = 255
_SLOT: Final = "slot"


def _is_name(text: str) -> bool:
    """Whether a group may have this name."""
    return 0 < len(text) <= _LONGEST_NAME and all(each.isalnum() or each in _IN_NAMES for each in text)


class HeldGroup(NamedTuple):
    """A group, and the number of its slot in ``store.ctl``."""

    name: str
    limits: ResourceGroup
    slot: int

    def is_limited(self, direction: Direction) -> bool:
        """Whether the topics of the group publish or deliver at a rate."""
        return any(getattr(self.limits, name) > 0 for name in direction.limits)


class GroupChange(NamedTuple):
    """What happens to a group: limits None deletes it."""

    name: str
    limits: ResourceGroup | None
    is_new: bool = False


def _read_group(name: str, form: Any) -> HeldGroup:
    limits = from_fields(ResourceGroup, form)
    slot = form.get(_SLOT)
    if type(slot) is not int or not 0 <= slot < RESOURCE_GROUPS:
        raise CorruptionError(reason=f"a policy document with a resource group without a slot: {form!r}")
    return HeldGroup(name, limits, slot)


def _read_groups(form: Any) -> dict[str, HeldGroup]:
    if not isinstance(form, dict):
        raise CorruptionError(reason=f"a policy document with resource groups that are none: {form!r}")
    return {name: _read_group(name, fields) for name, fields in form.items()}


def _changed(session: Session, change: GroupChange) -> dict[str, Any]:
    """The groups as they are to be stored. Under the catalog lock.

    Raises:
        InvalidConfiguration: there is no such group, or the name or the limits make no sense.
        NotAllowedError: it is there already, or in use, or there are too many.
    """
    # Under the catalog lock, so no other process changes the groups between this look and the document.
    forms: dict[str, Any] = dict(session.policies.of_namespace(OWNER).get(GROUPS.key, {}))
    name, limits, before = change.name, change.limits, forms.get(change.name)
    if limits is not None and not isinstance(limits, ResourceGroup):
        raise InvalidConfiguration(f"the limits of a resource group are a ResourceGroup, not {limits!r}")
    # Three cases: a new group, the end of one, and other limits.
    if change.is_new:
        if not isinstance(name, str) or not _is_name(name):
            raise InvalidConfiguration(
                f"{name!r} is no name of a resource group: letters, digits and any of -=:._, at most 255"
            )
        if before is not None:
            raise NotAllowedError(f"there is a resource group {name!r} already; change it with an update")
        # A slot of words in store.ctl, the same for all processes. It is cleared before the document names
        # it: another group may have had it, and its counts are not those of this one.
        slot = _free_slot(forms)
        form = to_fields(limits) | {_SLOT: slot}
        session.group_words.clear(slot)
        return forms | {name: form}
    if before is None:
        raise no_group(name, forms)
    if limits is None:
        # A group in use cannot go: its topics would be without a limit, with nothing to show for it.
        user = next(_users(session, name), None)
        if user is not None:
            raise NotAllowedError(f"the resource group {name!r} is in use by {user}; take it out there first")
        del forms[name]
        return forms
    # -1 in an update means "as before"; for a new group it means no limit.
    given = {key: limit for key, limit in to_fields(limits).items() if limit >= 0}
    return forms | {name: before | given}


def _free_slot(forms: Mapping[str, Any]) -> int:
    taken = {group.slot for group in _read_groups(forms).values()}
    free = next((slot for slot in range(RESOURCE_GROUPS) if slot not in taken), None)
    if free is None:
        raise NotAllowedError(
            f"there are {RESOURCE_GROUPS} resource groups, and a store has no more; delete one"
        )
    return free


def _users(session: Session, group: str) -> Iterator[str]:
    """The topics and namespaces that name a group."""
    # The list of owners is kept by the documents; None where it is not known, as in stores of before it was
    # kept, and then every name is looked at.
    names = session.policies.owners(GROUP_NAME.owners)
    if names is None:
        names = [*session.catalog.namespaces(), *(name for name, _ in session.catalog.listed_in(None))]
    return (name for name in names if session.policies.own(GROUP_NAME, name) == group)


def no_group(name: str, groups: Mapping[str, Any]) -> InvalidConfiguration:
    """The error for a group that does not exist."""
    import difflib  # takes 3 ms, and is needed for a wrong name only

    near = difflib.get_close_matches(str(name), groups, 1, 0.6)
    hint = f"did you mean {near[0]}?" if near else "make it with Admin.resource_groups()"
    return InvalidConfiguration(f"there is no resource group {name!r}; {hint}")


def _existing(session: Session, name: Any) -> Any:
    forms = session.policies.of_namespace(OWNER).get(GROUPS.key, {})
    if name not in forms:
        raise no_group(name, forms)
    return name


def _checked_name(name: str | None) -> str:
    if not isinstance(name, str):
        raise InvalidConfiguration(f"the name of a resource group is a str, not {name!r}")
    return name


def _read_name(form: Any) -> str:
    if not isinstance(form, str):
        raise CorruptionError(reason=f"a policy document with a resource group that is no name: {form!r}")
    return form


GROUPS: Final[TopicPolicy[Any]] = TopicPolicy(
    "resourceGroups", lambda settings, own: {}, lambda change: change, _read_groups, amend=_changed
)
"""All groups, of `OWNER`. It is set to a `GroupChange`."""

GROUP_NAME: Final = TopicPolicy[str | None](
    "resource_group_name",
    lambda settings, own: None,
    _checked_name,
    _read_name,
    amend=_existing,
    owners="resourceGroupOwners",
)
"""The group that a topic or a namespace is in: `admitting.IN_GROUP` without its calls."""

_HELD: Final = "resourceGroup"
HELD_GROUP: Final = TopicPolicy[HeldGroup | None](
    _HELD, lambda settings, own: None, to_fields, lambda form: _read_group(form["name"], form)
)
"""The group of a topic with its limits. It is found, not set."""


def held_group(system: Mapping[str, Any], levels: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The group of a topic, in the form of `HELD_GROUP`.

    Args:
        system: the policies of `OWNER`.
        levels: those that hold for the topic, the nearest first.
    """
    groups = system.get(GROUPS.key)
    if not groups:
        return {}
    # The nearest level that names a group decides; an unknown name holds nothing.
    name = next((level[GROUP_NAME.key] for level in levels if level.get(GROUP_NAME.key) is not None), None)
    form = groups.get(name)
    return {} if form is None else {_HELD: form | {"name": name}}


class Direction(NamedTuple):
    """Publishing or delivering: which fields of a `ResourceGroup` limit it, and where the words are of its
    rate, of the waits, and of what passed."""

    limits: tuple[str, str]
    words: tuple[int, int, int]


PUBLISHING: Final = Direction(
    ("publish_rate_in_msgs", "publish_rate_in_bytes"),
    (_Word.PUBLISH_RATE, _Word.PUBLISH_LIMITED, _Word.PUBLISHED),
)
DISPATCHING: Final = Direction(
    ("dispatch_rate_in_msgs", "dispatch_rate_in_bytes"),
    (_Word.DISPATCH_RATE, _Word.DISPATCH_LIMITED, _Word.DISPATCHED),
)


class GroupUsage(NamedTuple):
    """What passed the limits of a group, and how often something had to wait for them."""

    published: tuple[int, int]
    dispatched: tuple[int, int]
    publish_limited: int
    dispatch_limited: int


_LOOKS: Final = 100


class GroupWords:
    """The words that each resource group has in ``store.ctl``.

    Role: all processes keep the rates of a group together by them, as they do those of a topic, and count
    what passes. A process that dies leaves its last step uncounted. Callers: any thread.

    Args:
        words: of ``store.ctl``.
        lock: the store lock, innermost of all.
    """

    def __init__(self, words: memoryview, lock: Lock) -> None:
        self._words: Final = words
        self._lock: Final = lock

    def clear(self, slot: int) -> None:
        """Begin anew: another group had the slot."""
        first = _first_word(slot)
        try:
            self._lock.acquire()
            for word in range(first, first + RESOURCE_GROUP_SIZE // 8):
                self._words[word] = 0
        finally:
            self._lock.release()

    def usage(self, slot: int) -> GroupUsage:
        """What was counted."""
        first = _first_word(slot)
        counted = self._words[first : first + RESOURCE_GROUP_SIZE // 8]
        # Without the lock, which those that only look do not get. Equal counts are of one moment.
        words: list[int] = []
        for _ in range(_LOOKS):
            before, words = words, counted.tolist()
            if words == before:
                break
        published, dispatched = _Word.PUBLISHED, _Word.DISPATCHED
        return GroupUsage(
            (words[published], words[published + 1]),
            (words[dispatched], words[dispatched + 1]),
            words[_Word.PUBLISH_LIMITED],
            words[_Word.DISPATCH_LIMITED],
        )

    def limiter(
        self,
        group: HeldGroup | None,
        direction: Direction,
        rates: Sequence[SharedRate],
        wall_ns: Callable[[], int],
    ) -> RateLimiter | None:
        """The limiter of a producer, consumer or reader; None if it has no limit.

        Args:
            group: that its topic is in; None for none.
            direction: what it does.
            rates: those it has beside that of the group.
            wall_ns: the time.
        """
        # No group: the rates of the topic alone, without counting.
        if group is None or not group.is_limited(direction):
            return RateLimiter(rates, wall_ns) if rates else None
        # Negative limits are none.
        rate = Rate(*(max(0, getattr(group.limits, name)) for name in direction.limits))
        words, lock = self._words, self._lock
        shared, limited, passed = (_first_word(group.slot) + word for word in direction.words)

        def note_limited() -> None:
            words[limited] += 1

        # Counted in words that all processes share; the lock makes the sum right.
        def count(messages: int, size: int) -> None:
            try:
                lock.acquire()
                words[passed] += messages
                words[passed + 1] += size
            finally:
                lock.release()

        # The group last: its lock is the store lock, the innermost of all.
        mine = SharedRate(words, shared, lock, lambda: rate, note_limited)
        return RateLimiter([*rates, mine], wall_ns, count)


def _first_word(slot: int) -> int:
    return (RESOURCE_GROUP_TABLE_OFFSET + slot * RESOURCE_GROUP_SIZE) // 8
