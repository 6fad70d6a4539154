"""``embeddedpulsar perf``: how fast producers, consumers, readers and transactions are in a store, with the
options and figures of pulsar-perf.

A load runs on threads, each with producers, consumers or readers of its own. The thread of the command prints
a line for each interval, and the figures of the whole run at its end.
"""

from __future__ import annotations

import math
import random
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import click

from embeddedpulsar.cli.base import (
    ArgumentPath,
    OpenedStore,
    as_json,
    cluster_client,
    pass_store,
    print_json,
    topic_argument,
)
from embeddedpulsar.cli.engine import SYSTEM_CLOCK, Event, late_imports, on_termination, perf_counter, threads
from embeddedpulsar.enums import CompressionType, ConsumerType, InitialPosition, ProducerAccessMode
from embeddedpulsar.exceptions import Timeout
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.results import Result
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from embeddedpulsar.client.client import Client
    from embeddedpulsar.message import Message

_QUANTILES: Final = (50.0, 95.0, 99.0, 99.9, 99.99)
_LABELS: Final = ("med", "95pct", "99pct", "99.9pct", "99.99pct")
_DIGITS: Final = 11  # bits of a latency that are kept: three significant digits
_RECEIVE_MS: Final = 100
_LOOK_S: Final = 0.1
_INTERRUPTED: Final = 130
_TYPES: Final = {kind.name.replace("KeyShared", "Key_Shared"): kind for kind in ConsumerType}
_POSITIONS: Final = {position.name: position for position in InitialPosition}
_PIP_LINE: Final = 'pip install "embeddedpulsar[perf]"'


def _rounded(microseconds: int) -> int:
    surplus = microseconds.bit_length() - _DIGITS
    return microseconds if surplus <= 0 else microseconds >> surplus << surplus


class LatencyHistogram:
    """How often each latency occurred, in microseconds with three significant digits.

    Its size is that of the distinct values, so a run may last for days. For one thread.

    Example:
        >>> histogram = LatencyHistogram()
        >>> histogram.record([1000, 2000, 3000, 1_000_123])
        >>> histogram.quantile_ms(50), histogram.quantile_ms(99), histogram.mean_ms
        (2.0, 1000.123, 251.531)
    """

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self._largest = 0
        self._total = 0

    def record(self, latencies: Iterable[int]) -> None:
        """Add latencies in microseconds."""
        latencies = list(latencies)
        self._largest = max(self._largest, max(latencies, default=0))
        self._total += sum(latencies)
        self.counts.update(map(_rounded, latencies))

    def merge(self, other: LatencyHistogram) -> None:
        """Add those of another histogram."""
        self.counts.update(other.counts)
        self._largest = max(self._largest, other._largest)
        self._total += other._total

    @property
    def mean_ms(self) -> float:
        """The mean in milliseconds; 0.0 if nothing was recorded."""
        return round(self._total / 1000 / max(1, self.counts.total()), 3)

    @property
    def largest_ms(self) -> float:
        """The largest, in milliseconds, with all digits."""
        return self._largest / 1000

    def quantile_ms(self, percent: float) -> float:
        """The latency in milliseconds that so many percent do not exceed; 0.0 if nothing was recorded."""
        rank = math.ceil(self.counts.total() * percent / 100)
        reached = 0
        for latency in sorted(self.counts):
            reached += self.counts[latency]
            if reached >= rank:
                # The largest value has its digits in `largest_ms`: both are the same where one is the other.
                return self.largest_ms if reached == self.counts.total() else latency / 1000
        return 0.0

    def text(self) -> str:
        """The figures in a line, as pulsar-perf orders them; that there are none if nothing was recorded."""
        if not self.counts:
            return "Latency: none recorded"
        quantiles = [
            f"{label}: {self.quantile_ms(percent):,.3f}"
            for label, percent in zip(_LABELS, _QUANTILES, strict=True)
        ]
        parts = [f"mean: {self.mean_ms:,.3f} ms", *quantiles, f"Max: {self.largest_ms:,.3f}"]
        return f"Latency: {' - '.join(parts)}"

    def json(self) -> dict[str, float]:
        """The figures, in milliseconds."""
        quantiles = {f"p{percent:g}": self.quantile_ms(percent) for percent in (*_QUANTILES, 99.999)}
        return {"mean": self.mean_ms, **quantiles, "max": self.largest_ms}


