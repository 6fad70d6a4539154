"""Transactions of two processes, over three topics and two subscriptions, in any order, against a model."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from embeddedpulsar import Client, ConsumerType, InitialPosition, Message, MessageId
from embeddedpulsar._engine.store.store import REGISTRY
from embeddedpulsar.exceptions import InvalidTxnStatusError, PulsarException, TransactionConflict
from embeddedpulsar.testing import ManualClock
from embeddedpulsar.testing.trial_store import assert_clean
from tests.support.clients import present, store_of, stored

TOPICS: Final = 3
SUBSCRIPTIONS: Final = 2
TYPES: Final = (ConsumerType.Exclusive, ConsumerType.Shared)
_TIMEOUT_S: Final = 60
_HOUSEKEEPING_S: Final = 100
"""Idle consumers hear of a timeout when the store is looked after, at the latest."""
_MOST_OPEN: Final = 4

OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"


class Txn:
    """What the model knows of a transaction.

    Attributes:
        own: of the client that began it, or that resumed it.
        joined: of the other client, once that has joined.
        home: number of the client that began it.
        is_spoiled: an operation was refused, so a commit becomes an abort.
    """

    def __init__(self, own: Any, home: int) -> None:
        self.own, self.home = own, home
        self.joined: Any = None
        self.state = OPEN
        self.is_prepared = False
        self.is_spoiled = False


class Sub:
    """What the model knows of a subscription of a topic."""

    def __init__(self) -> None:
        self.acked: set[str] = set()
        self.pending: dict[str, Txn] = {}
        self.through: tuple[Txn, list[str], int] | None = (
            None  # what a cumulative one covers, and how far it goes
        )
        self.delivered: dict[str, Message] = {}  # to the consumer as it is connected now
        self.fresh: set[str] = set()  # delivered, and not again since


class Machine:
    """Two clients that know nothing of each other, as two processes, and the model.

    The first client has the consumers of the first subscription, the other one those of the other.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = ManualClock(wall_ms=1_700_000_000_000)
        self.clock.__enter__()
        self.clients = [Client(root)]
        REGISTRY.stores.clear()
        self.clients.append(Client(root))
        self.producers = [
            [client.create_producer(f"topic-{topic}") for topic in range(TOPICS)] for client in self.clients
        ]
        self.batched = [
            [
                client.create_producer(
                    f"topic-{topic}", batching_enabled=True, batching_max_publish_delay_ms=3_600_000
                )
                for topic in range(TOPICS)
            ]
            for client in self.clients
        ]
        self.entries: list[list[tuple[list[str], Txn | None]]] = [[] for _ in range(TOPICS)]
        self.ids: dict[str, MessageId] = {}
        self.txns: list[Txn] = []
        self.subs = {(s, t): Sub() for s in range(SUBSCRIPTIONS) for t in range(TOPICS)}
        self.consumers: dict[tuple[int, int], Any] = {}
        for place in self.subs:
            self.attach(place)
        self.number = 0

    def close(self) -> None:
        try:
            for client in self.clients:
                client.close()
        finally:
            self.clock.__exit__(None, None, None)

    def attach(self, place: tuple[int, int]) -> None:
        subscription, topic = place
        self.consumers[place] = self.clients[subscription].subscribe(
            f"topic-{topic}",
            f"s{subscription}",
            TYPES[subscription],
            initial_position=InitialPosition.Earliest,
            batch_index_ack_enabled=True,
            start_message_id_inclusive=True,
        )
        self.subs[place].delivered = {}
        self.subs[place].fresh = set()

    # -- what the model says -----------------------------------------------------------------------

    def visible(self, topic: int) -> list[str]:
        found: list[str] = []
        for names, txn in self.entries[topic]:
            if txn is not None and txn.state == OPEN:
                break
            if txn is None or txn.state == COMMITTED:
                found += names
        return found

    def deliverable(self, place: tuple[int, int]) -> list[str]:
        sub = self.subs[place]
        held = set(sub.pending)
        if sub.through is not None:
            held |= set(sub.through[1])
        return [name for name in self.visible(place[1]) if name not in sub.acked and name not in held]

    # -- operations --------------------------------------------------------------------------------

    def handle(self, txn: Txn, client: int) -> Any:
        """The transaction as a client has it; it joins if it did not begin it."""
        if client == txn.home:
            return txn.own
        if txn.joined is None:
            txn.joined = self.clients[client].join_transaction(txn.own.token)
        return txn.joined

    def refuses(self, txn: Txn, call: Callable[[], object]) -> None:
        """A call in a transaction that takes nothing more."""
        with pytest.raises(InvalidTxnStatusError):
            call()

    def begin(self, client: int) -> None:
        if sum(txn.state == OPEN for txn in self.txns) < _MOST_OPEN:
            self.txns.append(Txn(self.clients[client].new_transaction(timeout_ms=_TIMEOUT_S * 1000), client))

    def pick(self, which: int) -> Txn | None:
        """No transaction, one that is open, or now and then one that has ended."""
        able = [txn for txn in self.txns if txn.state == OPEN and not txn.is_prepared]
        if which % 8 == 7 and self.txns:
            return self.txns[which % len(self.txns)]
        return able[which % len(able)] if able and which % 3 else None

    def send(self, client: int, topic: int, which: int, count: int) -> None:
        txn = self.pick(which)
        names = [f"m{self.number + i}" for i in range(count)]
        self.number += count
        if txn is not None and (txn.state != OPEN or txn.is_prepared):
            if client == txn.home:
                producer = self.producers[client][topic]
                self.refuses(txn, lambda: producer.send(b"late", txn=txn.own))
            return
        options = {} if txn is None else {"txn": self.handle(txn, client)}
        if count == 1:
            self.ids[names[0]] = self.producers[client][topic].send(names[0].encode(), **options)
        else:
            producer, ids = self.batched[client][topic], list[MessageId]()
            for name in names:
                producer.send_async(name.encode(), lambda result, one: ids.append(one), **options)
            producer.flush()
            self.ids.update(zip(names, ids, strict=True))
        self.entries[topic].append((names, txn))

    def acknowledge(self, subscription: int, topic: int, which: int, index: int) -> None:
        place, txn = (subscription, topic), self.pick(which)
        sub = self.subs[place]
        names = list(sub.delivered)
        if not names:
            return
        name = names[index % len(names)]
        call = self.consumers[place].acknowledge
        if txn is None:
            call(sub.delivered[name])
            sub.acked.add(name)
        elif txn.state != OPEN or txn.is_prepared:
            if subscription == txn.home:
                self.refuses(txn, lambda: call(sub.delivered[name], txn=txn.own))
        elif name in sub.acked or name in sub.pending:
            with pytest.raises(TransactionConflict):
                call(sub.delivered[name], txn=self.handle(txn, subscription))
            txn.is_spoiled = True
        else:
            call(sub.delivered[name], txn=self.handle(txn, subscription))
            sub.pending[name] = txn

    def cumulate(self, topic: int, which: int, index: int) -> None:
        place, txn = (0, topic), self.pick(which)
        sub = self.subs[place]
        names = list(sub.delivered)
        if not names or (txn is not None and (txn.state != OPEN or txn.is_prepared)):
            return
        name = names[index % len(names)]
        order = [one for entry, _ in self.entries[topic] for one in entry]
        rank = order.index(name)
        covered = order[: rank + 1]
        call = self.consumers[place].acknowledge_cumulative
        if txn is None:
            call(sub.delivered[name])
            sub.acked |= set(covered)
            return
        is_refused = sub.through is not None and (sub.through[0] is not txn or rank <= sub.through[2])
        is_new = any(one not in sub.acked for one in covered if one in set(self.visible(topic)))
        try:
            call(sub.delivered[name], txn=self.handle(txn, 0))
        except TransactionConflict:
            assert is_refused or not is_new, f"{name} is not acknowledged, and no transaction has it"
            txn.is_spoiled = True
        else:
            assert not is_refused, f"{name} is behind what a transaction has"
            sub.through = txn, covered, rank

    def end(self, which: int, how: str, client: int) -> None:
        able = [txn for txn in self.txns if txn.state == OPEN]
        if not able:
            return
        txn = able[which % len(able)]
        if how == "prepare" and not txn.is_prepared and not txn.is_spoiled:
            txn.own.prepare(label="later")
            txn.is_prepared = True
            return
        if txn.is_prepared:  # whoever it is may end it
            (one,) = [one for one in self.clients[client].prepared_transactions() if one.id == txn.own.id]
            ending = self.clients[client].resume_transaction(one)
        else:
            ending = txn.own
        if how == "commit":
            if txn.is_spoiled:
                with pytest.raises(PulsarException):
                    ending.commit()
            else:
                ending.commit()
            self.ended(txn, ABORTED if txn.is_spoiled else COMMITTED)
        else:
            ending.abort()
            self.ended(txn, ABORTED)

    def ended(self, txn: Txn, state: str) -> None:
        txn.state = state
        for sub in self.subs.values():
            mine = {name for name, owner in sub.pending.items() if owner is txn}
            for name in mine:
                del sub.pending[name]
            if sub.through is not None and sub.through[0] is txn:
                if state == COMMITTED:
                    mine |= set(sub.through[1])
                sub.through = None
            if state == COMMITTED:
                sub.acked |= mine
            else:
                sub.fresh -= mine

    def expire(self) -> None:
        """All that is open and not prepared ends by its timeout."""
        self.clock.advance(_TIMEOUT_S + _HOUSEKEEPING_S)
        for txn in self.txns:
            if txn.state == OPEN and not txn.is_prepared:
                self.ended(txn, ABORTED)

    def seek(self, subscription: int, topic: int, index: int) -> None:
        place = subscription, topic
        sub = self.subs[place]
        firsts = {entry[0] for entry, _ in self.entries[topic]}
        names = [name for name in sub.delivered if name in firsts]
        order = [one for entry, _ in self.entries[topic] for one in entry]
        if index % 2 or not names:
            self.consumers[place].seek(MessageId.earliest)
            sub.acked = set()
        else:
            name = names[index % len(names)]
            self.consumers[place].seek(self.ids[name])
            sub.acked = set(order[: order.index(name)])
        sub.pending, sub.through = {}, None
        sub.delivered, sub.fresh = {}, set()

    def detach(self, subscription: int, topic: int) -> None:
        self.consumers[subscription, topic].close()
        self.attach((subscription, topic))

    def drain(self) -> None:
        """All that is due comes, in order, and nothing else; readers and ids agree."""
        for place, consumer in self.consumers.items():
            sub, due = self.subs[place], self.deliverable(place)
            found = {message.data().decode(): message for message in present(consumer)}
            assert found.keys() <= set(due), f"{place}: {found.keys() - set(due)} came, due is {due}"
            missing = [name for name in due if name not in sub.fresh and name not in found]
            assert not missing, f"{place}: {missing} did not come, of {due}"
            if TYPES[place[0]] is ConsumerType.Exclusive:
                assert list(found) == [name for name in due if name in found]
            sub.delivered.update(found)
            sub.fresh |= found.keys()
        for topic in range(TOPICS):
            visible = self.visible(topic)
            for client in self.clients:
                assert [message.data().decode() for message in stored(client, f"topic-{topic}")] == visible
            for subscription in range(SUBSCRIPTIONS):
                last = self.consumers[subscription, topic].get_last_message_id()
                if visible:
                    assert last == self.ids[visible[-1]]
                else:
                    assert last.entry_id() < 0

    def finish(self) -> None:
        """End everything, take everything anew, and compare the replicas of both processes."""
        for txn in self.txns:
            while txn.state == OPEN:
                self.end(self.open_index(txn), "abort" if txn.home else "commit", txn.home)
        self.drain()
        for place in self.subs:
            self.detach(*place)
        self.drain()
        for place, sub in self.subs.items():
            assert list(sub.delivered) == self.deliverable(place) or TYPES[place[0]] is ConsumerType.Shared
            assert set(sub.delivered) == set(self.deliverable(place))
            digests = [_digest(client, *place) for client in self.clients]
            assert digests[0] == digests[1]

    def open_index(self, txn: Txn) -> int:
        return [one for one in self.txns if one.state == OPEN].index(txn)


