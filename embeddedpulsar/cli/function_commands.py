"""``embeddedpulsar functions``, with the verbs and options of ``pulsar-admin functions``; and ``workers``."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from typing import Any, Final

import click
from click.core import ParameterSource

from embeddedpulsar.cli.base import (
    ArgumentPath,
    OpenedStore,
    as_json,
    destroys,
    is_confirmed,
    pass_store,
    print_json,
    print_table,
)
from embeddedpulsar.cli.engine import SYSTEM_CLOCK
from embeddedpulsar.cli.terminal import write_bytes
from embeddedpulsar.enums import InitialPosition
from embeddedpulsar.functions import (
    FunctionConfig,
    LocalRunner,
    ProcessingGuarantees,
    WindowConfig,
)
from embeddedpulsar.functions import run as run_functions
from embeddedpulsar.functions.function_calls import config_of_file
from embeddedpulsar.functions.state import InstanceFigures, InstanceStatus
from embeddedpulsar.functions.supervisor import GRACE_S
from embeddedpulsar.futures import run_workers

_GUARANTEES: Final = click.Choice([guarantee.value for guarantee in ProcessingGuarantees])
_LISTS: Final = ("inputs",)
_MAPS: Final = ("custom_serde_inputs", "custom_schema_inputs", "user_config", "secrets")
_WINDOW: Final = WindowConfig._fields

Command = Callable[..., Any]


@click.group()
def functions() -> None:
    """Create, run, show, stop and delete functions."""


def _named(command: Command) -> Command:
    """The options that name a function."""
    # The innermost decorator is listed last by --help.
    for option in (
        click.option("--name", default="", help="The name of the function."),
        click.option("--namespace", default="default", show_default=True),
        click.option("--tenant", default="public", show_default=True),
        click.option(
            "--fqfn", default="", metavar="TENANT/NAMESPACE/NAME", help="Instead of the three others."
        ),
    ):
        command = option(command)
    return command


# Either the full name or its three parts. With `--fqfn` the defaults of tenant and namespace do not count.
def _place(tenant: str, namespace: str, name: str, fqfn: str) -> tuple[str, str, str]:
    parts = fqfn.split("/") if fqfn else [tenant, namespace, name]
    if len(parts) != 3 or not all(parts):
        raise click.UsageError("name the function: --name NAME, or --fqfn TENANT/NAMESPACE/NAME")
    return parts[0], parts[1], parts[2]


def _configured(command: Command) -> Command:
    """The options with the configuration of a function."""
    # No option has a default: the value None says that it was not given, and then the file, or the default of
    # `FunctionConfig`, decides. Names and letters are those of pulsar-admin.
    for option in (
        click.option("--py", help="The file with the class."),
        click.option("--classname", "class_name", help="MODULE.CLASS, or MODULE for a native function."),
        click.option("-i", "--inputs", help="Names of topics, with commas between."),
        click.option("--topics-pattern", help="A regular expression for further inputs."),
        click.option(
            "--custom-serde-inputs", metavar="JSON", help="Inputs with the classes of their SerDes."
        ),
        click.option("-o", "--output", help="The topic for what the function returns."),
        click.option(
            "--custom-schema-inputs", metavar="JSON", help="Inputs with their schemas: types or classes."
        ),
        click.option("--input-type-class-name", help="The class of the values of schemas json and avro."),
        click.option("--output-serde-classname", "output_serde_class_name"),
        click.option(
            "-st", "--schema-type", "output_schema_type", help="The schema of the output: a type or a class."
        ),
        click.option("--output-type-class-name", help="The class of the values that the function returns."),
        click.option("--log-topic"),
        click.option("--processing-guarantees", type=_GUARANTEES),
        click.option("--retain-ordering", is_flag=True, default=None),
        click.option("--retain-key-ordering", is_flag=True, default=None),
        click.option("--subs-name", "sub_name", help="The name of the subscription."),
        click.option("--subs-position", type=click.Choice(["Latest", "Earliest"])),
        click.option("--cleanup-subscription/--keep-subscription", default=None),
        click.option("--parallelism", type=click.IntRange(min=1), help="How many worker processes."),
        click.option("--timeout-ms", type=int),
        click.option(
            "--receiver-queue-size",
            type=click.IntRange(min=1),
            help="Messages that an instance fetches ahead; default 1000.",
        ),
        click.option(
            "--call-timeout-ms",
            type=click.IntRange(min=1),
            help="A worker whose call takes longer is started again.",
        ),
        click.option("--max-message-retries", type=int),
        click.option("--dead-letter-topic"),
        click.option("--user-config", metavar="JSON"),
        click.option("--secrets", metavar="JSON"),
        click.option("--secrets-provider-classname", "secrets_provider_class_name"),
        click.option("--window-length-count", type=int),
        click.option("--window-length-duration-ms", type=int),
        click.option("--sliding-interval-count", type=int),
        click.option("--sliding-interval-duration-ms", type=int),
        click.option(
            "--timestamp-extractor-classname",
            "timestamp_extractor_class_name",
            help="Windows of event time: MODULE.CLASS, or EventTimestamp.",
        ),
        click.option("--max-lag-ms", type=int),
        click.option("--watermark-emit-interval-ms", type=int),
        click.option("--late-data-topic"),
        click.option(
            "--function-config-file", metavar="FILE", help="JSON or YAML; other options come before it."
        ),
    ):
        command = option(command)
    return _named(command)


def _config(options: dict[str, Any]) -> FunctionConfig:
    file, fqfn = options.pop("function_config_file"), options.pop("fqfn")
    source = click.get_current_context().get_parameter_source
    for name in ("tenant", "namespace"):  # a default is not what the caller gave: the file comes before it
        if source(name) is ParameterSource.DEFAULT:
            del options[name]
    # What is given on the command line replaces what the file says, field by field; `window_config` as a
    # whole.
    config = FunctionConfig() if file is None else config_of_file(file)
    position, guarantee = options.pop("subs_position"), options.pop("processing_guarantees")
    window = {name: value for name in _WINDOW if (value := options.pop(name)) is not None}
    # Empty texts are not given: `--name` has one as its default, so that `_place` can name the option in its
    # error.
    given = {name: value for name, value in options.items() if value not in (None, "")}
    if fqfn:
        given["tenant"], given["namespace"], given["name"] = _place("", "", "", fqfn)
    for name in _LISTS:
        if name in given:
            given[name] = tuple(given[name].split(","))
    # A text that is no JSON is a ValueError, which is printed as an error of one line.
    for name in _MAPS:
        if name in given:
            given[name] = json.loads(given[name])
    if position is not None:
        given["subscription_position"] = InitialPosition[position]
    if guarantee is not None:
        given["processing_guarantees"] = ProcessingGuarantees(guarantee)
    if window:
        given["window_config"] = WindowConfig(**window)
    return config._replace(**given)


@functions.command()
@_configured
@pass_store
def create(store: OpenedStore, /, **options: Any) -> None:
    """Create a function. It is run by `functions run`."""
    with store.admin() as admin:
        admin.functions().create_function(_config(options))
    click.echo("Created; `embeddedpulsar functions run` runs it.")


@functions.command()
@_configured
@pass_store
def update(store: OpenedStore, /, **options: Any) -> None:
    """Replace the configuration of a function. Its workers are started again."""
    with store.admin() as admin:
        admin.functions().update_function(_config(options))


@functions.command()
@_configured
@pass_store
def localrun(store: OpenedStore, /, **options: Any) -> None:
    """Run a function in the foreground without creating it, until Ctrl-C."""
    logging.basicConfig(level=logging.WARNING)
    # Before the configuration: `LocalRunner` opens the store for writing, whatever --read-only says.
    store.check_writable()
    LocalRunner(_config(options), None, store.directory).run()


@functions.command()
@click.option(
    "--fqfn", multiple=True, metavar="TENANT/NAMESPACE/NAME", help="Only this one; may be repeated."
)
@click.option(
    "--grace",
    type=click.FloatRange(min=0, max=86_400),
    default=GRACE_S,
    show_default=True,
    metavar="SECONDS",
    help="How long a worker may take to end.",
)
@pass_store
def run(store: OpenedStore, fqfn: tuple[str, ...], grace: float) -> None:
    """Run the functions of the store in the foreground, until Ctrl-C, SIGTERM or SIGHUP.

    Each instance has a worker process, which is started again if it ends. A line says when it takes messages.
    At the end the workers are asked to end, and killed if they are in a call that does not return; a second
    Ctrl-C kills them at once.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    # Workers open the store for writing, whatever --read-only says.
    store.check_writable()
    run_functions(store.directory, fqfn or None, grace)