class Meter:
    """What a load has done since it was last asked: any thread reports, the thread of the command asks.

    Attributes:
        stop: set when the load shall end.
        errors: of sends and transactions that failed.
    """

    def __init__(self) -> None:
        self.stop: Final = Event()
        self.errors: Final[deque[object]] = deque(maxlen=1)
        # A deque takes and gives from two threads without a lock. Counters would lose what two threads add.
        self._done: Final[deque[tuple[int, float]]] = deque()
        self._failures: Final[deque[object]] = deque()

    def done(self, payload: int, latency_s: float) -> None:
        """A message of so many bytes took so long; a negative latency is not recorded."""
        self._done.append((payload, latency_s))

    def failed(self, error: object) -> None:
        """A send or a transaction failed."""
        self.errors.append(error)
        self._failures.append(error)

    def drain(self) -> Figures:
        """What was reported since the last call."""
        reported = [self._done.popleft() for _ in range(len(self._done))]
        failures = [self._failures.popleft() for _ in range(len(self._failures))]
        figures = Figures(len(reported), sum(payload for payload, _ in reported), len(failures))
        figures.latencies.record(int(latency * 1e6) for _, latency in reported if latency >= 0)
        return figures


class Figures:
    """Figures of an interval or of the whole run."""

    def __init__(self, messages: int = 0, payload: int = 0, failures: int = 0) -> None:
        self.messages = messages
        self.payload = payload
        self.failures = failures
        self.latencies: Final = LatencyHistogram()

    def add(self, other: Figures) -> None:
        """Add those of a shorter interval."""
        self.messages += other.messages
        self.payload += other.payload
        self.failures += other.failures
        self.latencies.merge(other.latencies)

    def rates(self, seconds: float) -> tuple[float, float]:
        """Messages, and megabits of payload, a second."""
        seconds = max(seconds, 1e-9)
        return self.messages / seconds, self.payload * 8 / 1e6 / seconds


class LoadPrinter:
    """Prints the figures of a load: a line or a JSON object for each interval, and for the whole.

    Args:
        verb: what is done with a message, such as ``produced``.
        noun: what is counted.
        is_json: as JSON objects, one a line.
        histogram_path: where an HdrHistogram log is written; None for nowhere.
    """

    def __init__(self, verb: str, noun: str, is_json: bool, histogram_path: str | None) -> None:
        self._verb = verb
        self._noun = noun
        self._is_json = is_json
        self._log = None if histogram_path is None else HistogramLog(histogram_path)

    def interval(self, figures: Figures, begun: float, ended: float, since_ms: int) -> None:
        """Print those of an interval between two times of the clock ``perf_counter``."""
        self._print("interval", f"Throughput {self._verb}", figures, ended - begun)
        if self._log is not None:
            self._log.write(figures.latencies, since_ms)

    def aggregate(self, figures: Figures, seconds: float) -> None:
        """Print those of the whole run."""
        if self._log is not None:
            self._log.close()
        self._print("aggregate", f"Aggregated throughput {self._verb}", figures, seconds)

    def _print(self, kind: str, title: str, figures: Figures, seconds: float) -> None:
        rate, megabits = figures.rates(seconds)
        if self._is_json:
            print_json(
                {
                    "kind": kind,
                    "seconds": round(seconds, 3),
                    "messages": figures.messages,
                    "failures": figures.failures,
                    "msgRate": round(rate, 1),
                    "mbitRate": round(megabits, 3),
                    "latencyMs": figures.latencies.json(),
                },
                indent=None,
            )
        else:
            click.echo(
                f"{title}: {figures.messages} {self._noun} --- {rate:,.1f} {self._noun}/s --- "
                f"{megabits:,.1f} Mbit/s --- failure {figures.failures} {self._noun} --- "
                f"{figures.latencies.text()}"
            )
        # A line of a load is read while it runs, through a pipe as well.
        sys.stdout.flush()


