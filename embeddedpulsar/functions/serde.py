"""Conversion between the payload of a message and the value that a function gets or returns."""

from __future__ import annotations

from typing import Any


class SerDe:
    """The base class of conversions. A worker makes one object of the class for each topic.

    Example:
        >>> class Json(SerDe):
        ...     def serialize(self, input):
        ...         return json.dumps(input).encode()
        ...     def deserialize(self, input_bytes):
        ...         return json.loads(input_bytes)
        >>> import json
        >>> Json().deserialize(Json().serialize({"tea": 2}))
        {'tea': 2}
    """

    def serialize(self, input: Any) -> bytes:
        """Return the payload for a value."""
        raise NotImplementedError(f"{type(self).__name__} has no method serialize(input)")

    def deserialize(self, input_bytes: bytes) -> Any:
        """Return the value of a payload."""
        raise NotImplementedError(f"{type(self).__name__} has no method deserialize(input_bytes)")


class PickleSerDe(SerDe):
    """Any Python object. A payload that another process wrote can run code when it is deserialized: only for
    topics to which nothing but trusted programs can publish.

    Example:
        >>> PickleSerDe().deserialize(PickleSerDe().serialize({1, 2}))
        {1, 2}
    """

    def serialize(self, input: Any) -> bytes:
        """Return the pickled value."""
        import pickle

        return pickle.dumps(input)

    def deserialize(self, input_bytes: bytes) -> Any:
        """Return the pickled value of a payload."""
        import pickle

        return pickle.loads(input_bytes)


class IdentitySerDe(SerDe):
    """The default: bytes as they are, numbers and text as text.

    A payload that reads as a number becomes one: ``b"12"`` is the int 12. Payloads that are not UTF-8 stay
    bytes.

    Example:
        >>> serde = IdentitySerDe()
        >>> serde.serialize(12), serde.deserialize(b"12"), serde.deserialize(b"tea")
        (b'12', 12, 'tea')
    """

    def serialize(self, input: Any) -> bytes:
        """Return the payload for bytes, an int, float, complex or str.

        Raises:
            TypeError: another type.
        """
        # The types themselves and no subclass, as in Pulsar: a bool or an enum would not come back as what it
        # was.
        if type(input) in (int, float, complex, str):
            return str(input).encode("utf-8")
        if type(input) is bytes:
            return input
        raise TypeError(f"IdentitySerde cannot serialize object of type {type(input)}")

    def deserialize(self, input_bytes: bytes) -> Any:
        """Return the payload as the first of int, float, complex and str that it reads as, or as bytes."""
        try:
            text = input_bytes.decode("utf-8")
        except UnicodeDecodeError:
            return input_bytes
        # The order of Pulsar's SDK. So text that looks like a number arrives as one, which programs written
        # for it expect.
        for kind in (int, float, complex):
            try:
                return kind(text)
            except ValueError:
                continue
        return text
