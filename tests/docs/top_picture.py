"""Makes the picture of `embeddedpulsar top` in the README: what a terminal gets during a real run.

python -m tests.docs.top_picture [FILE]    (default: docs/images/top.svg)
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import Final

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

PICTURE: Final = Path(__file__).resolve().parents[2] / "docs" / "images" / "top.svg"
_ROWS, _COLUMNS = 12, 132
_SECONDS: Final = 20
_INTERVAL_S: Final = 0.8

_WORKER: Final = """
import math, sys, time, embeddedpulsar as pulsar
topic, subscription, per_s = sys.argv[1], sys.argv[2], float(sys.argv[3])
client = pulsar.Client("./shop")
if subscription == "-":
    producer = client.create_producer(topic)
    print(flush=True)
    while True:
        producer.send(b'{"item": 17, "price": 4.20}', partition_key="table-7")
        time.sleep(1 / per_s / (1.1 + math.sin(time.time() / 1.5 + per_s)))
consumer = client.subscribe(topic, subscription, pulsar.ConsumerType.Shared)
print(flush=True)
while True:
    message = consumer.receive()
    if per_s:
        consumer.acknowledge(message)
        time.sleep(1 / per_s)
"""
_RUNNING: Final = (
    ("orders", "kitchen", 400.0), ("orders", "kitchen", 400.0), ("orders", "billing", 150.0),
    ("payments", "ledger", 900.0), ("emails", "mailer", 0.0), ("clicks", "-", 700.0),
    ("orders", "-", 300.0), ("payments", "-", 120.0), ("emails", "-", 40.0),
)  # fmt: skip
"""Topic, subscription (or - for a producer), and messages a second; 0 for a consumer that is stuck."""


def screen_of_top(directory: Path) -> str:
    """What `top` writes to a terminal while a shop is at work in a directory."""
    programs = {"clicks": "web.py", "emails": "mail.py", "orders": "orders.py", "payments": "pay.py"}
    workers = []
    try:
        for topic, subscription, per_s in _RUNNING:
            program = directory / programs[topic]
            program.write_text(_WORKER, "utf-8")
            command = [sys.executable, program.name, topic, subscription, str(per_s)]
            workers.append(subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE))
            started = workers[-1].stdout
            assert started is not None and started.readline()
        main, terminal = pty.openpty()
        termios.tcsetwinsize(terminal, (_ROWS, _COLUMNS))
        command = [sys.executable, "-m", "embeddedpulsar", "--store", "./shop", "top"]
        top = subprocess.Popen(
            [*command, "--interval", str(_INTERVAL_S)],
            cwd=directory, stdin=terminal, stdout=terminal, env={**os.environ, "TERM": "xterm-256color"},
        )  # fmt: skip
        os.close(terminal)
        shown = b""
        end = time.monotonic() + _SECONDS
        with contextlib.suppress(OSError):  # EIO: the program ended
            while part := os.read(main, 65536):
                shown += part
                if time.monotonic() > end:
                    os.write(main, b"q")
                    end += 3600
        os.close(main)
        assert top.wait() == 0
        # The last picture that was drawn whole: each begins at the upper left corner of the other screen.
        frames = shown.decode("utf-8").split("\x1b[?1049l")[0].split("\x1b[H")
        frame = [frame for frame in frames if "q quit" in frame][-1].split("\x1b[?")[0]
        return frame.replace("\r\n", "\n").replace(str(directory), "/srv")
    finally:
        for worker in workers:
            worker.terminate()
            worker.communicate()


def drawn(screen: str) -> str:
    """The picture: the screen as a terminal draws it, without fonts from elsewhere."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        console = Console(file=nowhere, record=True, width=_COLUMNS, force_terminal=True)
        console.print(Text.from_ansi("$ embeddedpulsar --store ./shop top\n" + screen.rstrip()))
    own = CONSOLE_SVG_FORMAT.replace("Fira Code, monospace", "DejaVu Sans Mono, Menlo, Consolas, monospace")
    plain = re.sub(r"@font-face \{\{.*?\}\}\s*", "", own, flags=re.DOTALL)
    return console.export_svg(title="embeddedpulsar top", code_format=plain, unique_id="top") + "\n"


def main() -> None:
    """Make the picture."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE
    with tempfile.TemporaryDirectory() as directory:
        screen = screen_of_top(Path(directory))
    target.parent.mkdir(exist_ok=True)
    target.write_text(drawn(screen), "utf-8")
    print(f"{target}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
