"""Every file name of a topic directory: the only place with literals.

    ctl · lock · sync.lock · topic.meta · policies · schemas · journal.<gen> · <ledger:020>.log
    <ledger:020>.idx · compaction · compaction.lock · compacted.<number> · function.lock
    <ledger:020>.cold · offload · offload.lock · fetch.lock · transactions
    pins/<ledger:020>, pins/<ledger:020>.<sink>
    subscriptions/<dir>/{ctl,lock,journal.<gen>,snapshot.<gen>,acks.<consumer id>,compacted-start}

Ledger ids are zero-padded, so that a sorted listing is the order of the log.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Final

CONTROL: Final = "ctl"
LOCK: Final = "lock"
SYNC_LOCK: Final = "sync.lock"
TOPIC_META: Final = "topic.meta"
POLICIES: Final = "policies"
SCHEMAS: Final = "schemas"
COMPACTION: Final = "compaction"
COMPACTION_LOCK: Final = "compaction.lock"
FUNCTION_LOCK: Final = "function.lock"
SUBSCRIPTIONS: Final = "subscriptions"
PINS: Final = "pins"
LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".idx"
TOPICS: Final = "topics"
FOLDED: Final = "transactions"
TRANSACTIONS: Final = "txn"
"""In the directory of a store, like the next one."""
OUTBOX: Final = "outbox."
"""Begins the names of the producers of outboxes, and of the locks of their relays, which lie there, too."""
VALUES: Final = "values."
"""Begins the names of the locks of tables of values, which lie there, too."""
SINKS: Final = "sinks"
PENDING: Final = "pending"
"""In the directory of a sink, like the next one."""
DONE: Final = "done"
COLD_SUFFIX: Final = ".cold"
OFFLOAD: Final = "offload"
OFFLOAD_LOCK: Final = "offload.lock"
FETCH_LOCK: Final = "fetch.lock"
NEW_SUFFIX: Final = ".new"
"""A file under construction: renamed when complete, else removed by the next holder of the lock."""

_LEDGER_DIGITS: Final = 20
_JOURNAL: Final = "journal."
_SNAPSHOT: Final = "snapshot."
_ACKS: Final = "acks."
_COMPACTED: Final = "compacted."
_OUTCOME: Final = "outcome."
_GONE: Final = "gone-"


def control_path(directory: str) -> str:
    """The mapped control words of a topic or subscription."""
    return f"{directory}{os.sep}{CONTROL}"


def lock_path(directory: str) -> str:
    """The lock of a topic or subscription: empty, never unlinked while its owner exists."""
    return f"{directory}{os.sep}{LOCK}"


def sync_lock_path(directory: str) -> str:
    """The group-commit lock of a topic."""
    return f"{directory}{os.sep}{SYNC_LOCK}"


def topic_meta_path(directory: str) -> str:
    """Name, incarnation and properties of a topic."""
    return f"{directory}{os.sep}{TOPIC_META}"


def policies_path(directory: str) -> str:
    """Policies of a topic that differ from those of its namespace; most topics have none."""
    return f"{directory}{os.sep}{POLICIES}"


def schemas_path(directory: str) -> str:
    """The schemas of a topic; there is none before the first one."""
    return os.path.join(directory, SCHEMAS)


def compaction_path(directory: str) -> str:
    """The document about the compaction of a topic; there is none before the first one."""
    return f"{directory}{os.sep}{COMPACTION}"


def compaction_lock_path(directory: str) -> str:
    """Held by the process that compacts the topic."""
    return f"{directory}{os.sep}{COMPACTION_LOCK}"


def function_lock_path(directory: str) -> str:
    """Held by the instance that commits to the state of a function, in the directory of its state topic."""
    return os.path.join(directory, FUNCTION_LOCK)


def outbox_lock_path(root: str, producer_name: str) -> str:
    """Held by the relay that publishes under a name, which begins with `OUTBOX`.

    Example:
        >>> outbox_lock_path("data", "outbox.4f0a")
        'data/outbox.4f0a.lock'
    """
    return f"{root}{os.sep}{producer_name}.lock"


def values_lock_path(root: str, table: str) -> str:
    """Held while a key of a table of values is read and written.

    Stores that had such tables before these locks had a name of their own have one that begins with `OUTBOX`:
    it stays that of its table, so that all processes take the same.

    Example:
        >>> values_lock_path("data", "4f0a")
        'data/values.4f0a.lock'
    """
    earlier = outbox_lock_path(root, f"{OUTBOX}table-{table}")
    return earlier if os.path.exists(earlier) else f"{root}{os.sep}{VALUES}{table}.lock"


def compacted_path(directory: str, number: int) -> str:
    """A compacted ledger.

    Example:
        >>> compacted_path("t", 3)
        't/compacted.3'
    """
    return os.path.join(directory, f"{_COMPACTED}{number}")


def compacted_in(names: Iterable[str]) -> dict[str, int]:
    """The compacted ledgers among the names of a directory, with their numbers; -1 for unfinished files.

    Example:
        >>> compacted_in(["compacted.3", "compacted.4.new", "compaction", "compaction.1f.tmp", "ctl"])
        {'compacted.3': 3, 'compacted.4.new': -1, 'compaction.1f.tmp': -1}
    """
    # Unfinished files of both kinds: of a compacted ledger, and of the document, which `atomic_write`
    # makes beside it.
    rests = {
        name: name.removeprefix(_COMPACTED)
        for name in names
        if name.startswith(_COMPACTED) or (name.startswith(f"{COMPACTION}.") and name.endswith(".tmp"))
    }
    return {name: int(rest) if rest.isascii() and rest.isdigit() else -1 for name, rest in rests.items()}


def subscriptions_path(directory: str) -> str:
    """Where a topic keeps its subscriptions."""
    return f"{directory}{os.sep}{SUBSCRIPTIONS}"


def pins_path(directory: str) -> str:
    """Where a topic keeps the pins of its ledgers."""
    return os.path.join(directory, PINS)


def pin_path(directory: str, ledger_id: int, key: str = "") -> str:
    """The pin of a ledger, by readers or by the sink of that key.

    Example:
        >>> pin_path("t", 7, "ab")
        't/pins/00000000000000000007.ab'
    """
    return os.path.join(pins_path(directory), f"{ledger_id:0{_LEDGER_DIGITS}d}{'.' if key else ''}{key}")


def log_path(directory: str, ledger_id: int) -> str:
    """The segment of a ledger.

    Example:
        >>> log_path("t", 7)
        't/00000000000000000007.log'
    """
    return f"{directory}{os.sep}{ledger_id:020d}.log"  # hot: `os.path.join` takes as long as opening it


def index_path(directory: str, ledger_id: int) -> str:
    """The entry index of a ledger; derivable from its segment."""
    return f"{directory}{os.sep}{ledger_id:020d}{INDEX_SUFFIX}"


def cold_path(directory: str, ledger_id: int) -> str:
    """The note of a ledger that is in an offload location."""
    return os.path.join(directory, f"{ledger_id:0{_LEDGER_DIGITS}d}{COLD_SUFFIX}")


def folded_path(directory: str) -> str:
    """The document about the transactions of a topic whose outcomes the store has forgotten."""
    return os.path.join(directory, FOLDED)


def offload_path(directory: str) -> str:
    """The document about the offloading of a topic."""
    return f"{directory}{os.sep}{OFFLOAD}"


def offload_lock_path(directory: str) -> str:
    """Held by the process that offloads ledgers of the topic."""
    return f"{directory}{os.sep}{OFFLOAD_LOCK}"


def fetch_lock_path(directory: str) -> str:
    """Held by the process that fetches an offloaded ledger of the topic back."""
    return os.path.join(directory, FETCH_LOCK)


def journal_path(directory: str, generation: int) -> str:
    """The journal of a topic or subscription.

    Example:
        >>> journal_path("s", 3)
        's/journal.3'
    """
    return f"{directory}{os.sep}{_JOURNAL}{generation}"


def gone_path(directory: str, token: str) -> str:
    """The name of the directory of an ended subscription, until it is removed."""
    return os.path.join(directory, _GONE + token)


def is_gone(name: str) -> bool:
    """Whether a name is one of `gone_path`.

    Example:
        >>> is_gone(os.path.basename(gone_path("subscriptions", "ab"))), is_gone("s-ab")
        (True, False)
    """
    return name.startswith(_GONE)


def compacted_start_path(directory: str) -> str:
    """Where a subscription begins that reads compacted, before it acknowledged anything."""
    return os.path.join(directory, "compacted-start")


def acks_path(directory: str, consumer_id: int) -> str:
    """Acknowledgements of a consumer that are not written to the journal yet.

    Example:
        >>> acks_path("s", 12)
        's/acks.12'
    """
    return f"{directory}{os.sep}{_ACKS}{consumer_id}"


def consumers_in(names: Iterable[str]) -> list[int]:
    """Ids of the consumers that have an `acks_path` among the names of a directory."""
    rests = [name[len(_ACKS) :] for name in names if name.startswith(_ACKS)]
    return [int(rest) for rest in rests if rest.isascii() and rest.isdigit()]


def outcome_path(directory: str, number: int) -> str:
    """The outcomes of the transactions of one range of ids.

    Example:
        >>> outcome_path("txn", 3), outcomes_in(["outcome.3", "outcome.x", "ctl", "outcome.1"])
        ('txn/outcome.3', [1, 3])
    """
    return os.path.join(directory, f"{_OUTCOME}{number}")


def outcomes_in(names: Iterable[str]) -> list[int]:
    """The numbers of the files of outcomes among file names, ascending."""
    numbers = [name.removeprefix(_OUTCOME) for name in names if name.startswith(_OUTCOME)]
    return sorted(int(number) for number in numbers if number.isascii() and number.isdecimal())


def snapshot_path(directory: str, generation: int) -> str:
    """The snapshot that journal `generation` starts from."""
    return os.path.join(directory, f"{_SNAPSHOT}{generation}")


def under_construction(path: str) -> str:
    """Where a file is built before it gets its name."""
    return path + NEW_SUFFIX


def parse_ledger(name: str, suffix: str = LOG_SUFFIX) -> int | None:
    """The ledger id in a segment's or index's file name; None for any other name.

    Example:
        >>> parse_ledger("00000000000000000007.log"), parse_ledger("7.log"), parse_ledger("ctl")
        (7, None, None)
    """
    # Exactly as `log_path` writes them: a file that a user renamed or numbered otherwise is none of
    # the log's.
    digits = name.removesuffix(suffix)
    if digits == name or len(digits) != _LEDGER_DIGITS or not (digits.isascii() and digits.isdecimal()):
        return None
    return int(digits)


def parse_generation(name: str, journal: bool = True) -> int | None:
    """The generation in a journal's (or snapshot's) file name; None for any other name.

    Example:
        >>> parse_generation("journal.12"), parse_generation("journal.x")
        (12, None)
        >>> parse_generation("snapshot.4", journal=False)
        4
    """
    prefix = _JOURNAL if journal else _SNAPSHOT
    digits = name.removeprefix(prefix)
    if digits == name or not (digits.isascii() and digits.isdecimal()):
        return None
    return int(digits)


def generations_among(names: Iterable[str]) -> tuple[list[int], list[int]]:
    """The generations of the journals and of the snapshots among file names, ascending; see
    `parse_generation`.

    Example:
        >>> generations_among(["journal.12", "lock", "snapshot.4", "journal.x", "journal.7"])
        ([7, 12], [4])
    """
    journals: list[int] = []
    snapshots: list[int] = []
    for name in names:
        kind, dot, digits = name.partition(".")
        if digits.isascii() and digits.isdecimal():
            if kind + dot == _JOURNAL:
                journals.append(int(digits))
            elif kind + dot == _SNAPSHOT:
                snapshots.append(int(digits))
    return sorted(journals), sorted(snapshots)


def ledgers_of(names: Iterable[str], suffix: str = LOG_SUFFIX) -> list[int]:
    """The ledger ids among file names, ascending.

    Example:
        >>> ledgers_of(["00000000000000000009.log", "ctl", "00000000000000000007.log"])
        [7, 9]
    """
    ledgers: list[int] = []
    for name in names:
        if name.endswith(suffix):
            ledger = parse_ledger(name, suffix)
            if ledger is not None:
                ledgers.append(ledger)
    return sorted(ledgers)


def pending_commit_path(directory: str, key: str) -> str:
    """The document of a sink's commit that is not finished, in the store that a topic belongs to.

    Args:
        directory: of the topic: ``topics/<dir>`` or ``topics/<xx>/<dir>`` of the store.
        key: of the sink.
    """
    # Topics of a store lie one level below ``topics``, or two where there are many.
    above = os.path.dirname(os.path.abspath(directory))
    if os.path.basename(above) != TOPICS:
        above = os.path.dirname(above)
    return os.path.join(os.path.dirname(above), SINKS, key, PENDING)
