"""Writes the files of a topic byte by byte, as the format says and without the engine."""

from __future__ import annotations

from pathlib import Path

from embeddedpulsar._engine import filenames
from embeddedpulsar._engine.format.control import (
    CONTROL_SIZE,
    KIND_TOPIC,
    ControlHeader,
    TopicWord,
    pack_control_header,
    tail_word,
)
from embeddedpulsar._engine.format.document import KIND_TOPIC_META, encode_document
from embeddedpulsar._engine.format.entry import EncodedEntry, ProducerPrefix, encode_plain, encode_single
from embeddedpulsar._engine.format.frame import (
    FIRST_FRAME_OFFSET,
    KIND_ENTRY,
    SLOTS_OFFSET,
    IndexHeader,
    SegmentHeader,
    index_file_size,
    pack_index_header,
    pack_segment_header,
    pack_slot,
    pack_trailer,
    seal,
)
from embeddedpulsar._engine.platform import timing
from embeddedpulsar.topic_name import TopicName, directory_name

CAPACITY = 4096
BASE_MS = 1_000_000
"""Publish time the first ledger counts from."""


class LogFiles:
    """A topic in the making: `append` entries, `roll` to further ledgers, `finish` to write the files.

    `written` lists (ledger, entry, publish ms, offset, length) of every entry.
    """

    def __init__(self, root: Path, topic: str = "t", first_ledger: int = 7) -> None:
        self.name = TopicName.parse(topic)
        self.directory = root / "topics" / directory_name(self.name.full)
        self.directory.mkdir(parents=True)
        self.written: list[tuple[int, int, int, int, int]] = []
        self._ledger = first_ledger
        self._links = (0, 0, -1, 0, 0)
        self._begin(BASE_MS)

    def _begin(self, base_ms: int) -> None:
        self._header = SegmentHeader(
            ledger_id=self._ledger,
            created_ms=base_ms,
            base_publish_ms=base_ms,
            boot_id=timing.boot_id(),
            store_id=bytes(16),
            topic_incarnation=3,
            chain_seed=99 + self._ledger,
            log_size=1 << 26,
            index_capacity=CAPACITY,
            prev_ledger_id=self._links[0],
            prev_end_offset=self._links[1],
            prev_last_entry_id=self._links[2],
            prev_last_crc=self._links[3],
            prev_messages=self._links[4],
        )
        self._log = bytearray(pack_segment_header(self._header))
        self._slots = bytearray()
        self._crc = self._header.chain_seed
        self._entry, self._messages, self._last_ms = 0, 0, base_ms

    def append(self, entry: EncodedEntry, publish_ms: int) -> tuple[int, int]:
        """Add an entry and return its (ledger, entry) ids."""
        length = 48 + entry.size + 8
        header, crc = seal(
            length,
            self._crc,
            entry.body_crc,
            KIND_ENTRY,
            entry.codec,
            entry.flags,
            self._entry,
            publish_ms,
            entry.count,
            entry.metadata_length,
        )
        at = len(self._log)
        self._log += header + b"".join(entry.parts) + pack_trailer(length)
        self._messages += entry.count
        self._slots += pack_slot(
            at,
            publish_ms - self._header.base_publish_ms,
            self._messages,
            entry.key_hash,
            entry.flags,
            entry.count,
            crc,
        )
        self.written.append((self._ledger, self._entry, publish_ms, at, length))
        self._crc, self._last_ms = crc, publish_ms
        self._entry += 1
        return self._ledger, self._entry - 1

    def roll(self) -> None:
        """Write the files of this ledger and begin the next."""
        self._write()
        self._links = (self._ledger, len(self._log), self._entry - 1, self._crc, self._messages)
        self._ledger += 2
        self._begin(self._last_ms)

    def finish(self, *, trim: int = 0, boot: bytes | None = None) -> None:
        """Write the last ledger and the control file."""
        self._write()
        path = Path(filenames.control_path(str(self.directory)))
        path.write_bytes(bytes(CONTROL_SIZE))
        status = path.stat()
        header = ControlHeader(KIND_TOPIC, boot or timing.boot_id(), status.st_dev, status.st_ino, 3)
        content = bytearray(pack_control_header(header).ljust(CONTROL_SIZE, b"\0"))
        words = memoryview(content).cast("Q")
        words[TopicWord.TAIL] = tail_word(self._ledger, len(self._log))
        words[TopicWord.TRIM] = trim
        path.write_bytes(content)
        meta = {"name": self.name.full, "incarnation": 3, "partitions": 0}
        Path(filenames.topic_meta_path(str(self.directory))).write_bytes(
            encode_document(KIND_TOPIC_META, meta)
        )

    def log_path(self, ledger: int) -> Path:
        """The segment of a ledger."""
        return Path(filenames.log_path(str(self.directory), ledger))

    def index_path(self, ledger: int) -> Path:
        """The index of a ledger."""
        return Path(filenames.index_path(str(self.directory), ledger))

    def _write(self) -> None:
        # A reader must stop at the committed end: behind it lies what looks like another frame.
        behind = bytes(self._log[FIRST_FRAME_OFFSET : FIRST_FRAME_OFFSET + 256])
        self.log_path(self._ledger).write_bytes(bytes(self._log) + behind.ljust(4096, b"\xab"))
        index = bytearray(index_file_size(CAPACITY))
        index[:4096] = pack_index_header(IndexHeader(self._ledger, CAPACITY, 0))
        index[SLOTS_OFFSET : SLOTS_OFFSET + len(self._slots)] = self._slots
        self.index_path(self._ledger).write_bytes(index)


def write_topic(
    root: Path, topic: str, sizes: list[int], *, first_ledger: int = 7, per_ledger: int = 5
) -> LogFiles:
    """A topic whose entry i has `sizes[i]` messages of 20 digits and was published at BASE_MS + i."""
    producer = ProducerPrefix("p")
    log = LogFiles(root, topic, first_ledger)
    for i, size in enumerate(sizes):
        if i and i % per_ledger == 0:
            log.roll()
        values = [b"%020d" % i] * size
        entry = encode_plain(values, 0, producer) if size > 1 else encode_single(values[0], 0, producer)
        log.append(entry, BASE_MS + i)
    log.finish()
    return log
