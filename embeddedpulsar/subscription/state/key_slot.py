"""The slots into which Key_Shared divides sticky keys by range."""

from __future__ import annotations

from typing import Final

SLOTS: Final = 65536
"""The slot of a key is its hash (`format.key_hash.sticky_key_hash`) modulo this."""