@functions.command("list")
@click.option("--tenant", default="public", show_default=True)
@click.option("--namespace", default="default", show_default=True)
@as_json
@pass_store
def list_functions(store: OpenedStore, tenant: str, namespace: str, is_json: bool) -> None:
    """List the functions of a namespace."""
    with store.admin() as admin:
        names = admin.functions().get_functions(tenant, namespace)
    if is_json:
        print_json(names)
    else:
        print_table(("function",), [(name,) for name in names])


@functions.command()
@_named
@pass_store
def get(store: OpenedStore, /, **named: str) -> None:
    """Show the configuration of a function, as JSON."""
    with store.admin() as admin:
        print_json(admin.functions().get_function(*_place(**named)).json())


@functions.command()
@_named
@as_json
@pass_store
def status(store: OpenedStore, /, is_json: bool, **named: str) -> None:
    """Show whether a function runs, and how its instances do."""
    place = _place(**named)
    with store.admin() as admin:
        function_status = admin.functions().get_function_status(*place)
    if is_json:
        print_json(function_status.json())
        return
    state, now_ms = "started" if function_status.is_started else "stopped", SYSTEM_CLOCK.wall_ms()
    # The most frequent reason why nothing happens, with its remedy.
    supervised = (
        "attached" if function_status.supervisor_attached else "not attached: `embeddedpulsar functions run`"
    )
    click.echo(
        f"{'/'.join(place)}: {state}; "
        f"{function_status.num_running} of {function_status.num_instances} instances run; ",
        nl=False,
    )
    click.echo(f"supervisor {supervised}")
    rows = [
        (
            instance.instance_id,
            "yes" if instance.running else "no",
            instance.worker_id,
            instance.num_restarts,
            instance.num_received,
            instance.num_successfully_processed,
            instance.num_user_exceptions + instance.num_system_exceptions,
            _call(instance, now_ms),
            instance.error,
        )
        for instance in function_status.instances
    ]
    columns = (
        "instance",
        "running",
        "process",
        "restarts",
        "received",
        "processed",
        "failures",
        "in a call",
        "last failure",
    )
    print_table(columns, rows)


