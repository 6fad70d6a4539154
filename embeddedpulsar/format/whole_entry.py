"""Chunked messages put together: what a reader gets in the place of their last part."""

from __future__ import annotations

from embeddedpulsar.format.entry_view import EntryView


class WholeEntryView(EntryView):
    """The last part of a chunked message with the payload of all.

    Attributes:
        earlier: the entries of the parts before it, in order.
    """

    __slots__ = ("earlier",)

    earlier: tuple[tuple[int, int], ...]

    @property
    def first_chunk(self) -> tuple[int, int] | None:
        """The entry of the first part; None for the only one."""
        return self.earlier[0] if self.earlier else None


def whole_entry(last: EntryView, payload: bytes, earlier: tuple[tuple[int, int], ...]) -> WholeEntryView:
    """A chunked message, of its last part and all that belongs to it."""
    view = WholeEntryView()
    for name in EntryView.__slots__:
        if hasattr(last, name):  # not all entries have an encryption context
            setattr(view, name, getattr(last, name))
    view.payload = payload
    view.offsets = [0, len(payload)]
    view.earlier = earlier
    return view
