"""In which boot the words of a store are true: agreed on by the processes that hold its file."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from embeddedpulsar._engine.store.store_session import StoreControl

HERE, THERE, NOW = b"boot of a host..", b"of a container..", b"after a reboot.."


@pytest.fixture
def path(tmp_path: Path) -> str:
    """The words of a store that was used before, in the boot HERE."""
    path = str(tmp_path / "store.ctl")
    with closing(StoreControl(path)) as control:
        assert control.join_or_claim(HERE) == HERE
        control.adopt(HERE, 1)
    return path


def test_who_sees_the_boot_of_the_words_joins_without_a_lock(path: str):
    """Any number may; one that shows another boot id may not."""
    with closing(StoreControl(path)) as one, closing(StoreControl(path)) as other:
        assert one.join(HERE) and other.join(HERE) and not other.join(THERE)


def test_a_member_vouches_for_the_words_however_the_newcomer_calls_the_boot(path: str):
    """And so does the newcomer from then on, when the first has left."""
    with closing(StoreControl(path)) as newcomer, closing(StoreControl(path)) as third:
        with closing(StoreControl(path)) as member:
            assert member.join(HERE)
            assert newcomer.join_or_claim(THERE) == HERE
            newcomer.share()
        assert third.join_or_claim(THERE) == HERE


def test_without_a_member_the_words_are_of_an_earlier_boot(path: str):
    """A process that has the file open and has not joined proves nothing: it may have come after the reboot,
    as the newcomer did."""
    with closing(StoreControl(path)) as other, closing(StoreControl(path)) as newcomer:
        assert not other.join(NOW)
        assert newcomer.join_or_claim(NOW) == NOW
        assert not other.join(HERE), "the newcomer looks after the store"
        newcomer.adopt(NOW, 1)
        newcomer.share()
        assert other.join(NOW) and newcomer.is_current(NOW)


def test_one_that_joined_before_may_find_out_that_it_is_alone(path: str):
    """The catalog was lost, say: its own hold does not count."""
    with closing(StoreControl(path)) as control:
        assert control.join(HERE)
        assert control.join_or_claim(NOW) == NOW


def test_damaged_words_are_nobodys(path: str):
    """A member cannot say of which boot they were: they are derived again, for the boot of the newcomer."""
    with closing(StoreControl(path)) as member, closing(StoreControl(path)) as newcomer:
        assert member.join(HERE)
        with open(path, "r+b") as file:
            file.write(os.urandom(64))
        assert newcomer.join_or_claim(THERE) == THERE and not newcomer.is_current(THERE)
