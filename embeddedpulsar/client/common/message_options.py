"""The options of a message besides its payload, checked when it is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar._engine.format.document import pack_map
from embeddedpulsar._engine.format.entry import EntryContent
from embeddedpulsar.client.common.arguments import (
    INT64_MAX,
    check_fits,
    check_text,
    check_type,
    check_type_or_none,
    checked_properties,
    refuse_unbuilt,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import timedelta


Options = tuple[dict[str, str] | None, str | None, str | None, int, int, int, bool]
"""Properties, partition key, ordering key, sequence id, event time and delivery time in ms, null value.

As in ``pulsar-client``, an empty or zero option counts as not set. The type is a plain tuple, because every
keyed message needs one, and a named tuple costs three times as much.
"""

PROPERTIES: Final = 0
PARTITION_KEY: Final = 1
KEY: Final = 1
SEQUENCE_ID: Final = 3
DELIVER_AT: Final = 5
NO_OPTIONS: Final[Options] = (None, None, None, 0, 0, 0, False)
NULL_VALUE: Final[Options] = (None, None, None, 0, 0, 0, True)


def check_options(
    null: bool,
    properties: dict[str, str] | None,
    partition_key: str | None,
    ordering_key: str | None,
    sequence_id: int | None,
    replication_clusters: list[str] | None,
    disable_replication: bool,
    event_timestamp: int | None,
    deliver_at: int | None,
    deliver_after: timedelta | None,
    now_ms: Callable[[], int],
) -> Options:
    """Check the options of `Producer.send`. Hot: called for every keyed message.

    Args:
        null: whether the content is None.
        now_ms: returns the time; called only with ``deliver_after``.

    Raises:
        ValueError: a wrong type or value.
        TypeError: a number or text that the protocol cannot represent, or a property that is not text.
        NotImplementedError: replication between stores.
    """
    if properties is not None:
        if properties.__class__ is not dict:
            check_type_or_none(dict, properties, "properties")
        properties = checked_properties(properties)
    if partition_key is not None:
        _check_key(partition_key)
    if ordering_key is not None:
        check_type_or_none(str, ordering_key, "ordering_key")
        check_text(ordering_key, "ordering_key")
    if sequence_id is not None:
        check_type_or_none(int, sequence_id, "sequence_id")
        check_fits(sequence_id, "sequence_id", -INT64_MAX - 1, INT64_MAX)
        if sequence_id < 0:
            raise ValueError("sequenceId needs to be >= 0")
    if replication_clusters is not None:
        check_type_or_none(list, replication_clusters, "replication_clusters")
        if not all(isinstance(cluster, str) for cluster in replication_clusters):
            raise TypeError("Argument replication_clusters is expected to be a list of str")
        refuse_unbuilt(replication_clusters, "replication_clusters", "replication between stores")
    if disable_replication is not False:
        check_type(bool, disable_replication, "disable_replication")
    if event_timestamp is not None:
        check_type_or_none(int, event_timestamp, "event_timestamp")
        check_fits(event_timestamp, "event_timestamp", 0, INT64_MAX)
    if deliver_at is not None:
        check_type_or_none(int, deliver_at, "deliver_at")
        check_fits(deliver_at, "deliver_at", 0, INT64_MAX)
    if deliver_after is not None:
        deliver_at = _absolute(deliver_after, now_ms) or deliver_at
    return (
        properties or None,
        partition_key or None,
        ordering_key or None,
        sequence_id or 0,
        event_timestamp or 0,
        deliver_at or 0,
        null,
    )


def check_few(null: bool, properties: dict[str, str] | None, partition_key: str | None) -> Options:
    """`check_options` of a message with properties or a key, or both, and no other option."""
    if properties is not None:
        check_type_or_none(dict, properties, "properties")
        properties = checked_properties(properties)
    if partition_key is not None:
        _check_key(partition_key)
    return (properties or None, partition_key or None, None, 0, 0, 0, null)


def keyed_row(
    value: Any, callback: Any, properties: dict[str, str] | None, partition_key: str | None
) -> tuple[Any, ...]:
    """Return what `BatchContainer.items` has of a message with properties or a key. Hot: 0.6 us.

    The properties are packed at once: that checks them, and needs no copy of the dict.

    Example:
        >>> keyed_row(b"a", None, None, "k")
        (b'a', None, None, 'k', None, 0, 0, 0, False)
    """
    packed = None
    if properties is not None:
        if properties.__class__ is not dict:
            check_type_or_none(dict, properties, "properties")
        if properties:
            try:
                for name, text in properties.items():
                    if name.__class__ is not str or text.__class__ is not str:
                        properties = checked_properties(properties)
                        break
                packed = pack_map(properties)
            except UnicodeEncodeError:
                packed = pack_map(checked_properties(properties))  # which says what is no text
    if partition_key is not None and (partition_key.__class__ is not str or not partition_key.isascii()):
        _check_key(partition_key)
    return (value, callback, packed, partition_key or None, None, 0, 0, 0, False)


def _check_key(partition_key: str) -> None:
    check_type_or_none(str, partition_key, "partition_key")
    check_text(partition_key, "partition_key")


def _absolute(deliver_after: timedelta, now_ms: Callable[[], int]) -> int:
    from datetime import timedelta  # takes 2 ms; a caller that passes a timedelta has imported it already

    check_type_or_none(timedelta, deliver_after, "deliver_after")
    if not deliver_after:
        return 0
    at = now_ms() + deliver_after // timedelta(milliseconds=1)
    return max(at, 1)


def make_content(
    values: list[bytes], columns: list[list[Any]], sequence_ids: list[int], batched: bool
) -> EntryContent:
    """Turn messages with options into the content of one entry. Unused columns are omitted.

    Args:
        values: payloads.
        columns: the options, one list per field of `Options`.
        sequence_ids: of all messages.
        batched: whether messages get batch indexes.

    >>> options = transposed([NO_OPTIONS, (None, "k", None, 0, 0, 0, False)])
    >>> make_content([b"a", b"b"], options, [3, 4], True).keys
    [None, 'k']
    """
    properties, keys, ordering_keys, _, event_times, deliver_at, nulls = columns
    return EntryContent(
        values,
        sequence_ids[0],
        batched,
        keys=keys if any(keys) else None,
        ordering_keys=ordering_keys if any(ordering_keys) else None,
        properties=properties if any(properties) else None,
        event_times=event_times if any(event_times) else None,
        deliver_at=deliver_at if any(deliver_at) else None,
        null_values=nulls if any(nulls) else None,
        sequence_ids=sequence_ids,
    )


def transposed(rows: Iterable[tuple[Any, ...]]) -> list[list[Any]]:
    """Return one list per field, from one tuple per message.

    >>> transposed([(1, "a"), (2, "b")])
    [[1, 2], ['a', 'b']]
    """
    return list(map(list, zip(*rows, strict=True)))
