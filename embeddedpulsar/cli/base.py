"""How messages are printed, and how times are written on the command line.

The store that a command works on.

What commands print: tables for people, JSON for programs.

What the verbs that set, get and remove policies have in common, and those of backlog quotas.

The verbs of the other policies are written from the table of policies: `cli.policy_verbs`.
"""

from __future__ import annotations

import base64
import inspect
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from embeddedpulsar.admin.admin import Admin
from embeddedpulsar.admin.policies import Policies
from embeddedpulsar.cli.check import refusal
from embeddedpulsar.cli.engine import SYSTEM_CLOCK, ServiceUrl, late_imports
from embeddedpulsar.cli.terminal import (
    argument_path,
    is_terminal,
    line_text,
    printable,
    printable_json,
    raw_stream,
    write_bytes,
)
from embeddedpulsar.client.client import Client
from embeddedpulsar.client.client_config import is_cluster
from embeddedpulsar.enums import ConsumerType, LoggerLevel, SchemaCompatibilityStrategy
from embeddedpulsar.error_text import counted
from embeddedpulsar.message import Message
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.policies import (
    BACKLOG_QUOTA_POLICIES,
    BACKLOG_QUOTA_TYPES,
    DESTINATION_STORAGE,
    PRODUCER_REQUEST_HOLD,
    BacklogQuota,
    Retention,
)
from embeddedpulsar.policy_values import SUBSCRIPTION_TYPE_NAMES, json_form
from embeddedpulsar.records import NamedTuple

_MOST_IN_TABLE: Final = 10_000

as_json = click.option("--json", "is_json", is_flag=True, help="Print JSON.")


def print_json(value: Any, indent: int | None = 2) -> None:
    """Print a value as one JSON text, of one line if ``indent`` is None.

    What the encoding of the output does not have, and on a terminal what is not printable, is written as
    ``\\u`` with its code."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    # Escaped as JSON, so what is copied from the terminal is the same value.
    if is_terminal():
        text = printable_json(text)
    # An output that is not UTF-8, as in the locale C: the whole text is written in ASCII. Escaping single
    # characters would mix two forms.
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, indent=indent)
    click.echo(text)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows; numbers are aligned to the right. A terminal gets a bold heading, unless ``NO_COLOR`` is
    set, and only printable characters.

    Where the output is no terminal, nothing is shortened or escaped. More than `_MOST_IN_TABLE` rows are
    lines with tabs, because columns of one width take a second for 10,000 rows.
    """
    listed = [list(row) for row in rows]
    # A pipe gets the names as they are: what is escaped would be another name for the program that reads it.
    if len(listed) > _MOST_IN_TABLE:
        for line in (columns, *listed):
            print("\t".join(line_text(cell) for cell in line).rstrip())
        return
    # A column is one of numbers if all of its cells are: a single text, such as an empty cell, aligns it
    # to the left.
    are_numbers = [
        bool(listed) and all(isinstance(row[index], int | float) for row in listed)
        for index in range(len(columns))
    ]
    texts = [
        [f"{cell:,}" if isinstance(cell, int | float) else line_text(cell) for cell in row] for row in listed
    ]
    # Rich cuts cells to the width of the terminal. Where there is none, nothing may be lost.
    if not is_terminal():
        _print_lines(columns, texts, are_numbers)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, is_number in zip(columns, are_numbers, strict=True):
        table.add_column(column, justify="right" if is_number else "left", no_wrap=True)
    for row in texts:
        table.add_row(*map(Text, row))  # as texts: in a plain string, brackets would be markup
    Console(file=raw_stream(sys.stdout), highlight=False).print(table)


