"""The reader of a Spark batch without Spark: planned here, sent as a worker gets it, read there."""

from __future__ import annotations

import json
import pickle

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")

import pyarrow as pa
from pyspark.sql.datasource import GreaterThanOrEqual, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, MapType, StringType, StructField, StructType

from embeddedpulsar import Client
from embeddedpulsar.arrow import ALL_COLUMNS, read_topic
from embeddedpulsar.exceptions import ColdReadError, CryptoError, InvalidConfiguration
from embeddedpulsar.spark.data_source import DefaultSource, PushdownDataSource, requested_columns, struct_type
from embeddedpulsar.spark.log_plan import DataLossError
from tests.conformance.offloading import TOPIC, Site
from tests.support.key_files import key_files
from tests.support.log_files import write_topic


def read(source: DefaultSource, schema: StructType | None = None) -> pa.Table:
    """Everything a query would get, through pickle as between driver and workers."""
    schema = schema or source.schema()
    reader = source.reader(schema)
    parts = [pickle.loads(pickle.dumps(part)) for part in reader.partitions()]
    reader = pickle.loads(pickle.dumps(reader))
    batches = [batch for part in parts for batch in reader.read(part)]
    return pa.Table.from_batches(batches, schema=to_arrow_schema(schema, timezone="UTC"))


def test_rows_are_those_of_the_table(tmp_path):
    """A read by tasks has the rows and, to the letter, the types that Spark demands."""
    write_topic(tmp_path, "t", [1, 1, 30, 1, 2, 5, 1])
    source = DefaultSource({"path": str(tmp_path), "topic": "t", "minPartitions": "4"})
    assert read(source).equals(read_topic(tmp_path, "t"))
    for batch in source.reader(source.schema()).read(source.reader(source.schema()).partitions()[0]):
        assert batch.schema.equals(to_arrow_schema(source.schema(), timezone="UTC"))


def test_projection_by_option_and_by_schema(tmp_path):
    """Columns come from the option or from the schema of the user, in that order."""
    write_topic(tmp_path, "t", [3])
    options = {"path": str(tmp_path), "topic": "t"}
    assert read(DefaultSource(options | {"columns": "__key, value"})).column_names == ["__key", "value"]
    assert read(DefaultSource(options), struct_type(("__sequenceId",))).column_names == ["__sequenceId"]


def test_a_schema_with_another_type_is_refused():
    """Casts belong into the query; unknown columns are named."""
    with pytest.raises(InvalidConfiguration, match="column value is binary, not string"):
        requested_columns(StructType([StructField("value", StringType())]))
    with pytest.raises(InvalidConfiguration, match="no column 'x'"):
        requested_columns(StructType([StructField("x", StringType())]))
    with pytest.raises(
        InvalidConfiguration, match="column value is nullable, as all are; leave NOT NULL out"
    ):
        requested_columns(StructType([StructField("value", BinaryType(), False)]))
    other_map = StructType([StructField("__messageProperties", MapType(StringType(), StringType(), False))])
    with pytest.raises(
        InvalidConfiguration, match=r'"valueContainsNull":true.* not .*"valueContainsNull":false'
    ):
        requested_columns(other_map)
    assert requested_columns(struct_type(None)) == ALL_COLUMNS


def test_nothing_to_read(tmp_path):
    """Spark asks for a made-up partition where the plan is empty; it has no batches."""
    write_topic(tmp_path, "t", [1])
    source = DefaultSource({"path": str(tmp_path), "topic": "t", "startingOffsets": "7:1"})
    reader = source.reader(source.schema())
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []


