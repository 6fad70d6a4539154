"""The offloading of a topic, imported when a topic has to do with it: most have not."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from embeddedpulsar.exceptions import NotAllowedError, StorageError
from embeddedpulsar.format.document import KIND_OFFLOAD, decode_document, encode_document
from embeddedpulsar.managed_ledger.managed_ledger import ManagedLedger
from embeddedpulsar.platform import disk, threads
from embeddedpulsar.platform.clock import Clock
from embeddedpulsar.platform.fork import late_import
from embeddedpulsar.storage.cold_ledger import OFFLOADED, ColdLedger, cold_ledgers
from embeddedpulsar.storage.filenames import offload_lock_path, offload_path
from embeddedpulsar.topic.catalog.root_layout import OFFLOADED as OFFLOADED_NOTES
from embeddedpulsar.topic.catalog.root_layout import in_root
from embeddedpulsar.topic.policies.topic_policy import OFFLOAD_RULES, OffloadRules, rules_of
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from embeddedpulsar.managed_ledger.log import Log
    from embeddedpulsar.topic.policies.held_policies import HeldPolicies

NOT_RUN: Final = "NOT_RUN"
RUNNING: Final = "RUNNING"
SUCCESS: Final = "SUCCESS"
ERROR: Final = "ERROR"
_EVERY_S: Final = 60.0


class OffloadStatus(NamedTuple):
    """How the offloading of a topic stands.

    Attributes:
        status: ``NOT_RUN``, ``RUNNING``, ``SUCCESS`` or ``ERROR``.
        last_error: why it failed last; empty if what was tried since succeeded.
    """

    status: str
    last_error: str = ""

    def json(self) -> dict[str, str]:
        """Return the fields by their names in Pulsar."""
        return {"status": self.status, "lastError": self.last_error}


class OffloadRecord(NamedTuple):
    """How the offloading of a topic went. Times in ms since the epoch, 0 for never.

    Attributes:
        ledger_id: the last ledger that was offloaded; 0 for none.
        succeeded_ms: when.
        failed_ms: when it failed last.
        error: why; empty if what was tried since succeeded.
    """

    ledger_id: int = 0
    succeeded_ms: int = 0
    failed_ms: int = 0
    error: str = ""

    def write(self, directory: str) -> None:
        """Replace the record of a topic."""
        data = encode_document(KIND_OFFLOAD, self._asdict())
        disk.DISK.atomic_write(offload_path(directory), data, durable=False)


def read_offload_record(directory: str) -> OffloadRecord:
    """The record of a topic; one of zeros if there is none, or it is damaged: nothing depends on it."""
    try:
        fields = decode_document(disk.DISK.read_file(offload_path(directory)), KIND_OFFLOAD)
        return OffloadRecord(**{name: fields[name] for name in OffloadRecord._fields if name in fields})
    except (FileNotFoundError, StorageError, TypeError):
        return OffloadRecord()


class Offloading(Protocol):
    """The part of `offload.topic_offload.TopicOffload` that is used here."""

    progress: tuple[int, int] | None

    def status(self) -> OffloadStatus: ...
    def start(self, before: int | None, on_end: Callable[[], object] = int) -> None: ...
    def start_if_due(self) -> None: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...


class Offloaded(Protocol):
    """The part of `Topic` that offloading needs."""

    @property
    def directory(self) -> str: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def ledger(self) -> Log: ...
    @property
    def policies(self) -> HeldPolicies: ...


class LateOffload:
    """Role: answers for a topic of which nothing was ever offloaded and no policy asks for it; hands on to
    `TopicOffload` otherwise. A `Check` of the upkeep. Callers: any thread.

    Args:
        topic: what is offloaded.
        root: of the store.
        clock: makes the thread, and measures.
    """

    follows_traffic = True
    undone = "no ledger is offloaded"

    def __init__(self, topic: Offloaded, root: str, clock: Clock) -> None:
        self.every_s = _EVERY_S
        self._topic: Final = topic
        self._leftovers: Final = in_root(root, OFFLOADED_NOTES)
        self._clock: Final = clock
        self._lock = threads.RLock()  # guards _made
        self._made: Offloading | None = None

    @property
    def exists(self) -> bool:
        """Whether an offloading was ever begun."""
        directory = self._topic.directory
        return os.path.exists(offload_lock_path(directory)) or os.path.exists(offload_path(directory))

    def is_wanted(self) -> bool:
        """Whether something may become due by itself."""
        return self._is_in_files and (self.rules().is_automatic or self.exists)

    @property
    def _is_in_files(self) -> bool:
        return isinstance(self._topic.ledger, ManagedLedger) and not self._topic.ledger.is_volatile

    def rules(self) -> OffloadRules:
        """What the policies say."""
        return rules_of(self._topic.policies.values(OFFLOAD_RULES))

    def ledgers(self) -> dict[int, ColdLedger]:
        """The offloaded ledgers, by their ids."""
        if not self.exists:
            return {}
        notes = cold_ledgers(self._topic.directory)
        return {note.ledger_id: note for note in notes if note.state == OFFLOADED}

    def record(self) -> OffloadRecord:
        """How it went last."""
        return read_offload_record(self._topic.directory)

    def get(self) -> Offloading:
        """The offloading of the topic.

        Raises:
            NotAllowedError: the topic is not stored in files.
        """
        if self._made is None:
            topic = self._topic
            if not self._is_in_files:
                raise NotAllowedError(f"{topic.ledger.name} is kept in memory, and cannot be offloaded")
            module = late_import("embeddedpulsar.offload.topic_offload")
            name = TopicName.parse(topic.ledger.name)
            folder = f"{name.namespace_name}/{os.path.basename(topic.directory)}/{topic.incarnation:016x}"
            made = module.TopicOffload(
                topic.directory,
                name.partition,
                folder,
                self._leftovers,
                topic.ledger,
                self.rules,
                self._clock,
            )
            try:
                self._lock.acquire()
                self._made = self._made or cast(Offloading, made)
            finally:
                self._lock.release()
        return self._made

    def look(self, done: list[str]) -> bool:
        """Begin what is due. Always False: it goes on in the background."""
        self.get().start_if_due()
        return False

    def close(self) -> None:
        """See `TopicOffload.close`."""
        if self._made is not None:
            self._made.close()

    def abandon(self) -> None:
        """See `TopicOffload.abandon`."""
        self._lock = threads.renewed(self._lock)
        if self._made is not None:
            self._made.abandon()
