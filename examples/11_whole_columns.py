"""Whole columns: a table goes into a topic in one call, and comes out as the same table.

`send_many` takes Python lists, `send_arrow` whatever is Arrow inside (pyarrow, Polars, pandas, DuckDB). A
consumer sees single messages, as ever; Spark and Arrow see columns again.
"""

from __future__ import annotations

import pyarrow as pa

import embeddedpulsar as pulsar
from embeddedpulsar.arrow import read_topic


def main() -> None:
    flights = pa.table(
        {
            "tail": ["N14228", "N24211", "N14228", None] * 25_000,
            "json": [b'{"carrier": "UA", "flight": %d}' % number for number in range(100_000)],
        }
    )
    with pulsar.Client("./data") as client:
        with client.create_producer("flights", compression_type=pulsar.CompressionType.LZ4) as producer:
            sent = producer.send_arrow(flights, value="json", key="tail")
            print(f"{len(sent):,} messages in {sent.entries()} entries")

            late = producer.send_many(
                [b'{"carrier": "B6", "flight": 725}', b'{"carrier": "B6", "flight": 79}'],
                partition_keys=["N804JB", "N593JB"],
            )

        # Ids are made when they are asked for, and are those that consumers see.
        with client.create_reader("flights", late[1], start_message_id_inclusive=True) as reader:
            message = reader.read_next(timeout_millis=1000)
            print(message.partition_key(), message.data().decode())

    table = read_topic("./data", "flights", ["value", "__key"])
    same = table.slice(0, 100_000)
    print("the same columns:", same["value"].to_pylist() == flights["json"].to_pylist())
    print("keys without one:", same["__key"].null_count)


if __name__ == "__main__":
    main()
