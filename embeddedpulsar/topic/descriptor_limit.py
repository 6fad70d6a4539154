"""What happens at the limit on open files: make room and try again, or raise an error with advice."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from embeddedpulsar.platform import descriptors

Result = TypeVar("Result")


def within_limit(action: Callable[[], Result], make_room: Callable[[], object], what: str) -> Result:
    """Do something that opens files; if there are no descriptors left, make room and do it once more.

    As `descriptors` does where a file is opened, but whole topics are closed.

    Args:
        action: what to do; may run twice.
        make_room: closes files that are not in use.
        what: says in a few words what cannot be done if it fails.

    Raises:
        DescriptorLimitError: no descriptors were left the second time either.
    """
    try:
        return action()
    except OSError as e:
        if not descriptors.is_shortage(e):
            raise
    make_room()
    descriptors.SLEEPERS.make_room()
    return descriptors.named(what, action)
