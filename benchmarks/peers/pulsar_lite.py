"""pulsar-lite: a broker in a wheel, started as a child, spoken to by pulsar-client."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

from benchmarks.contest import Unavailable
from benchmarks.jobs import PulsarJobs

LOG = Path("/tmp/pulsar-lite.log")
"""Where the package writes what its broker says."""


class PulsarLite(PulsarJobs):
    """`PulsarClient("./demo.db")`, a producer and a Shared consumer. Jobs are msgpack."""

    key = "pulsar-lite"
    name = "pulsar-lite"
    _client: Any = None
    _has_log = True

    def open(self, place: Path) -> None:
        import pulsar
        from pulsar_lite import PulsarClient

        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        self._has_log = LOG.exists()
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # it says on the terminal what it starts
                self._client = PulsarClient(str(place / "demo.db"), logger=quiet)
        except (OSError, RuntimeError, TimeoutError) as error:
            raise Unavailable(f"its broker does not start: {error}") from error
        self._producer = self._client.create_producer("jobs")
        self._consumer = self._client.subscribe("jobs", "workers", consumer_type=pulsar.ConsumerType.Shared)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.redirect_stdout(io.StringIO()):
                client.close()
            if not self._has_log:
                LOG.unlink(missing_ok=True)
