"""The partitions of the messages of a column, computed once per key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from embeddedpulsar.client.producer.partitioned.message_router import CustomRouter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from embeddedpulsar.client.producer.partitioned.message_router import Router

TURN: Final = -1
"""In place of a partition: the next partition in turn, chosen when the entry is made."""


class BulkRouting:
    """The router of a partitioned producer, for whole columns.

    Role: a key goes to the partition that `Router` returns. Messages without a key go to the partitions in
    turn, entry by entry, or to the one partition of ``UseSinglePartition``. A ``message_router`` is called
    for each message.

    Attributes:
        is_custom: whether `choose` must be called for each message, instead of `of_key`.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self.is_custom = isinstance(router, CustomRouter)

    def of_keys(self, keys: Iterable[str | None]) -> list[int]:
        """Return the partitions of keys; `TURN` for None."""
        of_key = self._router.of_key
        return [TURN if key is None else of_key(key) for key in keys]

    def turn(self) -> int:
        """Return the partition of the next entry without keys."""
        index = self._router.route(b"", None)
        self._router.batch_left(index)
        return index

    def choose(
        self,
        value: bytes,
        is_null: bool | None = None,
        key: str | None = None,
        ordering_key: str | None = None,
        properties: dict[str, str] | None = None,
        event_time: int | None = None,
        sequence_id: int | None = None,
    ) -> int:
        """Return the partition that the application's router chooses; None for unset options."""
        options = (
            properties or None,
            key,
            ordering_key,
            sequence_id or 0,
            event_time or 0,
            0,
            bool(is_null),
        )
        return self._router.route(value, options)
