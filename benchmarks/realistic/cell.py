"""What a cell of the realistic tables is, and the messages that every contestant sends in it."""

from __future__ import annotations

import json
import random
from typing import NamedTuple

BODIES = 200
MANY_KEYS = 5_000

SEND = "send"
BATCHED = "batched"
KEY_BATCHED = "KeyBased batches"


class Cell(NamedTuple):
    """One form of the work.

    Attributes:
        kind: subscription type, a name of `ConsumerType`.
        mode: how messages are sent: one at a time, each stored when the call returns; in batches; in batches
            of one key each.
        consumers: processes that share the subscription.
        keys: distinct keys; 0 for messages without a key and without properties.
        is_backlog: whether everything is stored before the consumers start to receive.
    """

    kind: str
    mode: str
    consumers: int
    keys: int = 0
    is_backlog: bool = False

    @property
    def text(self) -> str:
        """The cell in words."""
        consumers = f"{self.consumers} consumer{'s' * (self.consumers > 1)}"
        keys = f"{self.keys:,} keys, 3 properties" if self.keys else "no key"
        return f"{consumers}, {keys}" + ", backlog" * self.is_backlog


class Letter(NamedTuple):
    """One message as every contestant sends it."""

    body: bytes
    key: str
    properties: dict[str, str]


def letters(cell: Cell, number: int) -> list[Letter]:
    """The messages of one run, the same for every contestant."""
    rng = random.Random(7)
    bodies = [
        json.dumps({"order": order, "customer": order * 31, "note": "y" * rng.randrange(260, 960)}).encode()
        for order in range(BODIES)
    ]
    if not cell.keys:
        return [Letter(bodies[at % BODIES], "", {}) for at in range(number)]
    return [
        Letter(
            bodies[at % BODIES],
            f"customer-{rng.randrange(cell.keys)}",
            {"kind": "order", "source": "web", "trace": f"{at:08x}"},
        )
        for at in range(number)
    ]
