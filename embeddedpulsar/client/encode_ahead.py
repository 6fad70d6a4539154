"""Encoding the next entry on a second thread while the present one is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from embeddedpulsar.platform import threads

if TYPE_CHECKING:
    from collections.abc import Sequence
    from queue import SimpleQueue
    from typing import Protocol

    from embeddedpulsar.format.entry import EncodedEntry, ProducerPrefix

    class Portion(Protocol):
        """The messages of one entry, before it is encoded.

        Attributes:
            explicit_ids: first, last and highest of explicit ones, or None for the next automatic ones.
            numbers: which of the values these are.
            partition: where they go; 0 where there are no partitions.
        """

        partition: int

        @property
        def count(self) -> int: ...
        @property
        def explicit_ids(self) -> tuple[int, int, int] | None: ...
        @property
        def numbers(self) -> Sequence[int]: ...
        def encode(self, first: int, prefix: ProducerPrefix, codec: int) -> EncodedEntry: ...
        def part(self, start: int, stop: int) -> Portion: ...


class Encoded(NamedTuple):
    """A portion, encoded for one producer under its first automatic sequence id."""

    portion: Portion
    prefix: ProducerPrefix
    first: int
    entry: EncodedEntry

    @property
    def following(self) -> int:
        """The automatic sequence id that comes next."""
        return self.first + (0 if self.portion.explicit_ids is not None else self.portion.count)


class EncodeAhead:
    """One entry at a time, encoded by a thread of its own that lives as long as the call.

    Role: checksums, codecs and writes all let other threads run, so a large entry is checksummed while the
    one before is copied into the file. Used by one thread: `start`, then `finish`. Nothing of the user runs
    on the second thread.
    """

    __slots__ = ("_codec", "_done", "_thread", "_todo")

    def __init__(self, codec: int) -> None:
        self._codec = codec
        self._thread: object = None
        self._todo: SimpleQueue[tuple[Portion, ProducerPrefix, int] | None]
        self._done: SimpleQueue[Encoded | BaseException]

    def encode(self, portion: Portion, prefix: ProducerPrefix, first: int) -> Encoded:
        """Encode here and now."""
        return Encoded(portion, prefix, first, portion.encode(first, prefix, self._codec))

    def start(self, portion: Portion, prefix: ProducerPrefix, first: int) -> None:
        """Begin to encode."""
        if self._thread is None:
            from queue import SimpleQueue

            self._todo, self._done = SimpleQueue(), SimpleQueue()
            self._thread = threads.start_daemon(self._run, "encode")
        self._todo.put((portion, prefix, first))

    def finish(self) -> Encoded:
        """What was begun; raises what encoding raised."""
        done = self._done.get()
        if isinstance(done, BaseException):
            raise done
        return done

    def close(self) -> None:
        """Let the thread end. It may still be at its last entry; it holds nothing but that."""
        if self._thread is not None:
            self._todo.put(None)

    def _run(self) -> None:
        while (job := self._todo.get()) is not None:
            try:
                self._done.put(self.encode(*job))
            except BaseException as error:  # noqa: BLE001 - for the thread that waits
                self._done.put(error)
            job = None
