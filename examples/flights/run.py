"""A year of flights out of New York through one topic: published, audited, killed, averaged.

One process publishes 336,776 flights as JSON, keyed by tail number. Two others hold the subscriptions `audit`
and `delays` and acknowledge as they go; `audit` is killed half way and started again. Then four workers share
one Key_Shared subscription: one is killed, one comes late, and the flights of each aircraft are handled in
order. At last Spark computes the mean departure delay of each carrier from the files the topic lies in.

    python examples/flights/run.py [--directory out/flights] [--flights N] [--no-spark]
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import chart
import dataset
import spark_means
from crew import Crew
from display import Bar, Display
from handled import NO_TAIL
from ledger import Counter, Tally
from worker import CREW, DEPARTURES, TOPIC

import embeddedpulsar as pulsar

HERE = Path(__file__).resolve().parent
SUBSCRIPTIONS = ("audit", "delays")
LOOK_SECONDS = 0.05


class Demo:
    """The run: its processes, its figures, and the list of what was checked."""

    def __init__(self, directory: Path, display: Display) -> None:
        self._directory = directory
        self._display = display
        self._processes: list[subprocess.Popen[str]] = []
        self._failed = 0
        self.flights = 0
        self._tails: list[str] = []

    def prepare(self, most: int | None) -> tuple[dict[str, float], float]:
        """Read the flights once, for their number and the means to compare with: by carrier, and of all."""
        say = self._display.say
        say("reading the flights from the CSV ...")
        begun = time.monotonic()
        delays, left_late = dataset.Delays(), dataset.Delays()
        for flight in dataset.flights(most):
            self.flights += 1
            self._tails.append(str(flight["tailnum"] or NO_TAIL))
            delays.add(flight)
            left_late.add(flight | {"carrier": "all"})
        say(f"{self.flights:,} flights read in {time.monotonic() - begun:.1f} s")
        return delays.means(), left_late.means()["all"]

    def keep_everything(self) -> None:
        """Let the topic keep what both subscriptions have acknowledged: Spark reads all of it in the end."""
        store = self._directory / "store"
        store.mkdir(mode=0o700)
        (store / "broker.conf").write_text(
            "defaultRetentionTimeInMinutes=-1\ndefaultRetentionSizeInMB=-1\n", encoding="utf-8"
        )

    def run(self) -> dict[str, float]:
        """Publish and consume everything, with a kill in the middle; the means that `delays` met."""
        bars = [Bar(name, self.flights) for name in ("published", *SUBSCRIPTIONS)]
        tallies = {name: Tally(self._directory / name, self.flights) for name in SUBSCRIPTIONS}
        published = Counter(self._directory / "published")
        workers = {name: self._start(name) for name in SUBSCRIPTIONS}
        self._await_ready(workers)
        publisher = self._start("publish")
        killed_at = 0
        begun = time.monotonic()
        while any(bar.done < bar.total for bar in bars):
            time.sleep(LOOK_SECONDS)
            bars[0].advance(published.value)
            for bar, name in zip(bars[1:], SUBSCRIPTIONS, strict=True):
                bar.advance(tallies[name].seen())
            self._display.show(bars)
            if not killed_at and bars[1].done >= self.flights // 2:
                workers["audit"].send_signal(signal.SIGKILL)
                workers["audit"].wait()
                killed_at = tallies["audit"].seen()
                self._display.say(f"audit killed with SIGKILL after {killed_at:,} flights; starting it again")
                workers["audit"] = self._start("audit")
            self._check_alive([publisher, *workers.values()])
        seconds = time.monotonic() - begun
        self._display.settle()
        outputs = {name: worker.communicate(timeout=60)[0] for name, worker in workers.items()}
        publisher.wait(timeout=60)
        self._display.say(f"everything published, received and acknowledged twice in {seconds:.1f} s")
        for name in SUBSCRIPTIONS:
            seen, again = tallies[name].seen(), tallies[name].again()
            note = f", {again:,} of them twice, for want of an acknowledgement when it died" if again else ""
            self.check(seen == self.flights, f"{name} saw {seen:,} of {self.flights:,} flights{note}")
        self.check(tallies["delays"].again() == 0, "delays, which nobody killed, saw none twice")
        means: dict[str, float] = json.loads(outputs["delays"])
        return means

    def share(self) -> None:
        """Have workers handle every flight once more, aircraft by aircraft in order."""
        crew = Crew(self._directory, self._tails, self._display)
        crew.run(self._start, self._check_alive)
        for passed, text in crew.verdicts():
            self.check(passed, text)

    def check_nothing_left(self) -> None:
        """The subscriptions must have nothing more to give: every acknowledgement counted."""
        client = pulsar.Client(self._directory / "store")
        for topic, name in (*((TOPIC, name) for name in SUBSCRIPTIONS), (DEPARTURES, CREW)):
            consumer = client.subscribe(topic, name)
            try:
                consumer.receive(timeout_millis=300)
            except pulsar.Timeout:
                left = False
            else:
                left = True
            self.check(not left, f"{name} has nothing left to receive")
        client.close()

    def spark(self, expected: dict[str, float]) -> dict[str, float] | None:
        """The means by Spark, compared with those from the CSV; None where it cannot run."""
        try:
            spark_means.check()
        except spark_means.SparkMissing as missing:
            self._display.say(f"Spark is left out: {missing}")
            return None
        self._display.say("Spark reads the topic (it takes some seconds to start) ...")
        begun = time.monotonic()
        bar = Bar("spark", self.flights)

        def advance(rows: int) -> None:
            bar.advance(rows)
            self._display.show([bar])

        places = (
            self._directory / "store",
            TOPIC,
            self._directory / "checkpoint",
            self._directory / "spark.log",
        )
        means, messages = spark_means.means(*places, advance)
        bar.advance(messages)
        self._display.show([bar])
        self._display.settle()
        self._display.say(f"Spark has read {messages:,} messages after {time.monotonic() - begun:.1f} s")
        self.check(messages == self.flights, f"Spark counts {messages:,} flights")
        self.check(same(means, expected), f"the {len(means)} means of Spark are those of the CSV")
        return means

    def check(self, passed: bool, text: str) -> None:
        """Note the outcome of one check."""
        self._failed += not passed
        self._display.say(f"  {'ok    ' if passed else 'FAILED'}  {text}")

    @property
    def failed(self) -> int:
        """Checks that failed."""
        return self._failed

    def stop(self) -> None:
        """Kill whatever of this run is still alive."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def _start(self, role: str, *more: int) -> subprocess.Popen[str]:
        command = [sys.executable, str(HERE / "worker.py"), role, str(self._directory), str(self.flights)]
        command += map(str, more)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._processes.append(process)
        return process

    def _await_ready(self, workers: dict[str, subprocess.Popen[str]]) -> None:
        # A subscription begins where it is told to; both exist before the first flight only to look tidy.
        while not all((self._directory / f"{name}.ready").exists() for name in workers):
            self._check_alive(list(workers.values()))
            time.sleep(LOOK_SECONDS)

    def _check_alive(self, processes: list[subprocess.Popen[str]]) -> None:
        for process in processes:
            if process.poll() not in (None, 0):
                self._display.settle()
                raise SystemExit(f"a process of the demo ended with {process.returncode}: {process.args}")


