"""A damaged subscription is kept: it is listed, holds the log back, and loses no message.

The long version is `python -m pytest tests/crash/test_damaged_subscriptions.py -m slow`.
"""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, Damage, InitialPosition
from embeddedpulsar._engine.format.control import SubscriptionWord
from embeddedpulsar._engine.format.subscription_record import SEEK
from embeddedpulsar._engine.log.journal_file import JournalFile
from embeddedpulsar._engine.store.care.store_check import check_store
from embeddedpulsar._engine.store.care.store_repair import repair_store
from embeddedpulsar.testing import assert_clean
from tests.crash import damaged_subscriptions as damaged
from tests.crash.damaged_subscriptions import Case, History

CREATE: int = 64
"""Where the first command of a journal begins."""


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, History]:
    return damaged.make(tmp_path_factory.mktemp("histories"))


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


@pytest.mark.parametrize("then", damaged.ACTIONS)
@pytest.mark.parametrize("is_believed", [True, False], ids=["believed", "copied"])
@pytest.mark.parametrize("history", damaged.HISTORIES)
def test_the_first_command_damaged(
    histories: dict[str, History], tmp_path: Path, history: str, is_believed: bool, then: str
):
    """The command that says which subscription it is: whatever happens next, the backlog is delivered."""
    case = Case(history, "journal.1", "flip", CREATE + 21, is_believed, then)
    assert not damaged.run(case, histories, tmp_path)


@pytest.mark.parametrize("then", damaged.ACTIONS)
@pytest.mark.parametrize(
    ("damage", "word"), [("zero", SubscriptionWord.JOURNAL), ("flip", SubscriptionWord.REMOVED)]
)
def test_words_that_say_that_it_ended(
    histories: dict[str, History], tmp_path: Path, damage: str, word: int, then: str
):
    """A cleared commit word, and the word of a removal, are believed only if the files say the same."""
    assert not damaged.run(Case("plain", "ctl", damage, 8 * word, True, then), histories, tmp_path)


@pytest.mark.parametrize("has_words", [True, False], ids=["words", "no words"])
@pytest.mark.parametrize("is_believed", [True, False], ids=["believed", "copied"])
@pytest.mark.parametrize("damage", ["zeroed", "cut"])
@pytest.mark.parametrize("history", ["rewound", "compacted"])
def test_a_journal_of_which_nothing_is_left(
    histories: dict[str, History],
    tmp_path: Path,
    history: str,
    damage: str,
    is_believed: bool,
    has_words: bool,
):
    """Empty, or zeros: whatever happens next, the backlog is delivered; it is found, reported and shown."""
    newest = max(file for file in damaged.files_of(histories[history]) if file.startswith("journal"))
    case = Case(history, newest, damage, 0, is_believed, "", has_words)
    found = [damaged.run(case._replace(then=then), histories, tmp_path) for then in damaged.ACTIONS]
    assert not any(found), found
    root = tmp_path / "store"
    damaged.copy(histories[history], root, is_believed=is_believed)
    (place,) = root.glob("topics/*/subscriptions/*")
    damaged.damage(place / newest, case)
    if not has_words:
        (place / "ctl").unlink()
    assert [problem.path for problem in check_store(root).damage] == [str(place / newest)]
    reports: list[Damage] = []
    with Admin(root, on_damage=reports.append) as admin:
        assert admin.topics().get_subscriptions(damaged.TOPIC) == ["billing"]
        assert list(admin.topics().get_stats(damaged.TOPIC).subscriptions) == ["billing"]
    assert {(one.kind, one.topic, one.subscription) for one in reports} == {
        ("journal", damaged.TOPIC, "billing")
    }


def test_a_journal_that_was_cut_before_a_seek(histories: dict[str, History], tmp_path: Path):
    """A backup finds that it ends before its commit word, and a store restored from it does, too."""
    (place,) = histories["rewound"].root.glob("topics/*/subscriptions/*")
    journal = JournalFile(str(place), 1).records(strict=True)
    seek = next(end - record.length for end, record in journal if record.type == SEEK)
    for at in (seek, seek - 63, seek + 8):
        case = Case("rewound", "journal.1", "cut", at, True, "restore")
        assert not damaged.run(case, histories, tmp_path)


