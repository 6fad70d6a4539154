"""The mapped words of a subscription."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from embeddedpulsar._engine.format.control import SUBSCRIPTION_CONTROL_SIZE, SubscriptionWord
from embeddedpulsar._engine.subscription.subscription_files import SubscriptionControl
from embeddedpulsar.message_id import Position

BOOT = b"boot id, 16 long"


def test_a_new_ctl_is_not_trusted_before_it_is_adopted(tmp_path: Path) -> None:
    """Its words are believed in one boot and on one inode."""
    control = SubscriptionControl.create(str(tmp_path))
    assert os.listdir(tmp_path) == ["ctl"]
    assert os.stat(tmp_path / "ctl").st_size == SUBSCRIPTION_CONTROL_SIZE
    assert not control.is_trusted(BOOT)
    control.adopt(0, BOOT)
    assert control.is_trusted(BOOT)
    assert not control.is_trusted(b"x" * 16)
    other = SubscriptionControl.open(str(tmp_path))
    assert other.is_trusted(BOOT)
    (tmp_path / "copy").mkdir()
    shutil.copy(tmp_path / "ctl", tmp_path / "copy" / "ctl")
    copy = SubscriptionControl.open(str(tmp_path / "copy"))
    assert not copy.is_trusted(BOOT)
    for one in (control, other, copy):
        one.close()


def test_a_process_that_waited_sees_the_adoption(tmp_path: Path) -> None:
    """Two find an untrusted ctl; the second reads the header again."""
    first = SubscriptionControl.create(str(tmp_path))
    second = SubscriptionControl.open(str(tmp_path))
    first.adopt(0, BOOT)
    assert not second.is_trusted(BOOT)
    second.reload()
    assert second.is_trusted(BOOT)
    first.close()
    second.close()


@pytest.mark.parametrize(
    "position", [Position(0, -1), Position(7, 0), Position(9, -1), Position(1 << 40, 1 << 29)]
)
def test_the_mark_delete_position_is_published(tmp_path: Path, position: Position) -> None:
    """Also before the first entry of a ledger."""
    control = SubscriptionControl.create(str(tmp_path))
    control.publish(Position(3, 99), 1, 5)
    control.publish(position, 2, 4)
    assert control.mark_delete == position
    assert control.words[SubscriptionWord.CONSUMERS] == 2
    assert control.words[SubscriptionWord.EPOCH] == 5
    control.close()
    assert control.closed


def test_announcing_raises_both_alarms(tmp_path: Path) -> None:
    """And wraps rather than fails."""
    control = SubscriptionControl.create(str(tmp_path))
    control.words[SubscriptionWord.EPOCH] = (1 << 64) - 1
    control.announce()
    assert (control.words[SubscriptionWord.EPOCH], control.words[SubscriptionWord.VERSION]) == (0, 1)
    control.close()


def test_forgetting_clears_who_waits(tmp_path: Path) -> None:
    """After a reboot nobody does."""
    control = SubscriptionControl.create(str(tmp_path))
    words = (*range(SubscriptionWord.WAITERS, SubscriptionWord.WAITERS + 4), SubscriptionWord.DUE_WATCH)
    for word in (*words, SubscriptionWord.ASSIGNED + 3):
        control.words[word] = 5
    control.clear_words()
    assert not any(control.words[word] for word in (*words, SubscriptionWord.ASSIGNED + 3))
    control.close()


def test_the_remains_of_a_dead_creator_are_replaced(tmp_path: Path) -> None:
    """A half-made file does not stand in the way."""
    (tmp_path / "ctl.new").write_bytes(b"half")
    SubscriptionControl.create(str(tmp_path)).close()
    assert os.listdir(tmp_path) == ["ctl"]


class StoredWords:
    """The words of a ctl, and which of them were stored."""

    def __init__(self, words: memoryview) -> None:
        self._words = words
        self.stored: list[int] = []

    def __getitem__(self, index: int) -> int:
        return self._words[index]

    def __setitem__(self, index: int, value: int) -> None:
        self.stored.append(index)
        self._words[index] = value


def test_what_did_not_change_is_not_stored(tmp_path: Path) -> None:
    """Processes that read a word keep it in the caches of their processors until it is stored."""
    control = SubscriptionControl.create(str(tmp_path))
    control.publish(Position(7, 2), 3, 5)
    control.publish_dispatch(Position(7, 9), 0, 0)
    words = control.words
    control.words = recorded = StoredWords(words)  # type: ignore[assignment,misc]
    control.publish(Position(7, 2), 3, 5)
    control.publish_dispatch(Position(7, 10), 0, 0)
    assert recorded.stored == [SubscriptionWord.READ_ENTRY]
    control.publish(Position(7, -1), 4, 5)
    control.publish_dispatch(Position(8, 0), 17, 2)
    assert recorded.stored[1:] == [
        SubscriptionWord.MARK_DELETE_ENTRY,
        SubscriptionWord.CONSUMERS,
        SubscriptionWord.READ_ENTRY,
        SubscriptionWord.READ_LEDGER,
        SubscriptionWord.NEXT_DUE_MS,
        SubscriptionWord.WAITING,
    ]
    assert control.mark_delete == (7, -1)
    control.words = words  # type: ignore[misc]
    assert control.read_position == (8, 0)
    control.close()
