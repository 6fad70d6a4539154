"""What is refused about the names and the number of partitions, and about names of topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from embeddedpulsar.exceptions import NotAllowedError, TopicNotFound
from embeddedpulsar.topic_name import PARTITION_SUFFIX, is_system_topic

if TYPE_CHECKING:
    from embeddedpulsar._engine.format.catalog_record import TopicEntry
    from embeddedpulsar.topic_name import TopicName

AT_ONCE: Final = 5000
"""So many topics are made in one record of the catalog, which holds twice as many of the longest names."""
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


def check_not_of_system(name: TopicName) -> None:
    """Refuse to make one of Pulsar's system topics.

    Raises:
        NotAllowedError: the name is that of one.
    """
    if is_system_topic(name.full):
        raise NotAllowedError(
            f"{name.full} cannot be made: the name is one of Pulsar's system topics; use another name"
        )


def partition_names(name: str, partitions: int) -> list[str]:
    """The full names of the partitions of a topic.

    Example:
        >>> partition_names("persistent://public/default/t", 2)
        ['persistent://public/default/t-partition-0', 'persistent://public/default/t-partition-1']
    """
    return [f"{name}{PARTITION_SUFFIX}{index}" for index in range(partitions)]
