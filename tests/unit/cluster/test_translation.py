"""Values of this package as those of `pulsar-client`, and back."""

from __future__ import annotations

import copy
import pickle
from enum import Enum
from types import SimpleNamespace
from typing import Any

import _pulsar
import pulsar
import pytest

import embeddedpulsar
from embeddedpulsar import MessageId, enums
from embeddedpulsar.client.client import Client
from embeddedpulsar.cluster.translation import (
    failure,
    from_message_id,
    from_service_info,
    given,
    to_pulsar,
    translated,
    translated_error,
)
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.schema import (
    AutoConsumeSchema,
    AvroSchema,
    InstantSchema,
    Int32Schema,
    Integer,
    JsonSchema,
    KeyValueSchema,
    Record,
    StringSchema,
)


class Order(Record):
    """A record, as an application declares it."""

    count = Integer()


@pytest.mark.parametrize(
    "member",
    [
        member
        for kind in vars(enums).values()
        if isinstance(kind, type) and issubclass(kind, Enum) and hasattr(_pulsar, kind.__name__)
        for member in kind
        if hasattr(getattr(_pulsar, kind.__name__), member.name)
    ],
    ids=str,
)
def test_enumerations(member: Enum):
    """Each member is the one of the same name and number."""
    theirs = to_pulsar(member)
    assert isinstance(theirs, getattr(_pulsar, type(member).__name__))
    assert (theirs.name, theirs.value) == (member.name, member.value)


@pytest.mark.parametrize("serialized", ["08051006", "0801100218002003", "0801100218002003300a"])
def test_message_ids(serialized: str):
    """An id that came from a cluster is given back as it came; one that was stored is read."""
    theirs = _pulsar.MessageId.deserialize(bytes.fromhex(serialized))
    ours = from_message_id(theirs, "persistent://public/default/orders")
    assert isinstance(ours, MessageId)
    assert ours == MessageId.deserialize(bytes.fromhex(serialized))
    assert ours.serialize() == theirs.serialize()
    assert to_pulsar(ours) is theirs
    for again in (pickle.loads(pickle.dumps(ours)), copy.copy(ours)):
        assert again == ours
        assert to_pulsar(again) == theirs
    assert to_pulsar(MessageId.earliest) == pulsar.MessageId.earliest


def test_policies():
    """Limits, ranges and topics arrive."""
    batch = to_pulsar(embeddedpulsar.ConsumerBatchReceivePolicy(7, 8, 9)).policy()
    assert (batch.getMaxNumMessages(), batch.getMaxNumBytes(), batch.getTimeoutMs()) == (7, 8, 9)
    sticky = embeddedpulsar.ConsumerKeySharedPolicy(embeddedpulsar.KeySharedMode.Sticky, True, [(0, 9)])
    keys = to_pulsar(sticky)
    assert keys.key_shared_mode == pulsar.KeySharedMode.Sticky
    assert keys.allow_out_of_order_delivery
    assert keys.sticky_ranges == [(0, 9)]
    assert to_pulsar(embeddedpulsar.ConsumerKeySharedPolicy()).sticky_ranges == []
    letters = to_pulsar(embeddedpulsar.ConsumerDeadLetterPolicy(3, "dead", "audit"))
    assert (letters.max_redeliver_count, letters.dead_letter_topic) == (3, "dead")
    assert letters.initial_subscription_name == "audit"
    assert to_pulsar(embeddedpulsar.ConsumerDeadLetterPolicy(3)).dead_letter_topic == ""


@pytest.mark.parametrize(
    "ours",
    [
        embeddedpulsar.AuthenticationToken("secret"),
        embeddedpulsar.AuthenticationToken(lambda: "secret"),
        embeddedpulsar.AuthenticationTLS("cert.pem", "key.pem"),
        embeddedpulsar.AuthenticationBasic("ann", "secret"),
        embeddedpulsar.AuthenticationBasic(auth_params_string='{"username": "ann", "password": "secret"}'),
        embeddedpulsar.AuthenticationOauth2('{"issuer_url": "https://example.com", "private_key": "/none"}'),
    ],
    ids=repr,
)
def test_credentials(ours: Any):
    """Those of pulsar-client are made of the same arguments."""
    theirs = to_pulsar(ours)
    assert type(theirs) is getattr(pulsar, type(ours).__name__)
    assert isinstance(theirs.auth, _pulsar.Authentication)


def test_addresses():
    """Addresses of one cluster and of several, and providers of them that the application defines."""
    info = embeddedpulsar.ServiceInfo(
        "pulsar+ssl://a:6651", embeddedpulsar.AuthenticationToken("t"), "ca.pem"
    )
    theirs = to_pulsar(info)
    assert (theirs.service_url, theirs.use_tls) == ("pulsar+ssl://a:6651", True)
    assert theirs.tls_trust_certs_file_path == "ca.pem"
    assert repr(from_service_info(theirs)) == repr(info) == repr(theirs)
    other = embeddedpulsar.ServiceInfo("pulsar://b:6650")
    failover = embeddedpulsar.AutoClusterFailover(info, [other], 7, 8, 9)
    assert repr(to_pulsar(failover)) == repr(failover)
    assert type(to_pulsar(failover)) is pulsar.AutoClusterFailover

    class Provider(embeddedpulsar.ServiceInfoProvider):
        is_closed = False

        def initial_service_info(self) -> embeddedpulsar.ServiceInfo:
            return info

        def initialize(self, on_service_info_update: Any) -> None:
            on_service_info_update(other)

        def close(self) -> None:
            self.is_closed = True

    provider, updates = Provider(), list[Any]()
    adapted = to_pulsar(provider)
    assert isinstance(adapted, pulsar.ServiceInfoProvider)
    assert isinstance(adapted.initial_service_info(), pulsar.ServiceInfo)
    adapted.initialize(updates.append)
    assert [update.service_url for update in updates] == ["pulsar://b:6650"]
    adapted.close()
    assert provider.is_closed


