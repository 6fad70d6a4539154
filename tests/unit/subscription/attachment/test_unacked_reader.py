"""Reading past what cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddedpulsar._engine.log.segments import SEGMENTS
from embeddedpulsar.message_id import Position
from tests.subscription_site import SubscriptionSite, positions, read_all


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SubscriptionSite]:
    with SubscriptionSite(tmp_path, max_entries=10, segment_size=16 << 10) as made:
        made.log.damage = lambda report: None
        yield made


def damage(site: SubscriptionSite, position: Position) -> None:
    """Flip a byte in the body of an entry."""
    (view,) = site.log.cursor(position, inclusive=True).read(1, 1, 1)
    payload = view.value(0)
    path = Path(site.directory, f"{position.ledger_id:020d}.log")
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(data.index(payload, 4096))
        file.write(bytes([payload[0] ^ 0x55]))
    SEGMENTS.drop(site.log._control.home)


@pytest.mark.parametrize(
    "hit", [[3], [0], [9], [10], [8, 9, 10, 11], [24], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], list(range(8, 22))]
)
def test_damaged_entries_do_not_hold_the_subscription_back(site: SubscriptionSite, hit: list[int]):
    """They are stepped over, wherever they lie, and acknowledged; all others are delivered."""
    sent = [position for n in range(26) for position in site.publish(1, prefix=f"payload {n:03d} ")]
    for n in hit:
        damage(site, sent[n])
    subscription = site.subscription()
    consumer = subscription.attach("c")
    readable = [position for n, position in enumerate(sent) if n not in hit]
    assert positions(read_all(consumer, step=6)) == readable
    assert consumer.acknowledge(readable)
    assert subscription.mark_delete >= sent[-1]
    assert consumer.backlog() == 0
    consumer.redeliver()
    assert read_all(consumer) == []


def test_damage_among_acknowledged_entries(site: SubscriptionSite):
    """While acknowledged entries are left out, damaged ones are too."""
    sent = [position for n in range(26) for position in site.publish(1, prefix=f"payload {n:03d} ")]
    subscription = site.subscription()
    consumer = subscription.attach("c")
    consumer.acknowledge([sent[2], sent[3], sent[12], sent[22]])
    for n in (5, 13):
        damage(site, sent[n])
    consumer.redeliver()
    left = [position for n, position in enumerate(sent) if n not in (2, 3, 5, 12, 13, 22)]
    assert positions(read_all(consumer)) == left
    assert consumer.acknowledge(left)
    assert subscription.mark_delete >= sent[-1]
