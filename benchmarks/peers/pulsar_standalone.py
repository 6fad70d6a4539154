"""Starts and stops a standalone Pulsar broker over a temporary directory, on free loopback ports."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

from benchmarks.contest import Unavailable
from benchmarks.peers.servers import Server, free_port

JARS = Path(os.environ.get("PULSAR_JARS", Path(__file__).resolve().parent / "jars"))
OPENED = ("java.lang", "java.nio", "sun.net", "jdk.internal.misc", "jdk.internal.platform")
START_SECONDS = 60.0

AS_SHIPPED = """\
clusterName=standalone
advertisedAddress=127.0.0.1
bindAddress=127.0.0.1
allowLoopback=true
managedLedgerDefaultEnsembleSize=1
managedLedgerDefaultWriteQuorum=1
managedLedgerDefaultAckQuorum=1
diskUsageThreshold=0.99
diskUsageWarnThreshold=0.99
diskUsageLwmThreshold=0.98
"""
TUNED = """\
journalSyncData=false
journalMaxGroupWaitMSec=0
journalAdaptiveGroupWrites=false
"""


def quiet_client(url: str) -> Any:
    """A client of pulsar-client that writes no log."""
    import pulsar

    return pulsar.Client(
        url, operation_timeout_seconds=5, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
    )


class Broker:
    """A standalone broker that takes messages at `url` until `stop`.

    Args:
        place: directory for its data.
        is_tuned: leave out the flush of its journal, and the waits that gather messages for one flush.
        settings: lines of standalone.conf besides.
    """

    def __init__(self, place: Path, *, is_tuned: bool, settings: str = "") -> None:
        java = shutil.which("java")
        if java is None or not any(JARS.glob("pulsar-broker-*.jar")):
            raise Unavailable("the jars of Pulsar are not here (benchmarks/peers/pulsar.sh)")
        port, web = free_port(), free_port()
        configuration = place / "standalone.conf"
        ports = f"brokerServicePort={port}\nwebServicePort={web}\n"
        configuration.write_text(AS_SHIPPED + ports + (TUNED if is_tuned else "") + settings)
        command = [java, "-Xmx1g", "-XX:MaxDirectMemorySize=1g", "-Dio.netty.tryReflectionSetAccessible=true"]
        for package in OPENED:
            command += ["--add-opens", f"java.base/{package}=ALL-UNNAMED"]
        command += ["-cp", f"{JARS}/*", "org.apache.pulsar.PulsarStandaloneStarter", "-c", str(configuration)]
        command += ["--no-functions-worker", "-nss", "-a", "127.0.0.1", "--bookkeeper-port", str(free_port())]
        command += ["--metadata-dir", str(place / "metadata"), "--bookkeeper-dir", str(place / "bookkeeper")]
        self.url = f"pulsar://127.0.0.1:{port}"
        self._server = Server(command, port, place, START_SECONDS)
        try:
            self._wait_ready()
        except BaseException:
            self.stop()
            raise

    def _wait_ready(self) -> None:
        """Return when a message was stored: the port is open some seconds before the namespaces exist."""
        import pulsar

        deadline = time.monotonic() + START_SECONDS
        client = quiet_client(self.url)
        try:
            while True:
                try:
                    client.create_producer("is-ready").send(b"")
                    return
                except pulsar.PulsarException as error:
                    if time.monotonic() > deadline:
                        raise Unavailable(f"the broker did not become ready: {error}") from None
                    time.sleep(0.5)
        finally:
            client.close()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._server.pid

    def stop(self) -> None:
        """Kill it: its files are thrown away with the directory."""
        self._server.stop()
