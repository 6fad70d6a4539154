"""The type of values that a producer, consumer or reader handles: that of its schema, or ``bytes``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # A type checker provides typing_extensions itself; nothing needs to be installed for it.
    from typing_extensions import TypeVar

    T = TypeVar("T", default=bytes)
else:
    from typing import TypeVar

    T = TypeVar("T")
