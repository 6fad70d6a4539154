"""The error for a method that an administrator does not have."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Final, NoReturn

# A word in the name of a Pulsar method, and the feature it belongs to.
_NOT_BUILT: Final = {
    "subscription": "administration of subscriptions",
    "stats": "statistics",
    "tenant": "administration of tenants",
    "cluster": "clusters",
    "broker": "brokers: settings are in broker.conf",
    "bookie": "bookies",
    "schema": "the schema registry",
    "function": "functions",
    "source": "connectors",
    "sink": "connectors",
    "transaction": "transactions",
    "permission": "permissions: those of the directory count",
    "quota": "backlog quotas",
    "ttl": "message expiry",
    "expire": "message expiry",
    "compact": "compaction",
    "offload": "offloading",
    "replicat": "replication",
    "terminate": "termination of topics",
    "skip": "skipping messages",
    "cursor": "resetting cursors: use Consumer.seek",
    "peek": "reading messages: use a Reader",
    "examine": "reading messages: use a Reader",
    "polic": "other policies than deduplication and retention",
    "dispatch": "other policies than deduplication and retention",
    "unload": "unloading: no broker has a topic",
    "delete_namespace": "deleting namespaces",
    "propert": "properties of topics",
}


class SaysWhatThereIs:
    """Adds the similar or available methods, or the feature that is not built, to the error."""

    if not TYPE_CHECKING:  # a type checker must report such a name itself

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(_text(type(self), name), name=name, obj=self)


def _text(kind: type, name: str) -> str:
    text = f"{kind.__name__!r} object has no attribute {name!r}"
    if name.startswith("_"):
        return text
    there = [one for one in dir(kind) if not one.startswith("_")]
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    if snake in there:
        return f"{text}; it is written {snake}()"
    for call, part in getattr(kind, "_parts", {}).items():
        if hasattr(part, snake):
            return f"{text}; it is {call}.{snake}()"
    listed = f"it has {', '.join(there)}"
    feature = next((feature for word, feature in _NOT_BUILT.items() if word in snake), "")
    near = difflib.get_close_matches(snake, there, 1, 0.9 if feature else 0.7)
    near = near or [one for one in there if one.startswith(f"{snake}_")]
    if near:
        return f"{text}; did you mean {near[0]}()? {listed}"
    if feature:
        return f"{text}; not built yet: {feature}; {listed}"
    return f"{text}; {listed}"
