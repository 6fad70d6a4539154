"""Verbs of ``embeddedpulsar topics`` that act on a whole topic and its subscriptions."""

from __future__ import annotations

import click

from embeddedpulsar.cli.base import OpenedStore, destroys, is_confirmed, pass_store, topic_argument
from embeddedpulsar.cli.topic_commands import topics


@topics.command()
@topic_argument
@destroys
@pass_store
def terminate(store: OpenedStore, topic: str, yes: bool, dry_run: bool) -> None:
    """End TOPIC, or all its partitions, for ever: no message is taken any more."""
    with store.admin() as admin:
        if not is_confirmed(f"end the topic {topic} for ever", yes, dry_run):
            return
        if admin.topics().get_partitioned_topic_metadata(topic).partitions:
            for partition, last in admin.topics().terminate_partitioned_topic(topic).items():
                click.echo(f"partition {partition}: the last message is {last.ledger_id()}:{last.entry_id()}")
        else:
            last = admin.topics().terminate_topic(topic)
            click.echo(f"the last message is {last.ledger_id()}:{last.entry_id()}")


@topics.command()
@topic_argument
@destroys
@pass_store
def truncate(store: OpenedStore, topic: str, yes: bool, dry_run: bool) -> None:
    """Acknowledge all messages of TOPIC for all subscriptions, and remove all ledgers."""
    with store.admin() as admin:
        if is_confirmed(f"acknowledge and remove all messages of {topic}", yes, dry_run):
            admin.topics().truncate(topic)


@topics.command()
@topic_argument
@pass_store
def unload(store: OpenedStore, topic: str) -> None:
    """Have the consumers of TOPIC begin anew: what they hold is delivered again. Closes the open ledger."""
    with store.admin() as admin:
        admin.topics().unload(topic)


@topics.command("roll-ledger")
@topic_argument
@pass_store
def roll_ledger(store: OpenedStore, topic: str) -> None:
    """Close the open ledger of TOPIC, and start the next one. What is closed can be trimmed and offloaded."""
    with store.admin() as admin:
        closed = admin.topics().roll_ledger(topic)
    click.echo(f"{closed:,} ledger{'' if closed == 1 else 's'} closed")


@topics.command("expire-messages-all-subscriptions")
@topic_argument
@click.option("-t", "--expireTime", "seconds", type=click.IntRange(min=0), required=True, metavar="SECONDS")
@destroys
@pass_store
def expire_all(store: OpenedStore, topic: str, seconds: int, yes: bool, dry_run: bool) -> None:
    """Acknowledge what was published more than SECONDS ago, for all subscriptions of TOPIC."""
    what = f"acknowledge what all subscriptions of {topic} have that is older than {seconds:,} s"
    with store.admin() as admin:
        if is_confirmed(what, yes, dry_run):
            admin.topics().expire_messages_for_all_subscriptions(topic, seconds)
