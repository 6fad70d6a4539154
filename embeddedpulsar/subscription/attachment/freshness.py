"""Whether what a consumer has read is still to be delivered. Hot: compared for every message."""

from __future__ import annotations

from typing import Final


class Freshness:
    """The epoch of a subscription beside the one that a consumer follows.

    Role: while ``epoch[()]`` equals `seen`, nothing that was read is void. A consumer compares the two for
    each message it gives to the application; where they differ, `Attachment.look` finds out.

    Attributes:
        epoch: the word, a view without dimensions: reading it costs two thirds of ``words[EPOCH]``. Raises
            ValueError when the subscription is closed.
        seen: what the word was when the consumer last followed the subscription.
    """

    __slots__ = ("epoch", "seen")

    def __init__(self, epoch: memoryview) -> None:
        self.epoch: Final = epoch
        self.seen: int = epoch[()]

    @classmethod
    def for_ever(cls) -> Freshness:
        """For entries that cannot become void, or are compared elsewhere.

        Example:
            >>> fresh = Freshness.for_ever()
            >>> fresh.epoch[()] == fresh.seen
            True
        """
        return cls(memoryview(bytes(8)).cast("Q", shape=[]))