@pytest.mark.parametrize("seed", range(3))
def test_any_byte_of_any_file(histories: dict[str, History], tmp_path: Path, seed: int):
    """A sample of all files, bytes, damages and orders."""
    cases = list(damaged.cases(histories))
    chosen = random.Random(seed).sample(cases, 6)
    assert not [found for case in chosen if (found := damaged.run(case, histories, tmp_path))]


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_every_byte_of_every_file(histories: dict[str, History], tmp_path: Path):
    """Ten thousand of them, the control words of consumers left out."""
    cases = [case for case in damaged.cases(histories) if case.file != "ctl" or case.at < 1024]
    chosen = random.Random(0).sample(cases, 10_000)
    assert not [found for case in chosen if (found := damaged.run(case, histories, tmp_path))]


def _damaged_store(histories: dict[str, History], tmp_path: Path, *files: str, at: int = CREATE) -> Path:
    """A copy of a store whose subscription has lost a control file, and the first command of its journal."""
    root = tmp_path / "store"
    damaged.copy(histories["plain"], root, is_believed=False)
    (place,) = root.glob("topics/*/subscriptions/*")
    (place / "ctl").unlink()
    damaged.damage(place / "journal.1", Case("plain", "journal.1", "flip", at, False, ""))
    return root


def test_it_is_reported_and_shown(histories: dict[str, History], tmp_path: Path):
    """The damage channel names topic, subscription and what is done; all lists and statistics have it."""
    root = _damaged_store(histories, tmp_path)
    reports: list[Damage] = []
    with Admin(root, on_damage=reports.append) as admin:
        topics = admin.topics()
        backlog = topics.get_stats(damaged.TOPIC).subscriptions["billing"].msg_backlog
        assert backlog >= len(histories["plain"].unacknowledged)
        assert topics.get_internal_stats(damaged.TOPIC).cursors["billing"]
        assert topics.get_subscriptions(damaged.TOPIC) == ["billing"]
        assert next(need.subscriptions for need in admin.why_kept(damaged.TOPIC).ledgers)
    with Client(root, on_damage=reports.append) as client:
        client.subscribe(damaged.TOPIC, "billing").close()
    found = [report for report in reports if report.subscription == "billing"]
    assert found and {report.topic for report in found} == {damaged.TOPIC}
    assert any("delivers again from the first message" in report.done for report in found)
    assert_clean(root)


def test_a_subscription_whose_name_is_lost(tmp_path: Path):
    """It is listed under the name of its directory, holds the log back, and belongs to the next consumer
    that subscribes by its name."""
    root, name = tmp_path / "store", "Billing & Ünits"
    root.mkdir()
    (root / "broker.conf").write_text("managedLedgerMaxEntriesPerLedger=5\n")
    with Client(root) as client:
        client.subscribe("orders", name)
        producer = client.create_producer("orders")
        for number in range(20):
            producer.send(b"%d" % number)
    (journal,) = root.glob("topics/*/subscriptions/*/journal.1")
    (journal.parent / "ctl").unlink()
    data = journal.read_bytes()
    journal.write_bytes(data[:64] + bytes(byte ^ 0x55 for byte in data[64:]))
    shown = journal.parent.name
    with Admin(root, on_damage=lambda _: None) as admin:
        assert admin.topics().get_subscriptions("orders") == [shown]
        with pytest.raises(Exception, match=r"journal\.1"):
            admin.topics().trim_topic("orders")
    assert [problem.kind for problem in check_store(root).damage] == ["journal"]
    repair = repair_store(str(root))
    assert [problem.remedy for problem in repair.left] and not any(
        problem.remedy == "repair the store" for problem in repair.left
    )
    with Client(root, on_damage=lambda _: None) as client:
        consumer = client.subscribe("orders", name, initial_position=InitialPosition.Latest)
        assert len([None for _ in iter(consumer.receive_nowait, None)]) == 20
    assert_clean(root)


def test_a_repair_says_from_where(histories: dict[str, History], tmp_path: Path):
    """The steps name the position from which the subscription delivers again, also those of a dry run."""
    root = _damaged_store(histories, tmp_path)
    dry = repair_store(str(root), is_dry_run=True)
    assert "delivers again from the first message" in "\n".join(map(str, dry.steps))
    done = repair_store(str(root))
    assert dry.steps == done.steps
    assert not done.left
    assert_clean(root)
