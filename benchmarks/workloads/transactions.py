"""Transactions beside the same work without them, sqlite3 with one commit for each, and Pulsar."""

from __future__ import annotations

from benchmarks.contest import MESSAGES_PER_SECOND, MILLISECONDS, Budget, Contest, Measure, Settings
from benchmarks.embedded import transactions
from benchmarks.peers import sqlite_wal
from benchmarks.peers.pulsar_transactions import PulsarTransactions

_EACH = Measure("us", lambda operations, seconds: seconds / operations * 1e6, higher_is_better=False)
_BATCH = transactions.BATCH


def contests(settings: Settings) -> list[Contest]:
    """The fixed cost, one message, a batch, a batch that is flushed, and what is left of a million."""
    size = settings.message_size
    finished = settings.scale(1_000_000, 2_000)
    return [
        Contest(
            "transactions: begin and commit, nothing done",
            _EACH,
            [transactions.Empty(size), PulsarTransactions("empty", size, is_tuned=True)],
            [Budget("<= 15 us", "embeddedpulsar", 15, at_least=False)],
        ),
        Contest(
            f"transactions: one message of {size} bytes received, another one sent, in each",
            _EACH,
            [
                transactions.Pairs(size),
                transactions.PlainPairs(size),
                sqlite_wal.Moves(size),
                PulsarTransactions("pair", size, is_tuned=True),
            ],
            [Budget("<= 80 us", "embeddedpulsar", 80, at_least=False)],
        ),
        Contest(
            f"transactions: {_BATCH} messages of {size} bytes in each, batched",
            MESSAGES_PER_SECOND,
            [
                transactions.Batches(size),
                transactions.PlainBatches(size),
                sqlite_wal.GroupInsert(size, _BATCH),
                PulsarTransactions("batch", size, is_tuned=True),
            ],
            [Budget(">= 0.9 x plain", "embeddedpulsar", 0.9, peer="plain")],
            step=_BATCH,
        ),
        Contest(
            f"transactions, flushed: {_BATCH} messages of {size} bytes in each, on the disk at its end",
            MESSAGES_PER_SECOND,
            [
                transactions.FlushedTransactions(size),
                transactions.FlushedSends(size),
                sqlite_wal.FlushedGroupInsert(size, _BATCH),
                PulsarTransactions("batch", size, is_tuned=False),
            ],
            [Budget(">= 20 x plain flushed sends", "embeddedpulsar-flush", 20, peer="plain-flush")],
            step=_BATCH,
        ),
        Contest(
            f"transactions: opening a store with {finished:,} finished ones",
            MILLISECONDS,
            [transactions.OpenAfter(finished)],
            [
                Budget(
                    "<= 1 MB left",
                    "embeddedpulsar",
                    transactions.LEFT_MB,
                    note="MB of transactions",
                    at_least=False,
                ),
                Budget("<= 5 ms more", "embeddedpulsar", 5, note="ms more than without", at_least=False),
            ],
            fixed=20,
        ),
    ]
