"""What the adapters of frameworks know of the engine; no other module of the package imports from it.

They publish and consume by clients. Besides, a table of values has a lock of the store, under which one
process at a time reads and writes a key.
"""

from __future__ import annotations

from embeddedpulsar._engine.filenames import values_lock_path
from embeddedpulsar._engine.platform import threads
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.timing import SYSTEM_CLOCK
