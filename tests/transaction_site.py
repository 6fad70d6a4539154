"""A directory with the transactions of a store, and processes that use it: several in one test process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from embeddedpulsar._engine.format.control import OUTCOMES_PER_FILE, TransactionWord
from embeddedpulsar._engine.format.transaction_record import TOPIC, ParticipantFacts
from embeddedpulsar._engine.platform.mailbox import Mailbox
from embeddedpulsar._engine.platform.peers import Peers
from embeddedpulsar._engine.platform.timing import Clock, SystemClock
from embeddedpulsar._engine.txn.shared_transactions import TransactionOptions
from embeddedpulsar._engine.txn.transaction import Participant, Resolve, Transaction
from embeddedpulsar._engine.txn.transaction_log import TransactionLog
from embeddedpulsar._engine.txn.transaction_state import Outcome
from embeddedpulsar.damage import Damage

BOOT = b"B" * 16
STORE_ID = b"S" * 16
NEVER = 900_000
_FEW = 100


class Process:
    """One process of a store, as far as transactions go: a lease, and the log."""

    def __init__(self, root: Path, clock: Clock | None = None, boot: bytes = BOOT, **options: Any) -> None:
        self.root = root
        self.clients = root / "clients"
        self.clients.mkdir(parents=True, exist_ok=True)
        self.clock = clock or SystemClock()
        self.mailbox = Mailbox.create(self.clients)
        self.peers = Peers(self.clients, self.mailbox)
        self.damage: list[Damage] = []
        self.later: list[tuple[float, Callable[[], object]]] = []
        self.options = TransactionOptions(
            boot,
            STORE_ID,
            self.mailbox,
            self.peers,
            self.clock,
            self._call_later,
            report=self.damage.append,
            **options,
        )
        self._log: TransactionLog | None = None

    def _call_later(self, delay_s: float, function: Callable[[], object]) -> Any:
        self.later.append((delay_s, function))
        return None

    @property
    def log(self) -> TransactionLog:
        """Opened by its first use."""
        if self._log is None:
            self._log = TransactionLog.open(str(self.root), self.options)
        return self._log

    def begin(self, timeout_ms: int = NEVER, label: str = "", resolve: Resolve | None = None) -> Transaction:
        """A transaction."""
        return Transaction(self.log, timeout_ms, label, resolve or (lambda facts: None))

    def begun(self, timeout_ms: int = NEVER, label: str = "") -> Transaction:
        """One that has a slot."""
        transaction = self.begin(timeout_ms, label)
        assert transaction.id
        return transaction

    def outcomes(self, first: int, end: int) -> list[Outcome]:
        """Of a range of ids."""
        return [self.log.outcome(txn_id) for txn_id in range(first, end)]

    def die(self) -> None:
        """Leave as a process that is killed: the kernel closes its descriptors."""
        self.mailbox.close()
        self._log = None

    def close(self) -> None:
        """Leave in good order."""
        if self._log is not None:
            self._log.close()
        self.peers.close()
        self.mailbox.close()

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def topic(number: int = 0, count: int = 1) -> ParticipantFacts:
    """What a transaction did in a topic."""
    return ParticipantFacts(TOPIC, 7, f"t-{number}", count, 5 << 32, 5 << 32 | count - 1, 99)


class RecordingTopic:
    """A topic that takes part, and notes what it is asked."""

    def __init__(self, number: int = 0) -> None:
        self.calls: list[str] = []
        self.facts = topic(number)
        self.flush_error: BaseException | None = None
        self.meet: Callable[[], object] = int

    def participant(self) -> Participant:
        """As it is given to a transaction."""
        return Participant(
            self.facts.key, lambda: self.facts, self._flush, partial(self.calls.append, "drain"), self._end
        )

    def _flush(self) -> None:
        self.calls.append("flush")
        self.meet()
        if self.flush_error is not None:
            raise self.flush_error

    def _end(self, outcome: Outcome) -> None:
        self.calls.append(outcome.name)


def assert_whole(log: TransactionLog) -> None:
    """No slot is left, and every id has a final outcome, or gets one: no slot has it any more."""
    log.tend()
    assert log.open_transactions() == []
    words = log.control.words
    assert words[TransactionWord.OPEN] == 0
    for txn_id in range(words[TransactionWord.LOWEST], words[TransactionWord.NEXT_ID]):
        if txn_id % OUTCOMES_PER_FILE < _FEW:  # the others of a range were never given out
            assert log.outcome(txn_id).is_final or log.announce(txn_id).outcome is Outcome.ABORTED, txn_id
