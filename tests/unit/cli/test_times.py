"""Times on the command line: their forms, and the commands that take one."""

from __future__ import annotations

import json
import os
import time
from datetime import datetime
from pathlib import Path

import click
import pytest

from embeddedpulsar import Admin, Client, MessageId
from embeddedpulsar.cli import base
from embeddedpulsar.cli.base import AGE, MOMENT, Moment, moment_ms
from embeddedpulsar.testing.manual_clock import ManualClock
from embeddedpulsar.testing.trial_store import assert_clean

NOON_MS = 1_795_867_200_000  # 2026-11-28T12:00:00Z


@pytest.fixture
def store(tmp_path: Path):
    """A store with ten messages, one a minute."""
    root = tmp_path / "store"
    # Ten minutes ago: the commands have the clock of this machine.
    clock = ManualClock(wall_ms=time.time_ns() // 1_000_000 - 600_000)
    with clock, Client(root) as client, Admin(root) as admin:
        admin.topics().create_subscription("ticks", "keep", MessageId.earliest)
        producer = client.create_producer("ticks")
        for number in range(10):
            producer.send(b"%d" % number)
            clock.advance(60)
    yield root
    assert_clean(root)


@pytest.fixture
def in_zone(monkeypatch: pytest.MonkeyPatch):
    """This machine is in a zone two hours east of Greenwich."""
    monkeypatch.setenv("TZ", "XYZ-2")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1795867200000", NOON_MS),
        ("2026-11-28T12:00:00Z", NOON_MS),
        ("2026-11-28T12:00:00.000+00:00", NOON_MS),
        ("20261128T120000Z", NOON_MS),
        ("2026-11-28 14:00", NOON_MS),  # of this machine
        ("2026-11-28T13:00+01:00", NOON_MS),
        ("2026-11-28", NOON_MS - 14 * 3_600_000),
        ("2026-W48-6T12:00Z", NOON_MS),
        ("2026-332T12:00Z", NOON_MS),
        ("14:00", NOON_MS),
        ("T14:00:00", NOON_MS),
        ("now", NOON_MS),
        ("10m", NOON_MS - 600_000),
        ("1d", NOON_MS - 86_400_000),
        ("1h30m", NOON_MS - 5_400_000),
        ("1.5h", NOON_MS - 5_400_000),
        ("250ms", NOON_MS - 250),
        ("PT10M", NOON_MS - 600_000),
        ("P1DT2H", NOON_MS - 26 * 3_600_000),
        ("P2W", NOON_MS - 14 * 86_400_000),
    ],
)
def test_forms_of_times(in_zone, text: str, expected: int):
    """Numbers of ms, ISO 8601 with and without a zone, and how long ago."""
    assert moment_ms(text, NOON_MS) == expected


@pytest.mark.parametrize(
    "text", ["", "soon", "P", "PT", "2026-13-01", "25:00", "2026-366", "2026-000", "-5", "5x"]
)
def test_other_texts_are_refused(text: str):
    """With the forms that are taken."""
    with pytest.raises(click.BadParameter, match="write 2026-05-04T12:30"):
        MOMENT.convert(text, None, None)
    with pytest.raises(click.BadParameter, match="or earliest or latest"):
        Moment("earliest", "latest").convert(text, None, None)


def test_an_age_is_never_less_than_was_asked_for(monkeypatch: pytest.MonkeyPatch):
    """Seconds are whole, so of a point in time the part of a second counts as younger."""

    class Clock:
        def wall_ms(self) -> int:
            return NOON_MS

    monkeypatch.setattr(base, "SYSTEM_CLOCK", Clock())
    assert AGE.convert("90", None, None) == 90
    assert AGE.convert("2m", None, None) == 120
    assert AGE.convert(str(NOON_MS), None, None) == NOON_MS  # a number alone is of seconds
    assert AGE.convert("2026-11-28T11:59:58.500Z", None, None) == 2
    assert AGE.convert("2026-11-28T13:00:00Z", None, None) == 0


def published(root: Path) -> list[int]:
    """When each message was published."""
    with Client(root) as client, client.create_reader("ticks", MessageId.earliest) as reader:
        return [reader.read_next().publish_timestamp() for _ in range(10)]


