"""The store that an application serves."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING, Final, Self

import anyio

from embeddedpulsar.admin.admin import Admin
from embeddedpulsar.client.client import Client
from embeddedpulsar.damage import CONTROL, INDEX

if TYPE_CHECKING:
    import os

    from embeddedpulsar.damage import Damage

_MOST_DAMAGE: Final = 1000
_DERIVED: Final = (INDEX, CONTROL)
"""Damage of which nothing is lost, and nothing is to be done."""


class Served:
    """A store that an application serves; ``app.state.served`` is it.

    Thread-safe. It owns the Admin, and the client unless that is of the program around it. A ``with`` block
    closes it at the end.

    Args:
        store: what a `Client` is given: a path or URL, of a store that is there; or a client. The store of a
            client is used as that uses it. Otherwise it is opened read-only unless changes are allowed.
        allow_changes: whether the routes may change the store.
        min_free_bytes: the room on the disk below which the store is not ready.
        metrics_topics: most topics with metrics of their own; see `embeddedpulsar.metrics.collector`.

    Attributes:
        admin, client: of the store.
        allow_changes, min_free_bytes, metrics_topics: as given.

    Raises:
        ValueError: the client is one of ``memory://`` without a name, whose store it has for itself.
        StorageError: the directory cannot be used as a store.

    Example:
        >>> from embeddedpulsar import Client
        >>> with Client("./data") as client, Served(client) as served:
        ...     served.client is client, served.allow_changes, served.damage()
        (True, False, [])
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | Client,
        *,
        allow_changes: bool = False,
        min_free_bytes: int = 64 << 20,
        metrics_topics: int = 100,
    ) -> None:
        self.allow_changes: Final = allow_changes
        self.min_free_bytes: Final = min_free_bytes
        self.metrics_topics: Final = metrics_topics
        self._damaged: Final[deque[Damage]] = deque(maxlen=_MOST_DAMAGE)
        self._stopping: anyio.Event | None = None
        self._is_stopping = False
        with contextlib.ExitStack() as opened:
            if isinstance(store, Client):
                self.client = store
                url: str | os.PathLike[str] = store.get_service_info().service_url
                read_only = None
            else:
                url, read_only = store, None if allow_changes else True
                self.client = opened.enter_context(Client(store, read_only=read_only))
            self.admin: Final = opened.enter_context(
                Admin(url, read_only=read_only, on_damage=self._damaged.append)
            )
            self._opened: Final = opened.pop_all()

    def damage(self) -> list[Damage]:
        """The damage to files that this process found since it serves the store, without what was derived
        from other files and is whole again."""
        return [damage for damage in tuple(self._damaged) if damage.kind not in _DERIVED]

    @property
    def is_stopping(self) -> bool:
        """Whether the server is about to end, so that answers without an end have to."""
        return self._is_stopping

    async def stopped(self, timeout_s: float) -> bool:
        """Wait until the server is about to end, for at most so many seconds. Returns `is_stopping`.

        An answer without an end, such as a stream of events, waits with it between two events.
        """
        if self._stopping is None:
            self._stopping = anyio.Event()
        if not self._is_stopping:
            with anyio.move_on_after(timeout_s):
                await self._stopping.wait()
        return self._is_stopping

    def stop(self) -> None:
        """Have answers without an end be ended. Called on the event loop, before the server is ended."""
        self._is_stopping = True
        if self._stopping is not None:
            self._stopping.set()

    def close(self) -> None:
        """Close the Admin, and the client unless it was given. Idempotent."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
