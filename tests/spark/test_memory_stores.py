"""Spark and a store in memory of the driver: its workers find the store by its name."""

from __future__ import annotations

from typing import Any

import pytest

from embeddedpulsar import Client, MessageId

pytestmark = pytest.mark.spark
URL = "memory://spark"


def test_rows_of_a_store_in_memory_and_into_it(spark: Any):
    """A batch read in several workers, and a batch write; the store is the one that the driver has open."""
    with Client(URL) as client:
        with client.create_producer("topic") as producer:
            for number in range(100):
                producer.send(b"%d" % number)
        reader = spark.read.format("embeddedpulsar").option("topic", "topic").option("minPartitions", "3")
        rows = reader.load(URL)
        assert sorted(int(bytes(row.value)) for row in rows.select("value").collect()) == list(range(100))
        write = rows.select("value").write.format("embeddedpulsar").option("topic", "copy")
        write.mode("append").save(URL)
        with client.create_reader("copy", MessageId.earliest) as copied:
            assert sorted(int(message.data()) for message in copied) == list(range(100))


def test_a_store_that_the_driver_has_not_open(spark: Any):
    """The error says so."""
    with pytest.raises(Exception, match=r"nor one that started it has memory://closed open"):
        spark.read.format("embeddedpulsar").option("topic", "topic").load("memory://closed").collect()
