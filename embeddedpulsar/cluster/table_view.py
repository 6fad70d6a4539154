"""The table view of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from embeddedpulsar.client.consumer.table_view import TableView
from embeddedpulsar.cluster.cluster_errors import translated
from embeddedpulsar.cluster.handle import ClusterHandle
from embeddedpulsar.message import T


class ClusterTableView(ClusterHandle, TableView[T]):
    """`TableView` over the table view of ``pulsar-client``. Thread-safe."""

    def get(self, key: str, default: Any = None) -> Any:
        with translated:
            value = self.theirs.get(key)
        return default if value is None else value

    def _pairs(self) -> Iterator[tuple[str, T]]:
        pairs: list[tuple[str, T]] = []
        self.for_each(lambda key, value: pairs.append((key, value)))
        return iter(pairs)

    def for_each(self, callback: Callable[[str, T], object]) -> None:
        with translated:
            self.theirs.for_each(callback)

    def for_each_and_listen(self, callback: Callable[[str, T | None], object]) -> None:
        with translated:
            self.theirs.for_each_and_listen(callback)

    def _keys(self) -> list[str]:
        keys: list[str] = []
        # The raw view: the values are not decoded for it.
        self.theirs._table_view.for_each(lambda key, _: keys.append(key))
        return keys

    def __len__(self) -> int:
        return len(self.theirs)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and bool(self.theirs._table_view.get(key)[0])

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys())

    def __repr__(self) -> str:
        return repr(self.theirs)
