"""The HTTP application of a store."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse

from embeddedpulsar.exceptions import PulsarException
from embeddedpulsar.server import console, health, rest
from embeddedpulsar.server.access import Access
from embeddedpulsar.server.served import Served

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from embeddedpulsar.client.client import Client

ROUTES: Final[tuple[Callable[[Served], Sequence[BaseRoute]], ...]] = (
    health.routes,
    console.routes,
    rest.routes,
)
"""What an application consists of: functions that make the routes of one subject."""


def create_app(
    store: str | os.PathLike[str] | Client,
    *,
    token: str | None,
    allow_changes: bool = False,
    hosts: Iterable[str] = (),
    min_free_bytes: int = 64 << 20,
    metrics_topics: int = 100,
) -> Starlette:
    """Make the HTTP application of a store, which may be mounted in another one.

    The Admin that it makes, and its client unless that was given, are closed when its lifespan ends. A
    mounted application has no lifespan of its own: the one around it calls ``app.state.served.close()``.

    Args:
        store: see `Served`.
        token: what a request needs, as ``Authorization: Bearer`` or, from a browser, once as ``?token=``.
            None if the application around it lets only those in who may see, and with ``allow_changes``
            change, everything in the store.
        allow_changes: whether requests may change the store.
        hosts: names in the header ``Host`` that are served, beside addresses and ``localhost``: those by
            which browsers reach the server. ``*`` for all.
        min_free_bytes, metrics_topics: see `Served`.

    Raises:
        ValueError: the token is empty; or see `Served`.
        StorageError: the directory cannot be used as a store.

    Example:
        >>> from embeddedpulsar import Client
        >>> from embeddedpulsar.server import create_app
        >>> with Client("./data") as client:
        ...     app = create_app(client, token="tea-and-biscuits")
        ...     print(app.state.served.client is client)
        ...     app.state.served.close()
        True
    """
    if token is not None and not token.strip():
        raise ValueError("the token is empty; give a secret, or None if something else lets users in")
    served = Served(
        store, allow_changes=allow_changes, min_free_bytes=min_free_bytes, metrics_topics=metrics_topics
    )

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            served.stop()
            served.close()

    # Outermost, so that a route that does not exist tells a stranger no more than one that does.
    access = Middleware(
        Access,
        token=token,
        hosts=tuple(hosts),
        allow_changes=allow_changes,
        looks_only=rest.looks_only,
    )
    app = Starlette(
        routes=[route for factory in ROUTES for route in factory(served)],
        middleware=[access],
        exception_handlers={404: _unknown, 405: _unknown, PulsarException: _failed},
        lifespan=lifespan,
    )
    app.state.served = served
    return app


async def _unknown(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    reason = getattr(error, "detail", "")
    return JSONResponse({"reason": f"{request.method} {request.url.path}: {reason}"}, status)


async def _failed(request: Request, error: Exception) -> Response:
    return JSONResponse({"reason": f"{type(error).__name__}: {error}"}, 500)
