"""``defaultRetentionTimeInMinutes``: a closed ledger stays so long after its last message was published."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddedpulsar import InitialPosition, MessageId
from tests.conformance import retention_site
from tests.conformance.manual_time import ManualTime
from tests.conformance.retention_site import TOPIC, acknowledge, ledgers, publish, read_all, store_with

MINUTE_MS = 60_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return store_with(tmp_path / "store", defaultRetentionTimeInMinutes=10, defaultRetentionSizeInMB=-1)


time = retention_site.time


def test_a_ledger_goes_when_its_last_message_is_old_enough(time: ManualTime, path: Path) -> None:
    """Within one check interval of its age, while the topic is open; no publish or acknowledgement needed."""
    time.client.create_reader(TOPIC, MessageId.latest)  # keeps the topic open
    first = publish(time, 10)
    time.pass_ms(5 * MINUTE_MS)
    second = publish(time, 10)
    publish(time, 1)
    time.pass_ms(5 * MINUTE_MS - 1000)
    assert ledgers(path)[0] == first[0].ledger_id()
    time.pass_ms(2 * MINUTE_MS + 1000)
    assert ledgers(path)[0] == second[0].ledger_id()
    time.pass_ms(5 * MINUTE_MS)
    assert len(ledgers(path)) == 1


def test_age_is_that_of_the_last_message_not_of_the_roll(time: ManualTime, path: Path) -> None:
    """A ledger that was full at once and closed much later, by the next message, goes soon after that."""
    publish(time, 10)
    time.pass_ms(60 * MINUTE_MS)
    last = publish(time, 1)
    time.pass_ms(200)
    assert ledgers(path) == [last[0].ledger_id()]


def test_it_applies_to_what_is_acknowledged(time: ManualTime, path: Path) -> None:
    """What is not stays, however old."""
    consumer = time.client.subscribe(TOPIC, "s", initial_position=InitialPosition.Earliest)
    ids = publish(time, 35)
    time.pass_ms(60 * MINUTE_MS)
    assert read_all(time) == ids
    acknowledge(consumer, 35)
    time.pass_ms(200)
    assert len(ledgers(path)) == 1
