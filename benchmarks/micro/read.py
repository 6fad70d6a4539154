"""What reading costs per entry and per byte, beside the checksum and the copy it cannot do without.

python -m benchmarks.micro.read [directory]
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from zlib import crc32

from benchmarks.micro.bench import Work, measure, show
from embeddedpulsar._engine.format.entry import EncodedEntry, encode_plain, encode_single
from tests.ledger_site import PREFIX, START, LedgerSite


def reads(site: LedgerSite, entry: EncodedEntry, count: int, at_once: int) -> Work:
    """Read `count` entries over and over, `at_once` per call."""
    ledger = site.open()
    for _ in range(count):
        ledger.append(entry)
    cursor = ledger.cursor(START, inclusive=True)
    position = ledger.first_position()

    def work(calls: int) -> None:
        left = calls
        while left > 0:
            entries = cursor.read(min(at_once, left), 1 << 30, 1 << 40)
            left -= len(entries)
            if not entries:
                cursor.seek(position)

    return work


def follows(site: LedgerSite, entry: EncodedEntry) -> Work:
    """Append one, read one: a reader at the tail."""
    ledger = site.open()
    cursor = ledger.cursor(START, inclusive=True)

    def work(calls: int) -> None:
        for _ in range(calls):
            ledger.append(entry)
            cursor.read(100, 1000, 1 << 20)

    return work


def checksums(size: int) -> Work:
    """Copy and checksum of as many bytes."""
    data = memoryview(bytearray(size))

    def work(calls: int) -> None:
        for _ in range(calls):
            crc32(bytes(data))

    return work


def main(parent: str | None) -> None:
    """Print the tables."""
    root = Path(tempfile.mkdtemp(prefix="read-", dir=parent))
    sites = []

    def site() -> LedgerSite:
        sites.append(LedgerSite(tempfile.mkdtemp(dir=root)))
        return sites[-1]

    value = b"x" * 100
    single = encode_single(value, 0, PREFIX)
    try:
        small: dict[str, Work] = {
            "read, 100 bytes, 1000 at once": reads(site(), single, 20_000, 1000),
            "read, 100 bytes, one at a time": reads(site(), single, 20_000, 1),
            "append and read, 100 bytes": follows(site(), single),
            "read, batch of 100": reads(site(), encode_plain([value] * 100, 0, PREFIX), 2000, 100),
            "copy and crc32, 160 bytes": checksums(160),
        }
        show("small entries", measure(small, rounds=60, calls=300), "copy and crc32, 160 bytes")
        large: dict[str, Work] = {
            "read, batch of 1000 x 100 bytes": reads(
                site(), encode_plain([value] * 1000, 0, PREFIX), 200, 10
            ),
            "read, 1 MiB": reads(site(), encode_single(b"x" * (1 << 20), 0, PREFIX), 20, 1),
            "copy and crc32, 104 KB": checksums(104_144),
            "copy and crc32, 1 MiB": checksums(1 << 20),
        }
        show("large entries", measure(large, rounds=20, calls=20), "copy and crc32, 1 MiB")
    finally:
        for one in sites:
            one.close()
        shutil.rmtree(root)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
