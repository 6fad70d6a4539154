"""What an instance of a function counts, and says of itself in its state topic."""

from __future__ import annotations

import math
import traceback
from collections import deque
from typing import Any, Final

_LATEST: Final = 10
_MOST_TEXT: Final = 4000


class Metric:
    """The numbers of one metric.

    Example:
        >>> metric = Metric()
        >>> metric.record(2.5), metric.record(-1)
        (None, None)
        >>> metric.form()
        {'count': 2, 'sum': 1.5, 'min': -1, 'max': 2.5}
    """

    def __init__(self) -> None:
        self.count = 0
        self.sum: float = 0
        self.min: float = math.inf
        self.max: float = -math.inf

    def record(self, value: float) -> None:
        """Add a number."""
        self.count += 1
        self.sum += value
        self.min = min(self.min, value)
        self.max = max(self.max, value)

    def form(self) -> dict[str, float]:
        """The numbers by their names."""
        return {"count": self.count, "sum": self.sum, "min": self.min, "max": self.max}


class InstanceReport:
    """Counters of one instance since its worker was started. One thread.

    Attributes:
        received: messages that were taken.
        processed: those for which the function returned.
        last_invocation_ms: when it was called last, ms since 1970; 0 for never.
        call: the id of the message of the call that is under way, and when that began, ms since 1970; None
            between calls.

    Args:
        worker: the id of its process.
        restarts: how often it was started again.
        name: of the producer by which the instance is known to live.
    """

    def __init__(self, worker: str, restarts: int, name: str = "") -> None:
        self.received = 0
        self.processed = 0
        self.last_invocation_ms = 0
        self.call: tuple[str, int] | None = None
        self._name: Final = name
        self._worker: Final = worker
        self._restarts: Final = restarts
        self._latency_s = 0.0
        self._user = 0
        self._system = 0
        self._latest: Final = {"user": deque[list[Any]]((), _LATEST), "system": deque[list[Any]]((), _LATEST)}
        self._metrics: Final[dict[str, Metric]] = {}

    def note_processed(self, latency_s: float) -> None:
        """The function returned after so much time."""
        self.processed += 1
        self._latency_s += latency_s

    def note_user_exception(self, error: BaseException, now_ms: int) -> None:
        """The function raised."""
        self._user += 1
        self._latest["user"].append([_text(error), now_ms])

    def note_system_exception(self, error: BaseException, now_ms: int) -> None:
        """Something else failed."""
        self._system += 1
        self._latest["system"].append([_text(error), now_ms])

    def record_metric(self, name: str, value: float) -> None:
        """Add a number to a metric of the function."""
        self._metrics.setdefault(name, Metric()).record(value)

    def form(self) -> dict[str, Any]:
        """The report as it is stored; `function_status` reads it."""
        return {
            "worker": self._worker,
            "name": self._name,
            "call": None if self.call is None else list(self.call),
            "restarts": self._restarts,
            "received": self.received,
            "processed": self.processed,
            "userExceptions": self._user,
            "systemExceptions": self._system,
            "latestUserExceptions": list(self._latest["user"]),
            "latestSystemExceptions": list(self._latest["system"]),
            "latencySum": self._latency_s * 1000,
            "lastInvocation": self.last_invocation_ms,
            "metrics": {name: metric.form() for name, metric in self._metrics.items()},
        }


def _text(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))[-_MOST_TEXT:]
