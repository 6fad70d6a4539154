"""The type of what a producer, consumer or reader handles: what its schema says, else ``bytes``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # A type checker knows typing_extensions by itself; nothing needs to be installed for it.
    from typing_extensions import TypeVar

    T = TypeVar("T", default=bytes)
else:
    from typing import TypeVar

    T = TypeVar("T")
