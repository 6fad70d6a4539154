"""What outboxes know of the engine; no other module of the package imports from it.

A relay publishes by a client. Besides, it holds a lock of the store, waits for files and sockets that are not
of the store, chooses partitions as a producer does, and has steps at which tests kill it.
"""

from __future__ import annotations

from embeddedpulsar._engine.filenames import OUTBOX, outbox_lock_path
from embeddedpulsar._engine.format.entry import partition_hash
from embeddedpulsar._engine.platform import failpoints, threads
from embeddedpulsar._engine.platform.change_watch import ChangeWatch
from embeddedpulsar._engine.platform.child_process import on_termination
from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.timing import SYSTEM_CLOCK
from embeddedpulsar._engine.store.store import Store
