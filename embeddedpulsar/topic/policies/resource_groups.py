"""Resource groups: rates of publishing and delivering that topics keep together, of whatever namespaces.

The groups are one policy of `OWNER`. Which of them a topic is in is a policy of the topic or its namespace.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from embeddedpulsar._engine.format.control import (
    RESOURCE_GROUP_SIZE,
    RESOURCE_GROUP_TABLE_OFFSET,
    RESOURCE_GROUPS,
)
from embeddedpulsar._engine.format.control import ResourceGroupWord as _Word
from embeddedpulsar.exceptions import CorruptionError, InvalidConfiguration, NotAllowedError
from embeddedpulsar.policy_values import ResourceGroup, from_fields, to_fields
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.topic.policies.policy import OWNER, TopicPolicy
from embeddedpulsar.topic.policies.rate_limiter import Lock, Rate, RateLimiter, SharedRate


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


_NAME: Final = re.compile(r"[-=:.\w]{1,255}")
_SLOT: Final = "slot"


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
    return {name: _read_group(name, one) for name, one in form.items()}


def _changed(session: Session, change: GroupChange) -> dict[str, Any]:
    """The groups as they are to be stored. Under the catalog lock.

    Raises:
        InvalidConfiguration: there is no such group, or the name or the limits make no sense.
        NotAllowedError: it is there already, or in use, or there are too many.
    """
    forms: dict[str, Any] = dict(session.policies.of_namespace(OWNER).get(GROUPS.key, {}))
    name, limits, before = change.name, change.limits, forms.get(change.name)
    if limits is not None and not isinstance(limits, ResourceGroup):
        raise InvalidConfiguration(f"the limits of a resource group are a ResourceGroup, not {limits!r}")
    if change.is_new:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidConfiguration(
                f"{name!r} is no name of a resource group: letters, digits and any of -=:._, at most 255"
            )
        if before is not None:
            raise NotAllowedError(f"there is a resource group {name!r} already; change it with an update")
        slot = _free_slot(forms)
        form = to_fields(limits) | {_SLOT: slot}
        session.group_words.clear(slot)
        return forms | {name: form}
    if before is None:
        raise no_group(name, forms)
    if limits is None:
        user = next(_users(session, name), None)
        if user is not None:
            raise NotAllowedError(f"the resource group {name!r} is in use by {user}; take it out there first")
        del forms[name]
        return forms
    given = {key: one for key, one in to_fields(limits).items() if one >= 0}
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
    names = session.policies.owners(GROUP_NAME.owners)
    if names is None:
        names = [*session.catalog.namespaces(), *(name for name, _ in session.catalog.listed_in(None))]
    return (name for name in names if session.policies.own(GROUP_NAME, name) == group)


def no_group(name: str, there: Mapping[str, Any]) -> InvalidConfiguration:
    """The error for a group that does not exist."""
    import difflib  # takes 3 ms, and is needed for a wrong name only

    near = difflib.get_close_matches(str(name), there, 1, 0.6)
    hint = f"did you mean {near[0]}?" if near else "make it with Admin.resource_groups()"
    return InvalidConfiguration(f"there is no resource group {name!r}; {hint}")


def _existing(session: Session, name: Any) -> Any:
    there = session.policies.of_namespace(OWNER).get(GROUPS.key, {})
    if name not in there:
        raise no_group(name, there)
    return name


def _checked_name(name: str | None) -> str:
    if not isinstance(name, str):
        raise InvalidConfiguration(f"the name of a resource group is a str, not {name!r}")
    return name


def _read_name(form: Any) -> str:
    if not isinstance(form, str):
        raise CorruptionError(reason=f"a policy document with a resource group that is no name: {form!r}")
    return form


GROUPS: Final = TopicPolicy[Any](
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
    name = next((one[GROUP_NAME.key] for one in levels if one.get(GROUP_NAME.key) is not None), None)
    found = groups.get(name)
    return {} if found is None else {_HELD: found | {"name": name}}


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
        if group is None or not group.is_limited(direction):
            return RateLimiter(rates, wall_ns) if rates else None
        rate = Rate(*(max(0, getattr(group.limits, name)) for name in direction.limits))
        words, lock = self._words, self._lock
        shared, limited, passed = (_first_word(group.slot) + word for word in direction.words)

        def note_limited() -> None:
            words[limited] += 1

        def count(messages: int, size: int) -> None:
            try:
                lock.acquire()
                words[passed] += messages
                words[passed + 1] += size
            finally:
                lock.release()

        mine = SharedRate(words, shared, lock, lambda: rate, note_limited)
        return RateLimiter([*rates, mine], wall_ns, count)


def _first_word(slot: int) -> int:
    return (RESOURCE_GROUP_TABLE_OFFSET + slot * RESOURCE_GROUP_SIZE) // 8