def same(found: dict[str, float], expected: dict[str, float]) -> bool:
    """Whether two sets of means agree, but for the rounding of sums in another order."""
    return found.keys() == expected.keys() and all(
        math.isclose(found[carrier], expected[carrier], rel_tol=1e-9) for carrier in expected
    )


def main() -> int:
    """Run the demo; 1 when a check failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", type=Path, default=Path("out/flights"), help="where everything is put")
    parser.add_argument("--flights", type=int, metavar="N", help="only the first N flights")
    parser.add_argument("--no-spark", action="store_true", help="leave Spark out")
    asked = parser.parse_args()
    directory: Path = asked.directory
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    display = Display()
    demo = Demo(directory, display)
    begun = time.monotonic()
    try:
        expected, overall = demo.prepare(asked.flights)
        demo.keep_everything()
        streamed = demo.run()
        demo.check(same(streamed, expected), f"the {len(streamed)} means of delays are those of the CSV")
        demo.share()
        demo.check_nothing_left()
        means = None if asked.no_spark else demo.spark(expected)
    finally:
        demo.stop()
    source = f"{demo.flights:,} messages in one topic, averaged by "
    source += "Spark from its segments" if means else "a subscription as they came"
    picture = directory / "delays.png"
    try:
        chart.draw(means or streamed, dataset.airlines(), overall, source, picture)
    except ImportError:
        display.say("no chart: pip install matplotlib")
    else:
        display.say(f"chart: {picture}")
    size = sum(file.stat().st_blocks * 512 for file in (directory / "store").rglob("*") if file.is_file())
    display.say(
        f"store: {directory / 'store'}, {size / 1e6:.0f} MB; the topics are {TOPIC!r} and {DEPARTURES!r}"
    )
    verdict = "every check passed" if not demo.failed else f"{demo.failed} checks FAILED"
    display.say(f"{verdict} in {time.monotonic() - begun:.0f} s")
    return 1 if demo.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
