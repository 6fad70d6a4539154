"""The program of a worker process, which `WorkerGroup` starts: `main` runs one instance."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

from embeddedpulsar.client.client import Client
from embeddedpulsar.client.client_threads import log_fields
from embeddedpulsar.functions.engine import termination, threads
from embeddedpulsar.functions.function_calls import definition_of
from embeddedpulsar.functions.instance import CallWatch, Instance
from embeddedpulsar.functions.io import Definition
from embeddedpulsar.functions.state import InstanceReport, StateLog, report_record

_WAIT_MS = 200
_LOG = logging.getLogger("embeddedpulsar.function")


def main(arguments: Sequence[str]) -> int:
    """Run one instance until this process is asked to end, or its parent is gone. The exit status is 1 if
    the instance failed."""
    # The order comes by the standard input (`start_worker`).
    order: dict[str, Any] = json.loads(arguments[0])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    # The log of a worker is that of its supervisor: the library is quiet there, and the function is not.
    logging.getLogger("embeddedpulsar").setLevel(logging.WARNING)
    _LOG.setLevel(logging.INFO)
    stopped = termination(order["grace"], order["parent"])
    definition = definition_of(order["definition"])
    with Client(order["url"], read_only=False) as client:
        try:
            _work(client, definition, order, stopped)
        except Exception as error:  # noqa: BLE001 - it is logged, and the exit status says so
            number, name = order["instance"], definition.config.full_name
            about = log_fields((), {"function": name, "instance": number})
            _LOG.exception("instance %d of %s failed", number, name, extra=about)
            # The exit status says nothing to a user; the status of the function has the error.
            _report(client, definition, order, error)
            return 1
    return 0


def _work(client: Client, definition: Definition, order: dict[str, Any], stopped: threads.Event) -> None:
    number = order["instance"]
    instance = Instance(client, definition, number, order["restarts"])
    watch = CallWatch(client, definition.config, number, instance)
    name = definition.config.full_name
    about = log_fields((), {"function": name, "instance": number})
    _LOG.info("instance %d of %s takes messages, in process %d", number, name, os.getpid(), extra=about)
    try:
        watch.start()
        while not stopped.is_set():
            instance.step(_WAIT_MS)
    finally:
        # The watch first: it uses the instance.
        watch.stop()
        instance.close()


def _report(client: Client, definition: Definition, order: dict[str, Any], error: Exception) -> None:
    """Note why the instance failed, unless it did that itself."""
    number = order["instance"]
    state = StateLog(client, definition.config.full_name, f"{number}-failed")
    try:
        # Three cases: this worker never reported, as its code was not found; it reported, and something else
        # than the function failed; the function raised, which is in the report already.
        report = state.table.reports.get(number) or {}
        if report.get("worker") != str(os.getpid()):
            report = InstanceReport(str(os.getpid()), order["restarts"]).form()
        if not report["latestUserExceptions"]:
            failed = InstanceReport(str(os.getpid()), order["restarts"])
            failed.note_system_exception(error, client._core.store.clock.wall_ms())
            report["systemExceptions"] += 1
            report["latestSystemExceptions"] = failed.form()["latestSystemExceptions"]
        state.commit([report_record(number, report)])
    finally:
        state.close()


if __name__ == "__main__":
    sys.exit(main(sys.stdin.read().splitlines()))
