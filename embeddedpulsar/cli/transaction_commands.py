"""``embeddedpulsar transactions``: which are open, what they hold up, and their ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from embeddedpulsar.admin.topic_stats import TransactionMetadata
from embeddedpulsar.cli.base import (
    OpenedStore,
    as_json,
    complete_topic,
    destroys,
    is_confirmed,
    iso_time,
    pass_store,
    print_json,
    print_table,
)
from embeddedpulsar.cli.engine import SYSTEM_CLOCK
from embeddedpulsar.cli.look_commands import age_text, short_name
from embeddedpulsar.cli.policies import LAG

_PREPARED: Final = "PREPARED"
_OPEN_STATUSES: Final = ("OPEN", "COMMITTING", "ABORTING", _PREPARED)

_topic: Final = click.option(
    "-t", "--topic", required=True, shell_complete=complete_topic, help="A topic, or a partition."
)
_subscription: Final = click.option("-s", "--sub-name", "subscription", required=True, help="Its name.")
_coordinator: Final = click.option(
    "-c", "--coordinator-id", "coordinator", type=int, help="0, which is the only one."
)
_low_water_marks: Final = click.option(
    "-l", "--low-water-mark", "low_water_marks", is_flag=True, help="Also up to which id all have ended."
)


def _with_id(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the two halves of an id, as pulsar-admin has them."""
    command = click.option(
        "-l",
        "--least-sig-bits",
        "least",
        type=click.IntRange(min=0),
        required=True,
        help="The second number of the id.",
    )(command)
    return click.option(
        "-m",
        "--most-sig-bits",
        "most",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="The first number of the id.",
    )(command)


@click.group()
def transactions() -> None:
    """Show the transactions of the store and what they hold up, and end them."""


def _shows(name: str, short_help: str, text: str, method: str, *options: Callable[[Any], Any]) -> None:
    """Add a command that prints what a method of `Admin.transactions` returns, as JSON.

    Args:
        name: of the command.
        short_help, text: what it shows.
        method: is called with the options, by their names; with ``txn_id`` for both halves of an id.
        options: of the command.
    """

    @pass_store
    def command(store: OpenedStore, /, **arguments: Any) -> None:
        if "least" in arguments:
            arguments["txn_id"] = arguments.pop("most"), arguments.pop("least")
        with store.admin() as admin:
            print_json(getattr(admin.transactions(), method)(**arguments).json())

    for option in reversed(options):
        command = option(command)
    transactions.command(name, short_help=short_help, help=text)(command)


# -- all transactions ------------------------------------------------------------------------------------


@transactions.command("coordinators-list", short_help="List the coordinators: one.")
@as_json
@pass_store
def coordinators_list(store: OpenedStore, is_json: bool) -> None:
    """List the coordinators: one, which is the transaction log of the store."""
    with store.admin() as admin:
        listed = admin.transactions().list_transaction_coordinators()
    if is_json:
        print_json([each.json() for each in listed])
    else:
        print_table(("id", "store"), [tuple(each) for each in listed])


@transactions.command("coordinator-stats", short_help="Numbers of transactions.")
@_coordinator
@pass_store
def coordinator_stats(store: OpenedStore, coordinator: int | None) -> None:
    """Show the numbers of transactions, as JSON."""
    with store.admin() as admin:
        if coordinator is None:
            stats = admin.transactions().get_coordinator_stats()
            print_json({str(number): each.json() for number, each in stats.items()})
        else:
            print_json(admin.transactions().get_coordinator_stats_by_id(coordinator).json())


