"""``embeddedpulsar topics``."""

from __future__ import annotations

import click

from embeddedpulsar._engine.platform.clock import SYSTEM_CLOCK
from embeddedpulsar.admin.admin import Admin
from embeddedpulsar.admin.store_care import held_text
from embeddedpulsar.admin.topic_stats import PartitionedTopicStats, TopicStats
from embeddedpulsar.cli.base import (
    MessagePrinter,
    OpenedStore,
    as_json,
    destroys,
    is_confirmed,
    message_options,
    pass_store,
    print_json,
    print_table,
    size,
    topic_argument,
)
from embeddedpulsar.cli.policies import add_policies
from embeddedpulsar.cli.policy_verbs import OF_BOTH, OF_TOPICS
from embeddedpulsar.cli.terminal import is_terminal, printable
from embeddedpulsar.message import Message

DEFAULT_NAMESPACE = "public/default"


@click.group()
def topics() -> None:
    """List, create, show and delete topics."""


@topics.command("list")
@click.argument("namespace", default=DEFAULT_NAMESPACE)
@click.option(
    "-td",
    "--topic-domain",
    "domain",
    type=click.Choice(["persistent", "non_persistent"]),
    help="Topics of this kind alone.",
)
@as_json
@pass_store
def list_topics(store: OpenedStore, namespace: str, domain: str | None, is_json: bool) -> None:
    """List the topics and partitions of NAMESPACE (public/default), and partitioned topics."""
    with store.admin() as admin:
        topic_admin = admin.topics()
        listed = [
            (name, topic_admin.get_partitioned_topic_metadata(name).partitions)
            for name in topic_admin.get_partitioned_topic_list(namespace)
        ]
        # Partitioned topics are no topics with messages, and not in this list; their partitions are.
        listed += [(name, 0) for name in topic_admin.get_list(namespace)]
    if domain is not None:
        scheme = f"{domain.replace('_', '-')}://"
        listed = [entry for entry in listed if entry[0].startswith(scheme)]
    if is_json:
        print_json([{"topic": name, "partitions": partitions} for name, partitions in sorted(listed)])
    else:
        print_table(("topic", "partitions"), [(name, count or "") for name, count in sorted(listed)])


@topics.command()
@topic_argument
@click.option("-p", "--partitions", type=click.IntRange(min=1), help="Create a partitioned topic.")
@pass_store
def create(store: OpenedStore, topic: str, partitions: int | None) -> None:
    """Create TOPIC."""
    with store.admin() as admin:
        if partitions is None:
            admin.topics().create_non_partitioned_topic(topic)
        else:
            admin.topics().create_partitioned_topic(topic, partitions)


@topics.command("update-partitioned-topic")
@topic_argument
@click.option("-p", "--partitions", type=click.IntRange(min=1), required=True, help="The new number.")
@pass_store
def update_partitioned_topic(store: OpenedStore, topic: str, partitions: int) -> None:
    """Add partitions to TOPIC."""
    with store.admin() as admin:
        admin.topics().update_partitioned_topic(topic, partitions)


@topics.command()
@topic_argument
@click.option("-f", "--force", is_flag=True, help="Even if producers or consumers are attached.")
@destroys
@pass_store
def delete(store: OpenedStore, topic: str, force: bool, yes: bool, dry_run: bool) -> None:
    """Delete TOPIC with its subscriptions and messages."""
    with store.admin() as admin:
        partitions = admin.topics().get_partitioned_topic_metadata(topic).partitions
        size = f" and its {partitions} partitions" if partitions else ""
        if not is_confirmed(f"delete the topic {topic}{size}, with all messages", yes, dry_run):
            return
        if partitions:
            admin.topics().delete_partitioned_topic(topic, force)
        else:
            admin.topics().delete(topic, force)