def _print_lines(columns: Sequence[str], texts: list[list[str]], are_numbers: list[bool]) -> None:
    lines = [list(columns), *texts]
    # Cells, not characters: a Chinese character takes two columns, a combining one none.
    widths = [max(cell_len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        cells = []
        for cell, width, is_number in zip(line, widths, are_numbers, strict=True):
            gap = " " * (width - cell_len(cell))
            cells.append(gap + cell if is_number else cell + gap)
        print("  ".join(cells).rstrip(" "))


class ArgumentPath(click.Path):
    """A path on the command line, in whatever encoding it was typed."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(argument_path(os.fspath(value)), param, ctx)


class ArgumentFile(click.File):
    """A file on the command line; see `ArgumentPath`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(argument_path(value) if isinstance(value, str) else value, param, ctx)


_UNIT_S: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_AGO: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[smhdw]))+")
_DURATION: Final = re.compile(
    r"P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE
)
_ORDINAL: Final = re.compile(r"(\d{4})-(\d{3})(?=$|[T ])")


def seconds_of(text: str) -> float | None:
    """A span of time in seconds, such as 10m, 1h30m or PT10M; None for another text.

    Example:
        >>> seconds_of("1h30m"), seconds_of("P1DT2H"), seconds_of("soon")
        (5400.0, 93600.0, None)
    """
    if _AGO.fullmatch(text):
        parts = re.findall(r"(\d+(?:\.\d+)?)(ms|[smhdw])", text)
        return float(sum(float(number) * _UNIT_S[unit] for number, unit in parts))
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        return None
    numbers = [float(number or 0) for number in match.groups()]
    return sum(number * _UNIT_S[unit] for number, unit in zip(numbers, "wdhms", strict=True))


def moment_ms(text: str, now_ms: int) -> int:
    """A point in time in ms since 1970: that number, a form of ISO 8601, or how long ago it was.

    Without a zone it is of the zone of this machine; a time without a date is of today.

    Raises:
        ValueError: it is none of these.

    Example:
        >>> moment_ms("2026-11-28T12:00Z", 0), moment_ms("10m", 1_000_000), moment_ms("1700000000000", 0)
        (1795867200000, 400000, 1700000000000)
    """
    if re.fullmatch(r"\d+", text):
        return int(text)
    if text == "now":
        return now_ms
    ago = seconds_of(text)
    if ago is not None:
        return max(0, now_ms - round(ago * 1000))
    # A day of the year, the one form that Python does not read.
    day = _ORDINAL.match(text)
    if day is not None:
        begun = date(int(day[1]), 1, 1) + timedelta(days=int(day[2]) - 1)
        if not int(day[2]) or begun.year != int(day[1]):
            raise ValueError(f"the year {day[1]} has no day {day[2]}")
        text = begun.isoformat() + text[day.end() :]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        today = datetime.fromtimestamp(now_ms / 1000).date()
        moment = datetime.combine(today, time.fromisoformat(text))
    # One without a zone is of this machine.
    return max(0, round(moment.timestamp() * 1000))


if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:  # older releases of click have no type arguments
    _ParamType = click.ParamType


class Moment(_ParamType):
    """A point in time on the command line; see `moment_ms`.

    Args:
        others: words that stand for something else, which are returned as they are.
    """

    name = "time"

    def __init__(self, *others: str) -> None:
        self._others: Final = others

    def get_metavar(self, param: click.Parameter, *_: Any) -> str:
        return "|".join((*self._others, "TIME"))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or value in self._others:
            return value
        try:
            return moment_ms(value, SYSTEM_CLOCK.wall_ms())
        except (ValueError, OverflowError, OSError):
            self.fail(
                f"{value!r} is no time: write 2026-05-04T12:30, with Z or +02:00 for a zone, 12:30 for "
                "today, 10m, 2h or 1d for so long ago, or ms since 1970"
                + (f", or {' or '.join(self._others)}" if self._others else ""),
                param,
                ctx,
            )


