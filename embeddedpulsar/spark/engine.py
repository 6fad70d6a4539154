"""What reads and writes of Spark know of the engine; but for `sink_place`, no other module imports from it.

A read plans ranges of entries from files, without a lock and without opening the store, and keeps what it is
about to read from being trimmed; `embeddedpulsar.arrow` reads the ranges. A write lays out entries within the
limits of their topics and stages them. Its commit publishes them by producers of a client, and asks which
life of a topic it finds.
"""

from __future__ import annotations

# Tables of offloaded ledgers, which Spark reads itself.
from embeddedpulsar._engine.cold.fetching import message_tables

# Rows as they are staged, and entries of one message.
from embeddedpulsar._engine.format.columns import record_head, staged_records
from embeddedpulsar._engine.format.entry import (
    EncodedEntry,
    EntryContent,
    ProducerPrefix,
    encode,
    encode_columns,
)
from embeddedpulsar._engine.format.entry_decoder import METADATA
from embeddedpulsar._engine.format.frame import CODEC_ENCRYPTED, FLAG_ENCRYPTED

# Ranges of entries, and the pins that keep them.
from embeddedpulsar._engine.log.entry_range import (
    Bounds,
    EntryRange,
    first_publish_ms,
    head,
    messages_in,
    part_of,
    plan_segments,
    split,
)
from embeddedpulsar._engine.log.segment_snapshot import (
    LogTransactions,
    SegmentInfo,
    committed_segments,
    is_trimmed_behind,
    topic_incarnation,
)
from embeddedpulsar._engine.log.trimming import pin_for_plan, pin_for_reading

# The steps of a commit, and the clock, by which data keys are exchanged.
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.platform.mapped_file import HeldFile
from embeddedpulsar._engine.platform.timing import CLOCK

# Topics, found without opening the store.
from embeddedpulsar._engine.store.store_root import root_of
from embeddedpulsar._engine.store.topic_lookup import (
    entry_limits,
    incarnation_in,
    listed_logs,
    listed_segments,
    partition_count,
    topic_directory,
    topic_partitions,
    topics_in,
    transaction_fates,
)
