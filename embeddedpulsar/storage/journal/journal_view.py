"""A journal as an onlooker follows it: without the lock, and without writing."""

from __future__ import annotations

import contextlib
from typing import Final

from embeddedpulsar._engine.format.control import split_journal
from embeddedpulsar.damage import Damage
from embeddedpulsar.storage.journal.journal_follower import (
    JournalFollower,
    JournalPlace,
    Replica,
    choose,
    note_lost,
    replay,
)

_ATTEMPTS: Final = 20
"""Each fails only if a new generation began, or the state ended, during it."""


class JournalView:
    """The state that the commit word leads to, at one moment.

    Role: what is committed never changes, so the files below the commit word can be read while others append.
    The generation may be replaced meanwhile; then it is read again. Nothing is repaired, recovered or
    removed.
    Callers: one thread at a time. Between two calls no descriptor is open.

    Attributes:
        damage: what could not be read in the last call.
        is_behind: whether commands that were committed are missing all the same, as after a power loss.
    """

    def __init__(self, place: JournalPlace, replica: Replica) -> None:
        self._place: Final = place
        self._replica: Final = replica
        self._has_ended = False
        self._follower: Final = JournalFollower(place, replica, writable=False)
        self._follower.on_removed = self._note_end
        self.damage: list[Damage] = []
        self.is_behind = False

    def _note_end(self) -> None:
        self._has_ended = True

    def follow(self, *, is_trusted: bool, is_word_known: bool = True) -> bool:
        """Bring the replica up to date.

        Args:
            is_trusted: whether the commit word may be believed. If not, as in a copied store, the files alone
                are asked, all of them again.
            is_word_known: see `Journal.recover`.

        Returns:
            Whether the state exists.

        Raises:
            StorageError: the journal is of a newer release, or cannot be read at all.
        """
        self.is_behind = False
        if not is_trusted:
            return self._read_files(self._word if is_word_known else None)
        follower = self._follower
        try:
            for _ in range(_ATTEMPTS):
                word = self._word
                self._has_ended = False
                follower.damage.clear()
                with contextlib.suppress(FileNotFoundError):
                    follower.catch_up()
                    is_whole = not follower.damage and (follower.is_settled or self._has_ended)
                    if is_whole or word == self._word:
                        break
                follower.is_settled = False  # another generation meanwhile: it is read anew
        finally:
            follower.file.rest()
        self.damage = list(follower.damage)
        return bool(split_journal(self._word)[1]) and not self._has_ended

    @property
    def _word(self) -> int:
        return int(self._place.words[self._place.word])

    def read_again(self) -> None:
        """Have the next `follow` build the replica anew."""
        self._follower.is_settled = False

    def _read_files(self, word: int | None) -> bool:
        self._follower.seen, self._follower.is_settled = 0, False
        self.damage = []
        try:
            journal = choose(self._place.directory, self._place.owner_kind, self.damage).journal
            self.is_behind = note_lost(self._place.directory, word, journal, self.damage)
        except (FileNotFoundError, NotADirectoryError):
            return False  # it ended
        if journal is None:
            return False
        return not replay(journal, self._replica, self.damage).removed