class Age(Moment):
    """How long ago, in whole seconds: that number, or a point in time. Of a part of a second more is left."""

    def __init__(self) -> None:
        super().__init__()

    def get_metavar(self, param: click.Parameter, *_: Any) -> str:
        return "SECONDS|TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        if re.fullmatch(r"\d+", value):
            return int(value)
        # Rounded up, so that nothing behind the given moment counts as older.
        return max(0, -(-(SYSTEM_CLOCK.wall_ms() - super().convert(value, param, ctx)) // 1000))


def moment_text(timestamp_ms: object) -> str:
    """A point in time, for people: in the zone of this machine, or the number if no date is so late."""
    assert isinstance(timestamp_ms, int)
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000).astimezone().isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"


MOMENT: Final = Moment()
AGE: Final = Age()


def size(count: float) -> str:
    """Return a number of bytes for people.

    Example:
        >>> size(3 << 20), size(512)
        ('3.0 MiB', '512 bytes')
    """
    if count < 1024:
        return counted(count, "byte")
    units = ("KiB", "MiB", "GiB")
    power = min(len(units), int(math.log(count, 1024)))
    return f"{count / 1024**power:,.1f} {units[power - 1]}"


def destroys(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of those that destroy something: ``--yes`` and ``--dry-run``."""
    command = click.option("-y", "--yes", is_flag=True, help="Do it without asking.")(command)
    return click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")(command)


def is_confirmed(what: str, yes: bool, dry_run: bool) -> bool:
    """Ask before something is destroyed.

    Args:
        what: what the command does, such as ``delete the topic orders``.
        yes, dry_run: the options of `destroys`.

    Returns:
        Whether to do it: False in a dry run.

    Raises:
        Abort: the answer is no, or there is none.
    """
    if is_terminal():
        what = printable(what)
    # Before --yes: a dry run does nothing, whatever else is asked for.
    if dry_run:
        click.echo(f"would {what}; nothing was done")
        return False
    if not yes:
        # Without an answer, as at the end of the input, click aborts: a script has to say --yes.
        click.confirm(f"{what[0].upper()}{what[1:]}?", abort=True)
    return True


class MessagePrinter:
    """Prints messages, one after the other.

    Args:
        is_json: as one JSON object a line.
        is_verbose: with a line of id, publish time, key and properties before each.
    """

    def __init__(self, is_json: bool, is_verbose: bool) -> None:
        self._is_json = is_json
        self._is_verbose = is_verbose

    def print(self, message: Message[Any]) -> None:
        """Print a message. Its payload comes out as its bytes; a terminal gets what is not printable escaped,
        line ends too, and JSON a payload that is no UTF-8 in base64. On return the output has it."""
        if self._is_json:
            print_json(_fields(message), indent=None)
        else:
            if self._is_verbose:
                _print_heading(_heading(message))
            write_bytes(message.data())
        # A consumer acknowledges after this call, so what it acknowledges was handed to the reader of the
        # pipe.
        sys.stdout.flush()


def message_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of how messages are printed, and a `MessagePrinter` as ``printer``."""

    @click.option("-v", "--verbose", is_flag=True, help="Show id, publish time, key and properties too.")
    @click.option("--json", "is_json", is_flag=True, help="Print one JSON object a line.")
    @wraps(command)
    def with_printer(*args: Any, is_json: bool, verbose: bool, **kwargs: Any) -> Any:
        return command(*args, printer=MessagePrinter(is_json, verbose), **kwargs)

    return with_printer


def parsed_id(text: str) -> MessageId:
    """An id from its text: ledger, entry, partition, batch index, as ``str(MessageId)`` writes them, or
    ``LEDGER:ENTRY`` and so on, of which the last two may be left out.

    >>> str(parsed_id("5:17")), str(parsed_id("(5,17,-1,3)")), str(parsed_id("5:17:2"))
    ('(5,17,-1,-1)', '(5,17,-1,3)', '(5,17,2,-1)')
    """
    # A user may paste only a part of what is between the brackets. Minus signs are for no partition and no
    # batch.
    numbers = [int(number) for number in re.findall(r"-?\d+", text)]
    if not 2 <= len(numbers) <= 4 or not re.fullmatch(r"[-\d\s,:()]+", text):
        raise click.UsageError(
            f"an id is LEDGER:ENTRY, or the four numbers that commands print, not {text!r}"
        )
    ledger, entry, partition, batch = (*numbers, -1, -1)[:4]
    return MessageId(partition, ledger, entry, batch)


def iso_time(timestamp_ms: int) -> str:
    """Return a time in UTC, as ISO 8601 writes it."""
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _print_heading(text: str) -> None:
    if not is_terminal():
        print(text)  # click would strip what looks like a style
        return
    # Through the raw stream: the guarded one would escape the style as well.
    styled = click.style(printable(text), bold="NO_COLOR" not in os.environ)
    raw_stream(sys.stdout).write(styled + "\n")


def _heading(message: Message[Any]) -> str:
    parts = [str(message.message_id()), iso_time(message.publish_timestamp())]
    if message.partition_key():
        parts.append(f"key={message.partition_key()}")
    parts += [f"{name}={value}" for name, value in message.properties().items()]
    if message.redelivery_count():
        parts.append(f"redelivered {message.redelivery_count()} times")
    return "  ".join(parts)


def _fields(message: Message[Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "topic": message.topic_name(),
        "messageId": str(message.message_id()),
        "publishTime": message.publish_timestamp(),
        "eventTime": message.event_timestamp(),
        "key": message.partition_key(),
        "properties": message.properties(),
        "producerName": message.producer_name(),
        "redeliveryCount": message.redelivery_count(),
    }
    # A payload that is text is shown as text. The name of the field says which it is, so no payload can be
    # read as the other.
    try:
        fields["payload"] = message.data().decode("utf-8")
    except UnicodeDecodeError:
        fields["payloadBase64"] = base64.b64encode(message.data()).decode("ascii")
    return fields


_DOMAIN: Final = "persistent://"
_SHOWN: Final = 3
_DEFAULT_NAMESPACE: Final = "public/default"
_DEFAULT_PREFIX: Final = f"{_DOMAIN}{_DEFAULT_NAMESPACE}/"


class OpenedStore:
    """Opens the store named on the command line, and makes none unless it is asked to.

    Args:
        path: its directory, or None if none was given.
        is_read_only: whether to look at it only.
        is_quiet: whether nothing is printed.
    """

    def __init__(self, path: str | None, *, is_read_only: bool = False, is_quiet: bool = False) -> None:
        self._path = path
        self._is_read_only = is_read_only
        self._has_told = is_quiet

    def at(self, path: str) -> OpenedStore:
        """The store in another directory, used in the same way."""
        return OpenedStore(path, is_read_only=self._is_read_only, is_quiet=self._has_told)

    @property
    def root(self) -> str:
        """The directory, as an absolute path.

        Raises:
            UsageError: none was given, or one in memory.
            ValueError: the URL is that of a cluster, or of nothing known.
        """
        if not self._path:
            raise click.UsageError("name the directory of the store: --store PATH, or EMBEDDEDPULSAR_URL")
        # A path is turned into a `Path`, because `ServiceUrl.parse` takes a text for a URL.
        path = argument_path(self._path)
        root = ServiceUrl.parse(path if "://" in path else Path(path)).root
        if root is None:
            raise click.UsageError("a store in memory belongs to its process; name a directory")
        return root

    @property
    def directory(self) -> str:
        """The same, of a store that is there."""
        text = refusal(self.root)
        if text:
            raise click.ClickException(text)
        return self.root

    def admin(self) -> Admin:
        """An Admin of the store; to be closed. A store of which nothing may be written is looked at, and a
        line of the standard error says so."""
        # None: a store of which nothing may be written is opened read-only by itself.
        admin = Admin(self.directory, read_only=True if self._is_read_only else None)
        if admin.is_read_only and not self._has_told:
            self._has_told = True
            if not self._is_read_only:
                click.echo(f"read-only: {printable(admin.read_only_reason)}", err=True)
            # At the end of the command, behind its output: only by then is known which topics were looked at.
            context = click.get_current_context(silent=True)
            if context is not None:
                context.find_root().call_on_close(lambda: _tell_unrecovered(admin))
        return admin

    def check_writable(self) -> None:
        """Refuse to go on if the store was asked to be only looked at."""
        if self._is_read_only:
            raise click.UsageError("this command changes the store: leave --read-only out")

    def client(self, *, creates: bool = False) -> Client:
        """A client of the store; to be closed.

        Args:
            creates: make a store in a directory that is empty or does not exist, and say so.
        """
        # A directory that has files is a store, or an error: `Client` would make a store beside them.
        if not creates or (os.path.isdir(self.root) and os.listdir(self.root)):
            return Client(self.directory, read_only=True if self._is_read_only else None)
        client = Client(self.root, read_only=True if self._is_read_only else None)
        click.echo(f"created a store in {self.root}", err=True)
        return client


def cluster_client(url: str, token: str | None = None) -> Client:
    """A client of a cluster; to be closed. What ``pulsar-client`` logs is not printed: its errors are raised.

    Raises:
        UsageError: the URL is that of no cluster.
        ImportError: ``pulsar-client`` is not installed.
    """
    if not is_cluster(url):
        raise click.UsageError(f"{url} is no address of a cluster, such as pulsar://HOST:6650")
    with late_imports():
        from embeddedpulsar.client.client_config import FileLogger
        from embeddedpulsar.client.cluster_options import AuthenticationToken
        from embeddedpulsar.cluster.client import connected
    options: dict[str, Any] = {"logger": FileLogger(LoggerLevel.Warn, os.devnull)}
    if token is not None:
        options["authentication"] = AuthenticationToken(token)
    return connected(url, **options)


def _tell_unrecovered(admin: Admin) -> None:
    names = admin.unrecovered()
    if names:
        shown = ", ".join(names[:_SHOWN]) + (
            f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
        )
        click.echo(
            f"not recovered since the machine was restarted or the store was copied: {printable(shown)}. "
            "What is shown was found in the files as they are, and figures may be behind",
            err=True,
        )


pass_store = click.make_pass_decorator(OpenedStore)


def complete_topic(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Return the names of topics that begin with what was typed, for the completion of a shell."""
    # The options of the program were parsed before, but no command has run: there is no `OpenedStore` yet.
    path = context.find_root().params.get("store")
    tenant, _, rest = begun.removeprefix(_DOMAIN).partition("/")
    namespace = f"{tenant}/{rest.partition('/')[0]}" if "/" in rest else _DEFAULT_NAMESPACE
    try:
        with OpenedStore(path, is_quiet=True).admin() as admin:
            names = admin.topics().get_list(namespace)
    except Exception:  # noqa: BLE001 - a shell that completes a word shows no errors
        return []
    # A topic is completed in each of the forms in which it may be typed: full, without the domain, and
    # without the default namespace.
    forms = (name.removeprefix(prefix) for name in names for prefix in ("", _DOMAIN, _DEFAULT_PREFIX))
    return sorted({form for form in forms if form.startswith(begun)})


topic_argument = click.argument("topic", shell_complete=complete_topic)


if TYPE_CHECKING:
    _IntType = click.ParamType[int]
else:
    _IntType = click.ParamType

# Units of 1024, in the letters of pulsar-admin. A number without one is in the smallest.
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}

Option = Callable[[Any], Any]
Setter = Callable[..., None]

# -- values of options -------------------------------------------------------------------------------------


class Amount(_IntType):
    """A number with a unit, as pulsar-admin takes it: 10G, 3h; -1 for no limit."""

    def __init__(self, name: str, units: dict[str, int]) -> None:
        self.name = name
        self._units: Final = units

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = re.fullmatch(r"(-1|\d+)([A-Za-z]?)", str(value))
        units = {unit.lower(): factor for unit, factor in self._units.items()}
        # -1 is no limit and has no unit. Letters of either case are taken, as by pulsar-admin.
        if match is None or match[2].lower() not in units or (match[1] == "-1" and match[2]):
            self.fail(f"{value!r}: write a number with one of the units {' '.join(self._units)}", param, ctx)
        return int(match[1]) * units[match[2].lower()]


SIZE: Final = Amount("size", _UNITS)
TIME: Final = Amount("time", _SECONDS)
TICKS: Final = Amount("time", {"": 1, "s": 1000, "m": 60_000})
"""Milliseconds, unless a unit is given."""
LAG: Final = Amount("time", {unit: 1000 * factor for unit, factor in _SECONDS.items()})
"""Seconds, as milliseconds."""


def subscription_types(
    context: click.Context, parameter: click.Parameter, value: str
) -> frozenset[ConsumerType]:
    """The types of subscriptions that a text names, with commas between them."""
    # Names are those of pulsar-admin, and blanks around the commas are taken.
    types = SUBSCRIPTION_TYPE_NAMES
    names = [name for name in value.replace(" ", "").split(",") if name]
    unknown = [name for name in names if name not in types]
    if unknown or not names:
        raise click.BadParameter(f"{value!r}: write some of {','.join(types)}", context, parameter)
    return frozenset(types[name] for name in names)


def retention_limits(seconds: int, number: int) -> list[int]:
    """The minutes and MB of a retention, given in seconds and bytes."""
    # Pulsar stores minutes and MiB. Less than one of them would be 0, which keeps nothing, although something
    # was asked for.
    if 0 < seconds < 60 or 0 < number < 1 << 20:
        raise click.UsageError("a retention is at least one minute (1m) and one MiB (1M); 0 keeps nothing")
    # Negative is no limit, and is not divided.
    return [seconds if seconds < 0 else seconds // 60, number if number < 0 else number >> 20]


# -- what is shown of a value --------------------------------------------------------------------------------


def type_names(types: frozenset[ConsumerType] | None) -> list[str] | None:
    """Types of subscriptions by their names."""
    if types is None:
        return None
    return [name for name, kind in SUBSCRIPTION_TYPE_NAMES.items() if kind in types]


def retention_form(retention: Retention | None) -> dict[str, int] | None:
    """A retention with Pulsar's names for its fields."""
    return retention and {
        "retentionTimeInMinutes": retention.time_minutes,
        "retentionSizeInMB": retention.size_mb,
    }


def strategy_name(strategy: SchemaCompatibilityStrategy | None) -> str | None:
    """A strategy by its name."""
    return None if strategy is None else strategy.name


def threshold_text(threshold: int) -> str:
    """A threshold in bytes for readers."""
    return size(threshold) if threshold else "never"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return line_text(", ".join(f"{key}={field}" for key, field in value.items()))
    return line_text(", ".join(value) if isinstance(value, list) else value)


# -- verbs of a policy -------------------------------------------------------------------------------------


class PolicyVerbs(NamedTuple):
    """A policy on the command line.

    Attributes:
        verb: after ``set-``, as in pulsar-admin.
        text: what it is.
        setter: called with the topics or namespaces of an Admin, a name, and the values of ``options``.
        getter: the method of the Admin, whose name `method` has.
        remover: likewise.
        options: of ``set-``.
        form: what is shown of a value, as JSON or as text.
        text_form: the text of that.
    """

    verb: str
    text: str
    setter: Setter
    getter: Callable[..., Any]
    remover: Callable[..., None]
    options: Sequence[Option]
    form: Callable[[Any], Any]
    text_form: Callable[[Any], str]

    @property
    def method(self) -> str:
        """The methods of the Admin, without ``set_``.

        It is not always the verb.
        """
        return self.getter.__name__.removeprefix("get_")


def policy(
    verb: str,
    text: str,
    getter: Callable[..., Any],
    remover: Callable[..., None],
    *options: Option,
    form: Callable[[Any], Any] = json_form,
    text_form: Callable[[Any], str] = _text,
) -> Callable[[Setter], PolicyVerbs]:
    """Makes of the function that sets a policy its three verbs; see `PolicyVerbs`."""
    return lambda setter: PolicyVerbs(verb, text, setter, getter, remover, options, form, text_form)


def add_policies(
    group: click.Group, noun: str, owner: Callable[[Any], Policies], policies: Sequence[PolicyVerbs]
) -> None:
    """Add the three verbs of each policy.

    Args:
        group: gets them.
        noun: ``topic`` or ``namespace``.
        owner: the part of an Admin that has the methods.
        policies: the policies.
    """
    for policy in policies:
        _add(group, click.argument("name", metavar=noun.upper()), owner, policy)


def _add(group: click.Group, argument: Option, owner: Callable[[Any], Policies], policy: PolicyVerbs) -> None:
    # Not every getter knows levels above, such as those of policies that namespaces alone have.
    has_applied = "applied" in inspect.signature(policy.getter).parameters

    @pass_store
    def set_policy(store: OpenedStore, /, name: str, **options: Any) -> None:
        with store.admin() as admin:
            policy.setter(owner(admin), name, **options)

    @pass_store
    def get_policy(store: OpenedStore, name: str, applied: bool, is_json: bool) -> None:
        # The option is there for every policy, so that its absence is an error with a name, and not an
        # unknown option.
        if applied and not has_applied:
            raise click.UsageError(f"{policy.verb} has no --applied")
        with store.admin() as admin:
            value = policy.getter(owner(admin), name, *([applied] if has_applied else ()))
        # `form` makes of a value what JSON can have; the text is made of that, so both show the same.
        shown = policy.form(value)
        if is_json:
            print_json(shown)
        else:
            click.echo("not set" if shown is None else policy.text_form(shown))

    @pass_store
    def remove_policy(store: OpenedStore, name: str) -> None:
        with store.admin() as admin:
            policy.remover(owner(admin), name)

    for option in policy.options:
        set_policy = option(set_policy)
    applied = click.option("--applied", "-ap", is_flag=True, help="Show what holds, whatever level has it.")
    for verb, function, text in (
        ("set", set_policy, "Set"),
        ("get", applied(as_json(get_policy)), "Show what is set of"),
        ("remove", remove_policy, "Unset"),
    ):
        group.command(f"{verb}-{policy.verb}", help=f"{text}: {policy.text}.")(argument(function))


# -- backlog quotas ------------------------------------------------------------------------------------------


def add_quotas(group: click.Group, owner: Callable[[Any], Policies], what: str) -> None:
    """Add the commands to ``topics`` or ``namespaces``.

    Args:
        group: gets the commands.
        owner: where the policies are.
        what: the name of the argument.
    """
    # These verbs are written by hand: a quota has one of two types, and what is shown is the quotas of both.
    kinds = click.option(
        "--type",
        "-t",
        "kind",
        type=click.Choice(BACKLOG_QUOTA_TYPES),
        default=DESTINATION_STORAGE,
        show_default=True,
    )

    @group.command("set-backlog-quota", help=f"Set a backlog quota of {what.upper()}.")
    @click.argument("name", metavar=what.upper())
    @click.option("--limit", "-l", type=SIZE, default=-1, help="Bytes, such as 10G; -1 for no limit.")
    @click.option("--limitTime", "-lt", "limit_time", type=TIME, default=-1, help="Seconds, or such as 3h.")
    @click.option(
        "--policy",
        "-p",
        type=click.Choice(BACKLOG_QUOTA_POLICIES),
        default=PRODUCER_REQUEST_HOLD,
        show_default=True,
    )
    @kinds
    @pass_store
    def set_quota(store: OpenedStore, name: str, limit: int, limit_time: int, policy: str, kind: str) -> None:
        with store.admin() as admin:
            owner(admin).set_backlog_quota(name, BacklogQuota(limit, limit_time, policy), kind)

    @group.command("get-backlog-quotas", help=f"Show the backlog quotas of {what.upper()}, as JSON.")
    @click.argument("name", metavar=what.upper())
    @click.option("--applied", "-ap", is_flag=True, help="Show those that hold, whatever level has them.")
    @as_json
    @pass_store
    def get_quotas(store: OpenedStore, name: str, applied: bool, is_json: bool) -> None:
        with store.admin() as admin:
            quotas = owner(admin).get_backlog_quota_map(name, applied)
        print_json({kind: quota.json() for kind, quota in quotas.items()}, 2 if is_json else None)

    @group.command("remove-backlog-quota", help=f"Unset a backlog quota of {what.upper()}.")
    @click.argument("name", metavar=what.upper())
    @kinds
    @pass_store
    def remove_quota(store: OpenedStore, name: str, kind: str) -> None:
        with store.admin() as admin:
            owner(admin).remove_backlog_quota(name, kind)
