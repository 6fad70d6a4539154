"""Arrow arrays as columns of an entry: offsets from 0, bytes by reference, bitmaps from bit 0."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from embeddedpulsar.format.columns import PADDING

_INT32, _INT64 = pa.int32(), pa.int64()
_WIDE: Final = (pa.large_binary(), pa.large_string())


def variable(values: Any) -> list[Any]:
    """A binary or string array, of any offset width and without nulls, as a variable column. The bytes stay
    where they are; the offsets are made anew unless they start at 0.
    """
    count = len(values)
    is_wide = values.type in _WIDE
    _, offsets, data = values.buffers()
    ends = pa.Array.from_buffers(_INT64 if is_wide else _INT32, count + 1, [None, offsets], 0, values.offset)
    first, last = ends[0].as_py(), ends[count].as_py()
    if first:
        ends = pc.subtract(ends, pa.scalar(first, ends.type))
    if is_wide:
        ends = ends.cast(_INT32)
    size = 4 * count + 4
    packed = ends.buffers()[1].slice(4 * ends.offset, size)
    found = [memoryview(packed), PADDING[-size & 7]]
    if last > first:
        found += [memoryview(data.slice(first, last - first)), PADDING[first - last & 7]]
    return [part for part in found if part]


def fixed(values: Any) -> list[Any]:
    """An int64 array without nulls as a fixed column."""
    return [memoryview(values.buffers()[1].slice(8 * values.offset, 8 * len(values)))]


def bitmap(bits: Any) -> list[Any]:
    """A boolean array without nulls as a bitmap column; bits behind the last are 0."""
    count, shift = len(bits), bits.offset & 7
    packed = bits.buffers()[1].slice(bits.offset >> 3, (shift + count + 7) // 8)
    number = int.from_bytes(memoryview(packed), "little") >> shift & (1 << count) - 1
    return [number.to_bytes((count + 63) // 64 * 8, "little")]


def without_nulls(values: Any) -> tuple[Any, list[Any] | None]:
    """A variable array with empty values in place of nulls, and the bitmap of these; None if none is."""
    if not values.null_count:
        return values, None
    absent = bitmap(pc.is_null(values))
    return pc.fill_null(
        values, pa.scalar(b"" if pa.types.is_binary(values.type) else "", values.type)
    ), absent
