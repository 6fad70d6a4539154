"""What reads and writes of whole columns know of the engine; no other module of the package imports from it.

They read what is committed, which never changes, from files: beside the processes that use the store, without
a lock, and without the right to write. They write through a producer alone. So they know where topics lie and
which ranges of entries they have; what a range lies in, its segment or the table that stands for it; the
bytes of an entry, since columns are cut out of the map and laid into entries without a step per message; and
how the definition of a schema reads.
"""

from __future__ import annotations

# The table that stands for an offloaded ledger.
from embeddedpulsar._engine.cold.fetching import MessageTable, message_table
from embeddedpulsar._engine.filenames import parse_ledger

# How a definition reads, and the bytes of an entry.
from embeddedpulsar._engine.format.avro_definition import (
    ABSENT,
    DefinitionField,
    DefinitionNode,
    check_levels,
    json_of,
    parsed,
    why_unreadable,
)
from embeddedpulsar._engine.format.columns import OPTIONAL, PADDING, ColumnSlices, Slice, locate
from embeddedpulsar._engine.format.document import pack_map, unpack_text_map
from embeddedpulsar._engine.format.entry import EncodedEntry, ProducerPrefix, encode_columns, sticky_key_hash
from embeddedpulsar._engine.format.entry_decoder import (
    FIELD_KEYS,
    METADATA,
    EntryView,
    RawPosition,
    SealedView,
    decode,
    decompressed_columns,
    sealed_view,
)
from embeddedpulsar._engine.format.frame import (
    CODEC_ENCRYPTED,
    CODEC_NONE,
    COLUMN_FLAGS,
    FLAG_BATCHED,
    FLAG_CHUNK,
    FLAG_ENCRYPTED,
    FLAG_EVENT_TIMES,
    FLAG_KEY_ABSENT,
    FLAG_KEY_BYTES,
    FLAG_KEYS,
    FLAG_NULL_VALUES,
    FLAG_ORDERING_KEY_ABSENT,
    FLAG_ORDERING_KEYS,
    FLAG_PROPERTIES,
    FLAG_SEQUENCE_IDS,
    FLAG_TXN,
    HEADER,
    HEADER_SIZE,
    KIND_ENTRY,
    MAGIC,
    METADATA_SIZE,
    MIN_FRAME_SIZE,
    SLOT_SIZE,
    TRAILER_SIZE,
    FrameHeader,
)
from embeddedpulsar._engine.format.sealed_entry import opened_columns

# Ranges of entries, and what they lie in.
from embeddedpulsar._engine.log.entry_range import Bounds, EntryLookup, EntryRange, part_of, resumed, split
from embeddedpulsar._engine.log.log_positions import ChunkReader
from embeddedpulsar._engine.log.log_view import SegmentParts
from embeddedpulsar._engine.log.segment import Segment

# Damage goes into the log of the package; maps ahead are bounded by the descriptors there may be.
from embeddedpulsar._engine.platform import descriptors, package_log

# Topics, found without opening the store.
from embeddedpulsar._engine.store.schema_registry import NO_VERSION, SchemaDocument
from embeddedpulsar._engine.store.store_root import directory_of, root_of
from embeddedpulsar._engine.store.topic_lookup import plan_logs, schemas_of, topic_partitions