def test_pushed_filters_narrow_the_plan_and_go_back(tmp_path):
    """All filters are returned, and only entries that can match are planned."""
    from datetime import UTC, datetime

    write_topic(tmp_path, "t", [1] * 100, per_ledger=200)
    source = PushdownDataSource({"path": str(tmp_path), "topic": "t"})
    reader = source.reader(source.schema())
    filters = [GreaterThanOrEqual(("__publishTime",), datetime.fromtimestamp(1000.098, UTC))]
    assert list(reader.pushFilters(filters)) == filters
    (part,) = pickle.loads(pickle.dumps(reader)).partitions()
    assert [(piece.first_entry, piece.end_entry) for piece in part.value] == [(98, 100)]


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("kind", ["trimmed", "damaged"])
def test_losses_after_planning(tmp_path, caplog, fail, kind):
    """What is trimmed or damaged is an error with a stable code, or a gap and a warning."""
    log = write_topic(tmp_path, "t", [2] * 10)
    source = DefaultSource(
        {"path": str(tmp_path), "topic": "t", "failOnDataLoss": fail, "columns": "__sequenceId"}
    )
    reader = source.reader(source.schema())
    (part,) = reader.partitions()
    if kind == "trimmed":
        log.log_path(7).unlink()
    else:
        content = bytearray(log.log_path(7).read_bytes())
        content[log.written[1][3] + 60] ^= 1
        log.log_path(7).write_bytes(content)
    if fail == "true":
        with pytest.raises(DataLossError, match=r"\[EMBEDDEDPULSAR_DATA_LOSS\]"):
            list(reader.read(part))
    else:
        assert sum(batch.num_rows for batch in reader.read(part)) == (10 if kind == "trimmed" else 18)
        assert "EMBEDDEDPULSAR_DATA_LOSS" in caplog.text


def test_keys_of_encrypted_topics(tmp_path):
    """One file for all keys, or one for each name; what has no key is an error, or left out."""
    root = tmp_path / "store"
    files = {kind: key_files(tmp_path, kind) for kind in ("rsa", "ec")}
    with Client(root) as client:
        for kind, keys in files.items():
            with client.create_producer("t", encryption_key=kind, crypto_key_reader=keys) as producer:
                producer.send(kind.encode())
    options = {"path": str(root), "topic": "t", "columns": "value"}
    paths = {kind: keys.private_key_path for kind, keys in files.items()}

    def values(**more):
        return read(DefaultSource(options | more)).column(0).to_pylist()

    assert values(cryptoPrivateKeyPath=json.dumps(paths)) == [b"rsa", b"ec"]
    assert values(cryptoPrivateKeyPath=json.dumps({"rsa": paths["rsa"], "": paths["ec"]})) == [b"rsa", b"ec"]
    for given, text in (
        ({}, "give the private key.*cryptoPrivateKeyPath"),
        ({"cryptoPrivateKeyPath": paths["rsa"]}, "'ec'"),
        ({"cryptoPrivateKeyPath": json.dumps({"rsa": paths["rsa"]})}, "names no file for the key 'ec', only"),
        ({"cryptoPrivateKeyPath": "/absent"}, "could not be read.*'/absent'"),
    ):
        with pytest.raises(CryptoError, match=text):
            values(**given)
    assert values(cryptoPrivateKeyPath=paths["rsa"], cryptoFailureAction="discard") == [b"rsa"]
    assert values(cryptoFailureAction="DISCARD") == []


def test_offloaded_between_plan_and_read(tmp_path):
    """A task reads what it planned, from the table that is there now; or it says what it misses."""
    site = Site(tmp_path)
    site.publish(35)
    reader = DefaultSource({"path": str(site.root), "topic": TOPIC, "columns": "value"})
    reader = reader.reader(reader.schema())
    tasks = reader.partitions()
    assert site.offload() == ""

    def values():
        return [
            value for task in tasks for batch in reader.read(task) for value in batch.column(0).to_pylist()
        ]

    site.cold.rename(tmp_path / "away")
    with pytest.raises(ColdReadError, match=f"default/{TOPIC}.*{site.cold}"):
        values()
    (tmp_path / "away").rename(site.cold)
    assert values() == [b"%d" % number for number in range(35)]
    site.close()