def _call(instance: InstanceStatus | InstanceFigures, now_ms: int) -> str:
    """Since when an instance is in a call that takes long."""
    # Only a call that takes longer than a second is reported, so most cells are empty.
    if not instance.call_since:
        return ""
    return f"for {(now_ms - instance.call_since) / 1000:,.0f} s, message {instance.call_message_id}"


@functions.command()
@_named
@as_json
@pass_store
def stats(store: OpenedStore, /, is_json: bool, **named: str) -> None:
    """Show what a function has counted since its workers were started, and its metrics."""
    with store.admin() as admin:
        figures = admin.functions().get_function_stats(*_place(**named))
    if is_json:
        print_json(figures.json())
        return
    fields = [
        (name, value) for name, value in zip(figures._fields, figures, strict=True) if name != "instances"
    ]
    now_ms = SYSTEM_CLOCK.wall_ms()
    fields += [
        (f"instance {instance.instance_id} in a call", text)
        for instance in figures.instances
        if (text := _call(instance, now_ms))
    ]
    metrics = [
        (f"metric {name} of instance {instance.instance_id}", json.dumps(numbers))
        for instance in figures.instances
        for name, numbers in instance.user_metrics.items()
    ]
    print_table(
        ("figure", "value"), [(name.replace("_", " "), str(value)) for name, value in fields + metrics]
    )


