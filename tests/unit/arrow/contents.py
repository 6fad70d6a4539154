"""Entries of every shape for the tests of whole-column reads, and what a reader must make of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from embeddedpulsar._engine.format.columns import EntryFields
from embeddedpulsar._engine.format.entry import EntryContent, EntryView, ProducerPrefix
from embeddedpulsar.message_id import make
from embeddedpulsar.topic_name import TopicName

PRODUCERS = (ProducerPrefix("producer-1"), ProducerPrefix("π", epoch=2))
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

keys = st.none() | st.text(max_size=4) | st.binary(max_size=4)
property_maps = st.none() | st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2)


@st.composite
def contents(draw: Any, most: int = 6) -> EntryContent:
    """The content of one entry: any columns, batched or not."""
    batched = draw(st.booleans())
    count = draw(st.integers(1, most)) if batched else 1

    def column(items: Any) -> Any:
        return draw(st.none() | st.lists(items, min_size=count, max_size=count))

    values = draw(st.lists(st.binary(max_size=20), min_size=count, max_size=count))
    own_keys, null_keys = column(keys), column(st.booleans())
    if null_keys is not None and own_keys is not None:
        null_keys = [null and key is None for null, key in zip(null_keys, own_keys, strict=True)]
    nulls = column(st.booleans())
    if nulls is not None:
        values = [b"" if null else value for value, null in zip(values, nulls, strict=True)]
    return EntryContent(
        values,
        draw(st.integers(0, 1 << 40)),
        batched,
        keys=own_keys,
        null_keys=null_keys,
        fields=draw(st.none() | st.just(EntryFields(5, "east", ("west",), 7))),
        ordering_keys=column(keys),
        properties=column(property_maps),
        event_times=column(st.sampled_from([0, 1, 1_700_000_000_123])),
        sequence_ids=column(st.integers(0, 1 << 40)),
        deliver_at=column(st.sampled_from([0, 5])),
        null_values=nulls,
    )


def rows_of(view: EntryView, name: TopicName) -> list[dict[str, Any]]:
    """What an entry must look like as rows, by the decoder that consumers use."""
    keys, ordering, events = view.keys(), view.ordering_keys(), view.event_times()
    return [
        {
            "value": None if view.null(i) else view.value(i),
            "__key": _encoded(keys, i),
            "__topic": name.full,
            "__messageId": make(
                view.ledger_id,
                view.entry_id,
                i if view.batched else -1,
                name.partition,
                view.count if view.batched else 0,
            ).serialize(),
            "__publishTime": EPOCH + timedelta(milliseconds=view.publish_time),
            "__eventTime": EPOCH + timedelta(milliseconds=events[i]) if events and events[i] else None,
            "__messageProperties": sorted(view.properties(i).items()),
            "__partition": name.partition,
            "__orderingKey": _encoded(ordering, i),
            "__sequenceId": view.sequence_ids()[i],
            "__producerName": view.producer_name,
        }
        for i in range(view.count)
    ]


def plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a table with the order of the properties taken out of them."""
    for row in rows:
        if "__messageProperties" in row:
            row["__messageProperties"] = sorted(row["__messageProperties"])
    return rows


def _encoded(texts: list[str | None] | None, i: int) -> bytes | None:
    text = None if texts is None else texts[i]
    return None if text is None else text.encode()
