"""Opening what somebody deletes at the same moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from embeddedpulsar.exceptions import TopicNotFound

MOST_ATTEMPTS: Final = 10
"""Each meets a deletion of its own; the wait for that is the catalog's lock."""

R = TypeVar("R")


def despite_deletion(open_it: Callable[[], R]) -> R:
    """Open a topic, or something on it, whose deletion may be under way: what is gone is looked up anew, and
    made if that is allowed, as if it had been deleted a moment before.

    Raises:
        TopicNotFound: there is no such topic, and it may not be made.
    """
    for _ in range(MOST_ATTEMPTS - 1):
        try:
            return open_it()
        except (FileNotFoundError, TopicNotFound) as error:
            last = error
    try:
        return open_it()
    except FileNotFoundError as error:
        raise TopicNotFound(f"it was deleted again and again while it was opened: {error}") from last