@transactions.command("slow-transactions", short_help="List those that are open for long.")
@click.option(
    "-t",
    "--time",
    "timeout_ms",
    type=LAG,
    default="1s",
    show_default=True,
    help="How long they have been open: seconds, or such as 10m.",
)
@_coordinator
@as_json
@pass_store
def slow_transactions(store: OpenedStore, timeout_ms: int, coordinator: int | None, is_json: bool) -> None:
    """List the transactions that have been open for some time, with their processes and labels, the oldest
    first."""
    with store.admin() as admin:
        slow = admin.transactions().get_slow_transactions_by_coordinator_id(coordinator or 0, timeout_ms)
    if is_json:
        print_json({txn_id: each.json() for txn_id, each in slow.items()})
        return
    now_ms = SYSTEM_CLOCK.wall_ms()
    columns = ("id", "status", "age", "ends in", "pid", "program", "label", "topics", "subscriptions")
    print_table(columns, [_row(each, now_ms) for each in slow.values()])


def _row(transaction: TransactionMetadata, now_ms: int) -> tuple[str, ...]:
    left_ms = transaction.timeout_at - now_ms
    subscriptions = [
        f"{short_name(topic)}: {name}"
        for topic, names in transaction.acked_partitions.items()
        for name in names
    ]
    return (
        transaction.txn_id,
        transaction.status,
        age_text(max(now_ms - transaction.open_timestamp, 1)),
        (age_text(left_ms) if left_ms > 0 else "now") if transaction.timeout_at else "never",
        str(transaction.pid) if transaction.pid else "",
        transaction.program if transaction.is_alive is not False else f"{transaction.program} (dead)".strip(),
        transaction.label,
        ", ".join(map(short_name, transaction.produced_partitions)),
        ", ".join(subscriptions),
    )


_shows(
    "transaction-metadata",
    "Show one transaction.",
    "Show a transaction, as JSON: its state, its process, and where it did something.",
    "get_transaction_metadata",
    _with_id,
)


@transactions.command("abort-transaction", short_help="Abort one, of whatever process.")
@_with_id
@destroys
@pass_store
def abort_transaction(store: OpenedStore, most: int, least: int, yes: bool, dry_run: bool) -> None:
    """Abort a transaction, whatever process it is of: what it stored is never delivered, and what it
    acknowledged is delivered again."""
    with store.admin() as admin:
        calls = admin.transactions()
        metadata = calls.get_transaction_metadata((most, least))
        if metadata.status == _PREPARED:
            click.echo(
                f"{metadata.txn_id} is PREPARED: the program that prepared it may have decided to commit it, "
                f"in a database say. Look there first, by its label {metadata.label!r}.",
                err=True,
            )
        if is_confirmed(f"abort the transaction {_described(metadata)}", yes, dry_run):
            calls.abort_transaction((most, least))


def _described(metadata: TransactionMetadata) -> str:
    """A transaction in words, for a question."""
    text = metadata.txn_id
    if metadata.label:
        text += f" {metadata.label!r}"
    if metadata.owner:
        text += f" of {metadata.owner}"
    if metadata.status not in _OPEN_STATUSES:
        return f"{text}, which is {metadata.status}"
    if metadata.open_timestamp:
        text += f", {age_text(max(SYSTEM_CLOCK.wall_ms() - metadata.open_timestamp, 1))} old"
    places = [f"messages in {short_name(topic)}" for topic in metadata.produced_partitions]
    places += [
        f"acknowledgements in {short_name(topic)}: {name}"
        for topic, names in metadata.acked_partitions.items()
        for name in names
    ]
    return f"{text}, with {', '.join(places)}" if places else text


@transactions.command("scale-transactionCoordinators", short_help="Refused: there is one.")
@click.option("-r", "--replicas", type=int, required=True, help="How many coordinators.")
@pass_store
def scale_transaction_coordinators(store: OpenedStore, replicas: int) -> None:
    """Refused: a store has one coordinator, a journal that all its processes write."""
    with store.admin() as admin:
        admin.transactions().scale_transaction_coordinators(replicas)


# -- prepared transactions -------------------------------------------------------------------------------