class HistogramLog:
    """A log of HdrHistogram: one histogram of microseconds for each interval, which its tools draw.

    Raises:
        ClickException: the package is not installed.
    """

    def __init__(self, path: str) -> None:
        try:
            with late_imports():
                from hdrh.histogram import HdrHistogram
                from hdrh.log import HistogramLogWriter
        except ImportError as e:
            raise click.ClickException(f"--histogram-file needs HdrHistogram: {_PIP_LINE}") from e
        self._histogram = partial(HdrHistogram, 1, 24 * 3600 * 1_000_000, 3)
        self._file = open(path, "w", encoding="utf-8")
        self._writer = HistogramLogWriter(self._file)
        self._writer.output_log_format_version()
        self._writer.output_legend()

    def write(self, latencies: LatencyHistogram, since_ms: int) -> None:
        """Add the latencies of an interval that began at a time in ms since 1970."""
        histogram = self._histogram()
        for latency, times in latencies.counts.items():
            histogram.record_value(max(1, latency), times)
        histogram.set_start_time_stamp(since_ms)
        histogram.set_end_time_stamp(SYSTEM_CLOCK.wall_ms())
        self._writer.output_interval_histogram(histogram)
        self._file.flush()

    def close(self) -> None:
        """Close the file, which has everything then."""
        self._file.close()


