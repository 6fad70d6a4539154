"""What monitors ask for: `/healthz`, `/readyz` and `/metrics`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from embeddedpulsar.error_text import counted
from embeddedpulsar.exceptions import PulsarException
from embeddedpulsar.metrics import CONTENT_TYPE, collector, exposition
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.server.access import KNOWN
from embeddedpulsar.server.engine import held_locks, root_of

if TYPE_CHECKING:
    from starlette.requests import Request

    from embeddedpulsar.server.served import Served

_LOCKS_S: Final = 2.0
_ANSWER_S: Final = 5.0
_MOST_DAMAGE: Final = 20


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
    return Check("damage", reason, "\n".join(map(str, damage[:_MOST_DAMAGE])))


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
