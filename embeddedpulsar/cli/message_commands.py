"""``embeddedpulsar produce``, ``consume`` and ``tail``.

``embeddedpulsar dlq``.

``embeddedpulsar outbox``: the relay of an outbox in the foreground, and what waits in it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

import click

from embeddedpulsar.admin.admin import Admin
from embeddedpulsar.cli.base import (
    MOMENT,
    MessagePrinter,
    Moment,
    OpenedStore,
    as_json,
    destroys,
    is_confirmed,
    iso_time,
    message_options,
    parsed_id,
    pass_store,
    print_json,
    print_table,
    size,
    topic_argument,
)
from embeddedpulsar.cli.engine import SYSTEM_CLOCK, late_imports, on_termination
from embeddedpulsar.cli.terminal import ProgressLine, argument_bytes
from embeddedpulsar.client.client import Client
from embeddedpulsar.enums import ConsumerType, InitialPosition
from embeddedpulsar.error_text import counted
from embeddedpulsar.exceptions import AccessDeniedError, Timeout, TopicNotFound
from embeddedpulsar.message import Message
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.results import Result
from embeddedpulsar.topic_name import TopicName

_QUEUE = 1000
_TYPES = {kind.name.replace("KeyShared", "Key_Shared"): kind for kind in ConsumerType}


@click.command()
@topic_argument
@click.option("-m", "--message", "texts", multiple=True, help="A payload; default: each line of the input.")
@click.option("-k", "--key", help="The key of all messages.")
@click.option("-p", "--property", "properties", multiple=True, metavar="NAME=VALUE")
@pass_store
def produce(
    store: OpenedStore, topic: str, texts: tuple[str, ...], key: str | None, properties: tuple[str, ...]
) -> None:
    """Publish messages to TOPIC. Topic and store are created if necessary."""
    # Keys and properties are text in Pulsar's format, so bytes that are no UTF-8 are refused. A payload may
    # be any bytes.
    pairs = dict(_pair(_text(text)) for text in properties)
    key = None if key is None else _text(key)
    payloads = map(argument_bytes, texts) if texts else _lines()
    failures: list[Any] = []
    sent = 0
    progress = ProgressLine(sys.stderr)
    # A full queue blocks, so a long input takes no more memory than the queue.
    with (
        store.client(creates=True) as client,
        client.create_producer(topic, block_if_queue_full=True) as producer,
    ):
        for payload in payloads:
            producer.send_async(
                payload,
                # The callback runs in another thread; `append` is one step, and the list is read after
                # `flush`.
                lambda result, message_id: None if result is Result.Ok else failures.append(result.name),
                properties=pairs or None,
                partition_key=key,
            )
            sent += 1
            if progress.is_due:
                progress.show(f"{counted(sent, 'message')} published")
        # The callbacks of everything sent have run when it returns.
        producer.flush()
    progress.end()
    # The command tries all messages before it fails: a script knows how many are stored.
    if failures:
        refused = f"{len(failures):,} of {counted(sent, 'message')}"
        raise click.ClickException(f"{refused} could not be stored: {failures[0]}")
    click.echo(f"{counted(sent, 'message')} published", err=True)


@click.command()
@topic_argument
@click.option("-s", "--subscription", required=True, help="Created if necessary.")
@click.option("-t", "--type", "kind", type=click.Choice(list(_TYPES)), default="Exclusive", show_default=True)
@click.option("-n", "--count", type=click.IntRange(min=0), default=1, show_default=True, help="0: no end.")
@click.option(
    "--from",
    "position",
    type=Moment("earliest", "latest"),
    default="latest",
    show_default=True,
    help="Where a new subscription begins.",
)
@click.option("--create", is_flag=True, help="Create TOPIC if there is none.")
@click.option("-w", "--wait", "seconds", type=click.FloatRange(min=0), help="End after so long without one.")
@message_options
@pass_store
def consume(
    store: OpenedStore,
    topic: str,
    subscription: str,
    kind: str,
    count: int,
    position: str | int,
    create: bool,
    seconds: float | None,
    printer: MessagePrinter,
) -> None:
    """Receive messages of TOPIC, print and acknowledge them."""
    # `subscribe` would make the topic, and a misspelt name would wait for messages that never come.
    if not create:
        with store.admin() as admin:
            _check_exists(admin, topic)
    if isinstance(position, int):
        _subscribe_at(store, topic, subscription, position)
    initial = InitialPosition.Earliest if position == "earliest" else InitialPosition.Latest
    with store.client() as client:
        consumer = client.subscribe(
            topic,
            subscription,
            _TYPES[kind],
            receiver_queue_size=min(count or _QUEUE, _QUEUE),  # the rest is left to other consumers
            initial_position=initial,
        )
        # Printed before it is acknowledged: an interrupt in between shows it twice, and loses none.
        for message in _received(consumer, count, seconds):
            printer.print(message)
            consumer.acknowledge(message)


@click.command()
@topic_argument
@click.option("-n", "--count", type=click.IntRange(min=0), default=10, show_default=True)
@click.option("-f", "--follow", is_flag=True, help="Go on with new messages until interrupted.")
@click.option("--since", type=MOMENT, help="All that was published then or later, instead of a number.")
@message_options
@pass_store
def tail(
    store: OpenedStore, topic: str, count: int, follow: bool, since: int | None, printer: MessagePrinter
) -> None:
    """Show the last messages of TOPIC. No subscription is created, and nothing is acknowledged."""
    if since is not None:
        with store.admin() as admin, store.client() as client:
            # A reader would make the topic.
            admin.topics().get_partitioned_topic_metadata(topic)
            reader = client.create_reader(topic, MessageId.earliest)
            reader.seek(since)
            while follow or reader.has_message_available():
                printer.print(reader.read_next())
        return
    with store.admin() as admin, store.client() as client:
        begin = _near_end(admin, topic, count)
        # Before the last messages are read: what is published meanwhile is in both, and shown once.
        news = client.create_reader(topic, MessageId.latest) if follow else None
        messages = _last(client, topic, count, begin)
        for message in messages:
            printer.print(message)
        # Ids are compared, because publish times may be equal.
        if news is not None:
            shown = {message.message_id() for message in messages}
            for message in _received(news, 0, None):
                if message.message_id() not in shown:
                    printer.print(message)


def _subscribe_at(store: OpenedStore, topic: str, subscription: str, timestamp_ms: int) -> None:
    """Make a subscription that begins with what was published then or later; one that is there stays."""
    with store.admin() as admin:
        try:
            if subscription in admin.topics().get_subscriptions(topic):
                return
        except TopicNotFound:  # the consumer makes it
            return
        # Kept whole first: what is behind the time cannot be trimmed between the two steps.
        admin.topics().create_subscription(topic, subscription, MessageId.earliest)
        admin.topics().reset_cursor(topic, subscription, timestamp_ms)


def _check_exists(admin: Admin, topic: str) -> None:
    try:
        admin.topics().get_subscriptions(topic)
    except TopicNotFound as e:
        raise click.ClickException(
            f"there is no topic {TopicName.parse(topic).full}; --create makes it, and waits for messages"
        ) from e


def _text(argument: str) -> str:
    # Bytes that were typed and are no UTF-8 are surrogates here (`terminal.decoded_arguments`).
    try:
        argument.encode()
    except UnicodeEncodeError as e:
        raise click.ClickException(f"{argument!a} is not UTF-8 text; only payloads may be any bytes") from e
    return argument


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise click.UsageError(f"a property is NAME=VALUE, not {text!r}")
    return name, value


def _lines() -> Iterator[bytes]:
    if sys.__stdin__ is None:
        raise click.UsageError("the standard input is closed; name payloads with -m")
    # The last line may have no line end. A carriage return belongs to the payload.
    for line in sys.stdin.buffer:
        yield line.removesuffix(b"\n")


def _received(source: Any, count: int, seconds: float | None) -> Iterator[Message[Any]]:
    # A consumer has `receive`, a reader `read_next`.
    receive: Callable[..., Message[Any]] = getattr(source, "receive", None) or source.read_next
    count_received = 0
    while not count or count_received < count:
        try:
            # Without a time the wait has no end. At least a millisecond: 0 would not wait.
            yield receive() if seconds is None else receive(max(1, int(seconds * 1000)))
        except Timeout:
            return
        count_received += 1


def _last(client: Client, topic: str, count: int, begin: MessageId | None) -> list[Message[Any]]:
    """The last messages: those behind ``begin`` if there are as many, otherwise of the whole topic."""
    messages: deque[Message[Any]] = deque(maxlen=count)
    # Two attempts: from an id so many entries before the end, which is enough if each of them has a message,
    # and from the beginning if that gave too few.
    for first in filter(None, (begin, MessageId.earliest) if count else ()):
        messages.clear()
        reader = client.create_reader(topic, first)
        while reader.has_message_available():
            messages.append(reader.read_next())
        reader.close()
        if len(messages) == count:
            break
    return list(messages)


def _near_end(admin: Admin, topic: str, count: int) -> MessageId | None:
    """An id so many entries before the end of a topic; None if that is in another ledger, or the topic has
    partitions."""
    # Partitions have an end each, and entries of several ledgers cannot be counted back by an id.
    if admin.topics().get_partitioned_topic_metadata(topic).partitions:
        return None
    last = admin.topics().get_last_message_id(topic)
    if last.entry_id() < count:
        return None
    return MessageId(last.partition(), last.ledger_id(), last.entry_id() - count, -1)


subscription_argument = click.argument("subscription")
letters_of = click.option("--dead-letter-topic", metavar="TOPIC", help="Default: TOPIC-SUBSCRIPTION-DLQ.")


@click.group()
def dlq() -> None:
    """List, show, add, publish again and give up the dead letters of a subscription."""


@dlq.command("list")
@topic_argument
@subscription_argument
@letters_of
@click.option("-n", "--count", type=click.IntRange(min=1), default=100, show_default=True)
@as_json
@pass_store
def list_letters(
    store: OpenedStore,
    topic: str,
    subscription: str,
    dead_letter_topic: str | None,
    count: int,
    is_json: bool,
) -> None:
    """List the first dead letters of SUBSCRIPTION of TOPIC."""
    with store.admin() as admin:
        letters = admin.dead_letters(topic, subscription, dead_letter_topic).list(count)
    if is_json:
        # Names in camel case, as in all JSON of the program. There is no such command in pulsar-admin.
        print_json(
            [
                {
                    "messageId": str(letter.message_id),
                    "originTopic": letter.origin_topic,
                    "originMessageId": letter.origin_message_id,
                    "publishTime": letter.publish_timestamp,
                    "properties": letter.properties,
                    "size": letter.size,
                    "reason": letter.reason,
                }
                for letter in letters
            ]
        )
        return
    rows = [
        (
            str(letter.message_id),
            iso_time(letter.publish_timestamp),
            size(letter.size),
            letter.origin_topic,
            letter.reason.partition("\n")[0],
        )
        for letter in letters
    ]
    print_table(("id", "dead since", "size", "from", "reason"), rows)


@dlq.command()
@topic_argument
@subscription_argument
@letters_of
@click.option("-n", "--count", type=click.IntRange(min=1), default=1, show_default=True)
@message_options
@pass_store
def peek(
    store: OpenedStore,
    topic: str,
    subscription: str,
    dead_letter_topic: str | None,
    count: int,
    printer: MessagePrinter,
) -> None:
    """Show the first dead letters. Changes nothing.

    With --verbose the properties say why each one failed: DEAD_LETTER_REASON.
    """
    with store.admin() as admin:
        for message in admin.dead_letters(topic, subscription, dead_letter_topic).peek(count):
            printer.print(message)


@dlq.command()
@topic_argument
@subscription_argument
@letters_of
@click.option("--id", "message_id", required=True, metavar="ID", help="Of the message: LEDGER:ENTRY.")
@click.option("--reason", default="", metavar="TEXT", help="Why; shown with the dead letter.")
@destroys
@pass_store
def add(
    store: OpenedStore,
    topic: str,
    subscription: str,
    dead_letter_topic: str | None,
    message_id: str,
    reason: str,
    yes: bool,
    dry_run: bool,
) -> None:
    """Move a message of SUBSCRIPTION of TOPIC to the dead letters."""
    wanted = parsed_id(message_id)
    with store.admin() as admin:
        letters = admin.dead_letters(topic, subscription, dead_letter_topic)
        if is_confirmed(f"move {message_id} of {subscription} of {topic} to {letters.topic}", yes, dry_run):
            letters.add(wanted, reason)
            click.echo(f"{message_id} moved to {letters.topic}")


@dlq.command()
@topic_argument
@subscription_argument
@letters_of
@click.option("--id", "message_id", metavar="ID", help="One of them, by its id of `dlq list`; default: all.")
@destroys
@pass_store
def replay(
    store: OpenedStore,
    topic: str,
    subscription: str,
    dead_letter_topic: str | None,
    message_id: str | None,
    yes: bool,
    dry_run: bool,
) -> None:
    """Publish dead letters to the topic they come from, and take them off the list."""
    what = "all dead letters" if message_id is None else f"the dead letter {message_id}"
    wanted = None if message_id is None else parsed_id(message_id)
    with store.admin() as admin:
        # Made before the question: a text that is no topic name is an error, also in a dry run.
        letters = admin.dead_letters(topic, subscription, dead_letter_topic)
        if not is_confirmed(f"publish {what} of {subscription} of {topic} again", yes, dry_run):
            return
        if wanted is None:
            click.echo(f"{counted(letters.replay_all(), 'dead letter')} published again")
        else:
            letters.replay(wanted)
            click.echo(f"the dead letter {message_id} published again")


@dlq.command()
@topic_argument
@subscription_argument
@letters_of
@destroys
@pass_store
def purge(
    store: OpenedStore,
    topic: str,
    subscription: str,
    dead_letter_topic: str | None,
    yes: bool,
    dry_run: bool,
) -> None:
    """Give up all dead letters."""
    with store.admin() as admin:
        letters = admin.dead_letters(topic, subscription, dead_letter_topic)
        if is_confirmed(f"give up all dead letters of {subscription} of {topic}", yes, dry_run):
            click.echo(f"{counted(letters.purge(), 'dead letter')} given up")


# -- outboxes ----------------------------------------------------------------------------------------------

_SQLITE: Final = "sqlite:///"

_table = click.option(
    "--table", default="outbox", show_default=True, metavar="NAME", help="The table of the outbox."
)
_places = click.argument("places", nargs=-1, required=True, metavar="[STORE] DATABASE")


@click.group()
def outbox() -> None:
    """Publish what applications store in their own databases, and show what waits.

    DATABASE is sqlite:///app.db, sqlite:////srv/app.db or postgresql://user@host/name. STORE may be given
    here or before the command.
    """


def _placed(store: OpenedStore, places: tuple[str, ...]) -> tuple[OpenedStore, str]:
    """The store and the URL of the database; a file of SQLite is there."""
    if len(places) > 2:
        raise click.UsageError("name one store and one database: outbox run ./data sqlite:///app.db")
    with late_imports():
        from embeddedpulsar.outbox.databases import opener_of

    database = places[-1]
    opener_of(database)  # what names no database is refused
    path = database.removeprefix(_SQLITE)
    # A misspelt path would be a new, empty database.
    if database.startswith(_SQLITE) and not os.path.exists(path):
        raise click.ClickException(f"there is no database {path}")
    return (store.at(places[0]) if len(places) == 2 else store), database


@outbox.command()
@_places
@_table
@click.option("--once", is_flag=True, help="Publish what is committed now, and end.")
@click.option(
    "--poll-interval",
    type=click.FloatRange(min=0.001, max=3600),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to look without being told of a commit.",
)
@click.option(
    "--durability",
    type=click.Choice(["process", "interval", "flush"]),
    default="flush",
    show_default=True,
    help="What a message survives when its row is removed.",
)
@pass_store
def run(
    store: OpenedStore,
    places: tuple[str, ...],
    table: str,
    once: bool,
    poll_interval: float,
    durability: str,
) -> None:
    """Publish the messages of the outbox in DATABASE, until Ctrl-C, SIGTERM or SIGHUP.

    The store is made if there is none. If another relay serves the outbox, this one waits for its turn. The
    exit status with --once is 1 if a topic refused messages.
    """
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    with late_imports():
        from embeddedpulsar.outbox import Relay

    store, database = _placed(store, places)
    store.check_writable()
    progress = ProgressLine(sys.stderr)

    def show(published: int) -> None:
        if progress.is_due:
            progress.show(f"{counted(published, 'message')} published")

    with store.client(creates=True) as client:
        relay = Relay(client, database, table=table, poll_interval_s=poll_interval, durability=durability)
        try:
            if once:
                relay.drain(show)
            else:
                # Ctrl-C may strike within a batch: the next relay goes on where this one was.
                with on_termination(relay.stop), contextlib.suppress(KeyboardInterrupt):
                    relay.run(show)
        finally:
            progress.end()
    click.echo(f"{counted(relay.published, 'message')} published")
    if once and relay.last_error:
        raise click.ClickException(relay.last_error)


@outbox.command("status")
@_places
@_table
@as_json
@pass_store
def show_status(store: OpenedStore, places: tuple[str, ...], table: str, is_json: bool) -> None:
    """Show which messages wait in the outbox in DATABASE, and whether a relay of STORE serves it."""
    with late_imports():
        from embeddedpulsar.outbox import status
        from embeddedpulsar.outbox.databases import opener_of
        from embeddedpulsar.outbox.relay import is_served

    store, database = _placed(store, places)
    with contextlib.closing(opener_of(database)()) as connection:
        state = status(connection, table=table)
    try:
        served = {True: "served by a relay", False: "no relay: `embeddedpulsar outbox run`"}[
            is_served(store.directory, state.producer_name)
        ]
    except AccessDeniedError:
        served = "the lock of its relay belongs to another user"
    if is_json:
        topics = [topic._asdict() for topic in state.topics]
        print_json({**state._asdict(), "relay": served, "topics": topics})
        return
    click.echo(f"{state.producer_name}: {counted(state.waiting, 'message')} to publish; {served}")
    now_ms = SYSTEM_CLOCK.wall_ms()
    rows = [
        (topic.topic, topic.waiting, _age(now_ms - topic.oldest_ms) if topic.waiting else "", topic.note)
        for topic in state.topics
    ]
    print_table(("topic", "waiting", "oldest", "refused because"), rows)


def _age(age_ms: int) -> str:
    return f"{max(age_ms, 0) / 1000:,.1f} s"
