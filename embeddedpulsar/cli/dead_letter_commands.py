"""``embeddedpulsar dlq``."""

from __future__ import annotations

import re

import click

from embeddedpulsar.cli.message_output import MessagePrinter, iso_time, message_options
from embeddedpulsar.cli.opened_store import OpenedStore, pass_store, topic_argument
from embeddedpulsar.cli.output import as_json, destroys, is_confirmed, print_json, print_table, size
from embeddedpulsar.message_id import MessageId

subscription_argument = click.argument("subscription")
letters_of = click.option("--dead-letter-topic", metavar="TOPIC", help="Default: TOPIC-SUBSCRIPTION-DLQ.")


@click.group()
def dlq() -> None:
    """List, show, publish again and give up the dead letters of a subscription."""


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
        found = admin.dead_letters(topic, subscription, dead_letter_topic).list(count)
    if is_json:
        print_json(
            [
                {
                    "messageId": str(one.message_id),
                    "originTopic": one.origin_topic,
                    "originMessageId": one.origin_message_id,
                    "publishTime": one.publish_timestamp,
                    "properties": one.properties,
                    "size": one.size,
                }
                for one in found
            ]
        )
        return
    rows = [
        (str(one.message_id), iso_time(one.publish_timestamp), size(one.size), one.origin_topic)
        for one in found
    ]
    print_table(("id", "dead since", "size", "from"), rows)


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
    """Show the first dead letters. Changes nothing."""
    with store.admin() as admin:
        for message in admin.dead_letters(topic, subscription, dead_letter_topic).peek(count):
            printer.print(message)


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
    wanted = None if message_id is None else _parsed(message_id)
    with store.admin() as admin:
        letters = admin.dead_letters(topic, subscription, dead_letter_topic)
        if not is_confirmed(f"publish {what} of {subscription} of {topic} again", yes, dry_run):
            return
        if wanted is None:
            click.echo(f"{letters.replay_all():,} dead letters published again")
        else:
            letters.replay(wanted)


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
            click.echo(f"{letters.purge():,} dead letters given up")


def _parsed(text: str) -> MessageId:
    """An id from its text, as `dlq list` prints it: ledger, entry, partition, batch index."""
    numbers = [int(number) for number in re.findall(r"-?\d+", text)]
    if len(numbers) != 4:
        raise click.UsageError(f"an id is four numbers, as `dlq list` prints them, not {text!r}")
    ledger, entry, partition, batch = numbers
    return MessageId(partition, ledger, entry, batch)
