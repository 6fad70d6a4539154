"""A store for one test, at whose end nothing stays open; and the check that a test makes at its end of the
store that it used.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final, TypeVar
from urllib.parse import quote

from embeddedpulsar._engine.store.care.store_check import StoreReport, check_store
from embeddedpulsar._engine.store.store import Store
from embeddedpulsar._engine.store.store_root import ServiceUrl
from embeddedpulsar.client.client_core import OPEN_CLIENTS, ClientCore
from embeddedpulsar.exceptions import AlreadyClosed

__all__ = ["StoreReport", "assert_clean", "check_store", "trial_store"]


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


Place = TypeVar("Place", bound="str | os.PathLike[str]")
_numbers: Final = itertools.count(1)


@contextmanager
def trial_store(path: Place | None = None, **settings: object) -> Iterator[Place | str]:
    """Have a store for one test. The fixture ``pulsar_store`` is made of it.

    A store in memory lives as long as the ``with`` statement, also while no client has it open. At the end,
    clients that are still open are closed; then a directory that was used is checked, as by `assert_clean`.

    Args:
        path: the directory, which is made if necessary; None for a store in memory.
        **settings: the content of ``broker.conf``.

    Returns:
        What a client is given: the path, or a URL.

    Example:
        >>> from embeddedpulsar import Client
        >>> with trial_store() as store, Client(store) as client:
        ...     client.create_producer("orders").send(b"soup").entry_id()
        0
    """
    # In memory each test has a name of its own, so tests of one process do not see each other.
    store = f"memory://test-{next(_numbers)}" if path is None else path
    lines = [f"{name}={_text(value)}" for name, value in settings.items()]
    # Settings of a directory are in its file, those of a store in memory in the URL.
    if path is not None:
        os.makedirs(path, exist_ok=True)
        if settings:
            with open(os.path.join(path, "broker.conf"), "w", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines)
    # A store in memory ends with its last client. This handle keeps it until the end of the `with` statement.
    kept = Store.open(f"{store}?{'&'.join(quote(line, '=') for line in lines)}") if path is None else None
    try:
        yield store
    finally:
        # Clients first, the last one first, then the handle: callbacks run in reverse, and each of them
        # whatever the others raise.
        with ExitStack() as closing:
            if kept is not None:
                closing.callback(kept.release)
            for client in reversed(OPEN_CLIENTS.of_store(ServiceUrl.parse(store).store)):
                closing.callback(_close, client)
    # A directory that no client opened has nothing to check.
    if path is not None and set(os.listdir(path)) - {"broker.conf"}:
        assert_clean(path)


def _close(client: ClientCore) -> None:
    # The test may close it at the same moment.
    with suppress(AlreadyClosed):
        client.close()


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
