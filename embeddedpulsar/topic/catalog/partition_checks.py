"""What is refused about partitions: their names, and their number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from embeddedpulsar.exceptions import NotAllowedError, TopicNotFound

if TYPE_CHECKING:
    from embeddedpulsar.format.catalog_record import TopicEntry
    from embeddedpulsar.topic_name import TopicName

MOST_PARTITIONS: Final = 10_000
"""Each is a topic with files of its own."""


def check_has_log(name: TopicName, entry: TopicEntry) -> None:
    """Refuse a partitioned topic.

    Raises:
        NotAllowedError: the topic has partitions.
    """
    if entry.partitions:
        raise NotAllowedError(
            f"{name.full} is a partitioned topic and has no log of its own; open its partitions, "
            f"{name.of_partition(0).full} to {name.of_partition(entry.partitions - 1).full}"
        )


def check_partition(name: TopicName, partitions: int) -> None:
    """Refuse the name of a partition that the topic does not have.

    Raises:
        TopicNotFound: the topic has not as many partitions.
    """
    if name.partition >= partitions:
        raise TopicNotFound(
            f"{name.full}: {name.base} has {partitions} partitions, numbered from 0; let it grow first, with "
            "Admin.topics().update_partitioned_topic"
        )


def check_partitions(partitions: int) -> None:
    """Refuse what is no number of partitions.

    Raises:
        ValueError: it is not an int from 1 to `MOST_PARTITIONS`.

    Example:
        >>> check_partitions(0)
        Traceback (most recent call last):
        ValueError: a topic has 1 to 10000 partitions, not 0
    """
    is_number = isinstance(partitions, int) and not isinstance(partitions, bool)
    if not is_number or not 0 < partitions <= MOST_PARTITIONS:
        raise ValueError(f"a topic has 1 to {MOST_PARTITIONS} partitions, not {partitions!r}")
