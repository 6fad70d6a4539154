"""Copies of closed stores, which take as much of the disk as what is in them."""

from __future__ import annotations

import subprocess
from pathlib import Path


def copy_store(source: Path, target: Path) -> Path:
    """Copy a tree, and leave out what is allocated ahead and holds nothing: most of a segment.

    Returns:
        ``target``, which must not be there yet.
    """
    assert not target.exists()
    subprocess.run(["cp", "-a", "--sparse=always", source, target], check=True)
    return target
