"""The HTTP application of a store: which requests it answers, for which hosts and with which token, and of
what it consists."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, RedirectResponse, Response

from embeddedpulsar.exceptions import PulsarException
from embeddedpulsar.server import console, rest
from embeddedpulsar.server import served as store_served
from embeddedpulsar.server.served import HEALTH, KNOWN, Served

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from starlette.requests import Request
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from embeddedpulsar.client.client import Client

ROUTES: Final[tuple[Callable[[Served], Sequence[BaseRoute]], ...]] = (
    store_served.routes,
    console.routes,
    rest.routes,
)
"""What an application consists of: functions that make the routes of one subject."""
SAFE_METHODS: Final = ("GET", "HEAD", "OPTIONS")
_HEADERS: Final = {
    # Only files of this server: no inline script or style, and no page of another site around it.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class Access:
    """Lets requests through, refuses them, and adds the headers that keep browsers from misusing answers.

    Role: the outermost layer of an application. It refuses, in this order: a ``Host`` that is not served
    (421), a request without the token (401), one that another site had a browser send, and one that would
    change something where nothing may be changed (403). The body of a refusal is JSON with ``reason``, as
    that of Pulsar's REST API. Health needs neither host nor token.
    Callers: the event loop; it keeps no state.

    Args:
        app: the application.
        token: None: the application around it knows its users.
        hosts: names in ``Host`` that are served, beside addresses and ``localhost``; ``*`` for all.
        allow_changes: whether methods other than GET are let through.
        looks_only: whether a request of such a method and path changes nothing all the same.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str | None,
        hosts: Iterable[str],
        allow_changes: bool,
        looks_only: Callable[[str, str], bool],
    ) -> None:
        self._app: Final = app
        self._token: Final = token
        self._hosts: Final = frozenset(host.lower() for host in hosts)
        self._allow_changes: Final = allow_changes
        self._looks_only: Final = looks_only
        # Cookies are shared by all ports of a host, so the name tells servers apart. What the cookie has is
        # not the token: it opens this server and nothing else that knows the token.
        digest = "" if token is None else _digest(token, "name")[:12]
        self._cookie: Final = f"embeddedpulsar_{digest}"
        self._cookie_value: Final = "" if token is None else _digest(token, "value")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = self._answer_before(scope)
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _answer_before(self, scope: Scope) -> Response | None:
        """The answer of a request that does not reach the application: a refusal, or a redirection."""
        headers, path, method = Headers(scope=scope), path_of(scope), scope["method"]
        if path in HEALTH:
            scope[KNOWN] = self.knows(scope)
            return None
        host = headers.get("host", "")
        # A page of another site can have its name lead to this address, and then read what it answers here as
        # its own. No name does so that the page does not have, and an address is no name.
        if not self._is_served(host):
            name = urlsplit(f"//{host}").hostname if _is_netloc(host) else None
            return _refusal(
                421, f"the host {name!r} is not served here; see `--host-name` of embeddedpulsar serve"
            )
        if not self.knows(scope):
            return self._without_token(scope, headers, path)
        if method in SAFE_METHODS:
            return None
        if _is_of_another_site(headers, scope["scheme"]):
            return _refusal(403, "a page of another site sent this request")
        if self._allow_changes or self._looks_only(method, path):
            return None
        return _refusal(403, "nothing may be changed here; see `--allow-changes` of embeddedpulsar serve")

    def knows(self, scope: Scope) -> bool:
        """Whether a request has the token, in its header or as the cookie."""
        if self._token is None:
            return True
        headers = Headers(scope=scope)
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and _are_equal(bearer.strip(), self._token):
            return True
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return False
        return cookie is not None and _are_equal(cookie.value, self._cookie_value)

    def _without_token(self, scope: Scope, headers: Headers, path: str) -> Response | None:
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        tokens = [value for name, value in query if name == "token"]
        if not tokens or not _are_equal(tokens[-1], self._token or ""):
            reason = (
                "this needs the token: open the URL that was printed, or send it as `Authorization: Bearer`"
            )
            return _refusal(401, reason, {"www-authenticate": "Bearer"})
        if scope["method"] not in SAFE_METHODS:
            return _refusal(
                403, "a request that changes something sends the token as `Authorization: Bearer`"
            )
        # A browser is sent to the same place without the token, which would stay in its history. Other
        # programs get their answer at once.
        if "text/html" not in headers.get("accept", ""):
            return None
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        place = scope.get("root_path", "").rstrip("/") + path
        # A path that begins with two slashes would lead to another host.
        answer = RedirectResponse("/" + place.lstrip("/") + (f"?{rest}" if rest else ""), 303)
        answer.set_cookie(
            self._cookie,
            self._cookie_value,
            path=scope.get("root_path", "") or "/",
            secure=scope["scheme"] == "https",
            httponly=True,
            # "strict" would lose it where the link with the token is in a mail or a chat. Changes need more.
            samesite="lax",
        )
        return answer

    def _is_served(self, host: str) -> bool:
        if "*" in self._hosts:
            return True
        if not _is_netloc(host):
            return False
        name = (urlsplit(f"//{host}").hostname or "").lower()
        if name == "localhost" or name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def path_of(scope: Scope) -> str:
    """The path of a request within the application, wherever that is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path[len(root) :] or "/" if root and path.startswith(root) else path


def _is_netloc(text: str) -> bool:
    try:
        parts = urlsplit(f"//{text}")
        return bool(parts.hostname) and parts.netloc == text and "@" not in text and (parts.port or 1) > 0
    except ValueError:
        return False


def _is_of_another_site(headers: Headers, scheme: str) -> bool:
    """Whether a browser says that a page of another origin sent a request; other programs say nothing."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return True
    origin = headers.get("origin")
    if origin is None:
        return False
    try:
        sender, receiver = urlsplit(origin), urlsplit(f"{scheme}://{headers.get('host', '')}")
        # A proxy may have taken the TLS away, so the scheme is not compared, and each has its own port.
        ports = [parts.port or _DEFAULT_PORTS.get(parts.scheme) for parts in (sender, receiver)]
    except ValueError:
        return True
    is_default = ports[0] == _DEFAULT_PORTS.get(sender.scheme) and ports[1] in _DEFAULT_PORTS.values()
    return sender.hostname != receiver.hostname or not (ports[0] == ports[1] or is_default)


def _refusal(status: int, reason: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"reason": reason}, status, headers)


def _digest(token: str, purpose: str) -> str:
    return hmac.new(token.encode(), f"embeddedpulsar {purpose}".encode(), hashlib.sha256).hexdigest()


def _are_equal(given: str, expected: str) -> bool:
    # As bytes: of texts beyond ASCII `compare_digest` compares none.
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode())


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
