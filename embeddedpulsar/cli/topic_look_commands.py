"""Verbs of ``embeddedpulsar topics`` that show what is in a topic: figures, positions, single messages."""

from __future__ import annotations

import click

from embeddedpulsar.cli.message_output import MessagePrinter, message_options
from embeddedpulsar.cli.opened_store import OpenedStore, pass_store, topic_argument
from embeddedpulsar.cli.output import as_json, print_json, print_table
from embeddedpulsar.cli.topic_commands import DEFAULT_NAMESPACE, topics
from embeddedpulsar.message_id import MessageId


def _position(context: click.Context, parameter: click.Parameter, value: str) -> MessageId:
    """A message id, as ``ledger:entry``."""
    ledger, _, entry = value.partition(":")
    if not (ledger.isdigit() and entry.isdigit()):
        raise click.BadParameter(f"{value!r} is no message id; write ledger:entry", context, parameter)
    return MessageId(-1, int(ledger), int(entry), -1)


def _print_id(found: MessageId, is_json: bool) -> None:
    if is_json:
        print_json(
            {
                "ledgerId": found.ledger_id(),
                "entryId": found.entry_id(),
                "partitionIndex": found.partition(),
            }
        )
    else:
        click.echo(f"{found.ledger_id()}:{found.entry_id()}:{found.partition()}")


@topics.command("list-partitioned-topics")
@click.argument("namespace", default=DEFAULT_NAMESPACE)
@as_json
@pass_store
def list_partitioned_topics(store: OpenedStore, namespace: str, is_json: bool) -> None:
    """List the partitioned topics of NAMESPACE (public/default)."""
    with store.admin() as admin:
        found = admin.topics().get_partitioned_topic_list(namespace)
    if is_json:
        print_json(found)
    else:
        print_table(("topic",), [(name,) for name in found])


@topics.command("get-partitioned-topic-metadata")
@topic_argument
@pass_store
def get_partitioned_topic_metadata(store: OpenedStore, topic: str) -> None:
    """Show the number of partitions of TOPIC, as JSON; 0 if it is not partitioned."""
    with store.admin() as admin:
        print_json(admin.topics().get_partitioned_topic_metadata(topic).json())


@topics.command("partitioned-stats")
@topic_argument
@click.option("--per-partition", is_flag=True, help="Also of each partition.")
@pass_store
def partitioned_stats(store: OpenedStore, topic: str, per_partition: bool) -> None:
    """Show the sums of the stats of all partitions of TOPIC, as JSON."""
    with store.admin() as admin:
        print_json(admin.topics().get_partitioned_stats(topic, per_partition).json())


@topics.command("stats-internal")
@topic_argument
@pass_store
def stats_internal(store: OpenedStore, topic: str) -> None:
    """Show the ledgers of TOPIC, and where its subscriptions are, as JSON."""
    with store.admin() as admin:
        print_json(admin.topics().get_internal_stats(topic).json())


@topics.command("analyze-backlog")
@topic_argument
@click.option("-s", "--subscription", required=True, help="Its name.")
@pass_store
def analyze_backlog(store: OpenedStore, topic: str, subscription: str) -> None:
    """Show how many entries and messages a subscription has not acknowledged, as JSON."""
    with store.admin() as admin:
        print_json(admin.topics().analyze_subscription_backlog(topic, subscription).json())


@topics.command("get-backlog-size")
@topic_argument
@click.option("-m", "--messageId", "position", callback=_position, required=True, help="As ledger:entry.")
@pass_store
def get_backlog_size(store: OpenedStore, topic: str, position: MessageId) -> None:
    """Show how many bytes are stored behind a message of TOPIC."""
    with store.admin() as admin:
        click.echo(admin.topics().get_backlog_size_by_message_id(topic, position))


@topics.command("last-message-id")
@topic_argument
@as_json
@pass_store
def last_message_id(store: OpenedStore, topic: str, is_json: bool) -> None:
    """Show the id of the last message of TOPIC, as ledger:entry:partition."""
    with store.admin() as admin:
        _print_id(admin.topics().get_last_message_id(topic), is_json)


@topics.command("get-message-id")
@topic_argument
@click.option(
    "-t", "--time", "timestamp_ms", type=click.IntRange(min=0), required=True, help="Ms since 1970."
)
@as_json
@pass_store
def get_message_id(store: OpenedStore, topic: str, timestamp_ms: int, is_json: bool) -> None:
    """Show the id of the first entry of TOPIC that was published then or later."""
    with store.admin() as admin:
        _print_id(admin.topics().get_message_id_by_timestamp(topic, timestamp_ms), is_json)


@topics.command("get-message-by-id")
@topic_argument
@click.option("-l", "--ledgerId", "ledger_id", type=click.IntRange(min=0), required=True)
@click.option("-e", "--entryId", "entry_id", type=click.IntRange(min=0), required=True)
@message_options
@pass_store
def get_message_by_id(
    store: OpenedStore, topic: str, ledger_id: int, entry_id: int, printer: MessagePrinter
) -> None:
    """Show the messages of an entry of TOPIC: one, or those of a batch."""
    with store.admin() as admin:
        for message in admin.topics().get_messages_by_id(topic, ledger_id, entry_id):
            printer.print(message)


@topics.command("examine-messages")
@topic_argument
@click.option(
    "-i", "--initialPosition", "position", type=click.Choice(["earliest", "latest"]), default="latest"
)
@click.option("-m", "--messagePosition", "number", type=click.IntRange(min=1), default=1, show_default=True)
@message_options
@pass_store
def examine_messages(
    store: OpenedStore, topic: str, position: str, number: int, printer: MessagePrinter
) -> None:
    """Show one message of TOPIC, counted from an end."""
    with store.admin() as admin:
        printer.print(admin.topics().examine_message(topic, position, number))
