"""What `Admin.why_kept` returns: the ledgers of a topic, and what holds each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar._engine.store.policies.keeping import KEEP_UNTIL_SUBSCRIBED, RETENTION
from embeddedpulsar.admin.json_form import json_form
from embeddedpulsar.records import NamedTuple

if TYPE_CHECKING:
    from embeddedpulsar._engine.log.log_survey import LedgerFigures
    from embeddedpulsar._engine.store.store import Store
    from embeddedpulsar._engine.store.topic import Topic

OPEN: Final = "open"
BACKLOG: Final = "backlog"
RETAINED: Final = "retention"
COMPACTED: Final = "compaction"
PINNED: Final = "pinned"
UNSUBSCRIBED: Final = "no subscription yet"
OLDER: Final = "an older ledger is kept"
DUE: Final = "to be trimmed"
RING: Final = "ring"


class KeptLedger(NamedTuple):
    """A ledger of a topic.

    Attributes:
        ledger_id: its id.
        entries: entries it holds.
        size: bytes of storage of them.
        reason: why it is kept. ``open``: messages are appended to it. ``backlog``: subscriptions have not
            acknowledged all of it. ``compaction``: it is not compacted yet, in a topic that was compacted
            before or has a threshold. ``pinned``: Spark reads it, or has begun to publish
            into it. ``retention``: the policy keeps it. ``no subscription yet``: the policy keeps everything
            until there is one. ``an older ledger is kept``: nothing holds it, but ledgers go
            in their order. ``to be trimmed``: nothing holds it, and it is removed in the background.
            ``ring``: of a non-persistent topic, which keeps its last ledgers, acknowledged or not.
        subscriptions: those that hold it, for the reason ``backlog``; sorted.
        is_offloaded: whether an offload location has it.
    """

    ledger_id: int
    entries: int
    size: int
    reason: str
    subscriptions: tuple[str, ...] = ()
    is_offloaded: bool = False


class KeptLedgers(NamedTuple):
    """What holds the messages of a topic, partition or partitioned topic.

    Attributes:
        size: bytes of storage of all retained messages.
        size_by_reason: the same by reason; see `KeptLedger`.
        size_by_subscription: bytes of the ledgers that a durable subscription holds; a ledger that several
            hold is counted for each.
        ledgers: the ledgers, oldest first, and one partition after the other.
    """

    size: int
    size_by_reason: dict[str, int]
    size_by_subscription: dict[str, int]
    ledgers: tuple[KeptLedger, ...]

    def json(self) -> dict[str, Any]:
        """Return the fields in camel case, as those of other results."""
        return dict(json_form(self))


def kept_ledgers(ledgers: list[KeptLedger]) -> KeptLedgers:
    """Add up ledgers of a topic, or of its partitions."""
    reasons: dict[str, int] = {}
    subscriptions: dict[str, int] = {}
    for ledger in ledgers:
        reasons[ledger.reason] = reasons.get(ledger.reason, 0) + ledger.size
        for name in ledger.subscriptions:
            subscriptions[name] = subscriptions.get(name, 0) + ledger.size
    return KeptLedgers(sum(reasons.values()), reasons, subscriptions, tuple(ledgers))


def ledgers_of(store: Store, topic: Topic) -> list[KeptLedger]:
    """Find what holds the ledgers of a topic or partition."""
    is_ring = topic.ledger.is_volatile
    subscriptions = [facts for facts, durable in topic.view.subscriptions() if durable and not is_ring]
    marks = {facts.name: facts.acknowledged.mark_delete for facts in subscriptions}
    keeps_all = not marks and store.policy(topic.name, KEEP_UNTIL_SUBSCRIBED)
    retention = store.policy(topic.name, RETENTION)
    trimming, now_ms = topic.ledger.trimming, store.clock.wall_ms()
    compacted, pinned = topic.compaction.marks(False), trimming.pinned(now_ms, removes=False)
    needs = {
        need.ledger.ledger_id: need
        for need in trimming.needs([*marks.values(), *compacted, *pinned], retention, now_ms)
    }
    found: list[KeptLedger] = []
    away = topic.offload.ledgers()
    free = DUE  # of a ledger that nothing holds, until an older one is kept

    def add(figures: LedgerFigures, reason: str, *holders: str) -> None:
        is_away = figures.ledger_id in away
        found.append(KeptLedger(figures.ledger_id, figures.entries, figures.size, reason, holders, is_away))

    for figures in topic.ledger.survey().ledgers():
        need = needs.get(figures.ledger_id)
        last = figures.ledger_id, figures.entries - 1
        if found and found[-1].reason != DUE:
            free = OLDER
        holders = sorted(name for name, mark in marks.items() if figures.entries and last > mark)
        if need is None:  # the last one; or it was closed meanwhile
            add(figures, OPEN, *holders)
        elif is_ring:
            add(figures, RING)
        elif need.is_unacked:
            other = COMPACTED if any(last > mark for mark in compacted) else PINNED
            add(figures, BACKLOG if holders else other, *holders)
        elif keeps_all:
            add(figures, UNSUBSCRIBED)
        elif need.is_retained:
            add(figures, RETAINED)
        else:
            add(figures, free)
    return found
