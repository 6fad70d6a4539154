"""``topic.meta``: the full name and identity of a topic, in its own directory."""

from __future__ import annotations

import os

from embeddedpulsar.exceptions import CorruptionError, ForeignFileError, UnsupportedFormatVersion
from embeddedpulsar.format.catalog_record import TopicEntry
from embeddedpulsar.format.document import KIND_TOPIC_META, decode_document, encode_document
from embeddedpulsar.platform import disk
from embeddedpulsar.storage import filenames


def write(directory: str, entry: TopicEntry, *, durable: bool) -> None:
    """Write the document of a topic whose directory is ``directory``."""
    fields = {"name": entry.name, "incarnation": entry.incarnation, "partitions": entry.partitions}
    path = filenames.topic_meta_path(directory)
    disk.DISK.atomic_write(path, encode_document(KIND_TOPIC_META, fields), durable)


def read(directory: str) -> TopicEntry | None:
    """The topic kept in ``directory``; None without a document.

    Raises:
        CorruptionError: the document is damaged, or incomplete.
        ForeignFileError, UnsupportedFormatVersion: as it says.
    """
    path = filenames.topic_meta_path(directory)
    try:
        data = disk.DISK.read_file(path)
    except FileNotFoundError:
        return None
    try:
        fields = decode_document(data, KIND_TOPIC_META)
        name, incarnation, partitions = (fields.get(key) for key in ("name", "incarnation", "partitions"))
        if not isinstance(name, str) or not isinstance(incarnation, int) or not isinstance(partitions, int):
            raise CorruptionError(reason="fields are missing")
    except (CorruptionError, ForeignFileError, UnsupportedFormatVersion) as e:
        raise e.at(path) from None
    return TopicEntry(name, os.path.basename(directory), incarnation, partitions)
