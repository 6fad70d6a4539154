"""Builds the files of a topic byte by byte, without the writer, for tests of what cannot trust its files."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from embeddedpulsar._engine.filenames import index_path, log_path
from embeddedpulsar._engine.format import frame
from embeddedpulsar._engine.format.control import TopicWord, tail_word
from embeddedpulsar._engine.format.entry import ProducerPrefix, encode_single
from embeddedpulsar._engine.format.frame import (
    FIRST_FRAME_OFFSET,
    IndexHeader,
    SegmentHeader,
    index_file_size,
    pack_index_header,
    pack_segment_header,
    pack_slot,
)
from embeddedpulsar._engine.log.topic_control import TopicControl
from embeddedpulsar._engine.platform.timing import boot_id
from tests.frames import framed

LOG_SIZE = 64 << 10
CAPACITY = 1024
BASE_MS = 1_700_000_000_000
OTHER_BOOT = b"another boot id."
PREFIX = ProducerPrefix("p")


@dataclass
class Ledger:
    """One ledger as it is written: its bytes, and where its frames are."""

    header: SegmentHeader
    data: bytearray = field(default_factory=bytearray)
    slots: bytearray = field(default_factory=bytearray)
    offsets: list[int] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    crc: int = 0

    @property
    def end(self) -> int:
        """Behind the last frame."""
        return len(self.data)


class LogBuilder:
    """A topic directory under construction."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = str(directory)
        self.ledgers: dict[int, Ledger] = {}

    def ledger(self, ledger_id: int, count: int, *, previous: Ledger | None = None, size: int = 40) -> Ledger:
        """Add a ledger of `count` entries behind `previous` and write its files."""
        base = BASE_MS + 1000 * ledger_id
        header = SegmentHeader(
            ledger_id, base, base, OTHER_BOOT, b"s" * 16, 1, 1000 + ledger_id, LOG_SIZE, CAPACITY
        )
        if previous is not None:
            header = header._replace(
                prev_ledger_id=previous.header.ledger_id,
                prev_end_offset=previous.end,
                prev_last_entry_id=len(previous.offsets) - 1,
                prev_last_crc=previous.crc,
                prev_messages=len(previous.offsets),
            )
        ledger = self.ledgers[ledger_id] = Ledger(
            header, bytearray(pack_segment_header(header)), crc=header.chain_seed
        )
        for number in range(count):
            self.append(ledger, b"%d:%d " % (ledger_id, number) + bytes(size))
        self.write(ledger)
        return ledger

    def append(self, ledger: Ledger, payload: bytes) -> None:
        """Add an entry to a ledger in memory (`write` stores it)."""
        entry_id = len(ledger.offsets)
        at = ledger.end
        one, ledger.crc = framed(
            encode_single(payload, entry_id, PREFIX),
            entry_id=entry_id,
            prev_crc=ledger.crc,
            publish_ms=ledger.header.base_publish_ms + entry_id,
        )
        ledger.offsets.append(at)
        ledger.payloads.append(payload)
        ledger.data += one
        ledger.slots += pack_slot(at, entry_id, entry_id + 1, 0, 0, 1, ledger.crc)

    def write(self, ledger: Ledger) -> None:
        """Write both files of a ledger in full size."""
        ledger_id = ledger.header.ledger_id
        Path(log_path(self.directory, ledger_id)).write_bytes(bytes(ledger.data).ljust(LOG_SIZE, b"\0"))
        page = pack_index_header(IndexHeader(ledger_id, CAPACITY, ledger.header.created_ms))
        Path(index_path(self.directory, ledger_id)).write_bytes(
            (page + bytes(ledger.slots)).ljust(index_file_size(CAPACITY), b"\0")
        )

    def patch(self, ledger: Ledger, offset: int, data: bytes) -> None:
        """Overwrite bytes of a log file."""
        with open(log_path(self.directory, ledger.header.ledger_id), "r+b") as file:
            file.seek(offset)
            file.write(data)

    def flip(self, ledger: Ledger, offset: int) -> None:
        """Change one byte of a log file."""
        with open(log_path(self.directory, ledger.header.ledger_id), "r+b") as file:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ 0x40]))

    def control(self, boot: bytes = OTHER_BOOT, **words: int) -> TopicControl:
        """A ctl as an earlier boot left it, with the words given (by their names in TopicWord)."""
        control = TopicControl.create(self.directory, 1, boot)
        for name, value in words.items():
            control.words[getattr(TopicWord, name.upper())] = value
        return control

    def tail_of(self, ledger: Ledger) -> int:
        """The tail word behind a ledger's last entry."""
        return tail_word(ledger.header.ledger_id, ledger.end)


def ghost(ledger: Ledger, payload: bytes = b"ghost") -> bytes:
    """A whole frame that continues a ledger and was never published."""
    entry_id = len(ledger.offsets)
    return framed(
        encode_single(payload, entry_id, PREFIX),
        entry_id=entry_id,
        prev_crc=ledger.crc,
        publish_ms=ledger.header.base_publish_ms + 999,
    )[0]


def files(directory: str) -> list[str]:
    """The names in a directory."""
    return sorted(os.listdir(directory))


__all__ = [
    "BASE_MS",
    "CAPACITY",
    "FIRST_FRAME_OFFSET",
    "LOG_SIZE",
    "OTHER_BOOT",
    "Ledger",
    "LogBuilder",
    "boot_id",
    "files",
    "frame",
    "ghost",
]
