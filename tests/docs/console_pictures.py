"""Makes the pictures of the console in the README and its page: a browser looks at a store under a real load.

python -m tests.docs.console_pictures [DIRECTORY] [SECONDS]    (default: docs/images, 90)

The pages show the overview in the light theme, the topic in the dark; another directory gets both in both.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from playwright.sync_api import sync_playwright

from embeddedpulsar import Admin, Client, ConsumerType, MessageId
from embeddedpulsar.policy_values import OffloadPolicies
from tests.multiprocess.test_console_browser import CHROMIUM, FULL, THEMES, TOKEN, served

PICTURES: Final = Path(__file__).resolve().parents[2] / "docs" / "images"
_SECONDS: Final = 90.0
_PAUSE: Final = threading.Event()  # nobody sets it
_SIZE: Final = {"width": 1280, "height": 800}


def _reading(number: int) -> bytes:
    """A payload of some 800 bytes, which compresses as little as those of sensors."""
    values = [round(20 + math.sin(number / 40 + at) * 7, 2) for at in range(90)]
    return json.dumps({"sensor": number % 24, "values": values}).encode()


def telemetry(root: str, client: Client, admin: Admin, cold: str) -> None:
    """A topic with segments of each state, and two subscriptions that nobody reads."""
    topics = admin.topics()
    for name in ("billing", "dashboard"):
        topics.create_subscription("telemetry", name, MessageId.earliest)
    topics.set_retention("telemetry", -1, -1)
    topics.set_offload_policies("telemetry", OffloadPolicies(cold, 1 << 30))
    with client.create_producer("telemetry", batching_enabled=False) as producer:
        number = 0
        for part, count in enumerate((300, 260, 420, 350, 500, 280, 450, 240, 330)):
            for _ in range(count):
                producer.send_async(_reading(number), None, partition_key=f"sensor-{number % 24}")
                number += 1
            producer.flush()
            if part < 8:
                topics.roll_ledger("telemetry")
            if part == 2:
                topics.offload("telemetry", 0)
                while topics.offload_status("telemetry").status == "RUNNING":
                    _PAUSE.wait(0.05)
            if part == 4:
                topics.compact("telemetry")
                while topics.compaction_status("telemetry").status == "RUNNING":
                    _PAUSE.wait(0.05)
    for name, count in (("billing", 1000), ("dashboard", 1500)):
        topics.skip_messages("telemetry", name, count)


class Load:
    """Producers and consumers of a shop, on threads, with rates that rise and sink."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def produce(self, topic: str, per_s: float, phase: float) -> None:
        """Publish at a rate that changes."""
        producer = self._client.create_producer(topic)

        def run() -> None:
            number = 0
            while not self._stop.is_set():
                share = 1.2 + math.sin(time.monotonic() / 6 + phase)
                for _ in range(max(1, round(per_s * share / 10))):
                    number += 1
                    producer.send_async(_reading(number), None, partition_key=f"table-{number % 9}")
                producer.flush()
                self._stop.wait(0.1)

        self._begin(run)

    def consume(self, topic: str, subscription: str) -> None:
        """Acknowledge what comes."""
        consumer = self._client.subscribe(topic, subscription, ConsumerType.Shared)

        def run() -> None:
            while not self._stop.is_set():
                message = consumer.receive_nowait()
                if message is None:
                    self._stop.wait(0.02)
                else:
                    consumer.acknowledge(message)

        self._begin(run)

    def _begin(self, run: Any) -> None:
        thread = threading.Thread(target=run)
        thread.start()
        self._threads.append(thread)

    def end(self) -> None:
        """Stop all threads."""
        self._stop.set()
        for thread in self._threads:
            thread.join()


def main(directory: str = str(PICTURES), seconds: str = str(_SECONDS)) -> None:
    """Make the store, the load and the pictures."""
    with tempfile.TemporaryDirectory() as scratch:
        root = f"{scratch}/shop"
        with Client(root) as client, Admin(root) as admin:
            for number in range(230):
                admin.topics().create_non_partitioned_topic(f"archive-{number}")
                with client.create_producer(f"archive-{number}") as producer:
                    producer.send(b"{}")
            admin.topics().create_partitioned_topic("journeys", 4)
            telemetry(root, client, admin, f"{scratch}/cold")
            for topic, name in (("orders", "invoices"), ("payments", "ledger")):
                admin.topics().create_subscription(topic, name, MessageId.earliest)
            load = Load(client)
            try:
                for number, (topic, per_s) in enumerate(
                    (("orders", 120.0), ("payments", 40.0), ("journeys", 80.0), ("stock", 30.0))
                ):
                    load.produce(topic, per_s, number / 2)
                    load.consume(topic, "kitchen" if topic == "orders" else "board")
                stuck = client.subscribe("payments", "ledger", ConsumerType.Shared, consumer_name="ledger-1")
                held = [stuck.receive(5000) for _ in range(5)]
                _take(root, Path(directory), float(seconds))
                stuck.acknowledge(held[0])
            finally:
                load.end()


def _take(root: str, directory: Path, seconds: float) -> None:
    with served(root, allow_changes=True) as url, sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        pages = {}
        for theme in THEMES:
            page = browser.new_context(viewport=_SIZE, color_scheme=theme).new_page()
            page.goto(f"{url}?token={TOKEN}")
            pages[theme] = page
        page.wait_for_timeout(seconds * 1000)  # the charts have what happened while a page is open
        for screen, place, text in (
            ("overview", "#/overview", "Busiest topics"),
            ("topic", f"#/topic/{quote(FULL + 'telemetry', safe='')}", "who holds it"),
        ):
            for theme, page in pages.items():
                page.evaluate("place => { location.hash = place }", place)
                page.wait_for_function("text => document.body.innerText.includes(text)", arg=text)
                page.wait_for_timeout(2000)
                shown = {"overview": "light", "topic": "dark"}[screen] == theme
                if shown or directory != PICTURES:
                    page.screenshot(path=directory / f"console-{screen}{'' if shown else f'-{theme}'}.png")
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
