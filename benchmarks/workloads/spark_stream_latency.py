"""How long a micro-batch of a streaming query takes, beside one of Spark's own rate source."""

from __future__ import annotations

from benchmarks.contest import MILLISECONDS, Budget, Contest, Settings
from benchmarks.embedded import spark
from benchmarks.peers import rate_source

ROWS = 1000


def contests(settings: Settings) -> list[Contest]:
    """One table; the figure is the median of the batches of a round."""
    ours = spark.Trigger(ROWS)
    return [
        Contest(
            f"spark_stream_latency: micro-batch of {ROWS:,} messages, no sink",
            MILLISECONDS,
            [ours, rate_source.Trigger(ROWS)],
            [Budget("p50 <= 1.3 x the rate source", ours.key, 1.3, peer="rate", at_least=False)],
            fixed=settings.scale(30, 2),
        )
    ]