def _digest(client: Client, subscription: int, topic: int) -> tuple[int, int]:
    """Commands and digest of a replica, which has not diverged."""
    use = store_of(client).use_topic(f"topic-{topic}")
    try:
        shared = use.topic.subscription(f"s{subscription}")._existing()
        found: tuple[int, int] = shared.transact(lambda state: (state.commands, state.digest))
        assert shared.divergences == 0
        return found
    finally:
        use.release()


small, any_number = st.integers(0, 1), st.integers(0, 1000)
topics = st.integers(0, TOPICS - 1)
operations = st.one_of(
    st.tuples(st.just("begin"), small),
    st.tuples(st.just("send"), small, topics, any_number, st.sampled_from((1, 1, 2, 3))),
    st.tuples(st.just("send"), small, topics, any_number, st.sampled_from((1, 1, 2, 3))),
    st.tuples(st.just("acknowledge"), small, topics, any_number, any_number),
    st.tuples(st.just("acknowledge"), small, topics, any_number, any_number),
    st.tuples(st.just("cumulate"), topics, any_number, any_number),
    st.tuples(st.just("end"), any_number, st.sampled_from(("commit", "abort", "prepare")), small),
    st.tuples(st.just("drain")),
    st.tuples(st.just("detach"), small, topics),
    st.tuples(st.just("seek"), small, topics, any_number),
    st.tuples(st.just("expire")),
)


def _run(program: list[tuple[Any, ...]]) -> None:
    root = Path(tempfile.mkdtemp())
    try:
        machine = Machine(root / "store")
        try:
            for topic in range(TOPICS):
                machine.send(0, topic, 0, 1 + topic)
            machine.drain()
            for name, *arguments in program:
                note(f"{name} {arguments}")
                getattr(machine, name)(*arguments)
            machine.finish()
        finally:
            machine.close()
        assert_clean(root / "store")
    finally:
        shutil.rmtree(root)


@settings(max_examples=25, deadline=None)
@given(st.lists(operations, min_size=5, max_size=30))
def test_any_interleaving(program: list[tuple[Any, ...]]):
    """Messages, acknowledgements and ids are those of the model; the replicas of both are equal."""
    _run(program)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None)
@given(st.lists(operations, min_size=10, max_size=80))
def test_any_interleaving_at_length(program: list[tuple[Any, ...]]):
    """The same, for minutes."""
    _run(program)
