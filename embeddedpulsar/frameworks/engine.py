"""What the modules for job frameworks know of the engine; none of them imports from it otherwise."""

from __future__ import annotations

from embeddedpulsar._engine.platform import threads
from embeddedpulsar._engine.platform.timing import SYSTEM_CLOCK
