"""Requests to an application, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

httpx = pytest.importorskip("httpx")
pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")

from embeddedpulsar import Client  # noqa: E402
from embeddedpulsar.server import create_app  # noqa: E402
from embeddedpulsar.testing.trial_store import trial_store  # noqa: E402

TOKEN = "tea-and-biscuits"
BEARER = {"authorization": f"Bearer {TOKEN}"}


class Site:
    """An application, and what asks it."""

    def __init__(self, app: Any, host: str = "localhost:8080") -> None:
        self.app, self.host = app, host
        self.served = app.state.served

    def ask(self, method: str, path: str, headers: Any = None, **content: Any) -> Any:
        """The answer to a request, redirections not followed."""

        async def asked() -> Any:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=f"http://{self.host}") as browser:
                return await browser.request(method, path, headers=headers, **content)

        return asyncio.run(asked())

    def get(self, path: str, headers: dict[str, str] | None = BEARER) -> Any:
        """The answer to a GET, by default with the token."""
        return self.ask("GET", path, headers)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A store that is checked at the end."""
    path = tmp_path / "store"
    with trial_store(path):
        with Client(path):
            pass
        yield path


@pytest.fixture
def site(root: Path) -> Iterator[Callable[..., Site]]:
    """Makes applications of that store, which are closed at the end."""
    made: list[Site] = []

    def make(store: Any = None, *, token: str | None = TOKEN, **options: Any) -> Site:
        made.append(Site(create_app(store or root, token=token, **options)))
        return made[-1]

    yield make
    for each in made:
        each.served.close()
