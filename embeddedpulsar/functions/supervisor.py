"""Running the functions of a store in worker processes, and one function in this process.

The worker processes of one function.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import math
import os
import sys
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar.client.client import Client
from embeddedpulsar.client.client_threads import log_fields
from embeddedpulsar.exceptions import CorruptionError, ProducerBusy, PulsarException
from embeddedpulsar.functions.engine import ChildProcess, on_termination, threads
from embeddedpulsar.functions.function_calls import Definitions, definition_form
from embeddedpulsar.functions.function_config import FunctionConfig
from embeddedpulsar.functions.instance import Instance
from embeddedpulsar.functions.io import Definition, logger_of
from embeddedpulsar.functions.state import SUPERVISOR, make_state_topic, protect
from embeddedpulsar.functions.user_code import described

if TYPE_CHECKING:
    from embeddedpulsar.functions.engine import Clock


# Seconds. The delays of a worker that fails at once, as one whose code is not found, double up to the
# longest: it costs the start of an interpreter each time.
_FIRST_DELAY_S: Final = 0.1
_LONGEST_DELAY_S: Final = 30.0
_STEADY_S: Final = 10.0
"""A worker that lived so long was started well: after its end there is no long delay."""
GRACE_S: Final = 8.0
"""How long workers have to end: less than the 10 s after which a container engine kills their supervisor."""
_KILLED_S: Final = 10.0
_LOG: Final = logging.getLogger("embeddedpulsar.function")

Start = Callable[[list[str]], ChildProcess]


def restart_delay_s(failures: int) -> float:
    """How long to wait until an instance is started again that failed so often in a row.

    >>> [restart_delay_s(failures) for failures in (1, 2, 3, 20, 100_000)]
    [0.0, 0.1, 0.2, 30.0, 30.0]
    """
    doublings = min(failures - 2, 16)  # more would not fit into a float
    return 0.0 if doublings < 0 else min(_FIRST_DELAY_S * 2**doublings, _LONGEST_DELAY_S)


def order_of(
    url: str, definition: Definition, instance: int, restarts: int, grace_s: float = GRACE_S
) -> list[str]:
    """The arguments of the program `functions.worker`.

    Args:
        url: of the store.
        definition: of the function.
        instance: number of the instance.
        restarts: how often its worker was started again.
        grace_s: how long it may take to end when it is asked to, or its parent is gone.
    """
    # `parent` lets the worker notice the end of its supervisor even where a fork of that still has the pipe
    # open.
    order = {
        "url": url,
        "definition": definition_form(definition),
        "instance": instance,
        "restarts": restarts,
        "parent": os.getpid(),
        "grace": grace_s,
    }
    return [json.dumps(order)]


def start_worker(arguments: list[str]) -> ChildProcess:
    """Start a worker, with the module path of this process.

    The arguments are its input: all users of the machine see a command line, and secrets may be in them.
    """
    # The entries of this process, so that a function is found by the worker as it is here. The empty entry
    # stands for the current directory, and an empty part of PYTHONPATH does, too.
    path = os.pathsep.join(entry for entry in sys.path if entry)
    command = [sys.executable, "-m", "embeddedpulsar.functions.worker"]
    return ChildProcess(command, {"PYTHONPATH": path}, "\n".join(arguments).encode())


class _Worker:
    def __init__(self) -> None:
        self.process: ChildProcess | None = None
        # The first start counts up to 0.
        self.restarts = -1
        self.failures = 0
        self.started_s = 0.0
        self.due_s = 0.0


class WorkerGroup:
    """One worker process for each instance of a function.

    Role: `start_missing` starts those that are missing: one that ended at once again, then after delays that
    double up to half a minute, until one lives for 10 s.
    Callers: one thread.

    Args:
        url: of the store.
        definition: of the function.
        clock: for the delays.
        start: starts a worker with its arguments.
        grace_s: how long a worker may take to end.
    """

    def __init__(
        self,
        url: str,
        definition: Definition,
        clock: Clock,
        start: Start = start_worker,
        grace_s: float = GRACE_S,
    ) -> None:
        self.definition: Final = definition
        self._url: Final = url
        self._clock: Final = clock
        self._start: Final = start
        self._grace_s: Final = grace_s
        self._workers: Final = [_Worker() for _ in range(definition.config.parallelism)]

    def start_missing(self) -> None:
        """Start the workers that are missing and due."""
        now_s = self._clock.monotonic()
        for number, worker in enumerate(self._workers):
            if worker.process is not None:
                status = worker.process.status()
                if status is None:
                    continue
                # A first failure has no delay, so such a worker is started again below, in the same look.
                self._note_end(worker, number, status, now_s)
            if worker.process is None and now_s >= worker.due_s:
                worker.restarts += 1
                worker.started_s = now_s
                order = order_of(self._url, self.definition, number, worker.restarts, self._grace_s)
                worker.process = self._start(order)

    def _note_end(self, worker: _Worker, number: int, status: int, now_s: float) -> None:
        name = self.definition.config.full_name
        about = log_fields((), {"function": name, "instance": number})
        _LOG.warning("instance %d of %s ended: %d", number, name, status, extra=about)
        worker.process = None
        # It did its work for a while: this end is not one of a row of failures.
        if now_s - worker.started_s >= _STEADY_S:
            worker.failures = 0
        worker.failures += 1
        worker.due_s = now_s + restart_delay_s(worker.failures)

    def pids(self) -> dict[int, int]:
        """The ids of the processes that run, by instance."""
        ids = {}
        for number, worker in enumerate(self._workers):
            if worker.process is not None and worker.process.status() is None:
                ids[number] = worker.process.pid
        return ids

    def end(self) -> None:
        """Ask all workers to end; kill those that do not within the grace. Idempotent."""
        end_groups([self], self._clock, self._grace_s)

    def processes(self) -> list[ChildProcess]:
        """The workers that were started and whose end was not seen."""
        return [worker.process for worker in self._workers if worker.process is not None]

    def clear_processes(self) -> None:
        """Note which workers have ended."""
        for worker in self._workers:
            if worker.process is not None and worker.process.status() is not None:
                worker.process = None


def end_groups(groups: Sequence[WorkerGroup], clock: Clock, grace_s: float) -> None:
    """Ask the workers of all groups to end; kill those that do not within ``grace_s``, of all together. An
    interrupt ends the grace."""
    try:
        end_processes([process for group in groups for process in group.processes()], clock, grace_s)
    finally:
        for group in groups:
            group.clear_processes()


def end_processes(processes: Sequence[ChildProcess], clock: Clock, grace_s: float) -> None:
    """Ask processes to end; kill those that do not within ``grace_s``, of all together. An interrupt ends the
    grace."""
    # All are asked before one is waited for: they end side by side, within one grace for all.
    try:
        for process in processes:
            process.terminate()
        end_s = clock.monotonic() + grace_s
        for process in processes:
            process.wait(max(0.0, end_s - clock.monotonic()))
    finally:
        for process in processes:
            # Also after an interrupt. No worker may outlive this call: its messages and the lock of the state
            # would stay with it.
            if process.status() is None:
                _LOG.warning("process %d did not end when it was asked to, and is killed", process.pid)
                process.kill()
                # Seconds. SIGKILL has its effect when the process leaves the kernel, as after a read of a
                # disk.
                process.wait(_KILLED_S)


_LOOK_S: Final = 0.5


class Supervisor:
    """Runs the functions of a store that are to be run, each instance in a worker process.

    A worker that ends is started again. What the methods of `Admin.functions` change, in any process, has its
    effect within a second. A function is run by one supervisor at a time: a second one stands by, and takes
    over when the first one is gone.

    Workers end with their supervisor, however it ends: those that are in a call that does not return are
    killed after ``grace_s``, and what they held goes to other instances.

    Use it in a ``with`` block, or call `close`. All methods but `stop` are for one thread.

    Args:
        service_url: of the store; see `Client`. Workers find a store in memory by its directory.
        functions: full names (``tenant/namespace/name``) of those to be run; None for all.
        grace_s: seconds that a worker may take to end when it is asked to, or when its supervisor is gone.

    Example:
        >>> from embeddedpulsar import Admin
        >>> with Supervisor("./data") as supervisor, Admin("./data") as admin:
        ...     supervisor.look()
        ...     admin.functions().get_functions("public", "default"), supervisor.workers()
        ([], {})
        >>> supervisor = Supervisor("./data")
        >>> supervisor.stop()
        >>> supervisor.run()
        >>> supervisor.close()
    """

    def __init__(
        self,
        service_url: str | os.PathLike[str],
        functions: Iterable[str] | None = None,
        *,
        grace_s: float = GRACE_S,
        _start: Start = start_worker,
    ) -> None:
        if not 0 <= grace_s < math.inf:
            raise ValueError(f"grace_s is a number of seconds from 0 on, not {grace_s!r}")
        self._only: Final = None if functions is None else set(functions)
        self._start: Final = _start
        self._grace_s: Final = grace_s
        self._client: Final = Client(service_url, read_only=False)
        self._store: Final = self._client._core.store
        self._groups: Final[dict[str, WorkerGroup]] = {}
        self._presences: Final[dict[str, Any]] = {}
        self._stopped: Final = threads.Event()
        self._definitions: Final = Definitions(lambda: self._store)
        self._unread: set[str] = set()

    def look(self) -> None:
        """Start and end workers, so that those run that are to be run. `run` does it twice a second.

        A function that cannot be looked at is logged, and does not keep the others from their workers.
        """
        wanted = self._wanted()
        # The workers of a changed definition end before those of the new one start below: two versions never
        # run side by side. The presence stays, so that no other supervisor starts the function in between; of
        # a function that is no longer wanted it goes after the workers.
        for name, group in list(self._groups.items()):
            if wanted.get(name) != group.definition:
                self._groups.pop(name).end()
                if name not in wanted:
                    self._presences.pop(name).close()
        for name, definition in wanted.items():
            try:
                if self._is_ours(name):
                    self._look_at(name, definition)
                elif name in self._groups:  # another supervisor took over while this one was stopped
                    self._groups.pop(name).end()
            # A damaged state topic, or one on a full disk, is the trouble of one function.
            except (PulsarException, OSError):
                _LOG.exception("%s is looked at again", name, extra=log_fields((), {"function": name}))

    def _wanted(self) -> dict[str, Definition]:
        """The functions that are to be run; a definition that cannot be read is logged, once."""
        wanted: dict[str, Definition] = {}
        unread: set[str] = set()
        # One read of the document for all functions.
        for name, definition in self._definitions.all().items():
            if self._only is not None and name not in self._only:
                continue
            if isinstance(definition, CorruptionError):
                unread.add(name)
                if name not in self._unread:
                    _LOG.error("%s", definition)
                # What runs goes on as it was: nothing says that it is to end.
                if name in self._groups:
                    wanted[name] = self._groups[name].definition
            elif definition.is_running:
                wanted[name] = definition
        self._unread = unread
        return wanted

    def _is_ours(self, name: str) -> bool:
        """Whether this supervisor runs a function: no other does."""
        presence = self._presences.get(name)
        # The presence is a producer of a fixed name on the state topic. A name has one producer at a time, in
        # all processes, and a dead process loses it: a lock that ends with its holder, and that a status can
        # see.
        if presence is not None and presence.is_connected():
            return True
        topic = make_state_topic(self._store, name)
        # Here, too: the supervisor may be the first to attach.
        protect(self._store, topic)
        try:
            self._presences[name] = self._client.create_producer(topic, SUPERVISOR)
        except ProducerBusy:
            return False
        return True

    def _look_at(self, name: str, definition: Definition) -> None:
        group = self._groups.get(name)
        if group is None:
            # The name of a store in memory is known to this process alone.
            url = self._store.root if self._store.is_temporary else self._client._core.config.url.text
            group = WorkerGroup(url, definition, self._store.clock, self._start, self._grace_s)
            self._groups[name] = group
        group.start_missing()

    def workers(self) -> dict[str, dict[int, int]]:
        """Return the ids of the worker processes, by function and number of the instance."""
        return {name: group.pids() for name, group in self._groups.items()}

    def run(self) -> None:
        """Run the functions until `stop` is called, or Ctrl-C; then end the workers, as `close` does. What
        goes wrong with one look is logged; the workers go on."""
        try:
            while not self._stopped.is_set():
                try:
                    self.look()
                except (PulsarException, OSError):
                    _LOG.exception("the functions of %s are looked at again", self._client)
                self._stopped.wait(_LOOK_S)
        finally:
            self.close()

    def stop(self) -> None:
        """Have `run` return, from any thread or signal handler."""
        self._stopped.set()

    def close(self) -> None:
        """End all workers, and release the store. A Ctrl-C meanwhile kills the workers at once.
        Idempotent."""
        # The presences go with the client, after the workers: until then no other supervisor starts the
        # functions.
        groups = list(self._groups.values())
        self._groups.clear()
        try:
            end_groups(groups, self._store.clock, self._grace_s)
        finally:
            self._client.shutdown()

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def run(
    service_url: str | os.PathLike[str], functions: Iterable[str] | None = None, grace_s: float = GRACE_S
) -> None:
    """Run the functions of a store in the foreground, until Ctrl-C, SIGTERM or SIGHUP; see `Supervisor`.

    For the main thread of a program: SIGTERM and SIGHUP have `Supervisor.stop` called. A SIGHUP that is
    ignored, as by ``nohup``, stays so.

    Args:
        service_url: of the store.
        functions: full names of those to be run; None for all.
        grace_s: seconds that a worker may take to end.
    """
    supervisor = Supervisor(service_url, functions, grace_s=grace_s)
    with on_termination(supervisor.stop):
        supervisor.run()


_WAIT_MS: Final = 200


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
                name = self._definition.config.full_name
                log.exception("%s is started again", name, extra=log_fields((), {"function": name}))
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
