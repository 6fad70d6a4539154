"""The table view of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

from embeddedpulsar.client.consumer.table_view import TableView
from embeddedpulsar.cluster.cluster_errors import translated
from embeddedpulsar.exceptions import AlreadyClosed
from embeddedpulsar.message import T


class ClusterTableView(TableView[T]):
    """`TableView` over the table view of ``pulsar-client``. Thread-safe."""

    def __init__(self, theirs: Any) -> None:
        self.theirs = theirs
        self._is_closed = False

    def get(self, key: str) -> T | None:
        with translated:
            return cast("T | None", self.theirs.get(key))

    def for_each(self, callback: Callable[[str, T], object]) -> None:
        with translated:
            self.theirs.for_each(callback)

    def for_each_and_listen(self, callback: Callable[[str, T], object]) -> None:
        with translated:
            self.theirs.for_each_and_listen(callback)

    def close(self) -> None:
        if self._is_closed:
            raise AlreadyClosed
        self._is_closed = True
        with translated:
            self.theirs.close()

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

    def __exit__(self, *_: object) -> None:
        if not self._is_closed:
            self.close()

    def __repr__(self) -> str:
        return repr(self.theirs)
