"""What no user imports: the store, its subscriptions and logs, their formats, and the platform below.

It imports nothing of the packages above it, for which it is the foundation. What a store does for one of
them by itself, such a package adds to `EXTENSIONS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from embeddedpulsar.damage import DamageHook


class FinishCommits(Protocol):
    """Publishes the rest of what committed batches have staged, and returns how many messages it
    published."""

    def __call__(self, root: str, /, *, report: DamageHook) -> int: ...


class Extensions:
    """What packages above the engine do in every process that has a store open, also in one that never
    asks for them:
    a topic is offloaded when its policy says so, and a batch that a dead process committed is published.

    The root of the package, which every process imports, sets all of them: functions that import what they
    call.

    Attributes:
        offloading: makes the offloading of a topic, an `Offloading`.
        finish_commits: finishes the commits of the sinks of a store.
    """

    offloading: Callable[..., Any]
    finish_commits: FinishCommits


EXTENSIONS = Extensions()
