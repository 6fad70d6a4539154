"""What it costs to spread messages over partitions: the same work on a plain topic, in the same run."""

from __future__ import annotations

from benchmarks.contest import MESSAGES_PER_SECOND, Budget, Contest, Settings
from benchmarks.embedded import partitions, publish


def contests(settings: Settings) -> list[Contest]:
    """Three tables: batches in turn, batches by key, one message after the other."""
    size, count = settings.message_size, partitions.PARTITIONS
    batched, keyed, singly = (
        partitions.SendAsync(size),
        partitions.SendAsyncByKey(size),
        partitions.Send(size),
    )
    plain, plain_keyed, plain_singly = (
        publish.SendAsync(size),
        partitions.SendAsyncKeyed(size),
        publish.Send(size),
    )
    plain.name = plain_singly.name = "plain topic"
    title = f"messages of {size} bytes to {count} partitions"
    return [
        Contest(
            f"publish_partitioned: {title}, send_async, batched",
            MESSAGES_PER_SECOND,
            [batched, plain],
            [Budget(">= 0.85 x a plain topic", batched.key, 0.85, peer=plain.key)],
        ),
        Contest(
            f"publish_partitioned: {title} by key, send_async, batched",
            MESSAGES_PER_SECOND,
            [keyed, plain_keyed],
            [Budget(">= 0.7 x a plain topic", keyed.key, 0.7, peer=plain_keyed.key)],
        ),
        Contest(
            f"publish_partitioned: {title}, send, one at a time",
            MESSAGES_PER_SECOND,
            [singly, plain_singly],
            [Budget(">= 0.85 x a plain topic", singly.key, 0.85, peer=plain_singly.key)],
        ),
    ]