def _run_load(
    meter: Meter, work: Sequence[Callable[[], object]], printer: LoadPrinter, interval: float, duration: float
) -> int:
    """Run functions on threads until all have returned, ``duration`` is over or the process is interrupted;
    return the exit status."""
    failures: deque[BaseException] = deque()
    status = 0

    def guarded(function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException as e:  # noqa: BLE001 - the thread of the command raises it, behind the figures
            failures.append(e)
            meter.stop.set()

    total = Figures()
    begun = perf_counter()
    with on_termination(meter.stop.set):
        running = [
            threads.start_daemon(partial(guarded, function), f"perf-{number}")
            for number, function in enumerate(work)
        ]
        try:
            _watch(meter, running, printer, total, begun, interval, duration or math.inf)
        except KeyboardInterrupt:
            status = _INTERRUPTED
        meter.stop.set()
        for thread in running:
            thread.join()
    total.add(meter.drain())
    printer.aggregate(total, perf_counter() - begun)
    if failures:
        raise failures[0]
    if meter.errors and not status:
        raise click.ClickException(
            f"{total.failures:,} of {total.messages + total.failures:,} failed: {meter.errors[0]}"
        )
    return status


def _watch(
    meter: Meter,
    running: list[Any],
    printer: LoadPrinter,
    total: Figures,
    begun: float,
    interval: float,
    duration: float,
) -> None:
    """Print each interval until the load is over."""
    figures, since, since_ms = Figures(), begun, SYSTEM_CLOCK.wall_ms()
    while not all(thread.is_over for thread in running):
        now = perf_counter()
        if now - begun >= duration or meter.stop.is_set():
            break
        meter.stop.wait(max(0.0, min(_LOOK_S, since + interval - now, begun + duration - now)))
        # What is reported does not pile up until the end of the interval.
        drained = meter.drain()
        figures.add(drained)
        total.add(drained)
        if (now := perf_counter()) >= since + interval:
            printer.interval(figures, since, now, since_ms)
            figures, since, since_ms = Figures(), now, SYSTEM_CLOCK.wall_ms()


class Schedule:
    """When each message of a thread is due: so many a second from the beginning on, late or not.

    A latency counts from that moment. A load that waits for a slow send before it begins the next would leave
    out the latencies of all that should have been sent meanwhile (coordinated omission).

    Args:
        rate: a second; 0 for as fast as possible, when each is due as it is sent.
        begun: a time of the clock ``perf_counter``.
    """

    def __init__(self, rate: float, begun: float) -> None:
        self._rate = rate
        self._begun = begun

    def due(self, number: int) -> float:
        """Wait until the message is due; return since when it is."""
        now = perf_counter()
        if not self._rate:
            return now
        due = self._begun + number / self._rate
        if due > now:
            SYSTEM_CLOCK.sleep(due - now)
        return due


def _topic_names(topic: str, topics: int) -> list[str]:
    name = TopicName.parse(topic).full
    return [name] if topics == 1 else [f"{name}-{number}" for number in range(topics)]


def _shares(total: int, parts: int) -> list[int]:
    """A number in as equal parts as possible."""
    return [total // parts + (number < total % parts) for number in range(parts)]


def _options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def add(command: Any) -> Any:
        # Options are listed in the reverse order of their decorators.
        for option in reversed(options):
            command = option(command)
        return command

    return add


_COUNT: Final = click.IntRange(min=1)
_NUMBER: Final = click.IntRange(min=0)
_SECONDS: Final = click.FloatRange(min=0)

_load_options = _options(
    click.option("-time", "--test-duration", "duration", type=_SECONDS, default=0,
                 help="Seconds; 0: no end."),
    click.option(
        "-i", "--stats-interval-seconds", "interval", type=click.FloatRange(min=0.01), default=10.0,
        show_default=True, help="Seconds between two lines.",
    ),
    click.option("--histogram-file", type=ArgumentPath(dir_okay=False), help="Writes an HdrHistogram log."),
    as_json,
)  # fmt: skip


_cluster_option = click.option(
    "-u", "--service-url", metavar="pulsar://HOST:6650", help="A cluster instead of the store."
)


def _client_of(store: OpenedStore, given: dict[str, Any], *, creates: bool = False) -> Client:
    """A client of the store, or of the cluster that is named; to be closed."""
    url = given["service_url"]
    return store.client(creates=creates) if url is None else cluster_client(url)


def _rate_option(default: float, what: str) -> Callable[[Any], Any]:
    return click.option(
        "-r",
        "--rate",
        type=_SECONDS,
        default=default,
        show_default=True,
        help=f"{what} a second; 0: no limit.",
    )


@click.group()
def perf() -> None:
    """Measure the rates and latencies of producers, consumers, readers and transactions.

    The options and figures are those of pulsar-perf. A load ends with its number of messages, its time, or
    Ctrl-C.
    """


class _ProducerLoad(NamedTuple):
    """How messages are made and sent; see the options of `perf produce`."""

    payloads: list[bytes]
    key_mode: str | None
    delay_ms: int
    is_event_time_set: bool
    exits_on_failure: bool
    warmed_up: float

    def run(self, meter: Meter, producers: list[Any], schedule: Schedule, numbers: Iterable[int]) -> None:
        """Send messages by the producers in turn, and wait until all are stored."""
        options: dict[str, Any] = {}
        for number in numbers:
            due = schedule.due(number)
            if meter.stop.is_set():
                break
            if self.key_mode is not None:
                key = number if self.key_mode == "autoIncrement" else random.getrandbits(31)
                options["partition_key"] = str(key)
            if self.delay_ms:
                options["deliver_at"] = SYSTEM_CLOCK.wall_ms() + self.delay_ms
            if self.is_event_time_set:
                # When it was due: a consumer that sees this measures what the queue before the store adds.
                options["event_timestamp"] = SYSTEM_CLOCK.wall_ms() - int((perf_counter() - due) * 1000)
            payload = self.payloads[number % len(self.payloads)]
            callback = partial(self._on_sent, meter, len(payload), due)
            producers[number % len(producers)].send_async(payload, callback, **options)
        for producer in producers:
            producer.flush()

    def _on_sent(self, meter: Meter, payload: int, due: float, result: Any, message_id: Any) -> None:
        if result is not Result.Ok:
            meter.failed(result.name)
            if self.exits_on_failure:
                meter.stop.set()
        else:
            now = perf_counter()
            meter.done(payload, now - due if now >= self.warmed_up else -1.0)


def _payloads(size: int, file: str | None, delimiter: str) -> list[bytes]:
    if file is None:
        # Not all of one byte, which compresses to nothing.
        return [bytes(number * 167 & 0xFF for number in range(size))]
    with open(file, "rb") as opened:
        parts = opened.read().split(delimiter.encode().decode("unicode_escape").encode())
    payloads = [part for part in parts if part]
    if not payloads:
        raise click.ClickException(f"{file} has no payload")
    return payloads


@perf.command()
@topic_argument
@_options(
    _rate_option(100.0, "Messages of all threads"),
    click.option("-s", "--size", type=_NUMBER, default=1024, show_default=True, help="Bytes of a payload."),
    click.option("-f", "--payload-file", type=ArgumentPath(exists=True, dir_okay=False),
                 help="Payloads, one after the other, instead of -s."),
    click.option("-e", "--payload-delimiter", default="\\n", show_default=True, help="Between two of them."),
    click.option("-m", "--num-messages", "messages", type=_NUMBER, default=0, help="Ends then; 0: no end."),
    click.option("-threads", "--num-test-threads", "test_threads", type=_COUNT, default=1, show_default=True),
    click.option("-n", "--num-producers", "producers", type=_COUNT, default=1, show_default=True,
                 help="Of each thread and topic."),
    click.option("-t", "--num-topic", "--num-topics", "topics", type=_COUNT, default=1, show_default=True,
                 help="TOPIC-0, TOPIC-1 and so on, if more than one."),
    click.option("-np", "--partitions", type=_COUNT, help="Creates partitioned topics, if there are none."),
    click.option("-o", "--max-outstanding", "outstanding", type=_NUMBER, default=1000, show_default=True,
                 help="Messages of a producer that are not stored yet; 0: no limit."),
    click.option("-b", "--batch-time-window", "window", type=_COUNT, default=1, show_default=True,
                 metavar="MS"),
    click.option("-bm", "--batch-max-messages", "batch_messages", type=click.IntRange(min=2), default=1000,
                 show_default=True),
    click.option("-bb", "--batch-max-bytes", "batch_bytes", type=_COUNT, default=4 << 20, show_default=True),
    click.option("-db", "--disable-batching", is_flag=True),
    click.option("-ch", "--chunking", is_flag=True, help="Splits large messages; not with batching."),
    click.option("-z", "--compression", default="NONE", show_default=True,
                 type=click.Choice([kind.name for kind in CompressionType])),
    click.option("-mk", "--message-key-generation-mode", "key_mode",
                 type=click.Choice(["autoIncrement", "random"])),
    click.option("-am", "--access-mode", default="Shared", show_default=True,
                 type=click.Choice([mode.name for mode in ProducerAccessMode])),
    click.option("-pn", "--producer-name", help="Followed by a number."),
    click.option("-d", "--delay", type=_SECONDS, default=0, help="Seconds until messages are delivered."),
    click.option("-set", "--set-event-time", "sets_event_time", is_flag=True,
                 help="The moment at which each message is due."),
    click.option("-w", "--warmup-time", "warmup", type=_SECONDS, default=1, show_default=True,
                 help="Seconds whose latencies are not counted."),
    click.option("-ef", "--exit-on-failure", is_flag=True, help="Ends with the first send that fails."),
    _cluster_option,
    _load_options,
)  # fmt: skip
@pass_store
@click.pass_context
def produce(context: click.Context, store: OpenedStore, /, **given: Any) -> None:
    """Publish messages to TOPIC. Topic and store are created if necessary; -u names a cluster.

    A latency is the time from the moment at which the message is due by the rate until it is stored; without
    a rate (-r 0), from its send.
    """
    producer_options = {
        "batching_enabled": not (given["disable_batching"] or given["chunking"]),
        "batching_max_messages": given["batch_messages"],
        "batching_max_allowed_size_in_bytes": given["batch_bytes"],
        "batching_max_publish_delay_ms": given["window"],
        "chunking_enabled": given["chunking"],
        "block_if_queue_full": True,
        "max_pending_messages": given["outstanding"],
        "compression_type": CompressionType[given["compression"]],
        "access_mode": ProducerAccessMode[given["access_mode"]],
    }
    payloads = _payloads(given["size"], given["payload_file"], given["payload_delimiter"])
    names = _topic_names(given["topic"], given["topics"])
    meter, parts = Meter(), given["test_threads"]
    printer = LoadPrinter("produced", "msg", given["is_json"], given["histogram_file"])
    with ExitStack() as opened:
        if given["partitions"] and given["service_url"]:
            raise click.UsageError("-np makes topics of a store; make those of a cluster by its pulsar-admin")
        client = opened.enter_context(_client_of(store, given, creates=True))
        if given["partitions"]:
            _create_partitioned(store, names, given["partitions"])
        serial = count()
        producers = []
        for _ in range(parts):
            group = []
            for name in (name for name in names for _ in range(given["producers"])):
                prefix = given["producer_name"]
                named: dict[str, Any] = {"producer_name": f"{prefix}-{next(serial)}"} if prefix else {}
                group.append(opened.enter_context(client.create_producer(name, **producer_options, **named)))
            producers.append(group)
        begun = perf_counter()
        load = _ProducerLoad(
            payloads, given["key_mode"], int(given["delay"] * 1000), given["sets_event_time"],
            given["exit_on_failure"],
            begun + given["warmup"],
        )  # fmt: skip
        schedule = Schedule(given["rate"] / parts, begun)
        shares = _shares(given["messages"], parts)
        work = [
            # A thread whose share is 0 has nothing to send; without a number of messages there is no end.
            partial(load.run, meter, group, schedule, range(share) if given["messages"] else count())
            for group, share in zip(producers, shares, strict=True)
        ]
        status = _run_load(meter, work, printer, given["interval"], given["duration"])
    context.exit(status)


def _create_partitioned(store: OpenedStore, names: list[str], partitions: int) -> None:
    with store.admin() as admin:
        for name in names:
            # What is there stays, with as many partitions as it has.
            if name not in admin.topics().get_partitioned_topic_list(TopicName.parse(name).namespace_name):
                admin.topics().create_partitioned_topic(name, partitions)


_ACK_DELAY_MS: Final = 100


class _Countdown:
    """So many messages for all threads of a load together; without a number there is no end."""

    def __init__(self, messages: int, stop: Event) -> None:
        self._numbers: Iterator[int] = iter(range(messages)) if messages else count()
        self._last = messages - 1
        self._stop = stop

    def next(self) -> int | None:
        """The number of the next message; None at the end, which is announced with the last one."""
        number = next(self._numbers, None)  # one step in C, so no two threads get the same
        if number is None or number == self._last:
            self._stop.set()
        return number


def _end_to_end_s(message: Message[Any]) -> float:
    """From the event time of a message, or else its publish time, until now; both are milliseconds."""
    since = message.event_timestamp() or message.publish_timestamp()
    return max(0.0, (SYSTEM_CLOCK.wall_ns() / 1e6 - since) / 1000)


def _receive_all(
    meter: Meter,
    receive: Callable[[int], Message[Any]],
    handle: Callable[[Message[Any]], object],
    schedule: Schedule,
    countdown: _Countdown,
) -> None:
    for number in count():
        schedule.due(number)
        message = None
        while message is None:
            if meter.stop.is_set():
                return
            try:
                message = receive(_RECEIVE_MS)
            except Timeout:
                continue
        if countdown.next() is None:
            return
        handle(message)
        meter.done(len(message.data()), _end_to_end_s(message))


@perf.command()
@topic_argument
@_options(
    _rate_option(0.0, "Messages of all consumers"),
    click.option("-m", "--num-messages", "messages", type=_NUMBER, default=0, help="Ends then; 0: no end."),
    click.option("-n", "--num-consumers", "consumers", type=_COUNT, default=1, show_default=True,
                 help="Of each subscription, on a thread each."),
    click.option("-ns", "--num-subscriptions", "subscriptions", type=_COUNT, default=1, show_default=True,
                 help="NAME-0, NAME-1 and so on, if more than one."),
    click.option("-ss", "--subscriptions", "subscription", default="sub", show_default=True, metavar="NAME"),
    click.option("-st", "--subscription-type", "kind", type=click.Choice(list(_TYPES)), default="Exclusive",
                 show_default=True),
    click.option("-sp", "--subscription-position", "position", type=click.Choice(list(_POSITIONS)),
                 default="Latest", show_default=True, help="Where new subscriptions begin."),
    click.option("-t", "--num-topics", "topics", type=_COUNT, default=1, show_default=True),
    click.option("-q", "--receiver-queue-size", "queue", type=_NUMBER, default=1000, show_default=True),
    click.option("-p", "--receiver-queue-size-across-partitions", "queues", type=_NUMBER, default=50_000,
                 show_default=True),
    click.option("--acks-delay-millis", "ack_delay", type=_NUMBER, default=_ACK_DELAY_MS,
                 show_default=True),
    click.option("--batch-index-ack", is_flag=True, help="Acknowledges the messages of a batch one by one."),
    click.option("-mc", "--max_chunked_msg", "chunked", type=_NUMBER, default=10, show_default=True),
    click.option("-ac", "--auto_ack_chunk_q_full", "auto_ack", is_flag=True),
    _cluster_option,
    _load_options,
)  # fmt: skip
@pass_store
@click.pass_context
def consume(context: click.Context, store: OpenedStore, /, **given: Any) -> None:
    """Receive and acknowledge messages of TOPIC. The subscriptions stay, as with pulsar-perf.

    A latency is the time from the event time of the message (`perf produce -set`), or else from its publish
    time, until it is received; both are whole milliseconds.
    """
    names = _topic_names(given["topic"], given["topics"])
    name, subscriptions = given["subscription"], given["subscriptions"]
    subscribed = [name] if subscriptions == 1 else [f"{name}-{number}" for number in range(subscriptions)]
    meter = Meter()
    printer = LoadPrinter("received", "msg", given["is_json"], given["histogram_file"])
    # `pulsar-client` collects acknowledgements for as long as it says.
    grouping: dict[str, Any] = {"ack_group_time_ms": given["ack_delay"]}
    if given["service_url"] is not None:
        if given["ack_delay"] != _ACK_DELAY_MS:
            raise click.UsageError("--acks-delay-millis needs a store; pulsar-client has a time of its own")
        grouping = {}
    with _client_of(store, given, creates=True) as client:
        consumers = [
            client.subscribe(
                topic, subscription, _TYPES[given["kind"]],
                initial_position=_POSITIONS[given["position"]],
                receiver_queue_size=given["queue"],
                max_total_receiver_queue_size_across_partitions=given["queues"],
                **grouping,
                batch_index_ack_enabled=given["batch_index_ack"],
                max_pending_chunked_message=given["chunked"],
                auto_ack_oldest_chunked_message_on_queue_full=given["auto_ack"],
            )
            for topic in names for subscription in subscribed for _ in range(given["consumers"])
        ]  # fmt: skip
        schedule = Schedule(given["rate"] / len(consumers), perf_counter())
        countdown = _Countdown(given["messages"], meter.stop)
        work = [
            partial(_receive_all, meter, consumer.receive, consumer.acknowledge, schedule, countdown)
            for consumer in consumers
        ]
        status = _run_load(meter, work, printer, given["interval"], given["duration"])
    context.exit(status)


def _start_id(context: click.Context, parameter: click.Parameter, value: str) -> MessageId:
    ledger, _, entry = value.partition(":")
    if value in ("earliest", "latest"):
        return MessageId.earliest if value == "earliest" else MessageId.latest
    if not (ledger.isdigit() and entry.isdigit()):
        raise click.BadParameter(f"{value!r} is not earliest, latest or ledger:entry", context, parameter)
    return MessageId(-1, int(ledger), int(entry), -1)


@perf.command()
@topic_argument
@_options(
    _rate_option(0.0, "Messages of all readers"),
    click.option("-n", "--num-messages", "messages", type=_NUMBER, default=0, help="Ends then; 0: no end."),
    click.option("-m", "--start-message-id", "start", callback=_start_id, default="earliest",
                 show_default=True, help="Or latest, or ledger:entry."),
    click.option("-t", "--num-topics", "topics", type=_COUNT, default=1, show_default=True),
    click.option("-q", "--receiver-queue-size", "queue", type=_NUMBER, default=1000, show_default=True),
    _cluster_option,
    _load_options,
)  # fmt: skip
@pass_store
@click.pass_context
def read(context: click.Context, store: OpenedStore, /, **given: Any) -> None:
    """Read messages of TOPIC with readers, one on a thread for each topic. Leaves no trace.

    A latency is that of `perf consume`, so of messages that were published before it is their age.
    """
    meter = Meter()
    printer = LoadPrinter("read", "msg", given["is_json"], given["histogram_file"])
    with _client_of(store, given) as client:
        readers = [
            client.create_reader(name, given["start"], receiver_queue_size=given["queue"])
            for name in _topic_names(given["topic"], given["topics"])
        ]
        schedule = Schedule(given["rate"] / len(readers), perf_counter())
        countdown = _Countdown(given["messages"], meter.stop)
        work = [
            partial(_receive_all, meter, reader.read_next, _nothing, schedule, countdown)
            for reader in readers
        ]
        status = _run_load(meter, work, printer, given["interval"], given["duration"])
    context.exit(status)


def _nothing(message: Message[Any]) -> None:
    """A reader acknowledges nothing."""


class _TransactionLoad(NamedTuple):
    """What is in each transaction; see the options of `perf transaction`."""

    client: Client
    payload: bytes
    produced: int
    consumed: int
    timeout_ms: int
    is_aborting: bool
    is_disabled: bool

    def run(
        self,
        meter: Meter,
        producers: list[Any],
        consumers: list[Any],
        schedule: Schedule,
        countdown: _Countdown,
    ) -> None:
        """Run transactions, one after the other."""
        for number in count():
            due = schedule.due(number)
            if meter.stop.is_set() or countdown.next() is None:
                return
            try:
                with self._transaction() as txn:
                    payload = self._fill(meter, producers, consumers, txn)
                    if payload is None:  # the end came before its messages
                        if txn is not None:
                            txn.abort()
                        return
                    if self.is_aborting and txn is not None:
                        txn.abort()
            except Exception as e:  # noqa: BLE001 - counted, and the last one ends the command
                meter.failed(e)
            else:
                meter.done(payload, perf_counter() - due)

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        if self.is_disabled:
            yield None
        else:
            with self.client.transaction(self.timeout_ms) as txn:
                yield txn

    def _fill(self, meter: Meter, producers: list[Any], consumers: list[Any], txn: Any) -> int | None:
        """Receive, acknowledge and publish what is of a transaction; return the bytes."""
        payload = 0
        for consumer in consumers:
            for _ in range(self.consumed):
                message = _received(meter, consumer)
                if message is None:
                    return None
                consumer.acknowledge(message, txn=txn)
                payload += len(message.data())
        for producer in producers:
            for _ in range(self.produced):
                producer.send(self.payload, txn=txn)
                payload += len(self.payload)
        return payload


def _received(meter: Meter, consumer: Any) -> Message[Any] | None:
    while not meter.stop.is_set():
        try:
            message: Message[Any] = consumer.receive(_RECEIVE_MS)
        except Timeout:
            continue
        return message
    return None


@perf.command()
@_options(
    _rate_option(0.0, "Transactions of all threads"),
    click.option("--topics-c", "from_topics", multiple=True, metavar="TOPIC",
                 help="Whose messages are acknowledged; may be repeated."),
    click.option("--topics-p", "to_topics", multiple=True, metavar="TOPIC",
                 help="To which messages are published; may be repeated."),
    click.option("-nmc", "--numMessage-perTransaction-consume", "consumed", type=_COUNT, default=1,
                 show_default=True, help="Messages of each topic in a transaction."),
    click.option("-nmp", "--numMessage-perTransaction-produce", "produced", type=_COUNT, default=1,
                 show_default=True),
    click.option("-ntxn", "--number-txn", "transactions", type=_NUMBER, default=0,
                 help="Ends then; 0: no end."),
    click.option("-threads", "--num-test-threads", "test_threads", type=_COUNT, default=1, show_default=True),
    click.option("-s", "--size", type=_NUMBER, default=1024, show_default=True, help="Bytes of a payload."),
    click.option("-tto", "--txn-timeout", "timeout", type=_COUNT, default=60, show_default=True,
                 help="Seconds."),
    click.option("-abort", "aborts", is_flag=True, help="Aborts each transaction."),
    click.option("--txn-disable", "is_disabled", is_flag=True, help="The same without transactions."),
    click.option("-ss", "--subscription-name", "subscription", default="sub", show_default=True),
    click.option("-st", "--subscription-type", "kind", type=click.Choice(list(_TYPES)), default="Shared",
                 show_default=True),
    click.option("-sp", "--subscription-position", "position", type=click.Choice(list(_POSITIONS)),
                 default="Earliest", show_default=True),
    click.option("-q", "--receiver-queue-size", "queue", type=_NUMBER, default=1000, show_default=True),
    _load_options,
)  # fmt: skip
@pass_store
@click.pass_context
def transaction(context: click.Context, store: OpenedStore, /, **given: Any) -> None:
    """Run transactions that acknowledge messages of some topics and publish to others.

    A latency is the time from the moment at which a transaction is due, or begins without a rate, until its
    commit or abort is over.
    """
    if not given["from_topics"] and not given["to_topics"]:
        raise click.UsageError("name topics: --topics-c, --topics-p, or both")
    if given["is_disabled"] and given["aborts"]:
        raise click.UsageError("without transactions nothing is aborted: leave --txn-disable or -abort out")
    meter, parts = Meter(), given["test_threads"]
    printer = LoadPrinter("transaction", "txn", given["is_json"], given["histogram_file"])
    with store.client(creates=True) as client:
        load = _TransactionLoad(
            client, _payloads(given["size"], None, "")[0], given["produced"], given["consumed"],
            given["timeout"] * 1000, given["aborts"], given["is_disabled"],
        )  # fmt: skip
        schedule = Schedule(given["rate"] / parts, perf_counter())
        countdown = _Countdown(given["transactions"], Event())
        work = []
        for _ in range(parts):
            producers = [client.create_producer(name) for name in given["to_topics"]]
            consumers = [
                client.subscribe(
                    name, given["subscription"], _TYPES[given["kind"]],
                    initial_position=_POSITIONS[given["position"]], receiver_queue_size=given["queue"],
                )
                for name in given["from_topics"]
            ]  # fmt: skip
            work.append(partial(load.run, meter, producers, consumers, schedule, countdown))
        status = _run_load(meter, work, printer, given["interval"], given["duration"])
    context.exit(status)
