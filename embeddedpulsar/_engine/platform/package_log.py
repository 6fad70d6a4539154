"""The log of the layers below the client, which have no client and no logger of one."""

from __future__ import annotations

import sys

from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Final

NAME: Final = "embeddedpulsar"


def is_heard() -> bool:
    """Whether anything may come of `info`: for a caller that would have to make the values.

    >>> import logging
    >>> is_heard()
    False
    """
    if "logging" not in sys.modules:
        return False
    import logging  # as in `info`

    return logging.getLogger(NAME).isEnabledFor(logging.INFO)


def info(text: str, *values: object) -> None:
    """Log a normal event. Never under a lock that other processes wait for.

    A program that has not imported ``logging`` cannot have asked for it; importing it here takes 5 ms.

    >>> import logging
    >>> info("%d ledgers of %s were trimmed", 3, "persistent://public/default/orders")
    """
    if "logging" in sys.modules:
        import logging  # it may be half done by another thread, for which this one waits here

        logging.getLogger(NAME).info(text, *values)


def damage(found: object) -> None:
    """Log damage that was found. Not under a lock that other processes wait for.

    >>> damage("t/7.log: hole")
    """
    import logging  # 5 ms, and only where something is broken

    logging.getLogger(NAME).warning("%s", found)
