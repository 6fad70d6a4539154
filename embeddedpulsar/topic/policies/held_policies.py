"""The policies that hold for an open topic, kept in memory until one is changed in any process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from embeddedpulsar._engine.format.control import StoreWord
from embeddedpulsar.exceptions import StorageError
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.topic.policies.policy import Fields, TopicPolicy, Value
from embeddedpulsar.topic.policies.policy_documents import PolicyDocuments

if TYPE_CHECKING:
    from embeddedpulsar._engine.platform.mailbox import Mailbox
    from embeddedpulsar._engine.platform.scheduler import SchedulerLike

Answer = TypeVar("Answer")
ValueOf = Callable[[TopicPolicy[Any]], Any]

_POLICIES: Final = StoreWord.POLICIES
_ABANDONED_S: Final = 1.0
"""After this time of an unfinished change the documents are read a last time. If the process that makes it
lives, the word changes once more."""
_NEVER: Final = -1
_PATIENCE_S: Final = 1.0
"""How long to wait for a thread that calls the listeners. They wait for nothing; but after a fork that thread
may not exist."""


class _Held(NamedTuple):
    """What was read, and the word before the reading. Replaced as a whole."""

    word: int
    documents: Sequence[Fields]
    values: dict[Any, Any]  # by the key of a policy, or by the question of `once`; shared without documents


class HeldPolicies:
    """Role: the values of the policies of one topic, at the cost of comparing a word of ``store.ctl``, which
    changes with every change of a policy in the store.

    Invariants: a value is that of the documents as they were when the word had its present value. While a
    change is under way the word is odd, and documents that were read then are read again. When `look`
    returns, the listeners have followed every change that was made before it was called.
    Callers: any thread, a signal handler too. Listeners run in the thread that sees the change first, which
    may hold the lock of the topic or of a subscription: they take no lock, and wait for nothing. Other
    threads wait for them, because one that finds the values read but not followed would use the old ones.

    Args:
        source: the documents of the store.
        words: of ``store.ctl``.
        topic: its name and directory.
        monotonic: the time in seconds.
    """

    __slots__ = (
        "_directory",
        "_followed",
        "_held",
        "_listeners",
        "_monotonic",
        "_name",
        "_odd",
        "_source",
        "_words",
    )

    def __init__(
        self,
        source: PolicyDocuments,
        words: memoryview,
        topic: tuple[str, str],
        monotonic: Callable[[], float],
    ) -> None:
        self._source: Final = source
        self._words: Final = words
        self._name, self._directory = topic
        self._monotonic: Final = monotonic
        self._held = _Held(_NEVER, (), {})
        self._followed = _NEVER  # the word of the values that the listeners have followed
        self._odd = (_NEVER, 0.0)  # a word of an unfinished change, and since when it stands
        # A dict, because two threads may add to it at once.
        self._listeners: dict[Callable[[], object], None] = {}

    def value(self, policy: TopicPolicy[Value]) -> Value:
        """The value that holds now.

        Raises:
            StorageError: a document is damaged.
        """
        held = self._held
        if self._words[_POLICIES] != held.word:
            held = self._renew()
        return self._value_in(held, policy)

    def _value_in(self, held: _Held, policy: TopicPolicy[Value]) -> Value:
        try:
            found: Value = held.values[policy.key]
        except KeyError:
            found = held.values[policy.key] = self._source.nearest(policy, held.documents)
        return found

    def values(self, policies: Sequence[TopicPolicy[Any]]) -> list[Any]:
        """The values of several policies; see `value`."""
        return [self.value(policy) for policy in policies]

    def once(self, question: Callable[[ValueOf], Answer]) -> Answer:
        """The answer to a question about values, asked once and again after a change.

        Args:
            question: a function of what gives the value of a policy, and of nothing else.
        """
        held = self._held
        if self._words[_POLICIES] != held.word:
            held = self._renew()
        try:
            found: Answer = held.values[question]
        except KeyError:
            found = held.values[question] = question(lambda policy: self._value_in(held, policy))
        return found

    def look(self) -> None:
        """Call the listeners if policies of this topic were changed. Some 50 ns if none was in the store."""
        if self._words[_POLICIES] != self._followed and self._listeners:
            with contextlib.suppress(StorageError, OSError):  # the next that needs a value raises it
                self._renew()

    def listen(self, listener: Callable[[], object]) -> None:
        """Call ``listener()`` after each change of these policies, until `unlisten`."""
        self._listeners[listener] = None
        self.look()

    def unlisten(self, listener: Callable[[], object]) -> None:
        """Undo `listen`. Idempotent."""
        self._listeners.pop(listener, None)

    def _renew(self) -> _Held:
        lock = self._source.following
        try:
            lock.acquire(True, _PATIENCE_S)
            word = self._words[_POLICIES]
            if word != self._followed:
                self._follow(word)
            return self._held
        finally:
            lock.release()

    def _follow(self, word: int) -> None:
        before = self._held
        seen = word if not word & 1 or self._is_abandoned(word) else _NEVER
        documents = self._source.documents(self._name, self._directory)
        if documents == before.documents:
            self._held = before._replace(word=seen)
        else:
            values = {} if any(documents) else self._source.defaults
            self._held = _Held(seen, documents, values)
            if before.word != _NEVER or before.documents:
                self._call_listeners()
        self._followed = self._held.word

    def _call_listeners(self) -> None:
        # Again if a signal handler renewed the values meanwhile: between a listener's look at an older value
        # and its use of it, the handler has called the same listener.
        called_for: object = None
        while called_for is not self._held.documents:
            called_for = self._held.documents
            for listener in tuple(self._listeners):
                with contextlib.suppress(StorageError):  # what it follows stays as it was
                    listener()

    def _is_abandoned(self, word: int) -> bool:
        since, now = self._odd, self._monotonic()
        if since[0] != word:
            self._odd = (word, now)
            return False
        return now - since[1] > _ABANDONED_S


class PolicyWatch:
    """Role: when this process is rung after a change of a policy, has the topics that it has open look at
    theirs, and wakes its threads that wait. Callers: the mailbox, in any thread; files are read on the
    thread of housekeeping.

    Args:
        words: of ``store.ctl``.
        mailbox: of this process.
        chores: the timers of housekeeping.
        look_at_all: looks at the policies of the open topics.
    """

    def __init__(
        self, words: memoryview, mailbox: Mailbox, chores: SchedulerLike, look_at_all: Callable[[], object]
    ) -> None:
        self._words: Final = words
        self._seen = words[_POLICIES]
        self._mailbox: Final = mailbox
        self._chores: Final = chores
        self._look_at_all: Final = look_at_all
        mailbox.add_listener(self._on_ring)

    def _on_ring(self) -> None:
        word = self._words[_POLICIES]
        if word != self._seen:
            self._seen = word
            with contextlib.suppress(RuntimeError):  # the store is being closed
                self._chores.call_later(0.0, self._look)

    def _look(self) -> None:
        self._look_at_all()
        self._mailbox.ring_self()
