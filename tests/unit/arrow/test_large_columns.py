"""Columns of `send_arrow` that are larger than offsets of 32 bits reach."""

from __future__ import annotations

import mmap
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")

from embeddedpulsar.arrow.column_writer import ColumnNames, windows  # noqa: E402

NAMES = ColumnNames("value", None, None, None, None, None)
NEARLY_2_GIB = 2**31 - 8


def batch(data: Any, rows: int, size: int) -> Any:
    """A batch of `rows` values of `size` bytes together."""
    ends = pa.array([size * row // rows for row in range(rows + 1)], pa.int32()).buffers()[1]
    values = pa.Array.from_buffers(pa.binary(), rows, [None, ends, pa.py_buffer(data)])
    return pa.RecordBatch.from_arrays([values], names=["value"])


@pytest.mark.slow
def test_no_row_is_lost_where_batches_exceed_2_gib_together() -> None:
    """A small batch waits for the next one. If that has nearly 2 GiB, all rows of both are there."""
    with mmap.mmap(-1, NEARLY_2_GIB) as data:  # pages that are only read take no memory
        stream = pa.RecordBatchReader.from_batches(
            pa.schema([("value", pa.binary())]), iter([batch(data, 10, 1000), batch(data, 4, NEARLY_2_GIB)])
        )
        lengths = [len(window.value) for window in windows(stream, NAMES, None, 1000, 1 << 20)]
        del stream
    assert sum(lengths) == 14
