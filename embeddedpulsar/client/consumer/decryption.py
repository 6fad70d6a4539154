"""Encrypted entries on their way to a consumer or reader: decrypted, or what the failure action says."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from embeddedpulsar.enums import ConsumerCryptoFailureAction
from embeddedpulsar.exceptions import CryptoError
from embeddedpulsar.format.entry_view import SEEN
from embeddedpulsar.format.frame import CODEC_ENCRYPTED

if TYPE_CHECKING:
    from embeddedpulsar.client.common.client_context import ClientContext
    from embeddedpulsar.crypto.entry_opener import EntryOpener
    from embeddedpulsar.crypto.key_reader import CryptoKeyReader
    from embeddedpulsar.format.entry import EntryView
    from embeddedpulsar.format.sealed_view import SealedView

_CONSUME: Final = ConsumerCryptoFailureAction.CONSUME
_DISCARD: Final = ConsumerCryptoFailureAction.DISCARD
_MOST_TOLD: Final = 1000

Fetch = Callable[[int, int], "list[EntryView]"]


class Decryption:
    """Stands between the log and a receiver queue.

    Role: entries that are not encrypted pass. Of the others, those there is a key for are decrypted; what
    becomes of the rest is the failure action's to say: FAIL leaves it out, and `on_failed` sees that it comes
    again; DISCARD leaves it out, and `on_discarded` acknowledges it; CONSUME passes it on as one message of
    ciphertext. One warning is logged for each data key, by the timer thread.

    Invariants: what is left out never ends a read: only the end of the log does.

    Who may call: `fetch` under the lock of the queue; `opened` any thread.

    Args:
        client: whose log and timers are used.
        topic: full name.
        reader: where private keys come from, or None.
        action: what becomes of entries that cannot be decrypted.
        name: of the consumer or reader, for the log.
        read: gives the next entries as they are stored.
    """

    __slots__ = (
        "_action",
        "_client",
        "_key_reader",
        "_name",
        "_opener",
        "_read",
        "_told",
        "_topic",
        "on_discarded",
        "on_failed",
    )

    def __init__(
        self,
        client: ClientContext,
        topic: str,
        reader: CryptoKeyReader | None,
        action: ConsumerCryptoFailureAction,
        name: str,
        read: Fetch,
    ) -> None:
        self._client = client
        self._topic = topic
        self._action = action
        self._name = name
        self._read = read
        self._key_reader = reader
        self._opener: EntryOpener | None = None  # made, and imported, for the first encrypted entry
        self._told: set[bytes] = set()
        self.on_failed: Callable[[EntryView], object] | None = None
        self.on_discarded: Callable[[EntryView], object] | None = None

    def fetch(self, max_messages: int, max_bytes: int) -> list[EntryView]:
        """The next entries, decrypted; none at the end of the log."""
        while views := self._read(max_messages, max_bytes):
            if not SEEN.encrypted:
                return views
            shown: list[EntryView] = []
            for view in views:
                if view.codec != CODEC_ENCRYPTED:
                    shown.append(view)
                elif (opened := self.opened(view)) is not None:
                    shown.append(opened)
                elif self._action == _DISCARD:
                    if self.on_discarded is not None:
                        self.on_discarded(view)
                elif self.on_failed is not None:
                    self.on_failed(view)
            if shown:
                return shown
        return []

    def open(self, view: EntryView) -> EntryView:
        """Decrypt one entry, of a chunked message, say.

        Raises:
            CryptoError: there is no key for it.
        """
        if view.codec != CODEC_ENCRYPTED:
            return view
        return self._get_opener().open(cast("SealedView", view))

    def opened(self, view: EntryView) -> EntryView | None:
        """An entry as the application may see it; None if it may not."""
        if view.codec != CODEC_ENCRYPTED:
            return view
        sealed = cast("SealedView", view)
        try:
            return self._get_opener().open(sealed)
        except CryptoError as error:
            self._tell(sealed, error)
        if self._action != _CONSUME:
            return None
        from embeddedpulsar.encryption import EncryptionContext
        from embeddedpulsar.format.sealed_entry import raw_view

        raw = raw_view(sealed)
        raw.encryption = EncryptionContext(sealed.facts(self._topic, True))
        return raw

    def _get_opener(self) -> EntryOpener:
        opener = self._opener
        if opener is None:
            from embeddedpulsar.crypto.entry_opener import EntryOpener

            opener = self._opener = EntryOpener(self._topic, self._key_reader)
        return opener

    def _tell(self, view: SealedView, error: CryptoError) -> None:
        """Log the first failure with each data key, not under the lock that is held here."""
        mark = repr(view.fields.get("keys")).encode()
        if mark in self._told or len(self._told) >= _MOST_TOLD:
            return
        self._told.add(mark)
        position = (view.ledger_id, view.entry_id)
        self._client.scheduler.call_later(
            0.0,
            lambda: self._client.log.warning(
                "%s cannot decrypt entry %d:%d of %s (%s): %s",
                self._name,
                *position,
                self._topic,
                self._action.name,
                error,
            ),
        )
