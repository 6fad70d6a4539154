"""One instance of a function: takes messages, calls the function, and does what came of it."""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import uuid
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar.enums import CompressionType
from embeddedpulsar.functions.effectively_once import Committer, Run
from embeddedpulsar.functions.function_config import ProcessingGuarantees
from embeddedpulsar.functions.inputs import Inputs, Taken
from embeddedpulsar.functions.instance_context import Definition, InstanceContext
from embeddedpulsar.functions.instance_report import InstanceReport
from embeddedpulsar.functions.log_topic import LogTopicHandler, logger_of
from embeddedpulsar.functions.outputs import Draft, OutputProducers
from embeddedpulsar.functions.secrets_provider import provider_of
from embeddedpulsar.functions.state_log import StateLog
from embeddedpulsar.functions.state_table import Changes, Record, report_record
from embeddedpulsar.functions.user_code import found_in, process_of, serde_of
from embeddedpulsar.functions.windows import Window, Windows

if TYPE_CHECKING:
    from collections.abc import Callable

    from embeddedpulsar.client.client import Client
    from embeddedpulsar.message import Message

_MOST_IN_A_RUN: Final = 100
_LONGEST_RUN_S: Final = 0.01
_LARGEST_RUN: Final = 256 << 10
"""A run ends at so many messages, so long after it began, or at so many bytes of outputs."""
_REPORT_S: Final = 1.0
_NO_CHANGES: Final = Changes()


