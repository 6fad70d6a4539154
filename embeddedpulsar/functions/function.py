"""The interface of a function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embeddedpulsar.functions.context import Context


class Function:
    """The base class of functions: a class with a method that is called with each message.

    A worker makes one object of the class and calls it in one thread, so `process` may keep what it likes in
    ``self``; only the state of the `Context` outlives the worker.

    Example:
        >>> class Exclamation(Function):
        ...     def process(self, input, context):
        ...         return f"{input}!"
        >>> Exclamation().process("tea", None)
        'tea!'
    """

    def process(self, input: Any, context: Context) -> Any:
        """Process one message.

        Args:
            input: its payload, deserialized by the SerDe of the topic; with windows, a list of them.
            context: the message and the function it is processed by.

        Returns:
            What is published to the output topic; None for nothing.

        Raises:
            NotImplementedError: the class does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method process(input, context)")
