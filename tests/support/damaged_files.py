"""Damage of single bytes."""

from __future__ import annotations

from pathlib import Path


def flip(path: Path, at: int) -> None:
    """Flip one bit of a byte, counted from the end if negative."""
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)
