"""Opening an object while another process deletes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from embeddedpulsar.exceptions import TopicNotFound

MOST_ATTEMPTS: Final = 10
"""Attempts. Each meets another deletion; in between, the caller waits for the lock of the catalog."""

R = TypeVar("R")


def despite_deletion(open_it: Callable[[], R]) -> R:
    """Open a topic or an object on it, and retry if it is deleted meanwhile.

    A retry looks the name up again and creates the topic if creation is allowed, as if the deletion had ended
    before the call.

    Raises:
        TopicNotFound: there is no such topic, and the caller may not create it.
    """
    for _ in range(MOST_ATTEMPTS - 1):
        try:
            return open_it()
        except (FileNotFoundError, TopicNotFound) as error:
            last = error
    try:
        return open_it()
    except FileNotFoundError as error:
        raise TopicNotFound(f"the topic was repeatedly deleted while it was opened: {error}") from last
