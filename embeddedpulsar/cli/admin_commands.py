"""``embeddedpulsar namespaces``, ``tenants``, ``schemas``, ``brokers`` and ``resourcegroups``: what is
administered beside topics. ``backup``, ``restore`` and ``repair``: the care of a store as a whole.

``embeddedpulsar transactions``: which are open, what they hold up, and their ends.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any, Final

import click

from embeddedpulsar.admin.admin import Admin
from embeddedpulsar.admin.topic_stats import TransactionMetadata
from embeddedpulsar.cli.base import (
    LAG,
    ArgumentFile,
    ArgumentPath,
    OpenedStore,
    add_policies,
    as_json,
    complete_topic,
    destroys,
    is_confirmed,
    iso_time,
    pass_store,
    print_json,
    print_table,
    size,
    topic_argument,
)
from embeddedpulsar.cli.base import destroys as asks
from embeddedpulsar.cli.engine import SYSTEM_CLOCK, repair_store
from embeddedpulsar.cli.look_commands import age_text, short_name
from embeddedpulsar.cli.policy_verbs import OF_BOTH, OF_NAMESPACES
from embeddedpulsar.cli.terminal import ProgressLine, line_text
from embeddedpulsar.error_text import counted
from embeddedpulsar.policy_values import ResourceGroup, json_form

if TYPE_CHECKING:
    from embeddedpulsar.cli.engine import BackupReport, RepairReport, RestoreReport


@click.group()
def namespaces() -> None:
    """List, create and delete namespaces, and set policies for their topics."""


@namespaces.command("list")
@click.argument("tenant", default="public")
@as_json
@pass_store
def list_namespaces(store: OpenedStore, tenant: str, is_json: bool) -> None:
    """List the namespaces of TENANT (public)."""
    with store.admin() as admin:
        names = admin.namespaces().get_namespaces(tenant)
    if is_json:
        print_json(names)
    else:
        print_table(("namespace",), [(name,) for name in names])


@namespaces.command()
@click.argument("namespace")
@pass_store
def create(store: OpenedStore, namespace: str) -> None:
    """Create NAMESPACE, as tenant/namespace, and its tenant if necessary."""
    with store.admin() as admin:
        admin.namespaces().create_namespace(namespace)


@namespaces.command()
@click.argument("namespace")
@click.option("-f", "--force", is_flag=True, help="With its topics.")
@destroys
@pass_store
def delete(store: OpenedStore, namespace: str, force: bool, yes: bool, dry_run: bool) -> None:
    """Delete NAMESPACE with its policies."""
    # With --force the question says that messages go. Without it, a namespace that has topics is refused.
    what = f"delete the namespace {namespace}" + (" with its topics and messages" if force else "")
    with store.admin() as admin:
        if is_confirmed(what, yes, dry_run):
            admin.namespaces().delete_namespace(namespace, force)


@namespaces.command("topics")
@click.argument("namespace")
@click.option(
    "-m", "--mode", type=click.Choice(["PERSISTENT", "NON_PERSISTENT", "ALL"]), default="PERSISTENT"
)
@as_json
@pass_store
def list_topics(store: OpenedStore, namespace: str, mode: str, is_json: bool) -> None:
    """List the topics and partitions of NAMESPACE."""
    with store.admin() as admin:
        names = admin.namespaces().get_topics(namespace, mode)
    if is_json:
        print_json(names)
    else:
        print_table(("topic",), [(name,) for name in names])


add_policies(namespaces, "namespace", lambda admin: admin.namespaces(), (*OF_BOTH, *OF_NAMESPACES))


@click.group()
def tenants() -> None:
    """List, create and delete tenants."""


@tenants.command("list")
@as_json
@pass_store
def list_tenants(store: OpenedStore, is_json: bool) -> None:
    """List the tenants."""
    with store.admin() as admin:
        names = admin.tenants().get_tenants()
    if is_json:
        print_json(names)
    else:
        print_table(("tenant",), [(name,) for name in names])


@tenants.command("create")
@click.argument("tenant")
@pass_store
def create_tenant(store: OpenedStore, tenant: str) -> None:
    """Create TENANT."""
    with store.admin() as admin:
        admin.tenants().create_tenant(tenant)


@tenants.command("delete")
@click.argument("tenant")
@click.option("-f", "--force", is_flag=True, help="With its namespaces and topics.")
@destroys
@pass_store
def delete_tenant(store: OpenedStore, tenant: str, force: bool, yes: bool, dry_run: bool) -> None:
    """Delete TENANT."""
    what = f"delete the tenant {tenant}" + (" with its namespaces, topics and messages" if force else "")
    with store.admin() as admin:
        if is_confirmed(what, yes, dry_run):
            admin.tenants().delete_tenant(tenant, force)


_file = click.option(
    "-f",
    "--filename",
    "file",
    type=ArgumentFile(encoding="utf-8"),
    required=True,
    help='JSON: {"type": "AVRO", "schema": "...", "properties": {}}; - for the input.',
)


@click.group()
def schemas() -> None:
    """Show, upload, compare and delete the schemas of topics."""


@schemas.command("get")
@topic_argument
@click.option("-v", "--version", type=click.IntRange(min=0), help="This version, not the newest.")
@click.option("-a", "--all-version", "is_all", is_flag=True, help="All versions.")
@as_json
@pass_store
def get_schema(store: OpenedStore, topic: str, version: int | None, is_all: bool, is_json: bool) -> None:
    """Show the newest schema of TOPIC."""
    with store.admin() as admin:
        if is_all:
            schemas_found = admin.schemas().get_all_schemas(topic)
        else:
            schema = admin.schemas().get_schema_info(topic, version)
            # A version that was deleted and one that never was are the same to a user.
            if schema is None:
                raise click.ClickException(f"{topic} has no such schema")
            schemas_found = [schema]
    if is_json:
        # One schema is an object, several are a list, also if there is one only: a program asks for either.
        print_json([schema.json() for schema in schemas_found] if is_all else schemas_found[0].json())
    elif is_all:
        rows = [(str(schema.version), schema.type.name, str(schema.timestamp)) for schema in schemas_found]
        print_table(("version", "type", "timestamp"), rows)
    else:
        click.echo(f"version {schemas_found[0].version}, {schemas_found[0].type.name}")
        click.echo(schemas_found[0].data)


@schemas.command()
@topic_argument
@_file
@pass_store
def upload(store: OpenedStore, topic: str, file: IO[str]) -> None:
    """Add a schema to TOPIC."""
    with store.admin() as admin:
        click.echo(f"version {admin.schemas().create_schema(topic, _payload(file))}")


@schemas.command("delete")
@topic_argument
@click.option("-f", "--force", is_flag=True, help="Forget the definitions, too.")
@destroys
@pass_store
def delete_schemas(store: OpenedStore, topic: str, force: bool, yes: bool, dry_run: bool) -> None:
    """Delete all schemas of TOPIC."""
    with store.admin() as admin:
        # Counted first: the question says how much is lost.
        count = len(admin.schemas().get_all_schemas(topic))
        if is_confirmed(f"delete the {counted(count, 'schema')} of {topic}", yes, dry_run):
            admin.schemas().delete_schema(topic, force)


@schemas.command()
@topic_argument
@_file
@as_json
@click.pass_context
def compatibility(context: click.Context, topic: str, file: IO[str], is_json: bool) -> None:
    """Say whether a schema could be added to TOPIC. The exit status is 1 if it could not."""
    store: OpenedStore = context.obj
    with store.admin() as admin:
        verdict = admin.schemas().test_compatibility(topic, _payload(file))
    if is_json:
        print_json(verdict.json())
    else:
        answer = "compatible" if verdict.is_compatibility else f"not compatible: {verdict.reason}"
        click.echo(f"{answer} ({verdict.schema_compatibility_strategy})")
    # A script that deploys a schema branches by the status, and a person reads the reason.
    context.exit(0 if verdict.is_compatibility else 1)


def _payload(file: IO[str]) -> Any:
    try:
        return json.load(file)
    except ValueError as error:
        raise click.ClickException(f"{file.name} is not JSON: {error}") from error


@click.group()
def brokers() -> None:
    """Show and change the settings of the store."""


def _show(values: dict[str, str], is_json: bool) -> None:
    if is_json:
        print_json(values)
    else:
        print_table(("setting", "value"), sorted(values.items()))


@brokers.command("get-runtime-config")
@as_json
@pass_store
def get_runtime_config(store: OpenedStore, is_json: bool) -> None:
    """Show all settings as they hold now."""
    with store.admin() as admin:
        _show(admin.brokers().get_runtime_configuration(), is_json)


@brokers.command("get-all-dynamic-config")
@as_json
@pass_store
def get_all_dynamic_config(store: OpenedStore, is_json: bool) -> None:
    """Show the settings that were changed while the store was in use."""
    with store.admin() as admin:
        _show(admin.brokers().get_all_dynamic_configurations(), is_json)


@brokers.command("list-dynamic-config")
@as_json
@pass_store
def list_dynamic_config(store: OpenedStore, is_json: bool) -> None:
    """List the settings that can be changed while the store is in use."""
    with store.admin() as admin:
        names = admin.brokers().get_dynamic_configuration_names()
    if is_json:
        print_json(names)
    else:
        print_table(("setting",), [(name,) for name in names])


@brokers.command("update-dynamic-config")
@click.option("--config", required=True, help="The name of the setting.")
@click.option("--value", required=True, help="Its value, as in broker.conf.")
@pass_store
def update_dynamic_config(store: OpenedStore, config: str, value: str) -> None:
    """Change a setting in all processes."""
    with store.admin() as admin:
        admin.brokers().update_dynamic_configuration(config, value)


@brokers.command("delete-dynamic-config")
@click.option("--config", required=True, help="The name of the setting.")
@pass_store
def delete_dynamic_config(store: OpenedStore, config: str) -> None:
    """Have broker.conf decide about a setting again."""
    with store.admin() as admin:
        admin.brokers().delete_dynamic_configuration(config)


_LIMITS = (
    ("-mp", "--msg-publish-rate", "publish_rate_in_msgs", "Messages a second that are published"),
    ("-bp", "--byte-publish-rate", "publish_rate_in_bytes", "Bytes a second that are published"),
    ("-md", "--msg-dispatch-rate", "dispatch_rate_in_msgs", "Messages a second that are delivered"),
    ("-bd", "--byte-dispatch-rate", "dispatch_rate_in_bytes", "Bytes a second that are delivered"),
)


@click.group()
def resourcegroups() -> None:
    """Manage resource groups, whose topics keep rates together."""


def _limits(text: str) -> Callable[[Any], Any]:
    def add(command: Any) -> Any:
        # Options are listed in the reverse order of their decorators.
        for short, long, name, what in reversed(_LIMITS):
            command = click.option(short, long, name, type=int, default=-1, help=f"{what}; {text}.")(command)
        return click.argument("group")(command)

    return add


@resourcegroups.command("list")
@as_json
@pass_store
def list_groups(store: OpenedStore, is_json: bool) -> None:
    """List the groups."""
    with store.admin() as admin:
        names = admin.resource_groups().get_resource_groups()
    if is_json:
        print_json(names)
    else:
        print_table(("resource group",), [(name,) for name in names])


@resourcegroups.command("get")
@click.argument("group")
@as_json
@pass_store
def get_group(store: OpenedStore, group: str, is_json: bool) -> None:
    """Show the limits of GROUP, and what it used."""
    with store.admin() as admin:
        limits = admin.resource_groups().get_resource_group(group)
        usage = admin.resource_groups().get_usage(group)
    if is_json:
        print_json(json_form(limits) | {"usage": usage.json()})
    else:
        # Limits first, then what was used of them; the names of the two differ.
        rows = list((json_form(limits) | usage.json()).items())
        print_table(("", ""), [(name, f"{number:,}") for name, number in rows])


@resourcegroups.command("create")
@_limits("-1 for no limit")
@pass_store
def create_group(store: OpenedStore, /, group: str, **limits: int) -> None:
    """Create GROUP."""
    with store.admin() as admin:
        admin.resource_groups().create_resource_group(group, ResourceGroup(**limits))


@resourcegroups.command()
@_limits("-1 leaves it, 0 takes it away")
@pass_store
def update(store: OpenedStore, /, group: str, **limits: int) -> None:
    """Change limits of GROUP."""
    with store.admin() as admin:
        admin.resource_groups().update_resource_group(group, ResourceGroup(**limits))


@resourcegroups.command("delete")
@click.argument("group")
@pass_store
def delete_group(store: OpenedStore, group: str) -> None:
    """Delete GROUP, which no topic or namespace may be in."""
    with store.admin() as admin:
        admin.resource_groups().delete_resource_group(group)


@click.command()
@click.argument("directory", type=ArgumentPath(file_okay=False))
@click.option(
    "-t", "--topic", "topics", multiple=True, shell_complete=complete_topic, help="This topic alone."
)
@as_json
@pass_store
def backup(store: OpenedStore, directory: str, topics: tuple[str, ...], is_json: bool) -> None:
    """Copy the store into DIRECTORY, while others use it; the next time, what is new."""
    progress = ProgressLine(sys.stderr)
    with store.admin() as admin:
        # A tuple of no topics would be a backup of nothing; None is all.
        report = admin.backup(directory, topics or None, on_progress=progress.show_if_due)
    progress.end()
    if is_json:
        print_json(report._asdict())
        return
    click.echo(_content_text(report))
    click.echo(f"{size(report.copied)} copied; the rest was there")


@click.command()
@click.argument("source", type=ArgumentPath(exists=True, file_okay=False))
@click.argument("directory", type=ArgumentPath())
@as_json
def restore(source: str, directory: str, is_json: bool) -> None:
    """Make a store in DIRECTORY, which is new or empty, of the backup in SOURCE. Verifies every byte."""
    progress = ProgressLine(sys.stderr)
    report = Admin.restore(source, directory, on_progress=progress.show_if_due)
    progress.end()
    if is_json:
        print_json(report._asdict())
        return
    # The time of the place where the command runs, with its name: a backup is compared with what people
    # remember.
    begun = datetime.fromtimestamp(report.created_ms // 1000).astimezone()
    click.echo(_content_text(report))
    click.echo(f"as of {begun:%Y-%m-%d %H:%M:%S %Z}")


def _content_text(report: BackupReport | RestoreReport) -> str:
    files = f"{size(report.size)} in {counted(report.files, 'file')}"
    return f"{counted(report.topics, 'topic')}, {files}: {line_text(report.path)}"


DAMAGED = 1


@click.command()
@as_json
@asks
@pass_store
@click.pass_context
def repair(context: click.Context, store: OpenedStore, is_json: bool, yes: bool, dry_run: bool) -> None:
    """Repair what can be repaired from the files of the store, which nothing else may use meanwhile.

    Nothing that may hold a message is removed: what is taken out of use is moved to the directory quarantine
    of the store. The exit status is 1 if damage is left.
    """
    root = store.directory
    if not dry_run:
        store.check_writable()
    # The plan is a repair that does nothing. It is made first in every case: it is what the user agrees to.
    # The second call looks again, since time passed during the question.
    planned = _repair(root, is_dry_run=True)
    # Nothing to ask: no steps, or only the plan is wanted.
    if dry_run or not planned.steps:
        _show_report(planned, is_json)
        context.exit(DAMAGED if planned.left else 0)
    # With --json there is one object only: the plan, or what was done.
    if not is_json:
        _show_report(planned, is_json)
    if is_confirmed(f"take {len(planned.steps)} steps in {root}", yes, dry_run):
        done = _repair(root, is_dry_run=False)
        _show_report(done, is_json)
        context.exit(DAMAGED if done.left else 0)


def _repair(root: str, *, is_dry_run: bool) -> RepairReport:
    progress = ProgressLine(sys.stderr)
    try:
        return repair_store(root, is_dry_run=is_dry_run, on_progress=progress.show_if_due)
    finally:
        progress.end()


def _show_report(report: RepairReport, is_json: bool) -> None:
    if is_json:
        print_json(report.json())
        return
    for step in report.steps:
        click.echo(f"{line_text(os.path.relpath(step.path, report.path))}\n  {line_text(step.what)}")
    # A plan lists its steps and what it leaves; behind a repair it says where the removed files are, too.
    if report.is_dry_run:
        if not report.steps:
            click.echo(
                "There is nothing to repair." if not report.left else "Nothing of this can be repaired:"
            )
            _show_left(report)
        return
    click.echo(f"{len(report.steps)} steps done.")
    if report.quarantine:
        place = line_text(report.quarantine)
        click.echo(f"What was taken out of use is in {place}; remove it when it is not needed.")
    if report.left:
        click.echo("This cannot be repaired from the files of the store:")
        _show_left(report)


def _show_left(report: RepairReport) -> None:
    for problem in report.left:
        click.echo(line_text(os.path.relpath(problem.path, report.path)))
        click.echo(f"  {line_text(problem.text)}; {problem.meaning}")
        click.echo(f"  to do: {problem.remedy}")


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
