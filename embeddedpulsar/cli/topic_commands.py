"""``embeddedpulsar topics`` and ``embeddedpulsar subscriptions``: topics and their subscriptions, what
acts on all of one topic, its compaction and its offloading.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import click

from embeddedpulsar.admin.activity import held_text
from embeddedpulsar.admin.admin import Admin
from embeddedpulsar.admin.topic_stats import PartitionedTopicStats, TopicStats
from embeddedpulsar.admin.topics import Topics
from embeddedpulsar.cli.base import (
    AGE,
    MOMENT,
    SIZE,
    ArgumentPath,
    MessagePrinter,
    Moment,
    OpenedStore,
    add_policies,
    as_json,
    destroys,
    is_confirmed,
    message_options,
    moment_text,
    parsed_id,
    pass_store,
    print_json,
    print_table,
    size,
    topic_argument,
)
from embeddedpulsar.cli.engine import SYSTEM_CLOCK, late_imports
from embeddedpulsar.cli.policy_verbs import OF_BOTH, OF_TOPICS
from embeddedpulsar.cli.terminal import ProgressLine, line_text
from embeddedpulsar.error_text import counted
from embeddedpulsar.message import Message
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.records import NamedTuple

if TYPE_CHECKING:
    from embeddedpulsar.cli.engine import LongRunningProcessStatus


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
        # The question names the partitions: deleting one topic may delete the logs of hundreds.
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
    producers = ", ".join(line_text(publisher.producer_name) for publisher in figures.publishers)
    print(f"producers  {producers or 'none'}")
    if figures.ongoing_txn_count or figures.committed_txn_count or figures.aborted_txn_count:
        click.echo(
            f"transactions  {figures.ongoing_txn_count:,} open, {figures.committed_txn_count:,} committed, "
            f"{figures.aborted_txn_count:,} aborted"
        )
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
                click.echo(f"\n{line_text(name)}: {line_text(text)}")


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
        click.echo(f"{counted(admin.topics().trim_topic(topic), 'ledger')} removed")


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
    # By publish time across the partitions, as nothing else orders their messages.
    messages = [
        message for name in names for message in admin.topics().peek_messages(name, subscription, count)
    ]
    return sorted(messages, key=lambda message: message.publish_timestamp())[:count]


add_policies(topics, "topic", lambda admin: admin.topics(), (*OF_BOTH, *OF_TOPICS))


@topics.command()
@topic_argument
@destroys
@pass_store
def terminate(store: OpenedStore, topic: str, yes: bool, dry_run: bool) -> None:
    """End TOPIC, or all its partitions, for ever: no message is taken any more."""
    with store.admin() as admin:
        if not is_confirmed(f"end the topic {topic} for ever", yes, dry_run):
            return
        # Pulsar has a method for each kind, and both are this verb: the answer is an id for each partition.
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
        # An empty ledger is not closed, so the number may be less than that of the partitions.
        closed = admin.topics().roll_ledger(topic)
    click.echo(f"{counted(closed, 'ledger')} closed")


@topics.command("expire-messages-all-subscriptions")
@topic_argument
@click.option("-t", "--expireTime", "seconds", type=AGE, required=True, help="Or a point in time.")
@destroys
@pass_store
def expire_all(store: OpenedStore, topic: str, seconds: int, yes: bool, dry_run: bool) -> None:
    """Acknowledge what was published more than so long ago, for all subscriptions of TOPIC."""
    what = f"acknowledge what all subscriptions of {topic} have that is older than {seconds:,} s"
    with store.admin() as admin:
        if is_confirmed(what, yes, dry_run):
            admin.topics().expire_messages_for_all_subscriptions(topic, seconds)


# Seconds between two looks at the status, which may be that of work in another process.
_PAUSE_S: Final = 0.05


class BackgroundWork(NamedTuple):
    """Compaction or offloading.

    Attributes:
        name: of the work.
        status: asks how it stands with a topic.
        progress: asks how much is done in this process, and of how much.
        text: of the progress, with a place for what is done and one for the total with its noun.
        noun: what is counted.
    """

    name: str
    status: Callable[[Topics, str], LongRunningProcessStatus]
    progress: Callable[[Topics, str], tuple[int, int]]
    text: str
    noun: str

    def wait(self, context: click.Context, admin: Admin, topic: str) -> None:
        """Wait for the end, show it, and exit with 1 if the work failed."""
        line = ProgressLine(sys.stderr)
        try:
            while (status := self.status(admin.topics(), topic)).status == "RUNNING":
                if line.is_due:
                    # The total is known once the work has counted what there is; until then only its name is
                    # shown.
                    done, total = self.progress(admin.topics(), topic)
                    line.show(self.text.format(done, counted(total, self.noun)) if total else self.name)
                SYSTEM_CLOCK.sleep(_PAUSE_S)
        finally:
            line.end()
        # With --json only `show` prints, once and at the end: a progress line is for people.
        _end(context, status, is_json=False)

    def add_status_command(self, command: str) -> None:
        """Add the command that shows the status to those of topics."""

        @topics.command(
            command,
            help=f"Show how the {self.name} of TOPIC stands. The exit status is 1 if the last one failed.",
        )
        @topic_argument
        @click.option("-w", "--wait-complete", is_flag=True, help=f"Wait for the end of the {self.name}.")
        @as_json
        @pass_store
        @click.pass_context
        def show(
            context: click.Context, store: OpenedStore, topic: str, wait_complete: bool, is_json: bool
        ) -> None:
            with store.admin() as admin:
                # `wait` shows the progress and ends the command. With --json the loop below waits in silence,
                # and one object is printed.
                if wait_complete and not is_json:
                    self.wait(context, admin, topic)
                status = self.status(admin.topics(), topic)
                while wait_complete and status.status == "RUNNING":
                    SYSTEM_CLOCK.sleep(_PAUSE_S)
                    status = self.status(admin.topics(), topic)
            _end(context, status, is_json=is_json)


def _end(context: click.Context, status: LongRunningProcessStatus, *, is_json: bool) -> None:
    if is_json:
        print_json(status.json())
    else:
        click.echo(f"{status.status}{f': {line_text(status.last_error)}' if status.last_error else ''}")
    # The status of a script: work that failed is an error, work that goes on or never ran is none.
    context.exit(1 if status.status == "ERROR" else 0)


_COMPACTION = BackgroundWork(
    "compaction",
    Topics.compaction_status,
    Topics.compaction_progress,
    "read {:,} of about {}",
    "entry",
)


@topics.command()
@topic_argument
@pass_store
@click.pass_context
def compact(context: click.Context, store: OpenedStore, topic: str) -> None:
    """Compact TOPIC, or all its partitions, and wait for the end."""
    with store.admin() as admin:
        admin.topics().compact(topic)
        _COMPACTION.wait(context, admin, topic)


_COMPACTION.add_status_command("compaction-status")


_OFFLOADING = BackgroundWork(
    "offloading",
    Topics.offload_status,
    Topics.offload_progress,
    "moved {:,} of {}",
    "ledger",
)


@topics.command()
@topic_argument
@click.option(
    "-s", "--size-threshold", type=SIZE, required=True, help="Bytes that stay in the store, or 10M."
)
@pass_store
@click.pass_context
def offload(context: click.Context, store: OpenedStore, topic: str, size_threshold: int) -> None:
    """Move closed ledgers of TOPIC to its offload location, and wait for the end."""
    with store.admin() as admin:
        # Nothing to do is no error: the status below is that of the last offloading.
        if not admin.topics().offload(topic, size_threshold):
            kept = f" beyond {size(size_threshold)}" if size_threshold else ""
            click.echo(
                f"nothing to offload: {topic} has no closed ledger{kept} that is not offloaded yet; "
                "`topics roll-ledger` closes the open one",
                err=True,
            )
        _OFFLOADING.wait(context, admin, topic)


_OFFLOADING.add_status_command("offload-status")


@topics.command("adopt-offloaded")
@topic_argument
@click.option(
    "-m",
    "--moved",
    nargs=2,
    multiple=True,
    metavar="OLD NEW",
    help="The location OLD is NEW by now. May be repeated.",
)
@pass_store
def adopt_offloaded(store: OpenedStore, topic: str, moved: tuple[tuple[str, str], ...]) -> None:
    """Let this store own the objects of TOPIC in its locations, which it removes from now on.

    Only if no other store uses them: the one that this was copied or restored from, for one.
    """
    with store.admin() as admin:
        count = admin.topics().adopt_offloaded(topic, dict(moved))
    click.echo(f"{counted(count, 'ledger')} adopted")


@topics.command()
@topic_argument
@click.argument("directory", type=ArgumentPath(file_okay=False))
@click.option(
    "-f", "--format", "file_format", type=click.Choice(("parquet", "jsonl", "csv")), default="parquet"
)
@click.option("-c", "--columns", help="Names separated by commas; all by default.")
@click.option(
    "--decode", is_flag=True, help="The fields of values, by the schema of TOPIC, instead of payloads."
)
@click.option("--start", type=MOMENT, help="Messages that were published then or later.")
@click.option("--end", type=MOMENT, help="Messages that were published before.")
@click.option(
    "--mode",
    type=click.Choice(("failfast", "permissive", "dropmalformed")),
    default="failfast",
    show_default=True,
    help="What becomes of messages that the files cannot hold: an error, null, or left out.",
)
@pass_store
def export(
    store: OpenedStore,
    topic: str,
    directory: str,
    file_format: str,
    columns: str | None,
    decode: bool,
    start: int | None,
    end: int | None,
    mode: str,
) -> None:
    """Write the messages of TOPIC as files into DIRECTORY, a folder for each day.

    With --decode, records of JSON and Avro have a column for each field, whose records and arrays are objects
    and lists in jsonl and JSON texts in csv; single values are in the column value.
    """
    # pyarrow is an extra requirement, and takes long to import: commands that need none do not load it.
    with late_imports():
        from embeddedpulsar import arrow
    progress = ProgressLine(sys.stderr)

    def show(rows: int) -> None:
        if progress.is_due:
            progress.show(f"{counted(rows, 'message')} written")

    names = columns.split(",") if columns else None
    # The line of progress is removed before an error is printed.
    try:
        exported = arrow.export(
            store.directory,
            topic,
            directory,
            names,
            file_format=file_format,
            start_time=start,
            end_time=end,
            mode=mode,
            decode=decode,
            on_progress=show,
        )
    finally:
        progress.end()
    click.echo(f"{counted(exported.rows, 'message')} in {counted(len(exported.files), 'file')}")


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


@subscriptions.command("create")
@topic_argument
@subscription_argument
@click.option("--from", "position", type=Moment(*_POSITIONS), default="latest", show_default=True)
@pass_store
def create_subscription(store: OpenedStore, topic: str, subscription: str, position: str | int) -> None:
    """Create SUBSCRIPTION of TOPIC."""
    with store.admin() as admin:
        if isinstance(position, str):
            admin.topics().create_subscription(topic, subscription, _POSITIONS[position])
            return
        # Kept whole first: what is behind the time cannot be trimmed between the two steps.
        admin.topics().create_subscription(topic, subscription, MessageId.earliest)
        admin.topics().reset_cursor(topic, subscription, position)


@subscriptions.command("delete")
@topic_argument
@subscription_argument
@click.option("-f", "--force", is_flag=True, help="Even if consumers are attached.")
@destroys
@pass_store
def delete_subscription(
    store: OpenedStore, topic: str, subscription: str, force: bool, yes: bool, dry_run: bool
) -> None:
    """Delete SUBSCRIPTION of TOPIC: what it has not acknowledged is not kept for it any more."""
    with store.admin() as admin:
        if is_confirmed(f"delete the subscription {subscription} of {topic}", yes, dry_run):
            admin.topics().delete_subscription(topic, subscription, force)


@subscriptions.command()
@topic_argument
@subscription_argument
@click.option("-n", "--count", type=click.IntRange(min=1), help="How many messages.")
@click.option("--id", "message_id", metavar="ID", help="Of one message, wherever it is: LEDGER:ENTRY.")
@destroys
@pass_store
def skip(
    store: OpenedStore,
    topic: str,
    subscription: str,
    count: int | None,
    message_id: str | None,
    yes: bool,
    dry_run: bool,
) -> None:
    """Acknowledge the first messages of the backlog of SUBSCRIPTION, or one message by its id."""
    if (count is None) == (message_id is None):
        raise click.UsageError("give --count, or the --id of a message, one of them")
    with store.admin() as admin:
        if message_id is not None:
            wanted = parsed_id(message_id)
            if is_confirmed(f"skip message {message_id} of {subscription} of {topic}", yes, dry_run):
                admin.topics().skip_message(topic, subscription, wanted)
            return
        assert count is not None
        if is_confirmed(f"skip {counted(count, 'message')} of {subscription} of {topic}", yes, dry_run):
            # A subscription may have fewer messages than it is asked to skip, so their number is shown.
            skipped = admin.topics().skip_messages(topic, subscription, count)
            click.echo(f"{counted(skipped, 'message')} skipped")


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
@click.option("--older-than", "seconds", type=AGE, required=True, help="Or a point in time.")
@destroys
@pass_store
def expire(store: OpenedStore, topic: str, subscription: str, seconds: int, yes: bool, dry_run: bool) -> None:
    """Acknowledge the messages that were published more than so long ago."""
    what = f"acknowledge what {subscription} of {topic} has that is older than {seconds:,} s"
    with store.admin() as admin:
        if is_confirmed(what, yes, dry_run):
            admin.topics().expire_messages(topic, subscription, seconds)


@subscriptions.command()
@topic_argument
@subscription_argument
@click.option("--to", "position", type=click.Choice(list(_POSITIONS)), help="The oldest or the next message.")
@click.option("-t", "--time", "timestamp_ms", type=MOMENT, help="The messages from then on.")
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
        where = position or f"the messages from {moment_text(target)} on"
        if is_confirmed(f"reset {subscription} of {topic} to {where}", yes, dry_run):
            admin.topics().reset_cursor(topic, subscription, target)
