"""Running one function in this process, without registering it."""

from __future__ import annotations

import contextlib
import inspect
import os
import uuid
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar.client.client import Client
from embeddedpulsar.functions.engine import threads
from embeddedpulsar.functions.function_config import FunctionConfig
from embeddedpulsar.functions.instance import Instance
from embeddedpulsar.functions.instance_context import Definition, logger_of
from embeddedpulsar.functions.supervisor import WorkerGroup, restart_delay_s
from embeddedpulsar.functions.user_code import described

if TYPE_CHECKING:
    from collections.abc import Sequence

_WAIT_MS: Final = 200
_LOOK_S: Final = 0.5


class LocalRunner:
    """Runs one function that need not be registered, as Pulsar's ``LocalRunner``.

    `run` runs it in the foreground. `run_until_idle` processes what is there and returns: for tests, and for
    programs that do other things in between. The subscription, the outputs and the state are those that a
    registered function of that name has.

    The instances of the function take turns in the calling thread. With ``parallelism`` above 1, `run` on a
    store in a directory starts a worker process for each instead, if the function is found by its name.

    Args:
        config: of the function. The name may be left out if the function is given.
        function: the class, object or function; None to find it by ``class_name`` and ``py``.
        service_url: of the store; or
        client: one that is open, and stays open.

    Raises:
        ValueError: not one of ``service_url`` and ``client``.
        InvalidConfiguration: see `FunctionConfig.check`.

    Example:
        >>> with Client("memory://") as client:
        ...     runner = LocalRunner(FunctionConfig(name="shout", inputs=["in"], output="out"), str.upper,
        ...         client=client)
        ...     out = client.subscribe("out", "shop")
        ...     message_id = client.create_producer("in").send(b"tea")
        ...     count = runner.run_until_idle()
        ...     runner.stop()
        ...     count, out.receive().data()
        (1, b'TEA')
    """

    def __init__(
        self,
        config: FunctionConfig,
        function: Any = None,
        service_url: str | os.PathLike[str] | None = None,
        *,
        client: Client | None = None,
    ) -> None:
        if (service_url is None) == (client is None):
            raise ValueError("give service_url or client, one of them")
        # Pulsar's name of a function is the last part of its class, which the configuration need not have if
        # the class is given.
        if function is not None and not config.name and not config.class_name:
            kind = function if inspect.isclass(function) else type(function)
            config = config._replace(name=getattr(function, "__name__", kind.__name__).rpartition(".")[2])
        self._function: Final = function
        self._definition: Final = Definition(config.check(), uuid.uuid4().hex)
        self._own: Final = None if service_url is None else Client(service_url, read_only=False)
        self._client: Final[Client] = self._own or client  # type: ignore[assignment]
        self._instances: list[Instance] = []
        self._stopped: Final = threads.Event()
        self._is_running = False
        try:
            # Now, so that a fault is raised here, and the subscription takes what is sent before the first
            # call.
            self._open_instances()
        except BaseException:
            self.stop()
            raise

    def _open_instances(self) -> Sequence[Instance]:
        """The instances, which subscribe; made again after a failure."""
        count = self._definition.config.parallelism
        for number in range(len(self._instances), count):
            instance = Instance(self._client, self._definition, number, 0, self._function)
            self._instances.append(instance)
        return self._instances

    def run_until_idle(self) -> int:
        """Process all messages that are there, in this thread.

        Returns:
            Their number, repeated ones included.

        Raises:
            Exception: with EFFECTIVELY_ONCE, what the function raised. A second call goes on.
            PulsarException: the store cannot be used.
        """
        total = 0
        while count := self._round(0):
            total += count
        return total

    def _round(self, timeout_ms: float) -> int:
        try:
            # After any exception the instances are made again: what they fetched is redelivered, and the next
            # one settles a commit that was cut.
            return sum(instance.step(timeout_ms) for instance in self._open_instances())
        except BaseException:
            self._close_instances()
            raise

    def run(self) -> None:
        """Run the function until `stop` is called, or Ctrl-C.

        Example:
            >>> from embeddedpulsar import InitialPosition
            >>> with Client("memory://") as client:
            ...     message_id = client.create_producer("in").send(b"tea")
            ...     config = FunctionConfig(name="show", inputs=["in"],
            ...         subscription_position=InitialPosition.Earliest)
            ...     runner = LocalRunner(config, lambda text: (print(text), runner.stop())[0], client=client)
            ...     runner.run()
            tea
        """
        self._is_running = True
        config = self._definition.config
        try:
            # Workers are processes of their own, and the name of a store in memory is known to this process
            # alone.
            if config.parallelism > 1 and not self._client._core.store.is_temporary:
                self._run_workers()
            else:
                self._run_here()
        finally:
            self._is_running = False
            self.stop()

    def _run_here(self) -> None:
        failures, log = 0, logger_of(self._definition.config.full_name)
        # Each instance waits for its own consumers, one after the other: together they wait as long as one
        # would.
        wait_ms = _WAIT_MS / self._definition.config.parallelism
        while not self._stopped.is_set():
            try:
                failures = 0 if self._round(wait_ms) else failures
            except Exception:
                log.exception("%s is started again", self._definition.config.full_name)
                failures += 1
                # The second delay comes first: `restart_delay_s(1)` is none, which is for workers, whose
                # start takes time by itself.
                self._stopped.wait(restart_delay_s(failures + 1))

    def _run_workers(self) -> None:
        # They subscribed when the runner was made, and would keep messages from the workers.
        self._close_instances()
        definition, core = self._definition, self._client._core
        # Workers are other processes. They import the function by its name.
        if self._function is not None:
            definition = definition._replace(config=described(definition.config, self._function))
        group = WorkerGroup(core.config.url.text, definition, core.store.clock)
        try:
            while not self._stopped.is_set():
                group.start_missing()
                self._stopped.wait(_LOOK_S)
        finally:
            group.end()

    def _close_instances(self) -> None:
        # The list is empty before the first one closes, so a second call, as from a signal handler, closes
        # none twice.
        instances, self._instances = self._instances, []
        with contextlib.ExitStack() as closing:
            for instance in instances:
                closing.callback(instance.close)

    def stop(self) -> None:
        """Have `run` return, from any thread; without `run`, detach from all topics."""
        self._stopped.set()
        # Instances belong to one thread. If `run` is in it, it closes them itself when it sees the event.
        if not self._is_running:
            self._close_instances()
            if self._own is not None:
                self._own.shutdown()

    def __enter__(self) -> LocalRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
