"""Starts and stops redis-server and nats-server over a temporary directory, on a free loopback port."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path

from benchmarks.contest import Unavailable

START_SECONDS = 10.0


class Server:
    """A server process that listens on `port` until `stop`."""

    def __init__(
        self, command: list[str], port: int, place: Path, patience_seconds: float = START_SECONDS
    ) -> None:
        self.port = port
        self._name = Path(command[0]).name
        self._log = (place / "server.log").open("wb")
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log, cwd=place)
        try:
            self._wait_listening(patience_seconds)
        except BaseException:
            self.stop()
            raise

    def _wait_listening(self, patience_seconds: float) -> None:
        deadline = time.monotonic() + patience_seconds
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise Unavailable(f"{self._name} ended with {self._process.returncode}: {self._last_words()}")
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)
        raise Unavailable(f"{self._name} did not listen within {patience_seconds:.0f} s")

    def _last_words(self) -> str:
        lines = Path(self._log.name).read_text(errors="replace").splitlines()
        spoken = [line for line in lines if line.strip() and not line.lstrip().startswith("at ")]
        return spoken[-1] if spoken else "it wrote no log"

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def stop(self) -> None:
        """Kill it: its files are thrown away with the directory."""
        self._process.kill()
        self._process.wait()
        self._log.close()


def redis(place: Path) -> Server:
    """Redis with its append-only file, written before every reply and flushed each second."""
    port = free_port()
    command = [_program("redis-server"), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(place)]
    command += ["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]
    return Server(command, port, place)


def nats(place: Path) -> Server:
    """NATS with JetStream on files; its own default flush is every two minutes."""
    port = free_port()
    settings = place / "nats.conf"
    settings.write_text(
        f'listen: "127.0.0.1:{port}"\nmax_payload: 8MB\njetstream {{ store_dir: "{place / "jetstream"}" }}\n'
    )
    return Server([_program("nats-server"), "-c", str(settings)], port, place)


def _program(name: str) -> str:
    # Debian puts nats-server into sbin, which is not on everybody's path.
    program = shutil.which(name) or shutil.which(name, path="/usr/local/sbin:/usr/sbin:/sbin")
    if program is None:
        raise Unavailable(f"{name} is not installed (benchmarks/peers/servers.sh)")
    return program


def free_port() -> int:
    """A port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
