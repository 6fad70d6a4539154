"""``embeddedpulsar doctor``: whether a store and its machine are well, for people and for monitors.

``embeddedpulsar init``: a store to begin with, a commented ``broker.conf`` and a first topic.

``embeddedpulsar serve``: the HTTP server of a store; and ``metrics``: what a scrape of it gets.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
import os
import platform
import resource
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

import click

from embeddedpulsar import __version__
from embeddedpulsar.admin.activity import StoreActivity
from embeddedpulsar.cli.base import ArgumentPath, OpenedStore, as_json, pass_store, print_json, size
from embeddedpulsar.cli.check import refusal
from embeddedpulsar.cli.engine import (
    SYSTEM_CLOCK,
    check_store,
    filesystem_type,
    is_network_type,
    late_imports,
    perf_counter,
)
from embeddedpulsar.cli.terminal import ProgressLine, argument_path, is_terminal, line_text, raw_stream
from embeddedpulsar.client.client import Client
from embeddedpulsar.error_text import counted
from embeddedpulsar.exceptions import InvalidConfiguration, PulsarException
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.settings import BrokerSettings, write_setting

if TYPE_CHECKING:
    from starlette.applications import Starlette


OK: Final = "ok"
WARNING: Final = "warning"
CRITICAL: Final = "critical"
_STATUSES: Final = {OK: 0, WARNING: 1, CRITICAL: 2}
UNKNOWN: Final = 3
"""The exit status where nothing can be said; those of the other verdicts are in `_STATUSES`."""

_COLOURS: Final = {OK: "green", WARNING: "yellow", CRITICAL: "red"}
_CHECKED_BYTES: Final = 1 << 30
_FREE_CRITICAL: Final = 64 << 20
_FREE_WARNING: Final = 1 << 30
_SHARE_FREE: Final = 0.05
_SLOW_FLUSH_MS: Final = 20.0
_FLUSHES: Final = 16
_CLOCK_S: Final = 2.0
_OLD_MS: Final = 7 * 86_400_000
_TRIAL_MESSAGES: Final = 2000
_TRIAL_BYTES: Final = 1024
_BUSY: Final = 0.5
_LARGE_BYTES: Final = 1 << 40
_MANY_PROCESSES: Final = 200
_LEAST_FILES: Final = 1024
_LISTED: Final = 5
_EXTRAS: Final = (
    "lz4", "cramjam", "pyarrow", "pyspark", "fastavro", "cryptography", "pulsar-client", "click", "rich",
)  # fmt: skip


class Finding(NamedTuple):
    """What a check says.

    Attributes:
        check: its name.
        status: `OK`, `WARNING` or `CRITICAL`.
        text: what was seen, with figures.
        remedy: what to do; empty if nothing is to be done.
        figures: the same figures for programs.
    """

    check: str
    status: str
    text: str
    remedy: str = ""
    figures: dict[str, Any] = {}

    def json(self) -> dict[str, Any]:
        """As a JSON object."""
        return self._asdict()


class Examination:
    """Examines a store, check by check. Changes nothing in it. Callers: one thread.

    Args:
        store: what was named on the command line.
        root: its directory.
        reads_all: whether the files are checked for damage; None for those of a store of less than 1 GiB.
        writes: whether flushes and publishing are measured, in a directory beside the store that is removed.
        interval: seconds over which the rate of publishing is measured.
    """

    def __init__(
        self, store: OpenedStore, root: str, *, reads_all: bool | None, writes: bool, interval: float
    ) -> None:
        self._store: Final = store
        self._root: Final = root
        self._reads_all: Final = reads_all
        self._writes: Final = writes
        self._interval: Final = interval
        self._progress: Final = ProgressLine(sys.stderr)
        self._rate = 0.0

    def findings(self) -> Iterator[Finding]:
        """All of them, one after the other."""
        checks: tuple[Callable[[], Iterator[Finding]], ...] = (
            self._versions, self._file_system, self._space, self._limits, self._settings, self._clock,
            self._flushes, self._activity, self._damage,
        )  # fmt: skip
        for check in checks:
            try:
                yield from check()
            except (PulsarException, OSError) as e:
                yield Finding(check.__name__.strip("_"), CRITICAL, str(e), "look at the reason; run it again")
            finally:
                self._progress.end()

    def _versions(self) -> Iterator[Finding]:
        with late_imports():
            import importlib.metadata
        packages = {}
        for name in _EXTRAS:
            try:
                packages[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
        python, system = platform.python_version(), f"{platform.system()} {platform.release()}"
        listed = ", ".join(f"{name} {version}" for name, version in packages.items())
        yield Finding(
            "versions",
            OK,
            f"embeddedpulsar {__version__}, Python {python}, {system}, {listed}",
            figures={"embeddedpulsar": __version__, "python": python, "packages": packages},
        )

    def _file_system(self) -> Iterator[Finding]:
        kind = filesystem_type(self._root) or "unknown"
        figures = {"type": kind}
        if is_network_type(kind):
            yield Finding(
                "file system", CRITICAL, f"{kind}: locks and maps are not shared between machines there",
                "move the store to a disk of this machine", figures,
            )  # fmt: skip
        elif kind in ("tmpfs", "ramfs"):
            yield Finding(
                "file system", WARNING, f"{kind}: messages take memory, and end with this machine",
                "use memory:// if that is meant, or move the store to a disk", figures,
            )  # fmt: skip
        elif kind == "overlay":
            yield Finding(
                "file system", WARNING, "overlay: a layer of a container, which ends with it",
                "mount a volume for the store", figures,
            )  # fmt: skip
        else:
            yield Finding("file system", OK, kind, figures=figures)

    def _space(self) -> Iterator[Finding]:
        status = os.statvfs(self._root)
        free, whole = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
        text = f"{size(free)} of {size(whole)} are free"
        figures = {"freeBytes": free, "totalBytes": whole, "freeFiles": status.f_favail}
        remedy = "free space: `topics why-kept TOPIC` says what holds messages; or set a retention or a quota"
        if free < _FREE_CRITICAL:
            yield Finding("space", CRITICAL, f"{text}; messages will soon not be stored", remedy, figures)
        elif free < _FREE_WARNING or free < _SHARE_FREE * whole:
            yield Finding("space", WARNING, text, remedy, figures)
        elif status.f_files and status.f_favail < _LEAST_FILES:
            yield Finding(
                "space",
                CRITICAL,
                f"room for {counted(status.f_favail, 'file')} more",
                "free inodes",
                figures,
            )
        else:
            yield Finding("space", OK, text, figures=figures)

    def _limits(self) -> Iterator[Finding]:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        largest, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        figures = {"openFiles": soft, "openFilesHard": hard}
        text = f"{soft:,} open files; inotify is not needed, so its limits do not matter"
        if soft != resource.RLIM_INFINITY and soft < _LEAST_FILES:
            yield Finding(
                "limits", WARNING, f"a process may have {soft:,} files open, some of which each topic needs",
                f"raise it: ulimit -n {_LEAST_FILES}, or LimitNOFILE= of the service", figures,
            )  # fmt: skip
        elif largest not in (resource.RLIM_INFINITY,) and largest < 64 << 20:
            yield Finding(
                "limits", CRITICAL, f"files may have {size(largest)}, and ledgers need 64 MiB",
                "raise it: ulimit -f unlimited", figures,
            )  # fmt: skip
        else:
            yield Finding("limits", OK, text, figures=figures)

    def _settings(self) -> Iterator[Finding]:
        try:
            with open(os.path.join(self._root, "broker.conf"), encoding="utf-8") as file:
                settings = BrokerSettings.parse(file.read())
            settings.check_supported()
        except FileNotFoundError:
            yield Finding("settings", OK, "no broker.conf: all settings have their defaults")
            return
        except InvalidConfiguration as e:
            yield Finding(
                "settings", CRITICAL, str(e), "correct broker.conf: the store cannot be opened with it"
            )
            return
        defaults = BrokerSettings()
        changed = [
            f"{name}={write_setting(getattr(settings, name))}"
            for name in settings._fields
            if name != "unknown" and getattr(settings, name) != getattr(defaults, name)
        ]
        hints = [*settings.warnings(), *_harmful(settings)]
        text = ", ".join(changed) or "as shipped"
        if hints:
            yield Finding("settings", WARNING, f"{text}; {'; '.join(hints)}", "change broker.conf")
        else:
            yield Finding("settings", OK, text)

    def _clock(self) -> Iterator[Finding]:
        with self._store.admin() as admin:
            topics = admin.topics()
            # Some topics are enough: the clock is that of all of them.
            newest = max(
                (
                    topics.examine_message(topic, "latest", 1).publish_timestamp()
                    for topic in topics.get_list()[:_LISTED]
                    if topics.get_internal_stats(topic).number_of_entries
                ),
                default=0,
            )
        ahead = (newest - SYSTEM_CLOCK.wall_ms()) / 1000
        if ahead > _CLOCK_S:
            yield Finding(
                "clock", WARNING, f"the newest message is {ahead:,.0f} s ahead: the clock was set back",
                "have the clock be set by the network, slowly (chrony)", {"aheadSeconds": round(ahead, 1)},
            )  # fmt: skip
        else:
            yield Finding("clock", OK, "no message is of the future", figures={"aheadSeconds": 0})

    def _flushes(self) -> Iterator[Finding]:
        if not self._writes:
            return
        beside = os.path.dirname(self._root)
        if not os.access(beside, os.W_OK):
            yield Finding("flush", OK, f"not measured: {beside} may not be written")
            return
        with late_imports():
            import tempfile
        with tempfile.TemporaryDirectory(prefix=".embeddedpulsar-doctor-", dir=beside) as place:
            times = list(_flush_times(os.path.join(place, "file")))
            rate = _publish_rate(os.path.join(place, "store"))
        median, longest = sorted(times)[_FLUSHES // 2], max(times)
        text = f"a flush to the disk takes {median:.2f} ms, at most {longest:.2f} ms"
        figures = {"medianMs": round(median, 3), "maxMs": round(longest, 3), "publishRate": round(rate)}
        text += f"; {rate:,.0f} messages of 1 KiB a second are published by one producer without batches"
        if median > _SLOW_FLUSH_MS:
            yield Finding(
                "flush", WARNING, text,
                "durability=\"flush\" waits for it: use batches, or a disk that flushes faster", figures,
            )  # fmt: skip
        else:
            yield Finding("flush", OK, text, figures=figures)
        self._rate = rate

    def _activity(self) -> Iterator[Finding]:
        with self._store.admin() as admin:
            watch = admin.activity()
            before = watch.look(self._progress.show_if_due)
            SYSTEM_CLOCK.sleep(self._interval)
            now = watch.look(self._progress.show_if_due)
        self._progress.end()
        yield from _stuck(now)
        yield from self._outgrown(before, now)

    def _outgrown(self, before: StoreActivity, now: StoreActivity) -> Iterator[Finding]:
        """When a cluster is the better place."""
        seconds = max(now.time_ms - before.time_ms, 1) / 1000
        counters = {topic.topic: topic.msg_in_counter for topic in before.topics}
        arrived = sum(
            max(0, topic.msg_in_counter - counters.get(topic.topic, topic.msg_in_counter))
            for topic in now.topics
        )
        rate = arrived / seconds
        stored = sum(topic.storage_size for topic in now.topics)
        figures = {
            "messageRate": round(rate, 1), "storedBytes": stored, "processes": now.processes,
            "topics": len(now.topics),
        }  # fmt: skip
        text = (
            f"{counted(rate, 'message')} a second arrive, {size(stored)} stored "
            f"in {counted(len(now.topics), 'topic')}, {counted(now.processes, 'process')}"
        )
        reasons = []
        if self._rate and rate > _BUSY * self._rate:
            reasons.append(f"the rate is {rate / self._rate:.0%} of what one producer reaches here")
        if stored > _LARGE_BYTES:
            reasons.append("more than 1 TiB is stored on one machine")
        if now.processes > _MANY_PROCESSES:
            reasons.append(f"more than {_MANY_PROCESSES} processes share the locks")
        if reasons:
            yield Finding(
                "size", WARNING, f"{text}; {'; '.join(reasons)}",
                "batches, partitions and offloading go further; `embeddedpulsar migrate` moves to a cluster",
                figures,
            )  # fmt: skip
        else:
            yield Finding("size", OK, f"{text}; a cluster is not needed", figures=figures)

    def _damage(self) -> Iterator[Finding]:
        stored = sum(
            os.lstat(os.path.join(folder, name)).st_blocks * 512
            for folder, _, names in os.walk(self._root)
            for name in names
            if os.path.lexists(os.path.join(folder, name))
        )
        reads_all = stored <= _CHECKED_BYTES if self._reads_all is None else self._reads_all
        if not reads_all:
            yield Finding(
                "damage", OK, f"not checked: {size(stored)} would be read; --check, or `embeddedpulsar check`"
            )
            return
        report = check_store(self._root, is_closed=False, on_progress=self._progress.show_if_due)
        figures = {
            "damage": len(report.damage), "unverified": len(report.unverified), "messages": report.messages,
            "formatVersion": report.format_version,
        }  # fmt: skip
        if report.damage or report.unverified:
            places = [
                os.path.relpath(problem.path, self._root) for problem in report.damage + report.unverified
            ]
            listed = ", ".join(dict.fromkeys(places[:_LISTED]))
            yield Finding(
                "damage", CRITICAL,
                f"{counted(len(report.damage), 'damaged place')}, {len(report.unverified):,} not verified: "
                f"{listed}",
                "`embeddedpulsar check` describes them, `embeddedpulsar repair` mends what it can", figures,
            )  # fmt: skip
        else:
            yield Finding(
                "damage", OK, f"{counted(report.messages, 'message')} read, no damage", figures=figures
            )


def _flush_times(path: str) -> Iterator[float]:
    """Milliseconds that each flush of a page takes."""
    fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        for number in range(_FLUSHES):
            os.pwrite(fd, b"x" * 4096, number * 4096)
            begun = perf_counter()
            os.fsync(fd)
            yield (perf_counter() - begun) * 1000
    finally:
        os.close(fd)


def _publish_rate(path: str) -> float:
    """Messages a second of one producer, in a store of its own."""
    payload = b"x" * _TRIAL_BYTES
    with Client(path) as client, client.create_producer("doctor") as producer:
        begun = perf_counter()
        for _ in range(_TRIAL_MESSAGES):
            producer.send(payload)
        return _TRIAL_MESSAGES / max(perf_counter() - begun, 1e-9)


def _harmful(settings: BrokerSettings) -> Iterator[str]:
    """What a user may not have meant."""
    if settings.retention.is_unlimited:
        yield "retention has no limit, so nothing is ever removed"
    if settings.ttlDurationDefaultInSeconds and settings.ttlDurationDefaultInSeconds < 60:
        yield "messages expire within a minute, also those that consumers have not received"
    if settings.brokerDeduplicationEnabled and settings.brokerDeduplicationMaxNumberOfProducers < 100:
        yield "duplicates of more producers than brokerDeduplicationMaxNumberOfProducers are not seen"
    if settings.managedLedgerMaxSizePerLedgerMbytes > 1024:
        yield "ledgers of over 1 GiB are mapped as a whole, and are removed late"
    if settings.keepAliveIntervalSeconds < 5:
        yield "consumers that are stopped for a few seconds lose what they hold"


def _stuck(now: StoreActivity) -> Iterator[Finding]:
    texts = [f"{unread.topic}: {unread.reason}" for unread in now.unread]
    status = CRITICAL if texts else OK
    for topic in now.topics:
        if topic.held_by is not None:
            texts.append(f"{topic.topic} waits for the transaction {topic.held_by.txn_id}")
        for subscription in topic.subscriptions:
            since = subscription.earliest_msg_publish_time_in_backlog
            if since and now.time_ms - since > _OLD_MS:
                days = (now.time_ms - since) // 86_400_000
                why = f" ({subscription.why})" if subscription.why else ""
                texts.append(
                    f"{topic.topic}, {subscription.name}: the oldest message is {days} days old{why}"
                )
    backlog = sum(topic.msg_backlog for topic in now.topics)
    figures = {"stuck": len(texts), "backlog": backlog}
    if not texts:
        yield Finding(
            "backlog", OK, f"{counted(backlog, 'message')}, none older than 7 days", figures=figures
        )
        return
    more = f", and {len(texts) - _LISTED:,} more" if len(texts) > _LISTED else ""
    yield Finding(
        "backlog", CRITICAL if status == CRITICAL else WARNING, "; ".join(texts[:_LISTED]) + more,
        "`embeddedpulsar top` shows who has to go on; `subscriptions delete` removes unused ones", figures,
    )  # fmt: skip


@click.command()
@click.option(
    "--check/--no-check", "reads_all", default=None, help="Look for damage; by default up to 1 GiB."
)
@click.option(
    "--measure/--no-measure",
    "writes",
    default=True,
    show_default=True,
    help="Measure flushes and publishing, in a directory beside the store.",
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.01),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="For the rate of publishing.",
)
@as_json
@pass_store
@click.pass_context
def doctor(
    context: click.Context,
    store: OpenedStore,
    reads_all: bool | None,
    writes: bool,
    interval: float,
    is_json: bool,
) -> None:
    """Examine the store and its machine: file system, space, limits, settings, clock, flushes, backlogs,
    size, damage.

    The exit status is that of monitors: 0 if all is well, 1 for warnings, 2 for what is critical, 3 if there
    is no store.
    """
    # A store that cannot be opened has no verdict: monitors tell that from a bad one by the exit status.
    text = refusal(store.root)
    if text:
        if is_json:
            print_json({"status": "unknown", "store": store.root, "reason": text, "findings": []})
        else:
            click.echo(f"Error: {line_text(text)}", err=True)
        context.exit(UNKNOWN)
    examination = Examination(store, store.root, reads_all=reads_all, writes=writes, interval=interval)
    findings = []
    for finding in examination.findings():
        findings.append(finding)
        if not is_json:
            _show(finding)
    verdict = max((finding.status for finding in findings), key=_STATUSES.__getitem__)
    if is_json:
        print_json(
            {"status": verdict, "store": store.root, "findings": [finding.json() for finding in findings]}
        )
    else:
        counts = {status: sum(each.status == status for each in findings) for status in _STATUSES}
        warnings = counted(counts[WARNING], "warning")
        click.echo(f"{verdict.upper()}: {counts[CRITICAL]} critical, {warnings}")
    context.exit(_STATUSES[verdict])


def _show(finding: Finding) -> None:
    label = finding.status.ljust(8)
    if is_terminal() and "NO_COLOR" not in os.environ:
        # Through the raw stream: the guarded one would escape the style.
        raw_stream(sys.stdout).write(click.style(label, fg=_COLOURS[finding.status]))
    else:
        click.echo(label, nl=False)
    click.echo(f"  {finding.check.ljust(11)}  {line_text(finding.text)}")
    if finding.remedy:
        click.echo(f"{' ' * 23}to do: {line_text(finding.remedy)}")


_HEAD: Final = """\
# Settings of this store, for all processes that use it. A line without a value, or with # before it, is the
# default. Names are those of Pulsar's broker.conf. The file is read when the store is opened;
# `embeddedpulsar brokers update-dynamic-config` changes some settings while it is in use.
"""

_SECTIONS: Final[dict[str, tuple[str, ...]]] = {
    "How long messages are kept that all subscriptions have acknowledged; -1 for no limit.": (
        "defaultRetentionTimeInMinutes",
        "defaultRetentionSizeInMB",
    ),
    "When messages are given up that are not acknowledged: seconds, 0 for never.": (
        "ttlDurationDefaultInSeconds",
    ),
    "What becomes of producers when a backlog is too large; -1 for no limit. The policy is\n"
    "producer_request_hold, producer_exception or consumer_backlog_eviction.": (
        "backlogQuotaDefaultLimitBytes",
        "backlogQuotaDefaultLimitSecond",
        "backlogQuotaDefaultRetentionPolicy",
    ),
    "Whether a topic or subscription is made when it is used first, and with how many partitions.": (
        "allowAutoTopicCreation",
        "allowAutoTopicCreationType",
        "defaultNumPartitions",
        "allowAutoSubscriptionCreation",
    ),
    "Whether messages of a producer that are sent twice are stored once.": ("brokerDeduplicationEnabled",),
    "Limits: bytes of a message, and messages that consumers may hold.": (
        "maxMessageSize",
        "maxUnackedMessagesPerConsumer",
        "maxUnackedMessagesPerSubscription",
    ),
    "Unused topics and subscriptions: whether and when they are deleted.": (
        "brokerDeleteInactiveTopicsEnabled",
        "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds",
        "subscriptionExpirationTimeMinutes",
    ),
    "Bytes at which a topic is compacted by itself; 0 for never.": (
        "brokerServiceCompactionThresholdInBytes",
    ),
    "Where closed ledgers are moved, such as s3://bucket/path, and from which size of a topic on.": (
        "managedLedgerOffloadLocation",
        "managedLedgerOffloadAutoTriggerSizeThresholdBytes",
    ),
}


def commented_settings() -> str:
    """The text of a ``broker.conf`` in which all settings have their defaults: the usual ones with what they
    do, then all others."""
    defaults = BrokerSettings()
    lines = [_HEAD]
    described = set()
    for text, names in _SECTIONS.items():
        lines += [f"# {line}" for line in text.splitlines()]
        lines += [f"#{name}={write_setting(getattr(defaults, name))}" for name in names]
        lines.append("")
        described |= set(names)
    lines.append("# All others.")
    lines += [
        f"#{name}={write_setting(getattr(defaults, name))}"
        for name in defaults._fields
        if name not in described and name != "unknown"
    ]
    return "\n".join(lines) + "\n"


@click.command()
@click.argument("directory", required=False, type=ArgumentPath(file_okay=False))
@click.option("--topic", default="orders", show_default=True, help="A first topic.")
@click.option("--subscription", default="work", show_default=True, help="Its first subscription.")
@click.option("-p", "--partitions", type=click.IntRange(min=1), help="Of the topic.")
@pass_store
def init(
    store: OpenedStore, directory: str | None, topic: str, subscription: str, partitions: int | None
) -> None:
    """Make a store in DIRECTORY, or that of --store: with a commented broker.conf, a first topic and its
    subscription.

    What is there stays as it is: it may be run again.
    """
    store.check_writable()
    place = store if directory is None else store.at(directory)
    root = place.root
    if os.path.isdir(root) and os.listdir(root) and refusal(root):
        raise click.ClickException(f"{root} has files, and is no store; name an empty or a new directory")
    with place.client(creates=True):
        pass
    # The store, its settings, the topics: a run that was cut short is repeated, and leaves what is there.
    _write_settings(os.path.join(root, "broker.conf"))
    with place.admin() as admin:
        topics = admin.topics()
        partitioned = topics.get_partitioned_topic_list()
        full = topic if "://" in topic else f"persistent://public/default/{topic}"
        if full in partitioned or full in topics.get_list():
            click.echo(f"{line_text(topic)} is there, and stays as it is")
        elif partitions is None:
            topics.create_non_partitioned_topic(topic)
            click.echo(f"created the topic {line_text(topic)}")
        else:
            topics.create_partitioned_topic(topic, partitions)
            click.echo(f"created the topic {line_text(topic)} with {partitions} partitions")
        if subscription not in topics.get_subscriptions(topic):
            topics.create_subscription(topic, subscription)
            click.echo(f"created its subscription {line_text(subscription)}: it keeps messages from now on")
    shown = line_text(root)
    name = line_text(topic)
    click.echo(
        f"\nNext:\n  export EMBEDDEDPULSAR_URL={shown}\n"
        f"  embeddedpulsar produce {name} -m 'a first message'\n"
        f"  embeddedpulsar consume {name} -s {line_text(subscription)}\n"
        f"  embeddedpulsar top\n"
        f"  embeddedpulsar doctor\n"
        f"In Python:\n  client = embeddedpulsar.Client({root!r})"
    )


def _write_settings(path: str) -> None:
    try:
        # Exclusively: a file that is there is that of a user.
        with open(path, "x", encoding="utf-8") as file:
            file.write(commented_settings())
    except FileExistsError:
        click.echo("broker.conf is there, and stays as it is")
    else:
        click.echo(f"wrote {line_text(path)}: all settings, with their defaults")


_DRAIN_S: Final = 10


class HttpAddress(click.ParamType[tuple[str, int]]):
    """An address to listen on, as ``host:port``; an IPv6 address is in brackets."""

    name = "host:port"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        host, _, port = str(value).rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65_535:
            self.fail(f"{value!r} is no address; write host:port, such as 127.0.0.1:8080", param, ctx)
        return host.removeprefix("[").removesuffix("]"), int(port)


@click.command()
@click.option(
    "--http", "address", type=HttpAddress(), default="127.0.0.1:8080", show_default=True, metavar="HOST:PORT",
    help="Where to listen; port 0 takes a free one.",
)  # fmt: skip
@click.option("--allow-changes", is_flag=True, help="Let requests change the store.")
@click.option("--public", is_flag=True, help="Listen on an address that other machines reach.")
@click.option(
    "--host-name", "host_names", multiple=True, metavar="NAME",
    help="A name by which browsers reach the server, beside localhost and addresses. Repeatable.",
)  # fmt: skip
@click.option(
    "--token-file", type=ArgumentPath(), metavar="PATH",
    help="A file with the token. It is made with a new token if it is not there.",
)  # fmt: skip
@click.option(
    "--min-free-mb", type=click.IntRange(min=0), default=64, show_default=True,
    help="Not ready with less room on the disk.",
)  # fmt: skip
@click.option(
    "--metrics-topics", type=click.IntRange(min=0), default=100, show_default=True,
    help="Most topics with metrics of their own.",
)  # fmt: skip
@pass_store
def serve(
    store: OpenedStore,
    address: tuple[str, int],
    allow_changes: bool,
    public: bool,
    host_names: tuple[str, ...],
    token_file: str | None,
    min_free_mb: int,
    metrics_topics: int,
) -> None:
    """Serve the store over HTTP until Ctrl-C, SIGTERM or SIGHUP.

    Prints the URL with the token that every request but that of health needs, or the file that has it.
    Nothing can be changed without --allow-changes. Requests that have begun are answered before the end, for
    ten seconds.
    """
    if allow_changes:
        store.check_writable()
    if not public and not _is_loopback(address[0]):
        raise click.UsageError(
            f"{address[0]} can be reached by other machines, and what they send is not encrypted: listen on "
            "127.0.0.1; or add --public, and have a proxy with TLS in front"
        )
    directory = store.directory
    # Of the packages of the extra, the command line has none.
    try:
        with late_imports():
            from embeddedpulsar.server import create_app
    except ImportError as e:
        raise click.ClickException(str(e)) from e
    token = _token(token_file)
    hosts = [*host_names, *([socket.gethostname()] if public else [])]
    app = create_app(
        directory,
        token=token,
        allow_changes=allow_changes,
        hosts=hosts,
        min_free_bytes=min_free_mb << 20,
        metrics_topics=metrics_topics,
    )
    with app.state.served:
        listener = _listener(address)
        with listener:
            host, port = listener.getsockname()[:2]
            url = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
            shown = f"{url}?token={token}" if token_file is None else f"{url}  (the token is in {token_file})"
            click.echo(f"serving {directory} at {shown}")
            asyncio.run(_run(app, listener))
    click.echo("served; all requests were answered")


@click.command()
@click.option(
    "--topics",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    help="Most topics with series of their own.",
)
@click.option("--dashboard", is_flag=True, help="Print the dashboard for Grafana instead, as JSON.")
@pass_store
def metrics(store: OpenedStore, topics: int, dashboard: bool) -> None:
    """Print the metrics of the store, as Prometheus reads them.

    For the textfile collector of node_exporter, write them into a file that is then renamed. Rates of what
    was acknowledged need two reads, and are missing.
    """
    if dashboard:
        text = resources.files("embeddedpulsar").joinpath("grafana_dashboard.json").read_bytes()
    else:
        try:
            with late_imports():
                from embeddedpulsar.metrics import collector, exposition
        except ImportError as e:
            raise click.ClickException(str(e)) from e
        with store.admin() as admin:
            text = exposition(collector(admin, topics=topics, budget_s=math.inf))
    click.echo(text.decode(), nl=False)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _token(path: str | None) -> str:
    """A new token, or that in a file, which is made if necessary."""
    if path is None:
        return secrets.token_urlsafe(24)
    name = os.fspath(argument_path(path))
    try:
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        with open(name, encoding="utf-8") as file:
            token = file.read().strip()
        if not token:
            raise click.ClickException(f"{path} has no token; write one into it, or remove it") from None
        return token
    token = secrets.token_urlsafe(24)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(f"{token}\n")
    return token


def _listener(address: tuple[str, int]) -> socket.socket:
    try:
        family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server(address, family=family)
    except OSError as e:
        # Of a name that leads nowhere the number is none of the system's, and its text says it.
        reason = e.strerror if isinstance(e, socket.gaierror) or e.errno is None else os.strerror(e.errno)
        raise click.ClickException(f"cannot listen on {address[0]}:{address[1]}: {reason}") from e


def _notify(state: str) -> None:
    """Tell systemd how a service of ``Type=notify`` stands, if it asks for that."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            # A name that begins with @ is in no directory: its first byte is 0.
            sender.sendto(state.encode(), f"\0{address[1:]}" if address.startswith("@") else address)


async def _run(app: Starlette, listener: socket.socket) -> None:
    """Serve until a signal asks for the end, and answer what has begun. A second signal does not wait."""
    with late_imports():
        import uvicorn

    class Server(uvicorn.Server):
        """Without signals of its own: that of uvicorn sends itself the signal again at the end, which would
        be the exit status."""

        async def serve(self, sockets: list[socket.socket] | None = None) -> None:
            await self._serve(sockets)

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            _notify("READY=1")

    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=_DRAIN_S
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    server, loop = Server(config), asyncio.get_running_loop()

    def stop() -> None:
        # The first signal lets requests end; the second does not wait for them.
        server.force_exit = server.should_exit
        server.should_exit = True
        app.state.served.stop()
        _notify("STOPPING=1")

    numbers = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) != signal.SIG_IGN
    ]
    for number in numbers:
        loop.add_signal_handler(number, stop)
    try:
        await server.serve([listener])
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