def test_loggers_and_key_readers():
    """Those that write somewhere themselves; keys are read from files only."""
    assert to_pulsar(embeddedpulsar.ConsoleLogger()).log_level == pulsar.LoggerLevel.Info
    log = to_pulsar(embeddedpulsar.FileLogger(embeddedpulsar.LoggerLevel.Warn, "x.log"))
    assert (log.log_level, log.log_file) == (pulsar.LoggerLevel.Warn, "x.log")
    assert isinstance(to_pulsar(embeddedpulsar.CryptoKeyReader("a", "b")), pulsar.CryptoKeyReader)

    class Keys(embeddedpulsar.CryptoKeyReader):
        pass

    with pytest.raises(embeddedpulsar.InvalidConfiguration, match="files"):
        to_pulsar(Keys("a", "b"))


@pytest.mark.parametrize(
    ("schema", "value"),
    [(StringSchema(), "soup"), (JsonSchema(Order), Order(count=2)), (AvroSchema(Order), Order(count=2))],
    ids=repr,
)
def test_schemas(schema: Any, value: Any):
    """The cluster gets the definition of this package, which decodes its own values."""
    theirs = to_pulsar(schema)
    assert isinstance(theirs, pulsar.schema.Schema)
    assert theirs.schema_info().schema() == schema.schema_info().schema()
    assert theirs.schema_info().schema_type() == to_pulsar(schema.schema_info().schema_type())
    assert theirs.decode(theirs.encode(value)) == value


def test_schemas_that_pulsar_client_does_not_register():
    """Are refused, and the error says how to do without; those of numbers are registered."""
    info = to_pulsar(Int32Schema()).schema_info()
    assert (info.schema_type(), info.name()) == (_pulsar.SchemaType.INT32, "INT32")
    for schema in (InstantSchema(), KeyValueSchema(StringSchema(), StringSchema())):
        kind = schema.schema_info().schema_type().name
        with pytest.raises(InvalidConfiguration, match=f"does not register.*{kind}.*schema.encode"):
            to_pulsar(schema)
    theirs = SimpleNamespace(schema_type=lambda: _pulsar.SchemaType.KEY_VALUE, name=str, schema=str)
    adapter = to_pulsar(AutoConsumeSchema())
    adapter.attach_client(SimpleNamespace(get_schema_info=lambda *_: theirs))
    raw = SimpleNamespace(schema_version=lambda: "v", topic_name=str, int_schema_version=int)
    assert adapter.writer_of(raw) is None  # its payload is a record of bytes


def test_a_schema_that_cannot_be_fetched_is_not_guessed():
    """One that is not kept is None; a cluster that does not answer raises the error of this package."""
    theirs = to_pulsar(AvroSchema(Order))
    raw = SimpleNamespace(schema_version=lambda: "v", topic_name=lambda: "t", int_schema_version=lambda: 1)
    found: list[Exception] = [pulsar.TopicNotFound("gone"), pulsar.Timeout("busy")]

    def fetch(*place: Any) -> None:
        raise found.pop(0)

    theirs.attach_client(SimpleNamespace(get_schema_info=fetch))
    assert theirs.writer_of(raw) is None
    with pytest.raises(embeddedpulsar.Timeout, match="busy"):
        theirs.writer_of(raw)


def test_errors():
    """Each error has the class of the same name, and its text; so has a result."""
    kinds = [kind for kind in vars(pulsar.exceptions).values() if isinstance(kind, type)]
    assert len(kinds) == 46
    for kind in kinds:
        error = translated_error(kind("Pulsar error: of the cluster"))
        assert type(error) is getattr(embeddedpulsar, kind.__name__)
        assert str(error) == "Pulsar error: of the cluster"
    closed = failure(pulsar.Result.AlreadyClosed)
    assert (type(closed), str(closed)) == (embeddedpulsar.AlreadyClosed, str(embeddedpulsar.AlreadyClosed()))
    assert translated_error(ValueError()) is None
    assert translated_error(embeddedpulsar.Timeout()) is None
    with pytest.raises(TimeoutError), translated:
        raise pulsar.Timeout("Pulsar error: TimeOut")


def test_options_that_pulsar_client_lacks():
    """They are refused, unless they say nothing, or are about the files of a store."""
    call = Client.create_producer, pulsar.Client.create_producer
    assert given(*call, "orders", "till-1", durability="flush", encryption_keys=None) == {
        "topic": "orders",
        "producer_name": "till-1",
    }
    with pytest.raises(
        embeddedpulsar.InvalidConfiguration, match="no option chunk_max_message_size of create_"
    ):
        given(*call, "orders", chunk_max_message_size=5)
    with pytest.raises(TypeError, match="unknown"):
        given(*call, "orders", unknown=1)
