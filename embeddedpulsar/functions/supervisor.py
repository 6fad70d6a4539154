"""Running the functions of a store, in worker processes."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar._engine.platform import threads
from embeddedpulsar._engine.platform.child_process import on_termination
from embeddedpulsar.client.client import Client
from embeddedpulsar.exceptions import ProducerBusy, PulsarException
from embeddedpulsar.functions.definitions import Definitions
from embeddedpulsar.functions.state_log import SUPERVISOR, make_state_topic, protect
from embeddedpulsar.functions.worker_group import GRACE_S, Start, WorkerGroup, end_groups, start_worker

if TYPE_CHECKING:
    from embeddedpulsar.functions.instance_context import Definition

_LOOK_S: Final = 0.5
_LOG: Final = logging.getLogger("embeddedpulsar.function")


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

    def look(self) -> None:
        """Start and end workers, so that those run that are to be run. `run` does it twice a second.

        A function that cannot be looked at is logged, and does not keep the others from their workers.
        """
        wanted = {
            name: definition
            for name, definition in self._definitions.all().items()
            if definition.is_running and (self._only is None or name in self._only)
        }
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
            except (PulsarException, OSError):
                _LOG.exception("%s is looked at again", name)

    def _is_ours(self, name: str) -> bool:
        """Whether this supervisor runs a function: no other does."""
        presence = self._presences.get(name)
        if presence is not None and presence.is_connected():
            return True
        topic = make_state_topic(self._store, name)
        protect(self._store, topic)
        try:
            self._presences[name] = self._client.create_producer(topic, SUPERVISOR)
        except ProducerBusy:
            return False
        return True

    def _look_at(self, name: str, definition: Definition) -> None:
        group = self._groups.get(name)
        if group is None:
            url = self._store.root if self._store.is_temporary else self._client._core.config.url.text
            group = WorkerGroup(url, definition, self._store.clock, self._start, self._grace_s)
            self._groups[name] = group
        group.look()

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
