"""Mark-delete positions of subscriptions that no process has opened, while other processes change them."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import pytest

from embeddedpulsar import Client
from embeddedpulsar._engine.format.control import SubscriptionWord, journal_word
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.timing import boot_id
from embeddedpulsar._engine.subscription import subscription_files
from embeddedpulsar._engine.subscription.subscription_files import (
    SubscriptionControl,
    is_word_damaged,
    mark_deletes,
)
from embeddedpulsar.message_id import Position


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Of a subscription whose control words say nothing."""
    with Client(tmp_path / "store") as client:
        client.subscribe("orders", "work").close()
    (found,) = (tmp_path / "store").glob("topics/*/subscriptions/*")
    (found / "ctl").unlink()
    return found


def losing(monkeypatch: pytest.MonkeyPatch, times: int, action) -> None:
    """A file goes while it is read, so often."""
    real, left = subscription_files.choose, [times]

    def choose(*arguments):
        if left[0]:
            left[0] -= 1
            action()
            raise FileNotFoundError("journal.1")
        return real(*arguments)

    monkeypatch.setattr(subscription_files, "choose", choose)


def positions(directory: Path) -> list[Position]:
    """What is found."""
    return mark_deletes([str(directory)], boot_id())


def test_deleted_and_made_again_meanwhile(directory: Path, monkeypatch: pytest.MonkeyPatch):
    """The position is that of the subscription that is there now."""
    (known,) = positions(directory)

    def make_again() -> None:
        shutil.copytree(directory, f"{directory}.copy")
        shutil.rmtree(directory)
        os.rename(f"{directory}.copy", directory)

    losing(monkeypatch, 3, make_again)
    assert positions(directory) == [known]


def test_deleted_meanwhile(directory: Path, monkeypatch: pytest.MonkeyPatch):
    """It holds nothing back any more; neither does a directory from which all files were taken."""
    losing(monkeypatch, 1, lambda: [path.unlink() for path in directory.iterdir()])
    assert positions(directory) == []
    shutil.rmtree(directory)
    assert positions(directory) == []


def test_a_file_that_always_goes(directory: Path, monkeypatch: pytest.MonkeyPatch):
    """The position is unknown: nothing may be trimmed."""
    losing(monkeypatch, 10, lambda: None)
    with pytest.raises(FileNotFoundError):
        positions(directory)


def test_made_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The control words are looked at before there are any, the files when the journal has no command yet."""
    with Client(tmp_path / "store") as client:
        client.subscribe("orders", "other").close()
        failpoints.set("journal:file_created", "raise:OSError")
        try:
            with pytest.raises(OSError, match="journal:file_created"):
                client.subscribe("orders", "work")
        finally:
            failpoints.clear()
        (directory,) = (tmp_path / "store").glob("topics/*/subscriptions/*-work")
        assert (directory / "journal.1").stat().st_size == 0
        real, left = SubscriptionControl.open, [1]

        def early(path: str, **options: object) -> SubscriptionControl:
            if left[0]:
                left[0] -= 1
                raise FileNotFoundError("ctl")
            return real(path, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(SubscriptionControl, "open", early)
        assert positions(directory) == []
        assert left == [0]


def test_gone_while_its_words_are_compared(directory: Path):
    """A look at a subscription that ends meanwhile finds none, whatever its words say."""
    with contextlib.closing(SubscriptionControl.create(str(directory))) as control:
        control.words[SubscriptionWord.JOURNAL] = journal_word(1, 0)
        shutil.rmtree(directory)
        assert not is_word_damaged(str(directory), control)


def test_the_directory_of_another_one_is_not_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of two processes that make a subscription, one makes the directory and the lock file, and the other
    locks it first: the words of that one stay."""
    real, others = FileLock.acquire, [True]

    def after_another(lock: FileLock, timeout_s: float, *rest: object) -> None:
        if others and others.pop():
            quick_lock, quick = subscription_files.open_files(str(tmp_path), 1, boot_id())
            quick.words[SubscriptionWord.JOURNAL] = journal_word(1, 100)
            quick_lock.release()
            quick_lock.close()
            quick.close()
        real(lock, timeout_s, *rest)

    monkeypatch.setattr(FileLock, "acquire", after_another)
    lock, control = subscription_files.open_files(str(tmp_path), 1, boot_id(), is_fresh=True)
    with contextlib.closing(lock), contextlib.closing(control):
        assert control.words[SubscriptionWord.JOURNAL] == journal_word(1, 100)
