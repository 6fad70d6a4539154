"""The store that an application serves, and what monitors ask of it: `/healthz`, `/readyz` and `/metrics`."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from typing import TYPE_CHECKING, Final, Self

import anyio
import anyio.to_thread
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from embeddedpulsar.admin.admin import Admin
from embeddedpulsar.client.client import Client
from embeddedpulsar.damage import CONTROL, INDEX
from embeddedpulsar.error_text import counted
from embeddedpulsar.exceptions import PulsarException
from embeddedpulsar.metrics import CONTENT_TYPE, collector, exposition
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.server.engine import held_locks, root_of

if TYPE_CHECKING:
    from starlette.requests import Request

    from embeddedpulsar.damage import Damage

HEALTH: Final = ("/healthz", "/readyz")
"""The paths that need no token: what asks for them is not a user."""
KNOWN: Final = "embeddedpulsar.known"
"""Says in the scope of a request for one of them whether it has the token all the same."""
_MOST_DAMAGE: Final = 1000
_MOST_SHOWN: Final = 20
_DERIVED: Final = (INDEX, CONTROL)
"""Damage of which nothing is lost, and nothing is to be done."""
_LOCKS_S: Final = 2.0
_ANSWER_S: Final = 5.0


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


class Check(NamedTuple):
    """One thing that a store needs.

    Attributes:
        name: ``store``, ``disk``, ``locks`` or ``damage``.
        reason: what is wrong, without a path; empty if nothing is.
        detail: the same for those who may know where the store lies.
    """

    name: str
    reason: str = ""
    detail: str = ""


def readiness(served: Served) -> list[Check]:
    """Look whether a store can be used, within a few seconds.

    Example:
        >>> from embeddedpulsar import Client
        >>> from embeddedpulsar.server.served import Served
        >>> with Client("./data") as client, Served(client) as served:
        ...     [(check.name, check.reason) for check in readiness(served)]
        [('store', ''), ('disk', ''), ('locks', ''), ('damage', '')]
    """
    try:
        served.admin.namespaces().get_namespaces("public")
        root = root_of(served.admin)
    except (PulsarException, OSError) as error:
        return [Check("store", f"it cannot be used ({type(error).__name__})", str(error))]
    return [Check("store"), _disk(root, served.min_free_bytes), _locks(root), _damage(served)]


def _disk(root: str, least: int) -> Check:
    try:
        status = os.statvfs(root)
    except OSError as error:
        return Check("disk", f"it cannot be asked for its room ({error.strerror})", str(error))
    free = status.f_bavail * status.f_frsize
    if free >= least:
        return Check("disk")
    return Check("disk", f"{free >> 20:,} MiB are free, and {least >> 20:,} MiB are wanted", root)


def _locks(root: str) -> Check:
    try:
        held = held_locks(root, _LOCKS_S)
    except OSError as error:
        return Check("locks", f"they cannot be opened ({error.strerror})", str(error))
    if not held:
        return Check("locks")
    return Check("locks", f"{' and '.join(held)} held for more than {_LOCKS_S:g} s by another process", root)


def _damage(served: Served) -> Check:
    damage = served.damage()
    if not damage:
        return Check("damage")
    reason = (
        f"{counted(len(damage), 'damaged place')}, since the server was started; see `embeddedpulsar check`"
    )
    return Check("damage", reason, "\n".join(map(str, damage[:_MOST_SHOWN])))


def routes(served: Served) -> list[Route]:
    """The routes of health, which need no token, but give details to those who have it; and of metrics."""
    metrics = collector(served.admin, topics=served.metrics_topics)

    async def healthz(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(request: Request) -> Response:
        checks = [Check("server", "it is stopping")]
        if not served.is_stopping:
            # A store whose locks hang must not hang the answer: the thread is left to itself.
            with anyio.move_on_after(_ANSWER_S):
                checks = await anyio.to_thread.run_sync(readiness, served, abandon_on_cancel=True)
                return _answer(checks, request.scope.get(KNOWN, False))
            checks = [Check("store", f"it did not answer within {_ANSWER_S:g} s")]
        return _answer(checks, is_known=False)

    def scrape(request: Request) -> Response:  # Starlette calls it on a thread
        return Response(exposition(metrics), media_type=CONTENT_TYPE)

    return [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", scrape)]


def _answer(checks: list[Check], is_known: bool) -> Response:
    failed = [check for check in checks if check.reason]
    answer: dict[str, object] = {
        "status": "not ready" if failed else "ready",
        "checks": {check.name: check.reason or "ok" for check in checks},
    }
    if failed and is_known:
        answer["details"] = {check.name: check.detail for check in failed if check.detail}
    return JSONResponse(answer, 503 if failed else 200)
