"""The check that a test makes at its end of the store that it used."""

from __future__ import annotations

import os

from embeddedpulsar._engine.store.care.store_check import StoreReport, check_store

__all__ = ["assert_clean", "check_store"]


def assert_clean(root: str | os.PathLike[str]) -> StoreReport:
    """`check_store` of a closed store, failing with all its problems.

    Example:
        >>> from embeddedpulsar import Client
        >>> with Client("./data") as client:
        ...     message_id = client.create_producer("orders").send(b"tea")
        >>> assert_clean("./data").messages
        1
    """
    report = check_store(root)
    if report.problems:
        raise AssertionError("\n".join(map(str, report.problems)))
    return report
