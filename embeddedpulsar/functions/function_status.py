"""How a function does: what its instances last said of themselves, and which of them live.

What an instance of a function counts, and says of itself in its state topic.
"""

from __future__ import annotations

import math
import traceback
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from embeddedpulsar.policy_values import json_form
from embeddedpulsar.records import NamedTuple


class ExceptionInformation(NamedTuple):
    """One failure.

    Attributes:
        exception_string: the traceback.
        timestamp_ms: when it was, ms since 1970.
    """

    exception_string: str
    timestamp_ms: int

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar."""
        return dict(json_form(self))


class InstanceStatus(NamedTuple):
    """One instance of a function. Counters are those of its worker since that was started.

    Attributes:
        instance_id: its number.
        running: whether its worker lives and has subscribed: it takes what is sent from then on.
        error: the last line of its last failure; empty without one.
        num_restarts: how often its supervisor started it again.
        num_received: messages that it took.
        num_successfully_processed: those for which the function returned.
        num_user_exceptions: how often the function raised.
        latest_user_exceptions: the last of these.
        num_system_exceptions: how often something else failed.
        latest_system_exceptions: the last of these.
        average_latency: of the function, in ms.
        last_invocation_time: ms since 1970; 0 for never.
        worker_id: the id of its process.
        call_since: when the call began that it has been in for longer than a second, ms since 1970; 0 without
            one. Not in Pulsar.
        call_message_id: the id of the message of that call. Not in Pulsar.
    """

    instance_id: int
    running: bool
    error: str = ""
    num_restarts: int = 0
    num_received: int = 0
    num_successfully_processed: int = 0
    num_user_exceptions: int = 0
    latest_user_exceptions: tuple[ExceptionInformation, ...] = ()
    num_system_exceptions: int = 0
    latest_system_exceptions: tuple[ExceptionInformation, ...] = ()
    average_latency: float = 0.0
    last_invocation_time: int = 0
    worker_id: str = ""
    call_since: int = 0
    call_message_id: str = ""

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar."""
        return dict(json_form(self))


class FunctionStatus(NamedTuple):
    """What `Functions.get_function_status` returns.

    Attributes:
        num_instances: how many there are to be.
        num_running: how many run: they live, and have subscribed.
        is_started: whether it is to be run: False after `Functions.stop_function`. Not in Pulsar.
        supervisor_attached: whether a process runs it: `Supervisor`, or ``embeddedpulsar functions run``. Not
            in Pulsar.
        instances: by number.
    """

    num_instances: int
    num_running: int
    is_started: bool
    supervisor_attached: bool
    instances: tuple[InstanceStatus, ...]

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar."""
        return dict(json_form(self))


class InstanceFigures(NamedTuple):
    """The statistics of one instance.

    Attributes:
        instance_id: its number.
        received_total: messages that it took.
        processed_successfully_total: those for which the function returned.
        system_exceptions_total: how often something else than the function failed.
        user_exceptions_total: how often the function raised.
        avg_process_latency: in ms.
        last_invocation: ms since 1970; 0 for never.
        user_metrics: of `Context.record_metric`: count, sum, min and max of each, by name.
        call_since, call_message_id: of a call that takes long: see `InstanceStatus`.
    """

    instance_id: int
    received_total: int
    processed_successfully_total: int
    system_exceptions_total: int
    user_exceptions_total: int
    avg_process_latency: float
    last_invocation: int
    user_metrics: dict[str, dict[str, float]]
    call_since: int = 0
    call_message_id: str = ""

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar."""
        return dict(json_form(self))


