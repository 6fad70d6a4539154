"""``embeddedpulsar serve`` as a process: what it prints, which addresses it takes, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.error import HTTPError

import pytest

from embeddedpulsar import Client
from embeddedpulsar.testing import assert_clean

pytestmark = pytest.mark.skipif(find_spec("uvicorn") is None, reason="no uvicorn")

ANY_PORT = ("--http", "127.0.0.1:0")


def program(store: Path, *arguments: str) -> list[str]:
    """The command line."""
    return [sys.executable, "-m", "embeddedpulsar", "--store", str(store), "serve", *arguments]


@contextmanager
def serving(store: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its first line."""
    with subprocess.Popen(program(store, *arguments), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline()
        finally:
            process.kill()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """A store, which is whole at the end."""
    with Client(tmp_path / "store") as client:
        client.create_producer("orders").send(b"tea")
    yield tmp_path / "store"
    assert_clean(tmp_path / "store")


def get(url: str, token: str | None = None) -> tuple[int, str]:
    """The status and the text of an answer."""
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_from_its_begin_to_its_end(store: Path, number: int):
    """It prints the URL with the token, needs it, and ends with status 0 at a signal."""
    if signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip("the server goes on to ignore what is ignored here, as under nohup")
    with serving(store, *ANY_PORT) as (process, line):
        assert line.startswith(f"serving {store} at http://127.0.0.1:")
        base, _, token = line.split()[-1].partition("?token=")
        assert len(token) >= 32
        assert get(f"{base}healthz") == (200, '{"status":"ok"}')
        assert json.loads(get(f"{base}readyz")[1])["status"] == "ready"
        assert get(f"{base}nothing")[0] == 401
        assert get(f"{base}nothing", token)[0] == 404
        process.send_signal(number)
        assert process.wait(30) == 0
        assert process.stdout is not None
        assert process.stdout.read() == "served; all requests were answered\n"


def test_what_systemd_is_sent(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """That it is ready when it answers, and that it stops."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with serving(store, *ANY_PORT) as (process, line):
            assert receiver.recv(100) == b"READY=1"
            assert get(f"{line.split()[-1].partition('?')[0]}healthz")[0] == 200
            process.terminate()
            assert receiver.recv(100) == b"STOPPING=1"
            assert process.wait(30) == 0


def test_a_token_in_a_file(store: Path, tmp_path: Path):
    """It is made for its owner alone, used again, and not printed."""
    path = tmp_path / "token"
    for _ in range(2):
        with serving(store, *ANY_PORT, "--token-file", str(path)) as (process, line):
            token = path.read_text().strip()
            assert os.stat(path).st_mode & 0o777 == 0o600
            assert token not in line
            base = line.split("at ")[1].split()[0]
            assert get(f"{base}nothing", token)[0] == 404
            process.terminate()
            assert process.wait(30) == 0
    assert path.read_text().strip() == token


def test_two_servers_at_one_address(store: Path):
    """The second one says in one line that it cannot listen there."""
    with serving(store, *ANY_PORT) as (_, line):
        address = line.split("http://")[1].partition("/")[0]
        second = subprocess.run(
            program(store, "--http", address), capture_output=True, text=True, timeout=60, check=False
        )
    assert second.returncode == 1
    assert second.stderr == f"Error: cannot listen on {address}: Address already in use\n"
