"""A replica for tests of the journal: it remembers what it was told."""

from __future__ import annotations

import os

from embeddedpulsar._engine.format.control import KIND_TOPIC, WORD_COUNT, TopicWord
from embeddedpulsar._engine.format.document import KIND_TOPIC_SNAPSHOT, decode_document, encode_document
from embeddedpulsar._engine.log.journal import Journal
from embeddedpulsar._engine.log.journal_file import JournalPlace


class Recorder:
    """The commands applied, in order."""

    def __init__(self) -> None:
        self.commands: list[list[int | bytes]] = []
        self.resets = 0

    def reset(self, snapshot: bytes | None) -> None:
        self.resets += 1
        fields = {"commands": []} if snapshot is None else decode_document(snapshot, KIND_TOPIC_SNAPSHOT)
        self.commands = fields["commands"]

    def replay(self, kind: int, payload: bytes, time_ms: int) -> None:
        self.commands.append([kind, payload, time_ms])

    def snapshot(self) -> bytes:
        return encode_document(KIND_TOPIC_SNAPSHOT, {"commands": self.commands})

    @property
    def payloads(self) -> list[int | bytes]:
        return [payload for _, payload, _ in self.commands]


def control_words() -> memoryview:
    """The words of a ctl, without a file; two journals that share them are two processes."""
    return memoryview(bytearray(8 * WORD_COUNT)).cast("Q")


def open_journal(
    directory: str | os.PathLike[str], words: memoryview, compact_bytes: int = 1 << 20
) -> tuple[Journal, Recorder]:
    """A journal as one process has it, and its replica."""
    recorder = Recorder()
    place = JournalPlace(os.fspath(directory), words, TopicWord.JOURNAL, KIND_TOPIC, compact_bytes)
    journal = Journal(place, recorder)
    return journal, recorder