class Instance:
    """One instance of a function.

    Role: `step` takes what is there and processes it, by the guarantee of the function. Everything that lasts
    is in the store: the subscription, the output topics, and the state topic.
    Callers: one thread. After an exception of `step` the instance is to be closed; a new one goes on where it
    was.

    Args:
        client: of the store; stays open.
        definition: of the function.
        number: of the instance, from 0.
        restarts: how often its worker was started again.
        function: the function; None to find it by the configuration.

    Raises:
        InvalidConfiguration: the code of the function is not found.
        PulsarException: see `Client.subscribe` and `Client.create_producer`.
    """

    def __init__(
        self,
        client: Client,
        definition: Definition,
        number: int = 0,
        restarts: int = 0,
        function: Any = None,
    ) -> None:
        config = definition.config
        self._config: Final = config
        self._number: Final = number
        self._clock: Final = client._core.store.clock
        self._open: Final = contextlib.ExitStack()
        if function is None:
            function = found_in(config.class_name, config.py)
        self._process: Final[Callable[[Any, Any], Any]] = process_of(function)
        self._output_serde: Final = serde_of(config.output_serde_class_name, config.py)
        self._report: Final = InstanceReport(str(os.getpid()), restarts)
        self._report_at = self._clock.monotonic()
        self._windows: Windows[Taken] | None = None
        if config.window_config is not None:
            self._windows = Windows(config.window_config, self._now_ms())
        name = f"{number}-{uuid.uuid4().hex[:12]}"
        try:
            self._state: Final = StateLog(client, config.full_name, name)
            self._open.callback(self._state.close)
            self._outputs: Final = OutputProducers(client, f"{config.full_name}-{name}")
            self._open.callback(self._outputs.close)
            self._committer: Final = Committer(self._state, self._outputs)
            self._committer.settle()
            self._inputs: Final = Inputs(client, config, f"{config.full_name}-{number}")
            self._open.callback(self._inputs.close)
            self._context: Final = InstanceContext(
                definition,
                number,
                self._state.table,
                self._report,
                provider_of(config.secrets_provider_class_name, config.py),
                self._inputs.acknowledge,
                None if config.is_effectively_once else self._outputs.send,
            )
            self._context.log = self._logger(client)
            self._state.commit([self._own_report()])
        except BaseException:
            self._open.close()
            raise

    def _logger(self, client: Client) -> logging.Logger:
        config = self._config
        logger = logger_of(config.full_name)
        if config.log_topic:
            handler = LogTopicHandler(client, config.log_topic, config.full_name, self._number)
            logger.addHandler(handler)
            self._open.callback(handler.close)
            self._open.callback(logger.removeHandler, handler)
            if logger.level == logging.NOTSET:
                logger.setLevel(logging.INFO)
        return logger

    # -- taking messages ---------------------------------------------------------------------------

    def step(self, timeout_ms: float = 0) -> int:
        """Process what is there, some messages at most; wait for a message if there is none.

        Returns:
            The number of messages that were taken. 0: there was none.

        Raises:
            Exception: with EFFECTIVELY_ONCE, what the function raised. The message comes again.
            PulsarException: the store cannot be used.
        """
        if self._config.is_effectively_once:
            count = self._run(timeout_ms)
        elif self._windows is not None:
            count = self._fill_windows(self._windows, timeout_ms)
        else:
            taken = self._inputs.take(timeout_ms)
            count = int(taken is not None)
            if taken is not None:
                self._report.received += 1
                self._process_one(taken)
        if self._is_report_due():
            self._state.commit([self._own_report()])
        return count

    def _process_one(self, taken: Taken) -> None:
        guarantee = self._config.processing_guarantees
        if guarantee is ProcessingGuarantees.ATMOST_ONCE:
            taken.acknowledge()
        if not self._called([taken], lambda: self._inputs.value_of(taken.message)):
            if guarantee is not ProcessingGuarantees.ATMOST_ONCE:
                taken.give_back()
        elif guarantee is ProcessingGuarantees.ATLEAST_ONCE:
            taken.acknowledge()

    def _called(self, about: list[Taken], value_of: Callable[[], Any]) -> bool:
        """Call the function, publish what it returned, and commit its state.

        Returns:
            False if the function raised, or the outputs cannot be stored: then nothing is committed.
        """
        try:
            self._call(about[-1].message, value_of, _NO_CHANGES)
        except Exception as error:  # noqa: BLE001 - the function may raise anything
            self._note_failure(error)
            return False
        if self._context.changes:
            try:
                self._state.acquire()
                self._state.catch_up()
                self._state.commit(self._state.table.records_of(self._context.changes))
            finally:
                self._state.release()
        return True

    def _call(self, message: Message[Any], value_of: Callable[[], Any], before: Changes) -> None:
        context, report, clock = self._context, self._report, self._clock
        context.begin(message, before)
        report.last_invocation_ms = clock.wall_ms()
        began = clock.monotonic()
        output = self._process(value_of(), context)
        if output is not None and self._config.output:
            context.emit(self._draft(output, message))
        report.note_processed(clock.monotonic() - began)

    def _draft(self, output: Any, message: Message[Any]) -> Draft:
        properties = message.properties() if self._config.forward_source_message_property else {}
        properties["__pfn_input_topic__"] = message.topic_name()
        properties["__pfn_input_msg_id__"] = base64.b64encode(message.message_id().serialize()).decode()
        payload = self._output_serde.serialize(output)
        return Draft(self._config.output, payload, {"properties": properties}, CompressionType.NONE, None)

    def _note_failure(self, error: Exception) -> None:
        self._context.log.error("%s raised", self._config.full_name, exc_info=error)
        self._report.note_user_exception(error, self._clock.wall_ms())

    # -- EFFECTIVELY_ONCE --------------------------------------------------------------------------

    def _run(self, timeout_ms: float) -> int:
        """Process several messages, and commit them together."""
        run, count, failure = Run(), 0, None
        taken = self._inputs.take(timeout_ms)
        if taken is None:
            self._committer.settle()
            return 0
        self._state.catch_up()
        end_s = self._clock.monotonic() + _LONGEST_RUN_S
        while taken is not None:
            count += 1
            self._report.received += 1
            if self._committer.is_done(taken.message):
                taken.acknowledge()
            else:
                failure = self._add(run, taken)
            if (
                failure is not None
                or count >= _MOST_IN_A_RUN
                or run.size >= _LARGEST_RUN
                or self._clock.monotonic() >= end_s
            ):
                break
            taken = self._inputs.take(0)
        if run.taken:
            report = [self._own_report()] if self._is_report_due() else []
            if not self._committer.commit(run, report):
                self._inputs.redeliver()
        if failure is not None:
            self._state.commit([self._own_report()])
            raise failure
        return count

    def _add(self, run: Run, taken: Taken) -> Exception | None:
        message = taken.message
        try:
            self._call(message, lambda: self._inputs.value_of(message), run.changes)
        except Exception as error:  # noqa: BLE001 - the function may raise anything
            self._note_failure(error)
            return error
        run.add(taken, self._context.changes, self._context.drafts)
        return None

    # -- windows -----------------------------------------------------------------------------------

    def _fill_windows(self, windows: Windows[Taken], timeout_ms: float) -> int:
        self._poll_windows(windows)
        if windows.due_ms is not None:
            timeout_ms = min(timeout_ms, max(1.0, windows.due_ms - self._now_ms()))
        taken = self._inputs.take(timeout_ms)
        self._poll_windows(windows)
        if taken is None:
            return 0
        self._report.received += 1
        if self._config.processing_guarantees is ProcessingGuarantees.ATMOST_ONCE:
            taken.acknowledge()
        window = windows.add(taken, self._now_ms())
        if window is not None:
            self._process_window(windows, window)
        return 1

    def _poll_windows(self, windows: Windows[Taken]) -> None:
        while (window := windows.poll(self._now_ms())) is not None:
            self._process_window(windows, window)

    def _process_window(self, windows: Windows[Taken], window: Window[Taken]) -> None:
        guarantee, done = self._config.processing_guarantees, True
        if window.items:
            messages = [one.message for one in window.items]
            done = self._called(window.items, lambda: [self._inputs.value_of(one) for one in messages])
        if not done:
            windows.drop(window.items)
            if guarantee is not ProcessingGuarantees.ATMOST_ONCE:
                for one in window.items:
                    one.give_back()
            return
        if guarantee is ProcessingGuarantees.ATLEAST_ONCE:
            for one in window.expired:
                one.acknowledge()

    # -- the report, and the end -------------------------------------------------------------------

    def _now_ms(self) -> float:
        return self._clock.monotonic() * 1000

    def _is_report_due(self) -> bool:
        return self._clock.monotonic() >= self._report_at

    def _own_report(self) -> Record:
        self._report_at = self._clock.monotonic() + _REPORT_S
        return report_record(self._number, self._report.form())

    def close(self) -> None:
        """Detach from all topics. What was taken and not acknowledged goes to other instances. Idempotent."""
        with self._open, contextlib.suppress(Exception):
            # A report that cannot be stored is no reason to fail: what counts is stored.
            self._state.commit([self._own_report()])