@topics.command()
@topic_argument
@as_json
@pass_store
def stats(store: OpenedStore, topic: str, is_json: bool) -> None:
    """Show rates, sizes, backlogs and consumers of TOPIC. With --json, the fields of pulsar-admin."""
    with store.admin() as admin:
        partitions = admin.topics().get_partitioned_topic_metadata(topic).partitions
        topic_stats: TopicStats | PartitionedTopicStats
        # A partitioned topic has no figures of its own: the sums of its partitions are shown.
        if partitions:
            topic_stats = admin.topics().get_partitioned_stats(topic)
        else:
            topic_stats = admin.topics().get_stats(topic)
    if is_json:
        print_json(topic_stats.json())
        return
    figures = topic_stats.totals if isinstance(topic_stats, PartitionedTopicStats) else topic_stats
    click.echo(f"published  {figures.msg_rate_in:,.1f} messages/s, {size(figures.msg_throughput_in)}/s")
    click.echo(f"stored     {size(figures.storage_size)}")
    shows = printable if is_terminal() else str
    producers = ", ".join(shows(publisher.producer_name) for publisher in figures.publishers)
    print(f"producers  {producers or 'none'}")
    click.echo()
    now_ms = SYSTEM_CLOCK.wall_ms()
    rows = [
        (
            name,
            subscription.type,
            subscription.msg_backlog,
            size(subscription.backlog_size),
            _age(now_ms, subscription.earliest_msg_publish_time_in_backlog),
            subscription.unacked_messages,
            ", ".join(consumer.consumer_name for consumer in subscription.consumers) or "none",
        )
        for name, subscription in figures.subscriptions.items()
    ]
    print_table(("subscription", "type", "backlog", "size", "oldest", "held", "consumers"), rows)
    # Below the table, because such a line is long and rare: a consumer that holds the oldest message and has
    # been silent for a while.
    for name, subscription in figures.subscriptions.items():
        for consumer in subscription.consumers:
            text = held_text(
                consumer.consumer_name,
                consumer.pid,
                consumer.held_since,
                consumer.unacked_messages,
                consumer.oldest_unacked_message_id,
                now_ms,
            )
            if text:
                click.echo(f"\n{name}: {text}")


def _age(now_ms: int, published_ms: int) -> str:
    return f"{(now_ms - published_ms) / 1000:,.1f} s" if published_ms else ""


@topics.command("why-kept")
@topic_argument
@as_json
@pass_store
def why_kept(store: OpenedStore, topic: str, is_json: bool) -> None:
    """Show what holds the stored messages of TOPIC: subscriptions, retention, or neither."""
    with store.admin() as admin:
        kept = admin.why_kept(topic)
    if is_json:
        print_json(kept.json())
        return
    rows = [
        (ledger.ledger_id, ledger.entries, size(ledger.size), ledger.reason, ", ".join(ledger.subscriptions))
        for ledger in kept.ledgers
    ]
    print_table(("ledger", "entries", "size", "reason", "subscriptions"), rows)


@topics.command()
@topic_argument
@pass_store
def trim(store: OpenedStore, topic: str) -> None:
    """Remove the ledgers of TOPIC that nothing needs, now rather than in the background."""
    with store.admin() as admin:
        click.echo(f"{admin.topics().trim_topic(topic):,} ledgers removed")


@topics.command("peek-messages")
@topic_argument
@click.option("-s", "--subscription", required=True, help="The subscription whose backlog is shown.")
@click.option("-n", "--count", type=click.IntRange(min=1), default=10, show_default=True)
@message_options
@pass_store
def peek_messages(
    store: OpenedStore, topic: str, subscription: str, count: int, printer: MessagePrinter
) -> None:
    """Show the first messages that a subscription of TOPIC has not acknowledged. Consumes nothing."""
    with store.admin() as admin:
        for message in peeked(admin, topic, subscription, count):
            printer.print(message)


def peeked(admin: Admin, topic: str, subscription: str, count: int) -> list[Message[bytes]]:
    """The messages, those of all partitions if the topic has some."""
    # A subscription has a backlog in each partition. From each come so many, since all of the oldest may be
    # in one.
    partitions = admin.topics().get_partitioned_topic_metadata(topic).partitions
    names = [f"{topic}-partition-{index}" for index in range(partitions)] or [topic]
    messages = [
        message for name in names for message in admin.topics().peek_messages(name, subscription, count)
    ]
    return sorted(messages, key=lambda message: message.publish_timestamp())[:count]


add_policies(topics, "topic", lambda admin: admin.topics(), (*OF_BOTH, *OF_TOPICS))
