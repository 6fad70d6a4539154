"""Decryption of entries for a consumer or reader, and the failure action."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from embeddedpulsar._engine.format.entry_decoder import SEEN
from embeddedpulsar._engine.format.frame import CODEC_ENCRYPTED
from embeddedpulsar.enums import ConsumerCryptoFailureAction
from embeddedpulsar.exceptions import CryptoError

if TYPE_CHECKING:
    from embeddedpulsar._engine.format.entry import EntryView
    from embeddedpulsar._engine.format.entry_decoder import SealedView
    from embeddedpulsar.client.common.client_context import ClientContext
    from embeddedpulsar.crypto.entry_cipher import EntryOpener
    from embeddedpulsar.crypto.key_reader import CryptoKeyReader

_CONSUME: Final = ConsumerCryptoFailureAction.CONSUME
_DISCARD: Final = ConsumerCryptoFailureAction.DISCARD
_MOST_TOLD: Final = 1000

Fetch = Callable[[int, int], "list[EntryView]"]


class Decryption:
    """A step between the log and a receiver queue.

    Role: plain entries pass unchanged, and encrypted entries with a known key are decrypted. The failure
    action decides about the others: FAIL skips the entry, and `on_failed` has it redelivered; DISCARD skips
    it, and `on_discarded` acknowledges it; CONSUME passes it on as one message with the ciphertext. The timer
    thread logs one warning for each data key.

    Invariants: skipped entries never end a read; only the end of the log does.

    `fetch` is called under the lock of the queue; any thread may call `opened`.

    Args:
        client: provides the log and the timers.
        topic: full name.
        reader: reads the private keys, or None.
        action: how to treat entries that cannot be decrypted.
        name: of the consumer or reader, for the log.
        read: returns the next entries as they are stored.
    """

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
        self._opener: EntryOpener | None = None  # imported and made for the first encrypted entry
        self._told: set[bytes] = set()
        self.on_failed: Callable[[EntryView], object] | None = None
        self.on_discarded: Callable[[EntryView], object] | None = None

    def fetch(self, max_messages: int, max_bytes: int) -> list[EntryView]:
        """Return the next entries, decrypted; none at the end of the log."""
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
        """Decrypt one entry, for example of a chunked message.

        Raises:
            CryptoError: its key is not available.
        """
        if view.codec != CODEC_ENCRYPTED:
            return view
        return self._get_opener().open(cast("SealedView", view))

    def opened(self, view: EntryView) -> EntryView | None:
        """Return an entry as the application gets it; None if it is skipped."""
        if view.codec != CODEC_ENCRYPTED:
            return view
        sealed = cast("SealedView", view)
        try:
            return self._get_opener().open(sealed)
        except CryptoError as error:
            self._tell(sealed, error)
        if self._action != _CONSUME:
            return None
        from embeddedpulsar._engine.format.sealed_entry import raw_view

        return raw_view(sealed, self._topic)

    def _get_opener(self) -> EntryOpener:
        opener = self._opener
        if opener is None:
            from embeddedpulsar.crypto.entry_cipher import EntryOpener

            opener = self._opener = EntryOpener(self._topic, self._key_reader)
        return opener

    def _tell(self, view: SealedView, error: CryptoError) -> None:
        """Log the first failure with each data key, outside the lock that is held here."""
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
