"""A topic as an onlooker sees it: its producers and subscriptions, without a lock, and nothing is changed."""

from __future__ import annotations

import os
from operator import itemgetter

from embeddedpulsar._engine import filenames
from embeddedpulsar._engine.filenames import is_gone
from embeddedpulsar._engine.format.control import KIND_TOPIC, TopicWord
from embeddedpulsar._engine.log.journal_file import JournalPlace
from embeddedpulsar._engine.log.topic_control import TERMINATED
from embeddedpulsar._engine.platform import descriptors, threads, timing
from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar._engine.platform.package_log import DamageChannel
from embeddedpulsar._engine.platform.peers import Peers
from embeddedpulsar.damage import Damage
from embeddedpulsar.exceptions import SubscriptionNotFound
from embeddedpulsar.message_id import Position
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple, Protocol
from embeddedpulsar.topic_name import NON_DURABLE_PREFIX, subscription_directory_name

if TYPE_CHECKING:
    from typing import Final

    from embeddedpulsar._engine.format.journal_record import AttachProducer
    from embeddedpulsar._engine.log.journal_file import JournalView
    from embeddedpulsar._engine.log.log import Log
    from embeddedpulsar._engine.store.store_transactions import StoreTransactions
    from embeddedpulsar._engine.store.topic_journal import TopicReplica
    from embeddedpulsar._engine.store.topic_transactions import TopicTransactions, TransactionTally
    from embeddedpulsar._engine.subscription.subscription_view import SubscriptionFacts, SubscriptionView


_WINDOW_MS: Final = 60_000

Look = tuple[int, int]
"""When it was, in ms since the epoch, and what was counted."""


class ProducerFacts(NamedTuple):
    """The producers of a topic at one moment.

    Attributes:
        connected: those whose process lives, in order of arrival.
        waiting: how many living ones wait for exclusive access.
        epoch: how often exclusive access was granted.
    """

    connected: tuple[AttachProducer, ...]
    waiting: int
    epoch: int


class ViewHost(Protocol):
    """What a view needs of its store; see `StoreSession`."""

    peers: Peers
    damage: DamageChannel
    transactions: StoreTransactions


