"""Protobuf schema: messages of generated classes in Protobuf's binary form."""

from __future__ import annotations

import base64
from typing import Any, TypeVar

from embeddedpulsar.enums import SchemaType
from embeddedpulsar.schema.schema import Schema

T = TypeVar("T")


def _message_class() -> Any:
    """The base of all generated classes; None if protobuf is not installed."""
    try:
        from google.protobuf.message import Message
    except ImportError:
        return None
    return Message


_MESSAGE = _message_class()


class ProtobufNativeSchema(Schema[T]):
    """Values are Protobuf messages and are stored in Protobuf's binary form. Needs ``protobuf``.

    The definition holds the descriptors of the message's file and of all files it imports.

    Args:
        record_cls: a class generated from a ``.proto`` file.

    Raises:
        ImportError: protobuf is not installed.
        TypeError: the class is no Protobuf message.

    Example:
        >>> from google.protobuf.wrappers_pb2 import Int32Value
        >>> schema = ProtobufNativeSchema(Int32Value)
        >>> schema.encode(Int32Value(value=300))
        b'\\x08\\xac\\x02'
        >>> schema.decode(b'\\x08\\xac\\x02').value
        300
    """

    def __init__(self, record_cls: type[T]) -> None:
        if _MESSAGE is None:
            raise ImportError('Protobuf schemas need protobuf: pip install "embeddedpulsar[protobuf]"')
        kind: Any = record_cls
        if not (isinstance(kind, type) and issubclass(kind, _MESSAGE)):
            raise TypeError(f"{kind!r} is not a class of Protobuf messages")
        super().__init__(kind, SchemaType.PROTOBUF_NATIVE, _definition(kind), "PROTOBUF_NATIVE")

    def encode(self, obj: T) -> bytes:
        """Return ``obj`` in Protobuf's binary form; raises TypeError if it is of another class."""
        self._validate_object_type(obj)
        data: bytes = obj.SerializeToString()  # type: ignore[attr-defined]
        return data

    def decode(self, data: bytes) -> T:
        """Return the message; raises ``google.protobuf.message.DecodeError`` if ``data`` is none."""
        message: T = self._record_cls.FromString(data)
        return message

    def __str__(self) -> str:
        return f"ProtobufNativeSchema({self._record_cls.__name__})"


def _definition(kind: Any) -> dict[str, str]:
    """The definition as Pulsar's Java client writes it."""
    from google.protobuf import descriptor_pb2

    root = kind.DESCRIPTOR
    files = descriptor_pb2.FileDescriptorSet()
    for file in _files(root.file, {}).values():
        file.CopyToProto(files.file.add())
    return {
        "fileDescriptorSet": base64.b64encode(files.SerializeToString()).decode("ascii"),
        "rootMessageTypeName": root.full_name,
        "rootFileDescriptorName": root.file.name,
    }


def _files(file: Any, files: dict[str, Any]) -> dict[str, Any]:
    """The file and all that it imports by name, each after its own imports."""
    if file.name not in files:
        for imported in file.dependencies:
            _files(imported, files)
        files[file.name] = file
    return files
