"""``embeddedpulsar subscriptions``."""

from __future__ import annotations

import click

from embeddedpulsar.cli.base import (
    OpenedStore,
    as_json,
    destroys,
    is_confirmed,
    pass_store,
    print_json,
    print_table,
    topic_argument,
)
from embeddedpulsar.message_id import MessageId

# The two positions that have names, which are ids in Pulsar, too.
_POSITIONS = {"earliest": MessageId.earliest, "latest": MessageId.latest}
subscription_argument = click.argument("subscription")


@click.group()
def subscriptions() -> None:
    """List, create, move, empty and delete subscriptions."""


@subscriptions.command("list")
@topic_argument
@as_json
@pass_store
def list_subscriptions(store: OpenedStore, topic: str, is_json: bool) -> None:
    """List the durable subscriptions of TOPIC."""
    with store.admin() as admin:
        names = admin.topics().get_subscriptions(topic)
    if is_json:
        print_json(names)
    else:
        print_table(("subscription",), [(name,) for name in names])


@subscriptions.command()
@topic_argument
@subscription_argument
@click.option("--from", "position", type=click.Choice(list(_POSITIONS)), default="latest", show_default=True)
@pass_store
def create(store: OpenedStore, topic: str, subscription: str, position: str) -> None:
    """Create SUBSCRIPTION of TOPIC."""
    with store.admin() as admin:
        admin.topics().create_subscription(topic, subscription, _POSITIONS[position])


@subscriptions.command()
@topic_argument
@subscription_argument
@click.option("-f", "--force", is_flag=True, help="Even if consumers are attached.")
@destroys
@pass_store
def delete(store: OpenedStore, topic: str, subscription: str, force: bool, yes: bool, dry_run: bool) -> None:
    """Delete SUBSCRIPTION of TOPIC: what it has not acknowledged is not kept for it any more."""
    with store.admin() as admin:
        if is_confirmed(f"delete the subscription {subscription} of {topic}", yes, dry_run):
            admin.topics().delete_subscription(topic, subscription, force)


@subscriptions.command()
@topic_argument
@subscription_argument
@click.option("-n", "--count", type=click.IntRange(min=1), required=True, help="How many messages.")
@destroys
@pass_store
def skip(store: OpenedStore, topic: str, subscription: str, count: int, yes: bool, dry_run: bool) -> None:
    """Acknowledge the first messages of the backlog of SUBSCRIPTION."""
    with store.admin() as admin:
        if is_confirmed(f"skip {count:,} messages of {subscription} of {topic}", yes, dry_run):
            # A subscription may have fewer messages than it is asked to skip, so their number is shown.
            click.echo(f"{admin.topics().skip_messages(topic, subscription, count):,} messages skipped")


@subscriptions.command("skip-all")
@topic_argument
@subscription_argument
@destroys
@pass_store
def skip_all(store: OpenedStore, topic: str, subscription: str, yes: bool, dry_run: bool) -> None:
    """Acknowledge the whole backlog of SUBSCRIPTION."""
    with store.admin() as admin:
        if is_confirmed(f"skip all messages of {subscription} of {topic}", yes, dry_run):
            admin.topics().skip_all_messages(topic, subscription)


@subscriptions.command()
@topic_argument
@subscription_argument
@click.option("--older-than", "seconds", type=click.IntRange(min=0), required=True, metavar="SECONDS")
@destroys
@pass_store
def expire(store: OpenedStore, topic: str, subscription: str, seconds: int, yes: bool, dry_run: bool) -> None:
    """Acknowledge the messages that were published more than SECONDS ago."""
    what = f"acknowledge what {subscription} of {topic} has that is older than {seconds:,} s"
    with store.admin() as admin:
        if is_confirmed(what, yes, dry_run):
            admin.topics().expire_messages(topic, subscription, seconds)


@subscriptions.command()
@topic_argument
@subscription_argument
@click.option("--to", "position", type=click.Choice(list(_POSITIONS)), help="The oldest or the next message.")
@click.option("--time", "timestamp_ms", type=click.IntRange(min=0), metavar="MS", help="Ms since 1970.")
@destroys
@pass_store
def reset(
    store: OpenedStore,
    topic: str,
    subscription: str,
    position: str | None,
    timestamp_ms: int | None,
    yes: bool,
    dry_run: bool,
) -> None:
    """Move SUBSCRIPTION: what lies before the target counts as acknowledged, the rest is delivered."""
    # One of the two, because a position and a time may contradict each other.
    if (position is None) == (timestamp_ms is None):
        raise click.UsageError("name the target: either --to or --time")
    target = _POSITIONS[position] if position is not None else timestamp_ms
    # For the type checker: one of the two is there.
    assert target is not None
    with store.admin() as admin:
        where = position or f"the messages from {timestamp_ms} ms on"
        if is_confirmed(f"reset {subscription} of {topic} to {where}", yes, dry_run):
            admin.topics().reset_cursor(topic, subscription, target)
