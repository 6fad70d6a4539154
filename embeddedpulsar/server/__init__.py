"""One HTTP application over one store: health and what its routes show; mountable, with a token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embeddedpulsar.server.app import create_app as create_app
    from embeddedpulsar.server.served import Served as Served

__all__ = ["Served", "create_app"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Starlette is an extra requirement; an ImportError of anything else is a fault and comes out.
    try:
        from embeddedpulsar.server import app
    except ImportError as e:
        if (e.name or "").partition(".")[0] not in ("starlette", "prometheus_client"):
            raise
        raise ImportError(
            'the HTTP server needs starlette: pip install "embeddedpulsar[server]"', name=e.name
        ) from e
    return getattr(app, name)