class TopicView:
    """Follows the journals of a topic and its subscriptions for those that only look. Invariants: takes
    no lock that another process holds, and writes nothing.
    Callers: any thread.

    Args:
        directory: of the topic.
        log: of the topic.
        host: the other processes, and where to report what cannot be read.
    """

    __slots__ = ("_directory", "_drops", "_host", "_lock", "_log", "_producers", "_tally", "_views")

    def __init__(self, directory: str, log: Log, host: ViewHost) -> None:
        self._directory: Final = directory
        self._log: Final = log
        self._host: Final = host
        self._lock: Final = threads.RLock()  # guards everything below
        self._views: dict[str, SubscriptionView] = {}
        self._drops: dict[str, tuple[Look, Look]] = {}
        self._producers: tuple[TopicReplica, JournalView, int] | None = None  # made by the first look
        self._tally: TransactionTally | None = None  # likewise

    @property
    def is_terminated(self) -> bool:
        """Whether nothing can be published any more."""
        if self._log.words[TopicWord.STATE] & TERMINATED:
            return True
        if not self._log.is_derived:
            return False
        self.producers()  # the word is lost with a reboot, and the journal has it
        return self._producers is not None and self._producers[0].table.terminated is not None

    def producers(self) -> ProducerFacts:
        """The producers.

        Raises:
            StorageError: the topic's journal cannot be read.
        """
        try:
            timing.enter(self._lock, f"a look at {self._log.name}")
            words = self._log.words
            if self._producers is None:
                with late_imports():
                    from embeddedpulsar._engine.log.journal_file import JournalView
                    from embeddedpulsar._engine.store.topic_journal import JOURNAL_CHECKED, TopicReplica
                replica = TopicReplica()
                place = JournalPlace(self._directory, words, TopicWord.JOURNAL, KIND_TOPIC)
                self._producers = replica, JournalView(place, replica), JOURNAL_CHECKED
            replica, journal, checked = self._producers
            # EPOCH changes with a reboot or a recovery, and the word of the journal may then be stale. A view
            # writes nothing: it reads the files, and leaves the check and its mark to an opening.
            is_trusted = words[checked] == words[TopicWord.EPOCH] + 1
            is_there = journal.refresh(is_trusted=is_trusted)
            table = replica.table
            # Copies: the next look changes the table, and whether processes live is asked without the lock.
            connected = tuple(table.connected.values()) if is_there else ()
            waiting = tuple(table.waiting.values()) if is_there else ()
            epoch = table.epoch if is_there else 0
        finally:
            self._lock.release()
        for damage in journal.damage:
            self.report(damage)
        return ProducerFacts(
            # The journal keeps producers of killed processes until the next opening of one takes them out.
            tuple(producer for producer in connected if self._lives(producer.client_uuid)),
            sum(self._lives(producer.client_uuid) for producer in waiting),
            epoch,
        )

    def transactions(self) -> TopicTransactions | None:
        """The transactions that stored something here; None in a store without transactions. The first look
        reads the entries of all that are not folded.

        Raises:
            StorageError: the document of those that are folded cannot be read.
        """
        tally = self._transaction_tally()
        if tally is None:
            return None
        try:
            timing.enter(self._lock, f"a look at {self._log.name}")
            return tally.refresh()
        finally:
            self._lock.release()

    def find_transaction(self, txn_id: int) -> Position | None:
        """The first entry of a transaction that is retained. Reads the entries of all transactions."""
        tally = self._transaction_tally()
        return None if tally is None else tally.find(txn_id)

    def _transaction_tally(self) -> TransactionTally | None:
        transactions = self._host.transactions
        if self._tally is None and transactions.exists and not self._log.is_volatile:
            with late_imports():
                from embeddedpulsar._engine.store.topic_transactions import TransactionTally
            self._tally = TransactionTally(self._directory, self._log, transactions.outcome)
        return self._tally

    def subscriptions(self) -> list[tuple[SubscriptionFacts, bool]]:
        """The subscriptions, and whether each is durable; sorted by name, the durable first. Of the others,
        those with consumers.

        Raises:
            StorageError: the files of one of them cannot be read.
        """
        seen: list[tuple[str, bool, SubscriptionFacts]] = []
        for name, view in self._following().items():
            facts, is_volatile = view.facts(self._lives), name.startswith(NON_DURABLE_PREFIX)
            if facts is not None and (facts.consumers or not is_volatile):
                seen.append((facts.name, is_volatile, facts))
        seen.sort(key=itemgetter(0, 1))
        return [(facts, not is_volatile) for _, is_volatile, facts in seen]

    def mark_deletes(self) -> list[Position]:
        """How far the durable subscriptions have come by their journals, which have checksums; their control
        words have none.

        Raises:
            StorageError: the files of one of them cannot be read.
        """
        positions = [
            view.read_state(lambda state: state.mark_delete)
            for name, view in self._following().items()
            if not name.startswith(NON_DURABLE_PREFIX)
        ]
        return [position for position in positions if position is not None]

    def subscription(self, name: str) -> SubscriptionView:
        """A durable subscription.

        Raises:
            SubscriptionNotFound: there is none of that name.
            StorageError: its files cannot be read.
        """
        view = self._view(subscription_directory_name(name))
        if view.read_state(lambda state: state.name) != name:
            raise SubscriptionNotFound(f"{self._log.name} has no subscription {name!r}")
        return view

    def facts(self, name: str) -> SubscriptionFacts:
        """The facts of a durable subscription. Errors as of `subscription`."""
        facts = self.subscription(name).facts(self._lives)
        if facts is None:
            raise SubscriptionNotFound(f"{self._log.name} has no subscription {name!r}")
        return facts

    def drops_before(self, subscription: str, since: Look, now: Look) -> Look:
        """A look at the drops of a subscription to compare the present one with.

        Args:
            subscription: its name.
            since: when it was made, and 0.
            now: the time, and how many drops there are.

        Returns:
            ``since`` for a minute after the first look of this process; later a look one or two minutes ago.
        """
        older, newer = self._drops.get(subscription, (since, now))
        if now[0] - newer[0] >= _WINDOW_MS:
            older, newer = newer, now
        self._drops[subscription] = older, newer
        return older

    def report(self, damage: Damage) -> None:
        """Tell the application what was found damaged."""
        self._host.damage.report(damage._replace(topic=self._log.name))

    def _lives(self, uuid: bytes) -> bool:
        try:
            return self._host.peers.is_alive(uuid)
        except OSError:
            return True  # no answer (no descriptors left, no permission): that proves no death

    def _following(self) -> dict[str, SubscriptionView]:
        """The views of all subscriptions, by the names of their directories; those of others are closed."""
        try:
            names = descriptors.names_in(filenames.subscriptions_path(self._directory))
        except FileNotFoundError:
            names = []
        try:
            timing.enter(self._lock, f"a look at {self._log.name}")
            for name in self._views.keys() - set(names):
                self._views.pop(name).close()
            return {name: self._view_in(name) for name in names if name in self._views or not is_gone(name)}
        finally:
            self._lock.release()

    def _view(self, directory_name: str) -> SubscriptionView:
        try:
            timing.enter(self._lock, f"a look at {self._log.name}")
            return self._view_in(directory_name)
        finally:
            self._lock.release()

    def _view_in(self, directory_name: str) -> SubscriptionView:
        """The view of one subscription, made by the first look at it. Under the lock."""
        view = self._views.get(directory_name)
        if view is None:
            # Imported on first use: most processes look at nothing.
            with late_imports():
                from embeddedpulsar._engine.subscription.subscription_view import SubscriptionView
            path = os.path.join(filenames.subscriptions_path(self._directory), directory_name)
            view = self._views[directory_name] = SubscriptionView(
                path, self._log, self.report, self._host.transactions.outcomes
            )
        return view

    def close(self) -> None:
        """Give the maps back. Idempotent."""
        while self._views:
            self._views.popitem()[1].close()
