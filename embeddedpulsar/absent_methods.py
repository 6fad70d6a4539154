"""The error for a method that a part of an Admin does not have, which names those that it has."""

from __future__ import annotations

import re
from types import FunctionType
from typing import TYPE_CHECKING, Final, NoReturn

from embeddedpulsar._engine.platform import timing
from embeddedpulsar.error_text import nearest

# A word in the name of a Pulsar method, and the feature it belongs to.
_NOT_BUILT: Final = {
    "stats": "statistics of other things than topics",
    "cluster": "clusters",
    "broker": "brokers: Admin.brokers() has settings only",
    "bookie": "bookies",
    "source": "connectors",
    "sink": "connectors",
    "permission": "permissions: those of the directory count",
    "replicat": "replication",
    "polic": "other policies than deduplication, retention and limits",
    "propert": "properties of topics",
}


class SaysWhatThereIs:
    """Adds the similar or available methods, or the feature that is not built, to the error for a method that
    is not there. What the methods of the classes below it raise is named as `deadline.translate` does."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in dir(cls):  # those of its bases, too: not all of them are below this class
            if name.startswith("_") and name != "__init__":
                continue
            # From the class that defines it, as it was written: `getattr` would make a plain function of a
            # static method.
            method = next(vars(base)[name] for base in cls.__mro__ if name in vars(base))
            # Every public method of every part translates an interrupt into `Interrupted`, as the clients do.
            # One that does so by itself is left alone.
            if isinstance(method, FunctionType) and not timing.is_translating(method):
                setattr(cls, name, timing.translating(method))
            elif isinstance(method, staticmethod):
                setattr(cls, name, staticmethod(timing.translating(method.__func__)))

    if not TYPE_CHECKING:  # a type checker must report such a name itself

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(_text(type(self), name), name=name, obj=self)


def _text(kind: type, name: str) -> str:
    text = f"{kind.__name__!r} object has no attribute {name!r}"
    # `copy`, `pickle` and others ask for such names, and expect a plain AttributeError.
    if name.startswith("_"):
        return text
    available = [method_name for method_name in dir(kind) if not method_name.startswith("_")]
    # The remedies in their order: the name in Java's spelling; a method of another part, as `Admin.get_list`;
    # a similar name; one that begins with these words, or has this word; the feature that is not built. A
    # feature asks for more similarity before another method is proposed.
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    if snake in available:
        return f"{text}; it is written {snake}()"
    for call, part in getattr(kind, "_parts", {}).items():
        if hasattr(part, snake):
            return f"{text}; it is {call}.{snake}()"
    listed = f"it has {', '.join(available)}"
    feature = next((feature for word, feature in _NOT_BUILT.items() if word in snake), "")
    near = nearest(snake, available, 0.9 if feature else 0.7)
    near = near or next(
        (method_name for method_name in available if method_name.startswith(f"{snake}_")), None
    )
    near = near or next((method_name for method_name in available if snake in method_name.split("_")), None)
    if near:
        return f"{text}; did you mean {near}()? {listed}"
    if feature:
        return f"{text}; not built yet: {feature}; {listed}"
    return f"{text}; {listed}"
