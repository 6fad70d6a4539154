"""One instance of a function: takes messages, calls the function, and does what came of it.

Messages that are counted as processed together, each once.

Calls of a function that do not return: they are shown by its status, and may be ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import uuid
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar.client.client_threads import log_fields
from embeddedpulsar.enums import CompressionType
from embeddedpulsar.exceptions import MessageTooBig, PulsarException
from embeddedpulsar.functions.engine import child_process, failpoints, threads
from embeddedpulsar.functions.function_calls import marks_of
from embeddedpulsar.functions.function_config import EventWindows, ProcessingGuarantees, Window, Windows
from embeddedpulsar.functions.io import (
    Definition,
    Draft,
    Inputs,
    InstanceContext,
    LogTopicHandler,
    OutputProducers,
    Taken,
    logger_of,
    notify,
    of_encoded,
    output_schema,
)
from embeddedpulsar.functions.state import (
    Changes,
    InstanceReport,
    Pending,
    Place,
    Record,
    StateLog,
    pending_record,
    place_of_message,
    position_record,
    report_record,
    state_topic,
)
from embeddedpulsar.functions.user_code import (
    Timestamp,
    find_code,
    process_of,
    provider_of,
    serde_of,
    timestamp_of,
)
from embeddedpulsar.message import Message
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Callable

    from embeddedpulsar.client.client import Client
    from embeddedpulsar.client.producer.producer import Producer
    from embeddedpulsar.functions.function_config import FunctionConfig, WindowConfig


# A death behind `processed` loses the run, which is processed again. Behind `committed`, the outputs are
# published by the next instance that commits, and the messages are left out when they are delivered again;
# behind `published` none of them is stored twice; behind `settled` and `acknowledged` nothing is left to do.
failpoints.declare(
    "function:processed",
    "function:committed",
    "function:published",
    "function:settled",
    "function:acknowledged",
)


class Run:
    """Messages that one instance has processed since its last commit, with what came of them.

    Attributes:
        taken: the messages, in the order in which they were processed.
        changes: of the state, by all of them.
        drafts: what is to be published.
        size: bytes of the changes and drafts, about.
    """

    def __init__(self) -> None:
        self.taken: list[Taken] = []
        self.changes = Changes()
        self.drafts: list[Draft] = []
        self.size = 0
        self._places: dict[str, list[Place]] = {}

    def add(self, taken: Taken, changes: Changes, drafts: list[Draft]) -> None:
        """A message was processed."""
        self.taken.append(taken)
        self.changes.merge(changes)
        self.drafts += drafts
        self.size += self.size_of(changes, drafts)
        # Places are kept by topic or partition: that is what has a position of its own.
        topic, place = taken.message.topic_name(), place_of_message(taken.message)
        self._places.setdefault(topic, []).append(place)

    def add_again(self, taken: Taken) -> None:
        """A message that `has` was delivered again. It is acknowledged with the run."""
        self.taken.append(taken)

    def has(self, message: Message[Any]) -> bool:
        """Whether a message, or one behind it of the same topic or partition, was processed in this run."""
        places = self._places.get(message.topic_name())
        return places is not None and place_of_message(message) <= places[-1]

    @staticmethod
    def size_of(changes: Changes, drafts: list[Draft]) -> int:
        """Bytes that the outcome of a message takes in a commit, about."""
        return changes.size() + sum(draft.size() for draft in drafts)

    def is_new_to(self, positions: dict[str, Place]) -> bool:
        """Whether none of the messages is counted as processed yet."""
        # The least place decides: the messages of a partition come in order, so all of the run are behind a
        # position if its first one is. A part of a run cannot be committed, since its changes are merged.
        return all(
            topic not in positions or positions[topic] < min(places) for topic, places in self._places.items()
        )

    def positions(self) -> list[Record]:
        """The records that count them as processed."""
        return [position_record(topic, max(places)) for topic, places in self._places.items()]


class Committer:
    """Commits the runs of one instance.

    Role: the steps of `commit`, in this order: 1. one entry with the positions of the inputs, the changes of
    the state and the outputs; 2. the outputs are published, under sequence ids that the entry has; 3. a note
    that they are; 4. the messages are acknowledged. 1 to 3 are one locked section: so what a dead instance
    left between 1 and 3 is known to the next that commits, whatever it processes, and is settled first.
    Invariants: a run is committed only if none of its messages is counted as processed. An instance that was
    stopped while another took its messages over throws its own run away.
    Callers: one thread. After an exception the instance is closed, and another one is made.
    """

    def __init__(self, state: StateLog, outputs: OutputProducers) -> None:
        self._state: Final = state
        self._outputs: Final = outputs

    def is_done(self, message: Message[Any]) -> bool:
        """Whether a message is counted as processed, as far as the state was followed."""
        # Without the lock: another instance may have committed since. That is found by `is_new_to` under the
        # lock; here it only saves a call of the function.
        position = self._state.table.positions.get(message.topic_name())
        return position is not None and place_of_message(message) <= position

    def commit(self, run: Run, more: list[Record]) -> bool:
        """Count the messages of a run as processed.

        Args:
            run: with at least one message.
            more: further records.

        Returns:
            False if another instance has processed some of them: then nothing is committed.

        Raises:
            PulsarException: see `StateLog.commit` and `OutputProducers.publish`.
        """
        if failpoints.ACTIVE:
            failpoints.hit("function:processed")
        try:
            self._state.acquire()
            # Before the positions are compared: the entry of a dead instance was read just now, and its
            # outputs have to be published before those of this run, in the order of the commits.
            self._publish_pending()
            # This instance was stopped, and another got its messages. The outcome of the run was computed
            # from a state that is no longer that of the topic.
            if not run.is_new_to(self._state.table.positions):
                return False
            # The outputs are published within the lock. Outside of it a second instance could commit before
            # it knew what a dead one had left.
            ids = self._store(run, more)
        finally:
            self._state.release()
        # After the commit, and not needed for it: a kill here delivers the messages again, and `is_done`
        # leaves them out.
        for taken in run.taken:
            taken.acknowledge()
        if failpoints.ACTIVE:
            failpoints.hit("function:acknowledged")
        # Callbacks are code of the application. They run last, and outside of the lock.
        for draft, message_id in zip(run.drafts, ids, strict=True):
            notify(draft, message_id)
        return True

    def _store(self, run: Run, more: list[Record]) -> list[MessageId]:
        state, outputs = self._state, self._outputs
        records = [*run.positions(), *state.table.records_of(run.changes), *more]
        # Without outputs one entry is the whole commit, and there is nothing to note after it.
        if not run.drafts:
            state.commit(records)
            return []
        # The sequence ids are decided before the commit and stored with it, so the process that publishes
        # the outputs uses the same ones.
        pending = Pending(outputs.name, [outputs.number(draft) for draft in run.drafts])
        # From here on the run counts. If the process dies, the next instance finds `pending` and publishes
        # the outputs under the same name.
        state.commit([*records, pending_record(pending)])
        if failpoints.ACTIVE:
            failpoints.hit("function:committed")
        ids = outputs.publish(pending)
        if failpoints.ACTIVE:
            failpoints.hit("function:published")
        # If this note is missing, the outputs are published once more; the topics drop all of them by their
        # sequence ids.
        state.commit([pending_record(None)])
        if failpoints.ACTIVE:
            failpoints.hit("function:settled")
        return ids

    def publish_pending(self) -> None:
        """Publish what an instance left that died in the middle of a commit, if any."""
        # Most calls find nothing, and take no lock. What is there is read again under the lock: another
        # instance may have settled it meanwhile.
        self._state.catch_up()
        if self._state.table.pending is None:
            return
        try:
            self._state.acquire()
            self._publish_pending()
        finally:
            self._state.release()

    def _publish_pending(self) -> None:
        self._state.catch_up()
        pending = self._state.table.pending
        if pending is not None:
            self._outputs.publish_for_dead_instance(pending)
            self._state.commit([pending_record(None)])


# The bounds of a run: the messages of one wait for their acknowledgement until it ends, and one that fails in
# the commit is processed again as a whole.
_MOST_IN_A_RUN: Final = 100
_LONGEST_RUN_S: Final = 0.01
_LARGEST_RUN: Final = 256 << 10
"""A run ends at so many messages, so long after it began, or at so many bytes of outputs and changes."""
# Seconds between two reports: a report is an entry of the state topic, so not one for each run.
_REPORT_S: Final = 1.0


class Instance:
    """One instance of a function.

    Role: `step` takes what is there and processes it, by the guarantee of the function. Everything that lasts
    is in the store: the subscription, the output topics, and the state topic.
    Callers: one thread, but for `call` and `report_in_call`. After an exception of `step` the instance is to
    be closed; a new one goes on where it was.

    Args:
        client: of the store; stays open.
        definition: of the function.
        number: of the instance, from 0.
        restarts: how often its worker was started again.
        function: the function; None to find it by the configuration.

    Attributes:
        call: the message of the call that is under way, when that began in ms since 1970, and on the
            monotonic clock; None between calls.

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
        # A fault in the configuration of the function or of its output is found before anything is attached.
        if function is None:
            function = find_code(config.class_name, config.py)
        self._process: Final[Callable[[Any, Any], Any]] = process_of(function)
        schema = output_schema(config)
        self._encode: Final[Callable[[Any], bytes]] = (
            serde_of(config.output_serde_class_name, config.py).serialize if schema is None else schema.encode
        )
        # The payload is encoded before the commit, because the commit has to have the bytes. The producers
        # get them as they are, with the schema for their metadata alone.
        schemas = {} if schema is None else {config.output: of_encoded(schema)}
        self._report_at = self._clock.monotonic()
        self._reported: dict[str, Any] | None = None
        self.call: tuple[Message[Any], int, float] | None = None
        self._windows: Windows[Taken] | EventWindows[Taken] | None = None
        self._timestamp: Timestamp | None = None
        # Unique among all instances that ever ran: the outputs of a dead instance are published under its
        # name, with numbers that begin at 1.
        name = f"{number}-{uuid.uuid4().hex[:12]}"
        self._report: Final = InstanceReport(str(os.getpid()), restarts, name)
        try:
            self._state: Final = StateLog(client, config.full_name, name)
            self._open.callback(self._state.close)
            # The sizes are estimates, and the positions and the report come on top: an eighth of an entry
            # leaves room for them.
            self._largest_run: Final = min(_LARGEST_RUN, self._state.max_commit_bytes // 8)
            self._outputs: Final = OutputProducers(client, f"{config.full_name}-{name}", schemas)
            self._open.callback(self._outputs.close)
            # A topic that refuses the schema is an error here, and not in a commit that is already stored.
            for topic in schemas:
                self._outputs.register(topic)
            self._committer: Final = Committer(self._state, self._outputs)
            # Before the first message: what a dead instance left is published even if no further message ever
            # comes.
            self._committer.publish_pending()
            self._inputs: Final = Inputs(client, config, f"{config.full_name}-{number}")
            self._open.callback(self._inputs.close)
            self._set_windows(config.window_config)
            self._context: Final = InstanceContext(
                definition,
                number,
                self._state,
                self._report,
                provider_of(config.secrets_provider_class_name, config.py),
                self._inputs.acknowledge,
                None if config.is_effectively_once else self._outputs.send,
            )
            self._context.log = self._logger(client)
            # Last: the report names the producer of this instance, and by it the status says that the
            # instance takes messages. By now it has subscribed.
            self._commit_report(self._changed_report())
        # Also at an interrupt: an instance that is made by half would keep its consumers, and the messages
        # that they fetched.
        except BaseException:
            self._open.close()
            raise

    def _logger(self, client: Client) -> logging.Logger:
        config = self._config
        logger = logger_of(config.full_name)
        if config.log_topic:
            # Of its own: the instances of one process would publish the records of each other, too.
            logger = logger.getChild(f"instance {self._number}")
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
        windows = self._windows
        count = self._run(timeout_ms) if windows is None else self._fill_windows(windows, timeout_ms)
        self._commit_report(self._due_report())
        return count

    def _run(self, timeout_ms: float) -> int:
        """Process several messages, and commit together what they changed.

        A message that changed the state is acknowledged when the change is committed. If the process dies
        before, the message is processed again.
        """
        run, count, failure = Run(), 0, None
        taken = self._inputs.receive(timeout_ms)
        if taken is None:
            # While it waits, another instance may die. Someone has to publish its outputs even if no message
            # comes any more.
            if self._config.is_effectively_once:
                self._committer.publish_pending()
            return 0
        if self._config.is_effectively_once:
            # `is_done` compares with the table. One look for each run is enough: under the lock it is
            # compared again.
            self._state.catch_up()
        end_s = self._clock.monotonic() + _LONGEST_RUN_S
        while taken is not None:
            count += 1
            self._report.received += 1
            # With EFFECTIVELY_ONCE a failure ends the run, since the messages behind it may not overtake it.
            # The messages before it are committed all the same.
            run, failure = self._add(run, taken)
            if (
                failure is not None
                or count >= _MOST_IN_A_RUN
                or run.size >= self._largest_run
                or self._clock.monotonic() >= end_s
            ):
                break
            # Without a wait: a run never holds back the acknowledgement of what it has for a message that may
            # not come.
            taken = self._inputs.receive(0)
        self._commit(run)
        if failure is not None:
            # The exception ends this instance, and `close` may not be able to report. The status is to show
            # why.
            self._commit_report(self._changed_report())
            raise failure
        return count

    def _add(self, run: Run, taken: Taken) -> tuple[Run, Exception | None]:
        """Process a message.

        Returns:
            The run that goes on, which is a new one if the message did not fit into this one; and what the
            function raised, if that ends the instance.
        """
        guarantee, message = self._config.processing_guarantees, taken.message
        # It was delivered again, because its instance died between the commit and the acknowledgement.
        if guarantee is ProcessingGuarantees.EFFECTIVELY_ONCE and self._committer.is_done(message):
            taken.acknowledge()
            return run, None
        # Or the consumer of this instance lost its turn to another one and got it back, which delivers anew
        # what is not acknowledged: the run has it already.
        if guarantee is ProcessingGuarantees.EFFECTIVELY_ONCE and run.has(message):
            run.add_again(taken)
            return run, None
        # Before the call: if the process dies in it, the message is gone, as this guarantee says.
        if guarantee is ProcessingGuarantees.ATMOST_ONCE:
            taken.acknowledge()
        try:
            self._call(message, lambda: self._inputs.value_of(message), run.changes)
        except Exception as error:  # noqa: BLE001 - the function may raise anything
            self._note_failure(error, message)
            # The partition stops at this message until it succeeds. Given back, it would come after its
            # successors.
            if guarantee is ProcessingGuarantees.EFFECTIVELY_ONCE:
                return run, error
            if guarantee is not ProcessingGuarantees.ATMOST_ONCE:
                taken.give_back()
            return run, None
        changes, drafts = self._context.changes, self._context.drafts
        # Nothing is to be committed. What the function published went out at once (`OutputProducers.send`),
        # so the message is acknowledged now instead of with the run. With MANUAL the function does that.
        if not changes and guarantee is not ProcessingGuarantees.EFFECTIVELY_ONCE:
            if guarantee is ProcessingGuarantees.ATLEAST_ONCE:
                taken.acknowledge()
            return run, None
        if run.taken and run.size + run.size_of(changes, drafts) > self._largest_run:
            # A commit is one entry, of limited size: messages that fit one by one may not fit together.
            is_committed, run = self._commit(run), Run()
            if not is_committed:  # what this message saw is not there
                if guarantee in (ProcessingGuarantees.ATLEAST_ONCE, ProcessingGuarantees.MANUAL):
                    taken.give_back()
                return run, None
        # The changes of a message join the run only when its call has returned: a call that raises leaves no
        # change.
        run.add(taken, changes, drafts)
        if guarantee is ProcessingGuarantees.MANUAL or self._config.timeout_ms is not None:
            # The function may have acknowledged it already, or it would be redelivered at a time.
            self._commit(run)
            run = Run()
        return run, None

    def _commit(self, run: Run) -> bool:
        """Commit what the messages of a run changed and published, and acknowledge them.

        Returns:
            False if they are processed again instead.
        """
        if not run.taken:
            return True
        if self._config.is_effectively_once:
            # The report goes into the same entry, which costs no entry of its own.
            if self._committer.commit(run, self._due_report()):
                return True
            # The report was in the entry that was not stored, and is due again. All that this instance has
            # fetched is delivered anew, in order, and compared with the positions of the other one.
            self._reported = None
            self._inputs.redeliver()
            return False
        guarantee = self._config.processing_guarantees
        is_committed = self._commit_changes(run.changes)
        # MANUAL leaves the acknowledgement to the function, but what could not be stored comes again.
        # ATMOST_ONCE has acknowledged before the call, and loses it.
        for taken in run.taken:
            if is_committed and guarantee is ProcessingGuarantees.ATLEAST_ONCE:
                taken.acknowledge()
            elif not is_committed and guarantee is not ProcessingGuarantees.ATMOST_ONCE:
                taken.give_back()
        return is_committed

    def _commit_changes(self, changes: Changes) -> bool:
        """Commit changes of the state. False if they are too large, which is noted as a failure."""
        if failpoints.ACTIVE:
            failpoints.hit("function:processed")
        try:
            self._state.acquire()
            # Counters are stored as sums, so they are added to what all instances have committed by now.
            self._state.catch_up()
            self._state.commit(self._state.table.records_of(changes))
        # The changes of a message exceed an entry, and always will. It counts as a failure of the function,
        # so that retries and the dead letter topic apply.
        except MessageTooBig as error:
            self._note_failure(error)
            return False
        finally:
            self._state.release()
        if failpoints.ACTIVE:
            failpoints.hit("function:committed")
        return True

    def _call(self, message: Message[Any], value_of: Callable[[], Any], before: Changes) -> None:
        context, report, clock = self._context, self._report, self._clock
        context.begin(message, before)
        report.last_invocation_ms = now_ms = clock.wall_ms()
        began = clock.monotonic()
        try:
            # One assignment of a tuple: `CallWatch` reads it from its thread, and sees all three values of
            # one call.
            self.call = message, now_ms, began
            # The value is decoded within the call: a payload that the SerDe refuses is a failure of the
            # function, and takes its way.
            output = self._process(value_of(), context)
        finally:
            self.call = None
        # None publishes nothing, as in Pulsar. An output that cannot be encoded raises here, before anything
        # is kept.
        if output is not None and self._config.output:
            context.emit(self._draft(output, message))
        report.note_processed(clock.monotonic() - began)

    def _draft(self, output: Any, message: Message[Any]) -> Draft:
        properties = message.properties() if self._config.forward_source_message_property else {}
        # Pulsar's names for the topic and id of the message; `trigger_function` finds its output by them.
        properties |= marks_of(message.message_id(), message.topic_name())
        payload = self._encode(output)
        return Draft(self._config.output, payload, {"properties": properties}, CompressionType.NONE, None)

    def _note_failure(self, error: Exception, *messages: Message[Any]) -> None:
        name = self._config.full_name
        about = log_fields(messages, {"function": name, "instance": self._number})
        self._context.log.error("%s raised", name, exc_info=error, extra=about)
        self._report.note_user_exception(error, self._clock.wall_ms())

    # -- windows -----------------------------------------------------------------------------------

    def _set_windows(self, config: WindowConfig | None) -> None:
        if config is None:
            return
        if not config.timestamp_extractor_class_name:
            self._windows = Windows(config, self._now_ms())
            return
        # With a pattern the number of topics is not known. The watermark waits until as many topics as are
        # named had a message.
        inputs = len(self._config.named_inputs())
        self._windows = EventWindows(config, inputs, self._now_ms())
        self._timestamp = timestamp_of(
            config.timestamp_extractor_class_name, self._config.py, self._inputs.value_of
        )

    def _fill_windows(self, windows: Windows[Taken] | EventWindows[Taken], timeout_ms: float) -> int:
        # Before the wait, windows that are due by now; after it, those that time completed meanwhile. A
        # window by time ends before a message that comes at its end, so that is polled before the message is
        # added.
        self._poll_windows(windows)
        if windows.due_ms is not None:
            # At least a millisecond: less is cut to 0, which does not wait, and the loop would spin until the
            # window is due.
            timeout_ms = min(timeout_ms, max(1.0, windows.due_ms - self._now_ms()))
        taken = self._inputs.receive(timeout_ms)
        self._poll_windows(windows)
        if taken is None:
            return 0
        self._report.received += 1
        # As without windows: acknowledged before it has an effect. With the other guarantees it stays
        # unacknowledged as long as a window may need it.
        if self._config.processing_guarantees is ProcessingGuarantees.ATMOST_ONCE:
            taken.acknowledge()
        if isinstance(windows, EventWindows):
            self._add_event(windows, taken)
        elif (window := windows.add(taken, self._now_ms())) is not None:
            self._process_window(windows, window)
        return 1

    def _add_event(self, windows: EventWindows[Taken], taken: Taken) -> None:
        guarantee, message = self._config.processing_guarantees, taken.message
        assert self._timestamp is not None
        try:
            at_ms = float(self._timestamp(message))
        except Exception as error:  # noqa: BLE001 - the extractor may raise anything
            self._note_failure(error, message)
            if guarantee is not ProcessingGuarantees.ATMOST_ONCE:
                taken.give_back()
            return
        # The watermark is that of the topics. Partitions count as one input: the newest timestamp of any of
        # them.
        topic = TopicName.parse(message.topic_name()).base
        # A message that is delivered again was in time when it came first, and forms its window anew.
        if windows.add(taken, at_ms, topic, is_again=message.redelivery_count() > 0):
            return
        config = self._config.window_config
        # Late. It is published before it is acknowledged, so a kill in between does not lose it.
        if config is not None and config.late_data_topic:
            options = {"properties": message.properties(), "partition_key": message.partition_key() or None}
            self._outputs.send(
                Draft(config.late_data_topic, message.data(), options, CompressionType.NONE, None)
            )
        if guarantee is not ProcessingGuarantees.ATMOST_ONCE:
            taken.acknowledge()

    def _poll_windows(self, windows: Windows[Taken] | EventWindows[Taken]) -> None:
        while (window := windows.poll(self._now_ms())) is not None:
            self._process_window(windows, window)

    def _process_window(self, windows: Windows[Taken] | EventWindows[Taken], window: Window[Taken]) -> None:
        guarantee, done = self._config.processing_guarantees, True
        if window.items:
            done = self._is_processed([taken.message for taken in window.items])
        # The messages of a window that failed leave all windows and come again, and form new ones. Kept and
        # redelivered, they would be there twice.
        if not done:
            windows.drop(window.items)
            if guarantee is not ProcessingGuarantees.ATMOST_ONCE:
                for taken in window.items:
                    taken.give_back()
        # The messages that no later window has are done. Those that were given back just now are not
        # acknowledged.
        if guarantee is ProcessingGuarantees.ATLEAST_ONCE:
            again = set() if done else set(map(id, window.items))
            for taken in window.expired:
                if id(taken) not in again:
                    taken.acknowledge()

    def _is_processed(self, messages: list[Message[Any]]) -> bool:
        """Call the function with a window. False if it fails: then nothing is committed."""
        try:
            # The context shows the newest message. The state changes of each window are committed by
            # themselves.
            self._call(
                messages[-1], lambda: [self._inputs.value_of(message) for message in messages], Changes()
            )
        except Exception as error:  # noqa: BLE001 - the function may raise anything
            self._note_failure(error, messages[-1])
            return False
        return not self._context.changes or self._commit_changes(self._context.changes)

    # -- the report, and the end -------------------------------------------------------------------

    def _now_ms(self) -> float:
        return self._clock.monotonic() * 1000

    def _due_report(self) -> list[Record]:
        """The report, as a record to be committed: once a second, if it says anything new."""
        return self._changed_report() if self._clock.monotonic() >= self._report_at else []

    def _changed_report(self) -> list[Record]:
        # The next one is due a second from now even if this says nothing new.
        self._report_at = self._clock.monotonic() + _REPORT_S
        form = self._report.form()
        # An idle function adds nothing to its topic.
        if form == self._reported:
            return []
        self._reported = form
        return [report_record(self._number, form)]

    def report_in_call(self) -> Record:
        """The report with the call that is under way, for a thread that watches it. The next report of the
        instance itself replaces it."""
        # The thread of the instance is in a call, or just returned from it. If it reports at this moment, its
        # report may show the call, too; the next one, which `report_again` brings, replaces it.
        report, call = self._report, self.call
        report.call = None if call is None else (str(call[0].message_id()), call[1])
        form = report.form()
        report.call = None
        return report_record(self._number, form)

    def report_again(self) -> None:
        """Have the next report stored, whatever it says."""
        self._reported = None

    def _commit_report(self, report: list[Record]) -> None:
        if report:
            self._state.commit(report)

    def close(self) -> None:
        """Detach from all topics. What was taken and not acknowledged goes to other instances. Idempotent."""
        with self._open, contextlib.suppress(Exception):
            # A report that cannot be stored is no reason to fail: what counts is stored.
            self._commit_report(self._changed_report())


# Seconds between two looks at the call: a fraction of what is reported, so a limit is kept to a quarter of a
# second.
_LOOK_S: Final = 0.25
_LONG_S: Final = 1.0
"""A call that takes longer is reported."""
_LOG: Final = logging.getLogger("embeddedpulsar.function")


class CallWatch:
    """Watches the calls of one instance from a thread of its own.

    Role: an instance reports once a second, between calls. While it is in one, this thread reports in its
    place, once for each call that takes longer than a second. After ``call_timeout_ms`` it ends the process,
    as a kill does; the supervisor starts another, and the message is delivered again.
    Callers: the thread of the instance.

    Args:
        client: of the store.
        config: of the function.
        number: of the instance.
        instance: the instance.
    """

    def __init__(self, client: Client, config: FunctionConfig, number: int, instance: Instance) -> None:
        self._client: Final = client
        self._config: Final = config
        self._number: Final = number
        self._instance: Final = instance
        self._clock: Final = client._core.store.clock
        self._stopped: Final = threads.Event()
        self._thread: threads.Daemon | None = None
        self._producer: Producer[Any] | None = None
        self._reported: Message[Any] | None = None

    def start(self) -> None:
        self._thread = threads.start_daemon(self._run, "call-watch")

    def stop(self) -> None:
        """End the thread, and detach from the state topic."""
        self._stopped.set()
        if self._thread is not None:
            # The thread may be about to report. Its producer is closed when it can no longer use it.
            self._thread.join()
        if self._producer is not None:
            self._producer.close()

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_S):
            # The watch goes on when the store refuses a report: it is there to end calls as well.
            try:
                self.check_call()
            except (PulsarException, OSError):
                name = self._config.full_name
                about = log_fields((), {"function": name, "instance": self._number})
                _LOG.exception("a long call of %s could not be reported", name, extra=about)

    def check_call(self) -> None:
        """Report the call that is under way, if it takes long; end the process if it takes too long."""
        call = self._instance.call
        if call is None:
            return
        message, _, began = call
        took_s = self._clock.monotonic() - began
        limit_ms = self._config.call_timeout_ms
        # The call may have returned since it was read. The tuple of the same call is the same object; another
        # one is a new call.
        if limit_ms is not None and took_s * 1000 >= limit_ms and self._instance.call is call:
            # The whole process, because Python cannot end a thread. What it fetched goes to other instances,
            # as after a kill.
            child_process.end_now(
                f"the call of {self._config.full_name} with message {message.message_id()} takes longer than "
                f"call_timeout_ms={limit_ms}"
            )
        if took_s >= _LONG_S and message is not self._reported:
            # Noted before it is stored, so that a store that refuses is asked once for each call.
            self._reported = message
            self._report()

    def _report(self) -> None:
        if self._producer is None:
            # Its name begins with no number: it is not taken for an instance.
            name = f"call-{self._number}-{uuid.uuid4().hex[:12]}"
            self._producer = self._client.create_producer(state_topic(self._config.full_name), name)
        record = self._instance.report_in_call()
        self._producer.send(record.payload or b"", partition_key=record.key)
        self._instance.report_again()  # the call may have returned, and been reported, before this was stored
