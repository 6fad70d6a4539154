"""Any interleaving of sends, ends and reads gives each reader what committed, in the order of the log."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from embeddedpulsar import ConsumerType, InitialPosition, MessageId
from embeddedpulsar._engine.txn.transaction import Transaction
from embeddedpulsar.testing import assert_clean
from tests.transactional_site import Site

TYPES = {
    "exclusive": ConsumerType.Exclusive,
    "failover": ConsumerType.Failover,
    "shared": ConsumerType.Shared,
    "keyshared": ConsumerType.KeyShared,
}
IN_ORDER = ("exclusive", "failover")


class TransactionalTopic(RuleBasedStateMachine):
    """A topic, a subscription of each type, and a reader; the model is the list of what was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="txnread-"))
        self.sent: list[tuple[bytes, int]] = []  # payload, and the number of its transaction; 0 for none
        self.states: list[str] = ["committed"]
        self.open: dict[int, Transaction] = {}
        self.got: dict[str, list[bytes]] = {name: [] for name in (*TYPES, "reader")}
        self.number = 0

    @initialize()
    def begin_store(self) -> None:
        """Open everything."""
        self._start()

    def _start(self) -> None:
        self.site = Site(self.root)
        self.consumers = {
            name: self.site.client.subscribe(
                "topic", name, consumer_type=kind, initial_position=InitialPosition.Earliest
            )
            for name, kind in TYPES.items()
        }
        self.reader = self.site.client.create_reader("topic", MessageId.earliest)
        self.got["reader"] = []

    # -- sending -----------------------------------------------------------------------------------

    def _payloads(self, count: int) -> list[bytes]:
        self.number += count
        return [b"%d" % (self.number - count + i) for i in range(count)]

    @rule(count=st.sampled_from([1, 1, 3]))
    def send_plain(self, count: int) -> None:
        """Outside of transactions."""
        producer = self.site.producer()
        for payload in self._payloads(count):
            producer.send(payload)
            self.sent.append((payload, 0))
        producer.close()

    @rule()
    def begin(self) -> None:
        """Another transaction."""
        if len(self.open) < 4:
            self.states.append("open")
            self.open[len(self.states) - 1] = self.site.begin()

    @precondition(lambda self: self.open)
    @rule(data=st.data(), count=st.sampled_from([1, 1, 2, 12]), is_batch=st.booleans())
    def send_in_transaction(self, data: Any, count: int, is_batch: bool) -> None:
        """One entry or several."""
        number = data.draw(st.sampled_from(sorted(self.open)))
        payloads = self._payloads(count)
        for payload in [payloads] if is_batch else [[payload] for payload in payloads]:
            self.site.send(self.open[number], *payload)
        self.sent += [(payload, number) for payload in payloads]

    @rule()
    def roll(self) -> None:
        """Begin a ledger."""
        self.site.log().roll()

    # -- ending ------------------------------------------------------------------------------------

    @precondition(lambda self: self.open)
    @rule(data=st.data(), is_commit=st.booleans())
    def end(self, data: Any, is_commit: bool) -> None:
        """Commit or abort one."""
        number = data.draw(st.sampled_from(sorted(self.open)))
        transaction = self.open.pop(number)
        if is_commit:
            transaction.commit()
        else:
            transaction.abort()
        self.states[number] = "committed" if is_commit else "aborted"

    @rule()
    def restart(self) -> None:
        """Other objects, as of another process; what was open is aborted with its owner."""
        self.site.client.close()
        for number in self.open:
            self.states[number] = "aborted"
        self.open.clear()
        self._start()
        self.site.client._core.store.transactions.log().tend()  # as a timer does, for those that only poll

    # -- reading -----------------------------------------------------------------------------------

    def readable(self) -> list[bytes]:
        """What readers can have now, in order."""
        found = []
        for payload, number in self.sent:
            state = self.states[number]
            if state == "open":
                break
            if state == "committed":
                found.append(payload)
        return found

    @rule(name=st.sampled_from([*TYPES, "reader"]), most=st.sampled_from([1, 5, 1000]))
    def read(self, name: str, most: int) -> None:
        """Some or all that is there."""
        for _ in range(most):
            if name == "reader":
                message = self.reader.read_nowait()
            else:
                message = self.consumers[name].receive_nowait()
            if message is None:
                break
            self.got[name].append(message.data())
            if name != "reader":
                self.consumers[name].acknowledge(message)
        readable = self.readable()
        if most == 1000:
            assert sorted(self.got[name]) == sorted(readable), name
        if name in (*IN_ORDER, "reader"):
            assert self.got[name] == readable[: len(self.got[name])]
        else:
            assert len(set(self.got[name])) == len(self.got[name])
            assert set(self.got[name]) <= set(readable)

    @rule()
    def figures_fit(self) -> None:
        """The backlog of each subscription is what it can still get; the last id is the last of that."""
        readable = self.readable()
        for name, consumer in self.consumers.items():
            consumer._core.acks.flush()
            backlog = consumer._core.session.attachment.backlog()
            assert backlog == len(readable) - len(self.got[name]), name

    def teardown(self) -> None:
        """Everything that is left can be read in the end."""
        try:
            if hasattr(self, "site"):
                self.restart()
                for name in (*TYPES, "reader"):
                    self.read(name, 1000)
                self.site.client.close()
                Site(self.root).client.close()
                assert_clean(self.root)
        finally:
            if hasattr(self, "site") and not self.site.client._core.is_closed:
                self.site.client.close()
            shutil.rmtree(self.root, ignore_errors=True)


TransactionalTopic.TestCase.settings = settings(max_examples=12, stateful_step_count=25, deadline=None)
TestTransactionalTopic = TransactionalTopic.TestCase
