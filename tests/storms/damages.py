"""Ways in which a file gets damaged: what disks, bad memory, careless tools and half-finished copies do."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Final, NamedTuple

PAGE: Final = 4096


class Damage(NamedTuple):
    """What was done to a file, and the bytes that may differ from what they were, as (start, end) ranges."""

    name: str
    ranges: tuple[tuple[int, int], ...]

    def touches(self, start: int, end: int) -> bool:
        """Whether a byte of [start, end) may have changed."""
        return any(start < stop and begin < end for begin, stop in self.ranges)


_TO_THE_END: Final = 1 << 62


def flip_bit(data: bytearray, rng: random.Random) -> Damage:
    """One bit."""
    at = rng.randrange(len(data))
    data[at] ^= 1 << rng.randrange(8)
    return Damage("a flipped bit", ((at, at + 1),))


def random_run(data: bytearray, rng: random.Random) -> Damage:
    """Some bytes replaced by random ones."""
    return _run(data, rng, "random bytes", rng.randbytes)


def zero_run(data: bytearray, rng: random.Random) -> Damage:
    """Some bytes replaced by zeros."""
    return _run(data, rng, "zeros", bytes)


def _run(data: bytearray, rng: random.Random, name: str, make: Callable[[int], bytes]) -> Damage:
    at = rng.randrange(len(data))
    size = min(rng.choice((1, 4, 8, 24, 60, 500)), len(data) - at)
    data[at : at + size] = make(size)
    return Damage(name, ((at, at + size),))


def zero_page(data: bytearray, rng: random.Random) -> Damage:
    """A page that was never written, or was dropped."""
    at = rng.randrange(len(data)) // PAGE * PAGE
    end = min(at + PAGE, len(data))
    data[at:end] = bytes(end - at)
    return Damage("a zeroed page", ((at, end),))


def swap_pages(data: bytearray, rng: random.Random) -> Damage:
    """Two pages that changed places: misdirected writes."""
    pages = len(data) // PAGE
    if pages < 2:
        return zero_page(data, rng)
    one, other = sorted(rng.sample(range(pages), 2))
    first = bytes(data[one * PAGE : (one + 1) * PAGE])
    data[one * PAGE : (one + 1) * PAGE] = data[other * PAGE : (other + 1) * PAGE]
    data[other * PAGE : (other + 1) * PAGE] = first
    return Damage("swapped pages", tuple((n * PAGE, (n + 1) * PAGE) for n in (one, other)))


def copy_page(data: bytearray, rng: random.Random) -> Damage:
    """A page that holds a second copy of another one."""
    pages = len(data) // PAGE
    if pages < 2:
        return zero_page(data, rng)
    source, target = rng.sample(range(pages), 2)
    data[target * PAGE : (target + 1) * PAGE] = data[source * PAGE : (source + 1) * PAGE]
    return Damage("a duplicated page", ((target * PAGE, (target + 1) * PAGE),))


def cut(data: bytearray, rng: random.Random) -> Damage:
    """A file that ends too early."""
    at = rng.choice((rng.randrange(len(data)), rng.randrange(len(data)) // PAGE * PAGE))
    del data[at:]
    return Damage("a cut", ((at, _TO_THE_END),))


def lengthen(data: bytearray, rng: random.Random) -> Damage:
    """A file that goes on behind its end."""
    at = len(data)
    data += rng.choice((bytes, rng.randbytes))(rng.choice((1, 8, 100, 5000)))
    return Damage("something behind the end", ((at, _TO_THE_END),))


KINDS: Final = (flip_bit, random_run, zero_run, zero_page, swap_pages, copy_page, cut, lengthen)


def damage_file(path: str, rng: random.Random, within: int | None = None) -> Damage:
    """Damage the file at `path` in place (same inode) in one of the ways above.

    Args:
        path: a file that is not empty.
        rng: decides how and where.
        within: most damage hits the first so many bytes: where the contents are, in a file reserved ahead.
    """
    with open(path, "r+b") as file:
        data = bytearray(file.read())
        before = len(data)
        rest = bytearray()
        if within is not None and within < len(data) and rng.random() < 0.9:
            rest = data[within:]
            del data[within:]
        kind = rng.choice(KINDS if not rest else KINDS[:6])
        done = kind(data, rng)
        data += rest
        file.seek(0)
        file.write(data)
        if len(data) < before:
            os.truncate(path, len(data))
    return done
