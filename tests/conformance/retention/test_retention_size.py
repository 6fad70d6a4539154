"""``defaultRetentionSizeInMB``: so much of what is acknowledged stays; with a time, either is enough."""

from __future__ import annotations

from pathlib import Path

from embeddedpulsar import InitialPosition, MessageId
from tests.conformance.manual_time import ManualTime
from tests.conformance.retention_site import TOPIC, acknowledge, ledgers, publish, read_all, store_with

SIZE = 30_000  # ten of them are 300 kB: four ledgers hold more than a MiB, three do not


def test_so_much_is_kept(tmp_path: Path) -> None:
    """Ledgers go as long as a whole MiB is left without them."""
    path = store_with(tmp_path / "s", defaultRetentionTimeInMinutes=-1, defaultRetentionSizeInMB=1)
    time = ManualTime(path)
    ids = publish(time, 40, SIZE)
    time.pass_ms(200)
    assert len(ledgers(path)) == 4
    ids += publish(time, 41, SIZE)
    time.pass_ms(100_000_000)
    assert read_all(time) == ids[40:]
    time.close()


def test_what_is_not_acknowledged_stays_whatever_its_size(tmp_path: Path) -> None:
    """And counts: with it there is more than enough without what was acknowledged."""
    path = store_with(tmp_path / "s", defaultRetentionTimeInMinutes=-1, defaultRetentionSizeInMB=1)
    time = ManualTime(path)
    consumer = time.client.subscribe(TOPIC, "s", initial_position=InitialPosition.Earliest)
    ids = publish(time, 81, SIZE)
    time.pass_ms(200_000)
    assert read_all(time) == ids
    acknowledge(consumer, 25)
    time.pass_ms(200_000)
    assert read_all(time) == ids[20:]
    time.close()


def test_either_limit_is_enough(tmp_path: Path) -> None:
    """Ten minutes and a MiB: size trims what is young, time what is little."""
    path = store_with(tmp_path / "s", defaultRetentionTimeInMinutes=10, defaultRetentionSizeInMB=1)
    time = ManualTime(path)
    time.client.create_reader(TOPIC, MessageId.latest)
    ids = publish(time, 81, SIZE)
    time.pass_ms(200)
    assert read_all(time) == ids[40:]
    time.pass_ms(13 * 60_000)
    assert read_all(time) == ids[80:]
    time.close()


def test_without_limits_nothing_ever_goes(tmp_path: Path) -> None:
    """-1 and -1: the topic is an archive."""
    path = store_with(tmp_path / "s", defaultRetentionTimeInMinutes=-1, defaultRetentionSizeInMB=-1)
    time = ManualTime(path)
    ids = publish(time, 81)
    time.pass_ms(1e9)
    assert read_all(time) == ids
    assert time.client._core.store.trim_topic(TOPIC) == 0  # type: ignore[union-attr]
    time.close()