@functions.command()
@_named
@click.option("-k", "--key", required=True)
@pass_store
def querystate(store: OpenedStore, /, key: str, **named: str) -> None:
    """Show a counter or value of the state of a function, as JSON."""
    with store.admin() as admin:
        value = admin.functions().get_function_state(*_place(**named), key)
    # The names of the fields that pulsar-admin prints. Bytes that are no text are escaped.
    kind = "numberValue" if isinstance(value, int) else "stringValue"
    print_json(
        {"key": key, kind: value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value}
    )


@functions.command()
@_named
@click.option("--topic", help="The input; may be left out if there is one.")
@click.option("--trigger-value", metavar="TEXT", help="The value.")
@click.option("--trigger-file", type=ArgumentPath(exists=True), help="The file with the value.")
@pass_store
def trigger(
    store: OpenedStore,
    /,
    topic: str | None,
    trigger_value: str | None,
    trigger_file: str | None,
    **named: str,
) -> None:
    """Publish a value to an input of a function that is being run, and show what it returns."""
    with store.admin() as admin:
        output = admin.functions().trigger_function(*_place(**named), topic, trigger_value, trigger_file)
    # The bytes as they are, for a program that reads them.
    if output is not None:
        write_bytes(output)


def _adds(verb: str, text: str) -> None:
    @functions.command(verb, help=text)
    @_named
    @pass_store
    def command(store: OpenedStore, /, **named: str) -> None:
        with store.admin() as admin:
            # `start_function`, `stop_function` and `restart_function` take the same arguments.
            getattr(admin.functions(), f"{verb}_function")(*_place(**named))


_adds("start", "Have a function run that was stopped.")
_adds("stop", "Have a function not run; its messages wait.")
_adds("restart", "Have the workers of a function started again.")


@functions.command()
@_named
@destroys
@pass_store
def delete(store: OpenedStore, /, yes: bool, dry_run: bool, **named: str) -> None:
    """Delete a function with its state and its subscriptions. It must be stopped."""
    place = _place(**named)
    with store.admin() as admin:
        # A name that does not exist is an error before the question, and in a dry run.
        admin.functions().get_function(*place)
        if is_confirmed(f"delete the function {'/'.join(place)} with its state", yes, dry_run):
            admin.functions().delete_function(*place)


@click.command()
@click.option("--pool", default="default", show_default=True, help="NAME, or TENANT/NAMESPACE/NAME.")
@click.option(
    "-n",
    "--max-workers",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="Processes; by default one for each processor.",
)
@click.option(
    "--grace",
    type=click.FloatRange(min=0, max=86_400),
    default=GRACE_S,
    show_default=True,
    metavar="SECONDS",
    help="How long a worker may take to end its task at the end.",
)
@click.option(
    "--max-tasks-per-child", type=click.IntRange(min=1), help="Replace a worker after so many tasks."
)
@click.option(
    "--prefetch",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Tasks that a worker fetches at once.",
)
@click.option(
    "--initializer", default="", metavar="MODULE:FUNCTION", help="What each worker calls at its start."
)
@pass_store
def workers(
    store: OpenedStore,
    pool: str,
    max_workers: int | None,
    grace: float,
    max_tasks_per_child: int | None,
    prefetch: int,
    initializer: str,
) -> None:
    """Do the tasks of `embeddedpulsar.futures.Executor`, until Ctrl-C, SIGTERM or SIGHUP.

    Workers are processes, which are started again if they end. They import functions as `python -m` does:
    from the current directory, and from PYTHONPATH. At the end each one ends the task that it does; one that
    takes longer than the grace is killed, and another worker does the task again.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    # Workers open the store for writing, whatever --read-only says.
    store.check_writable()
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    run_workers(
        store.directory,
        pool,
        max_workers=max_workers,
        grace_s=grace,
        max_tasks_per_child=max_tasks_per_child,
        prefetch=prefetch,
        initializer=initializer,
    )
