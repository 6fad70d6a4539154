"""Which stores this process has open, by the identity of their directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embeddedpulsar._engine.platform import fork, threads
from embeddedpulsar.topic import memory_root

if TYPE_CHECKING:
    from embeddedpulsar.topic.store import Store


StoreKey = tuple[int, int, bool]
"""Device and inode of the directory, and whether the store is open read-only."""


class StoreRegistry:
    """The open stores, and the lock under which they are opened and closed.

    Role: makes `Store.open` return one instance per directory, however its path is spelled.
    Invariants: a key stays in use as long as its store holds the directory open, so it
    cannot come to mean another one. A fork waits for openings that are under way: a half-made doorbell must
    not be inherited, for its lease would be too.
    """

    def __init__(self) -> None:
        self.lock = threads.RLock()
        self.stores: dict[StoreKey, Store] = {}
        self.in_memory: dict[str, Store] = {}
        """Those in memory that have a name, by URL; in a forked child also those that it inherited."""
        fork.register(self)
        fork.at_exit(self.close_all)

    def add(self, key: StoreKey, store: Store) -> None:
        """Note a store that was opened. Under the lock."""
        self.stores[key] = store
        if memory_root.is_named(store.memory_url):
            self.in_memory[store.memory_url] = store
            memory_root.ROOTS[store.memory_url] = store.root

    def forget(self, key: StoreKey, store: Store) -> None:
        """Forget a store that this process has not open any more. Under the lock, or in a forked child."""
        if self.stores.get(key) is store:  # not one that came into its place
            del self.stores[key]

    def forget_name(self, store: Store) -> None:
        """Let the name of a store in memory be that of the next one. Under the lock."""
        if self.in_memory.get(store.memory_url) is store:
            del self.in_memory[store.memory_url]
            del memory_root.ROOTS[store.memory_url]

    def close_all(self) -> None:
        """Close what was forgotten, at the end of the process: no doorbell and no memory must stay behind."""
        for store in list(self.stores.values()):
            while not store.closed:
                store.release()

    def before_fork(self) -> None:
        self.lock.acquire()

    def after_fork_in_parent(self) -> None:
        self.lock.release()

    def after_fork_in_child(self) -> None:
        self.lock = threads.RLock()


REGISTRY = StoreRegistry()