@transactions.command("prepared-list", short_help="List those that wait for an end.")
@as_json
@pass_store
def prepared_list(store: OpenedStore, is_json: bool) -> None:
    """List the transactions that wait for an end that any process may give."""
    with store.admin() as admin:
        listed = admin.transactions().get_prepared_transactions()
    if is_json:
        print_json([each.json() for each in listed])
        return
    rows = [
        (
            each.txn_id,
            each.label,
            iso_time(each.prepared_at),
            iso_time(each.timeout_at) if each.timeout_at else "never",
            ", ".join(
                f"{short_name(topic)} ({count:,})" for topic, count in each.produced_partitions.items()
            ),
            ", ".join(
                f"{short_name(topic)}: {name}"
                for topic, names in each.acked_partitions.items()
                for name in names
            ),
        )
        for each in listed
    ]
    print_table(("id", "label", "prepared", "ends", "topics (entries)", "subscriptions"), rows)


@transactions.command("commit-prepared", short_help="Commit one that is prepared.")
@_with_id
@destroys
@pass_store
def commit_prepared(store: OpenedStore, most: int, least: int, yes: bool, dry_run: bool) -> None:
    """Commit a transaction that is prepared, in the place of the program that prepared it."""
    with store.admin() as admin:
        calls = admin.transactions()
        metadata = calls.get_transaction_metadata((most, least))
        if is_confirmed(f"commit the transaction {_described(metadata)}", yes, dry_run):
            calls.commit_prepared_transaction((most, least))


# -- topics and subscriptions ----------------------------------------------------------------------------


_shows(
    "transaction-buffer-stats",
    "Those of a topic, counted.",
    "Show the transactions of a topic, counted, as JSON; and up to where it can be read.",
    "get_transaction_buffer_stats",
    _topic,
    _low_water_marks,
)
_shows(
    "transaction-in-buffer-stats",
    "Where one begins in a topic.",
    "Show where a transaction begins in a topic, as JSON.",
    "get_transaction_in_buffer_stats",
    _with_id,
    _topic,
)
_shows(
    "transaction-buffer-snapshot-internal-stats",
    "Where outcomes of a topic are.",
    "Show the ledgers of a topic, and the directory that has the outcomes of its finished transactions, as "
    "JSON.",
    "get_transaction_buffer_internal_stats",
    _topic,
)
_shows(
    "pending-ack-stats",
    "Acknowledgements that wait.",
    "Show what open transactions acknowledged in a subscription, as JSON.",
    "get_pending_ack_stats",
    _topic,
    _subscription,
    _low_water_marks,
)
_shows(
    "transaction-in-pending-ack-stats",
    "Those of one transaction.",
    "Show what one open transaction acknowledged in a subscription, as JSON.",
    "get_transaction_in_pending_ack_stats",
    _with_id,
    _topic,
    _subscription,
)
_shows(
    "position-stats-in-pending-ack",
    "Whether an entry waits.",
    "Show whether an open transaction acknowledged an entry in a subscription, as JSON.",
    "get_position_stats_in_pending_ack",
    _topic,
    _subscription,
    click.option("-l", "--ledger-id", "ledger_id", type=click.IntRange(min=0), required=True),
    click.option("-e", "--entry-id", "entry_id", type=click.IntRange(min=0), required=True),
    click.option(
        "-b", "--batch-index", "batch_index", type=click.IntRange(min=0), help="Of a message in a batch."
    ),
)
_shows(
    "pending-ack-internal-stats",
    "The journal of a subscription.",
    "Show the journal of a subscription, which has the acknowledgements of open transactions, as JSON.",
    "get_pending_ack_internal_stats",
    _topic,
    _subscription,
)
_shows(
    "coordinator-internal-stats",
    "The journal of transactions.",
    "Show the journal of the transaction log, as JSON.",
    "get_coordinator_internal_stats",
    click.option(
        "-c", "--coordinator-id", "coordinator_id", type=int, default=0, help="0, which is the only one."
    ),
)