def test_commands_that_take_a_time(call, store: Path):
    """Each begins with the first message that was published then or later."""
    times = published(store)
    iso = datetime.fromtimestamp(times[7] / 1000).astimezone().isoformat(timespec="milliseconds")
    assert call("tail", "ticks", "--since", iso)[1] == "7\n8\n9\n"
    assert call("topics", "examine-messages", "ticks", "-i", iso)[1] == "7\n"
    assert call("topics", "examine-messages", "ticks", "-i", iso, "-m", "3")[1] == "9\n"
    status, _, err = call("topics", "examine-messages", "ticks", "-i", iso, "-m", "4")
    assert status == 1 and "has no 4 messages since" in err
    assert call("topics", "examine-messages", "ticks")[1] == "9\n"
    position = json.loads(call("topics", "get-message-id", "ticks", "-t", iso, "--json")[1])
    assert position["entryId"] == 7
    assert call("consume", "ticks", "-s", "new", "--from", iso, "-n", "0", "-w", "0.05")[1] == "7\n8\n9\n"
    assert call("subscriptions", "create", "ticks", "from-six", "--from", str(times[6]))[0] == 0
    out = call("topics", "peek-messages", "ticks", "-s", "from-six")[1]
    assert out == "6\n7\n8\n9\n"
    status, out, _ = call("subscriptions", "reset", "ticks", "keep", "--time", iso, "--dry-run")
    assert status == 0 and f"to the messages from {iso} on" in out
    assert call("subscriptions", "reset", "ticks", "keep", "-t", iso, "-y")[0] == 0
    assert call("topics", "peek-messages", "ticks", "-s", "keep")[1] == "7\n8\n9\n"
    later = datetime.fromtimestamp(times[8] / 1000).astimezone().isoformat(timespec="milliseconds")
    assert call("subscriptions", "expire", "ticks", "keep", "--older-than", later, "-y")[0] == 0
    assert call("topics", "peek-messages", "ticks", "-s", "keep")[1] == "8\n9\n"
    assert call("topics", "expire-messages-all-subscriptions", "ticks", "-t", "now", "-y")[0] == 0
    assert call("topics", "peek-messages", "ticks", "-s", "from-six")[1] == ""


def test_an_existing_subscription_stays_where_it_is(call, store: Path):
    """`consume --from` says where a new one begins; a topic that is not there is made with --create alone."""
    assert call("consume", "ticks", "-s", "keep", "--from", "1d")[1] == "0\n"
    assert call("consume", "ticks", "-s", "keep", "--from", "now")[1] == "1\n"
    assert call("consume", "none", "-s", "keep", "--from", "1d")[0] == 1
    assert call("consume", "none", "-s", "keep", "--from", "1d", "--create", "-w", "0.01")[0] == 0
    assert call("tail", "never", "--since", "1d")[0] == 1
    assert call("consume", "ticks", "-s", "x", "--from", "soon")[0] == 2


def test_export_of_decoded_values_between_two_times(call, store: Path, tmp_path: Path):
    """The rows are those of the interval; without a schema there is nothing to decode by."""
    pytest.importorskip("pyarrow")
    times = published(store)
    given = ["topics", "export", "ticks", str(tmp_path / "out"), "-f", "jsonl", "-c", "value"]
    out = call(*given, "--start", str(times[2]), "--end", str(times[5]))[1]
    assert out == "3 messages in 1 file\n"
    status, _, err = call(*given, "--decode")
    assert status == 1 and "there is no schema to decode by" in err
    with Client(store) as client:
        from embeddedpulsar.schema import StringSchema

        client.create_producer("names", schema=StringSchema()).send("für")
    out = call("topics", "export", "names", str(tmp_path / "names"), "-f", "csv", "-c", "value", "--decode")[
        1
    ]
    assert out == "1 message in 1 file\n"
    (path,) = (tmp_path / "names").rglob("*.csv")
    assert path.read_text("utf-8").splitlines() == ["value", "für"] and os.path.getsize(path) > 0
