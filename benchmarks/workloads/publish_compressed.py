"""Every codec on the same JSON documents: speed, and how many times smaller the log becomes."""

from __future__ import annotations

from benchmarks.contest import Contest, Settings, megabytes_per_second
from benchmarks.embedded import compressed

CODECS = ("LZ4", "NONE", "ZLib", "ZSTD", "SNAPPY")


def contests(settings: Settings) -> list[Contest]:
    """One table, in bytes of the documents; the ratio counts everything the log holds."""
    messages = settings.scale(100_000, 3000)
    name, documents = compressed.documents(messages)
    average = sum(map(len, documents)) / len(documents)
    return [
        Contest(
            f"publish_compressed: {messages:,} {name} as JSON of {average:.0f} bytes, batches of 1000",
            megabytes_per_second(int(average)),
            [compressed.SendBatched(codec, messages) for codec in CODECS],
            fixed=messages,
        )
    ]
