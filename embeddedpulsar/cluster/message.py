"""A message that came from a cluster."""

from __future__ import annotations

from typing import Any, cast

from embeddedpulsar.cluster.translation import from_message_id, not_supported
from embeddedpulsar.encryption import EncryptedKey, EncryptionContext, EncryptionFacts
from embeddedpulsar.message import Message, T
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.schema import SchemaInfo


class ClusterMessage(Message[T]):
    """`Message` over the message of ``pulsar-client``."""

    __slots__ = ("theirs",)

    def __init__(self, theirs: Any) -> None:
        self.theirs = theirs

    def data(self) -> bytes:
        return cast("bytes", self.theirs.data())

    def value(self) -> T:
        # By the schema of this package, which `pulsar-client` got inside of an adapter
        # (`translation._adapter`).
        return cast("T", self.theirs._schema.ours.decode_message(self))

    def writer_schema(self) -> SchemaInfo | None:
        schema: SchemaInfo | None = self.theirs._schema.writer_of(self.theirs._message)
        return schema

    def message_id(self) -> MessageId:
        return from_message_id(self.theirs.message_id(), self.topic_name())

    def topic_name(self) -> str:
        return str(self.theirs.topic_name())

    def properties(self) -> dict[str, str]:
        return dict(self.theirs.properties())

    def partition_key(self) -> str:
        return str(self.theirs.partition_key())

    def ordering_key(self) -> str:
        return str(self.theirs.ordering_key())

    def publish_timestamp(self) -> int:
        return int(self.theirs.publish_timestamp())

    def event_timestamp(self) -> int:
        return int(self.theirs.event_timestamp())

    def redelivery_count(self) -> int:
        return int(self.theirs.redelivery_count())

    def schema_version(self) -> str:
        return str(self.theirs.schema_version())

    def producer_name(self) -> str:
        return str(self.theirs.producer_name())

    def sequence_id(self) -> int:
        raise not_supported("Message.sequence_id()", "put the number into a property")

    def has_null_value(self) -> bool:
        return bool(self.theirs.has_null_value())

    def encryption_context(self) -> EncryptionContext | None:
        theirs = self.theirs.encryption_context()
        if theirs is None:
            return None
        # The empty text is the initialization vector, which `pulsar-client` does not give out.
        return EncryptionContext(
            EncryptionFacts(
                tuple(EncryptedKey(key.key, key.value, key.metadata) for key in theirs.keys()),
                theirs.param(),
                int(theirs.compression_type()),
                theirs.uncompressed_message_size(),
                theirs.batch_size(),
                b"",
                theirs.is_decryption_failed(),
            )
        )

    def replace(self, *, data: bytes | None = None, properties: dict[str, str] | None = None) -> Message[T]:
        raise not_supported("Message.replace()", "there are no interceptors")
