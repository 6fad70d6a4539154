"""The offloading of a topic, as long as the topic has nothing to do with it; and the record of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from embeddedpulsar._engine.format.document import KIND_OFFLOAD, decode_document, encode_document
from embeddedpulsar._engine.log.cold_ledger import OFFLOADED, ColdLedger, cold_ledgers
from embeddedpulsar._engine.log.filenames import offload_lock_path, offload_path
from embeddedpulsar._engine.log.managed_ledger import ManagedLedger
from embeddedpulsar._engine.platform import disk
from embeddedpulsar._engine.platform.clock import Clock
from embeddedpulsar._engine.platform.descriptors import late_import
from embeddedpulsar.damage import TOPIC_FILES, Damage, DamageHook
from embeddedpulsar.exceptions import (
    CorruptionError,
    ForeignFileError,
    NotAllowedError,
    UnsupportedFormatVersion,
)
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.topic.catalog.root_layout import OFFLOADED as OFFLOADED_NOTES
from embeddedpulsar.topic.catalog.root_layout import in_root
from embeddedpulsar.topic.late_part import HasParts, LatePart, PartLike
from embeddedpulsar.topic.policies.held_policies import ValueOf
from embeddedpulsar.topic.policies.keeping import OFFLOAD_RULES, OffloadRules, rules_of
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from embeddedpulsar.topic.exclusive_work import ExclusiveWork, LongRunningProcessStatus

_EVERY_S: Final = 60.0


class OffloadRecord(NamedTuple):
    """How the offloading of a topic went. Times in ms since the epoch, 0 for never.

    Attributes:
        ledger_id: the last ledger that was offloaded; 0 for none.
        succeeded_ms: when.
        failed_ms: when it failed last.
        error: why; empty if what was tried since succeeded.
        ended_ms: when an offloading that a call asked for last ended without an error, which may have found
            nothing to move.
    """

    ledger_id: int = 0
    succeeded_ms: int = 0
    failed_ms: int = 0
    error: str = ""
    ended_ms: int = 0

    def write(self, directory: str) -> None:
        """Replace the record of a topic."""
        data = encode_document(KIND_OFFLOAD, self._asdict())
        disk.DISK.atomic_write(offload_path(directory), data, durable=False)


def read_offload_record(directory: str, report: DamageHook | None = None) -> OffloadRecord:
    """The record of a topic; one of zeros if there is none, or it is damaged: nothing depends on it.

    Args:
        directory: of the topic.
        report: called with a record that is damaged.
    """
    try:
        fields = decode_document(disk.DISK.read_file(offload_path(directory)), KIND_OFFLOAD)
        return OffloadRecord(**{name: fields[name] for name in OffloadRecord._fields if name in fields})
    except UnsupportedFormatVersion as e:
        raise e.at(offload_path(directory)) from None
    except (FileNotFoundError, TypeError):
        return OffloadRecord()
    except (CorruptionError, ForeignFileError) as e:
        if report is not None:
            report(
                Damage(
                    offload_path(directory),
                    offset=e.offset or 0,
                    reason=e.reason,
                    kind=TOPIC_FILES,
                    done="how the last offloading ended is unknown",
                    remedy="nothing needs to be done: the next offloading writes it again",
                )
            )
        return OffloadRecord()


def _rules(value_of: ValueOf) -> OffloadRules:
    return rules_of([value_of(policy) for policy in OFFLOAD_RULES])


class Offloading(PartLike, Protocol):
    """The part of `offload.topic_offload.TopicOffload` that is used here and above."""

    @property
    def work(self) -> ExclusiveWork: ...
    def status(self) -> LongRunningProcessStatus: ...
    def due_before(self, ledger_id: int) -> int: ...
    def start(self, before: int, on_end: Callable[[], object] = int) -> None: ...
    def adopt(self, moved: Mapping[str, str]) -> int: ...


class LateOffload(LatePart[Offloading]):
    """Role: answers for a topic of which nothing was ever offloaded and no policy asks for it; hands on to
    `TopicOffload` otherwise.

    Args:
        topic: what is offloaded.
        root: of the store.
        clock: as of `TopicOffload`.
    """

    follows_traffic = True
    undone = "no ledger is offloaded"

    def __init__(self, topic: HasParts, root: str, clock: Clock) -> None:
        super().__init__(topic, clock, _EVERY_S)
        self._leftovers: Final = in_root(root, OFFLOADED_NOTES)

    @property
    def exists(self) -> bool:
        """Whether an offloading was ever begun."""
        directory = self._topic.directory
        return os.path.exists(offload_lock_path(directory)) or os.path.exists(offload_path(directory))

    def is_wanted(self) -> bool:
        return self._is_in_files and (self.rules().is_automatic or self.exists)

    @property
    def _is_in_files(self) -> bool:
        return isinstance(self._topic.ledger, ManagedLedger) and not self._topic.ledger.is_volatile

    def rules(self) -> OffloadRules:
        """What the policies say."""
        return self._topic.policies.once(_rules)

    def ledgers(self) -> dict[int, ColdLedger]:
        """The offloaded ledgers, by their ids."""
        if not self.exists:
            return {}
        notes = cold_ledgers(self._topic.directory)
        return {note.ledger_id: note for note in notes if note.state == OFFLOADED}

    def record(self) -> OffloadRecord:
        """How it went last."""
        return read_offload_record(self._topic.directory)

    def _make(self) -> Offloading:
        """As of `LatePart`.

        Raises:
            NotAllowedError: the topic is not stored in files.
        """
        topic = self._topic
        if not self._is_in_files:
            raise NotAllowedError(f"{topic.ledger.name} is kept in memory, and cannot be offloaded")
        module = late_import("embeddedpulsar.offload.topic_offload")
        name = TopicName.parse(topic.ledger.name)
        folder = f"{name.namespace_name}/{os.path.basename(topic.directory)}/{topic.incarnation:016x}"
        made: Offloading = module.TopicOffload(
            topic.directory, name.partition, folder, self._leftovers, topic.ledger, self.rules, self._clock
        )
        return made
