"""Files of a newer release are refused by name, and nothing is taken for damage and written over."""

from __future__ import annotations

import shutil
from pathlib import Path
from zlib import crc32

import pytest

from embeddedpulsar import Client, MessageId
from embeddedpulsar.exceptions import UnsupportedFormatVersion

NEWER = (99).to_bytes(2, "little")
HEADERS = {  # bytes under the checksum, and where the headers begin
    "store.ctl": (56, (0,)),
    "catalog": (60, (0,)),
    "topics/*/ctl": (56, (0,)),
    "topics/*/*.log": (132, (0, 512)),
    "topics/*/journal.1": (60, (0,)),
    "topics/*/subscriptions/*/ctl": (56, (0,)),
    "topics/*/subscriptions/*/journal.1": (60, (0,)),
}


def make_newer(path: Path, covered: int, starts: tuple[int, ...]) -> None:
    """Raise the version in a header, in place, and put its checksum right."""
    with path.open("r+b") as file:
        for start in starts:
            file.seek(start)
            header = bytearray(file.read(covered + 4))
            assert crc32(header[:covered]) == int.from_bytes(header[covered:], "little")
            header[4:6] = NEWER
            header[covered:] = crc32(header[:covered]).to_bytes(4, "little")
            file.seek(start)
            file.write(header)


def use(root: Path) -> int:
    """Everything a program does with a topic; returns how many messages it read."""
    with Client(root) as client:
        found = len(list(client.create_reader("topic", MessageId.earliest)))
        client.subscribe("topic", "subscription").close()
        client.create_producer("topic").send(b"one more")
    return found


@pytest.mark.parametrize("copied", [False, True], ids=["in place", "in a copy"])
@pytest.mark.parametrize("pattern", HEADERS)
def test_a_newer_file_is_refused_by_name(tmp_path: Path, pattern: str, copied: bool):
    """The error names the file and the remedy; with the old file back, everything is there."""
    root = tmp_path / "store"
    with Client(root) as client, client.subscribe("topic", "subscription"):
        client.create_producer("topic").send(b"first")
    if copied:
        root = Path(shutil.copytree(root, tmp_path / "copy"))
    (path,) = root.glob(pattern)
    before = path.read_bytes()
    make_newer(path, *HEADERS[pattern])
    with pytest.raises(UnsupportedFormatVersion, match=r"has format version 99; .*; upgrade") as caught:
        use(root)
    assert caught.value.path == str(path)
    with path.open("r+b") as file:
        file.write(before)
    assert use(root) == 1
