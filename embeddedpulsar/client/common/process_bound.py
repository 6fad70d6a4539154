"""Objects that belong to the process that made them: they are neither copied nor pickled."""

from __future__ import annotations

from typing import Any, NoReturn, SupportsIndex


class ProcessBound:
    """An object with threads, locks or mapped files of its process.

    `pickle`, `copy.copy` and `copy.deepcopy` raise `TypeError` with what to pass on instead.
    """

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> NoReturn:
        kind: type[Any] = type(self)
        raise TypeError(
            f"a {kind.__name__} cannot be pickled or copied: it is attached to its store by this "
            "process. Pass the client, or its URL and the name of the topic, and open another one there; a "
            "Message and a MessageId can be pickled"
        )
