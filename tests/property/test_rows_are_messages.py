"""Rows are messages: of topics that producers of every kind wrote to, tables have what a Reader gets."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")

from embeddedpulsar import Client, ConsumerCryptoFailureAction, CryptoKeyReader  # noqa: E402
from embeddedpulsar._engine.log.entry_range import split  # noqa: E402
from embeddedpulsar._engine.store.topic_lookup import plan_logs, topic_partitions  # noqa: E402
from embeddedpulsar.arrow import ALL_COLUMNS, read_topic, scan_topic  # noqa: E402
from embeddedpulsar.arrow.columns import record_batches  # noqa: E402
from embeddedpulsar.arrow.mapped_segment import (  # noqa: E402
    open_ahead,
    raise_damage,
    raise_gone,
)
from tests.support.key_files import key_files  # noqa: E402
from tests.support.mixed_topics import (  # noqa: E402
    TOPIC,
    MixedTopic,
    Row,
    make_store,
    rows_of_messages,
    rows_of_table,
)

DISCARD = ConsumerCryptoFailureAction.DISCARD


def cut_anywhere(root: Path, keys: CryptoKeyReader | None, choose: random.Random) -> list[Row]:
    """The topic in tasks as Spark makes them, each read by itself."""
    found: list[Row] = []
    for name in topic_partitions(str(root), TOPIC):
        most = choose.choice([1, 500, 3000, 20_000])
        for planned in [piece for whole in plan_logs(str(root), [name]) for piece in split(whole, most)]:
            opened = open_ahead([planned], keys, raise_gone)
            sizes = {"rows": choose.choice([1, 10, 1000]), "large": choose.choice([2, 1000])}
            for batch in record_batches(opened, ALL_COLUMNS, on_damage=raise_damage, **sizes):
                found += rows_of_table(pa.Table.from_batches([batch]))
    return found


def check(root: Path, seed: int) -> None:
    """Publish by a seed, and compare."""
    make_store(root)
    keys = key_files(root.parent) if seed % 2 else None
    options: dict[str, Any] = {"crypto_key_reader": keys}
    with Client(root) as client:
        topic = MixedTopic(client, seed, keys=keys, partitions=(0, 0, 3)[seed % 3])
        topic.run(15)
        wanted = rows_of_messages(client, topic.logs(), keys)
        in_the_clear = rows_of_messages(client, topic.logs(), None, DISCARD)
    assert rows_of_table(read_topic(root, TOPIC, **options)) == wanted
    assert rows_of_table(scan_topic(root, TOPIC, batch_rows=20, **options).read_all()) == wanted
    assert cut_anywhere(root, keys, random.Random(seed)) == wanted
    assert rows_of_table(read_topic(root, TOPIC, crypto_failure_action=DISCARD)) == in_the_clear
    for column in ALL_COLUMNS:  # each alone is what it is among all
        found = read_topic(root, TOPIC, [column], **options)
        assert found.equals(read_topic(root, TOPIC, **options).select([column]))


@pytest.mark.parametrize("seed", range(6))
def test_rows_are_messages(tmp_path: Path, seed: int):
    """Every column of every row, in order, however it is read and cut; nothing more and nothing less."""
    check(tmp_path / "store", seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6, 60))
def test_rows_are_messages_of_many_topics(tmp_path: Path, seed: int):
    """The same of more topics."""
    check(tmp_path / "store", seed)