class FunctionStats(NamedTuple):
    """What `Functions.get_function_stats` returns: the sums of all instances, and each of them.

    Attributes:
        received_total, processed_successfully_total: see `InstanceFigures`.
        system_exceptions_total, user_exceptions_total: likewise.
        avg_process_latency: in ms, of all calls.
        last_invocation: the latest.
        instances: by number.
    """

    received_total: int
    processed_successfully_total: int
    system_exceptions_total: int
    user_exceptions_total: int
    avg_process_latency: float
    last_invocation: int
    instances: tuple[InstanceFigures, ...]

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar."""
        return dict(json_form(self))


def has_subscribed(instance: int, report: dict[str, Any], living: Iterable[str]) -> bool:
    """Whether an instance runs: the one that made the report, once it had subscribed, lives.

    Args:
        instance: its number.
        report: of the instance; empty if it never ran.
        living: names of the producers on the state topic.
    """
    # A report outlives its instance in the topic. It is that of a living one if the producer that it names is
    # attached. The empty name of an instance that never ran is the name of no producer.
    name = report.get("name") if report else ""
    if name is None:  # of a release whose reports have no name
        # Any instance of that number: two can live for a moment, while one that was stopped is replaced.
        return any(producer_name.startswith(f"{instance}-") for producer_name in living)
    return name in living


def _call_of(instance: int, report: dict[str, Any], living: Iterable[str]) -> tuple[int, str]:
    """When the call began that an instance is in, and the id of its message."""
    # The report of a dead instance still has the call in which it died. That call is over.
    call = report.get("call") if has_subscribed(instance, report, living) else None
    return (0, "") if call is None else (call[1], call[0])


def status_of(instance: int, report: dict[str, Any], living: Iterable[str]) -> InstanceStatus:
    """The status of an instance by its report; an empty report if it never ran."""
    running = has_subscribed(instance, report, living)
    if not report:
        return InstanceStatus(instance, running)
    user, system = (
        tuple(ExceptionInformation(*exception) for exception in report[f"latest{kind}Exceptions"])
        for kind in ("User", "System")
    )
    # The error is the newest of both kinds: the last line of a traceback has its type and text.
    latest = max([*user, *system], key=lambda exception: exception.timestamp_ms, default=None)
    return InstanceStatus(
        instance,
        running,
        "" if latest is None else latest.exception_string.strip().rpartition("\n")[2],
        report["restarts"],
        report["received"],
        report["processed"],
        report["userExceptions"],
        user,
        report["systemExceptions"],
        system,
        _average(report["latencySum"], report["processed"]),
        report["lastInvocation"],
        report["worker"],
        *_call_of(instance, report, living),
    )


def stats_of(reports: dict[int, dict[str, Any]], living: Iterable[str] = ()) -> FunctionStats:
    """The statistics of a function by the reports of its instances.

    Example:
        >>> stats_of({}).received_total
        0
    """
    # A report may be empty: the key of an instance was removed, or it never reported.
    figures = tuple(
        InstanceFigures(
            instance,
            report["received"],
            report["processed"],
            report["systemExceptions"],
            report["userExceptions"],
            _average(report["latencySum"], report["processed"]),
            report["lastInvocation"],
            report["metrics"],
            *_call_of(instance, report, living),
        )
        for instance, report in sorted(reports.items())
        if report
    )
    # The average of all calls is the sum of their times by their number. The mean of the averages would weigh
    # an instance that did nothing as much as one that did all.
    processed = sum(figure.processed_successfully_total for figure in figures)
    latency = sum(report["latencySum"] for report in reports.values() if report)
    return FunctionStats(
        sum(figure.received_total for figure in figures),
        processed,
        sum(figure.system_exceptions_total for figure in figures),
        sum(figure.user_exceptions_total for figure in figures),
        _average(latency, processed),
        max((figure.last_invocation for figure in figures), default=0),
        figures,
    )


def _average(total: float, count: int) -> float:
    return total / count if count else 0.0


# As many failures as Pulsar's workers keep.
_LATEST: Final = 10
# Characters of a traceback: its end, which has the error. A report is one record with up to twenty of them,
# and has to fit into an entry beside what is committed.
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
        # Only these four numbers are kept: a list of values would grow with the messages.
        self.count = 0
        self.sum: float = 0
        # Infinities are the neutral elements of min and max. They are never stored: a metric is made when its
        # first number comes.
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
        # The newest ten of each kind, so that many failures of the function do not hide the one of the store.
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
            # The names are those of the stored document. A key that is added later has to be optional for
            # readers of older reports, as `name` and `call` are.
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
