"""The commands of the program by subject, and what they share: the store, errors and exit statuses."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from embeddedpulsar import __version__
from embeddedpulsar.cli import check as store_check
from embeddedpulsar.cli.admin_commands import (
    backup,
    brokers,
    namespaces,
    repair,
    resourcegroups,
    restore,
    schemas,
    tenants,
    transactions,
)
from embeddedpulsar.cli.base import OpenedStore, add_quotas, as_json
from embeddedpulsar.cli.doctor_commands import doctor, init, metrics, serve
from embeddedpulsar.cli.function_commands import functions, workers
from embeddedpulsar.cli.look_commands import top, who
from embeddedpulsar.cli.message_commands import consume, dlq, outbox, produce, tail
from embeddedpulsar.cli.migrate_commands import migrate
from embeddedpulsar.cli.perf_commands import perf
from embeddedpulsar.cli.terminal import (
    BROKEN_PIPE,
    argument_path,
    end_after_broken_pipe,
    is_terminal,
    printable,
    standard_streams,
)
from embeddedpulsar.cli.topic_commands import subscriptions, topics
from embeddedpulsar.exceptions import PulsarException

# 128 and the number of SIGINT, as shells report it.
INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--store",
    envvar="EMBEDDEDPULSAR_URL",
    show_envvar=True,
    metavar="PATH",
    help="The directory of the store.",
)
@click.option(
    "--read-only",
    is_flag=True,
    help="Look at the store, and change nothing. So it is without the right to write, too.",
)
@click.version_option(__version__, prog_name="embeddedpulsar")
@click.pass_context
def program(context: click.Context, store: str | None, read_only: bool) -> None:
    """Manage and show the topics of a store of embeddedpulsar.

    Nouns and verbs are those of pulsar-admin and pulsar-client. Commands that only show something change
    nothing, and can be used while other processes use the store.
    """
    context.obj = OpenedStore(store, is_read_only=read_only)


@program.command()
@click.argument("path", required=False)
@click.option("--topic", metavar="NAME", help="Check this topic alone.")
@click.option("--all", "lists_all", is_flag=True, help="List the topics of a large store, too.")
@as_json
@click.pass_context
def check(
    context: click.Context, path: str | None, topic: str | None, lists_all: bool, is_json: bool
) -> None:
    """Check all files of the store, or of that in the directory PATH. Changes nothing.

    The exit status is 0 without damage, 1 with damage, and 2 if there is no store.
    """
    store: OpenedStore = context.obj
    # The check is a program of its own, with a command line of its own, because it works where click is not
    # installed.
    arguments = [argument_path(path) if path else store.root]
    arguments += ["--topic", topic] if topic else []
    arguments += ["--json"] if is_json else []
    arguments += ["--all"] if lists_all else []
    context.exit(store_check.main(arguments))


# Groups and single commands, in the order of their subjects; `--help` sorts them by name.
for command in (
    topics,
    subscriptions,
    brokers,
    resourcegroups,
    dlq,
    namespaces,
    schemas,
    functions,
    workers,
    outbox,
    transactions,
    tenants,
    produce,
    consume,
    tail,
    repair,
    backup,
    restore,
    init,
    doctor,
    migrate,
    perf,
    top,
    who,
    serve,
    metrics,
):
    program.add_command(command)
add_quotas(topics, lambda admin: admin.topics(), "topic")
add_quotas(namespaces, lambda admin: admin.namespaces(), "namespace")


# What click raises for a group without a command. Before click 8.2 it prints the help, and raises nothing.
_NO_COMMAND: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())


def run(arguments: Sequence[str]) -> int:
    """Run a command line; return the exit status."""
    with standard_streams():
        try:
            status = _run(list(arguments))
            # What is left in the buffer is written here, where a closed pipe is still noticed, and not at the
            # end of the interpreter.
            sys.stdout.flush()
        except BrokenPipeError:
            status = BROKEN_PIPE
        except SystemExit:  # click raises it for a broken pipe
            if not type(sys.stdout).__name__.endswith("PacifyFlushWrapper"):
                raise
            status = BROKEN_PIPE
    if status == BROKEN_PIPE:
        end_after_broken_pipe()
    return status


def _run(arguments: list[str]) -> int:
    # The order matters: a UsageError is a ClickException, and a BrokenPipeError an OSError. Every error that
    # a user can cause ends in one line; what is left is a fault of the program, and keeps its traceback.
    try:
        return int(program.main(arguments, "embeddedpulsar", standalone_mode=False) or 0)
    except _NO_COMMAND as e:  # its message is the help, which has a usage line of its own
        click.echo(e.format_message(), err=True)
        return click.UsageError.exit_code
    except click.UsageError as e:
        if e.ctx is not None:
            click.echo(e.ctx.get_usage(), err=True)
        _print_error(e.format_message())
        return e.exit_code
    except click.ClickException as e:
        _print_error(e.format_message())
        return e.exit_code
    except click.Abort as e:  # what click makes of an interrupt, and of a question answered by no
        click.echo("Aborted; nothing more was done.", err=True)
        return INTERRUPTED if isinstance(e.__cause__, KeyboardInterrupt) else 1
    except BrokenPipeError:
        raise
    except UnicodeEncodeError as e:
        _print_error(f"{e.object!a} cannot be used: it is not UTF-8 text")
        return 1
    except ImportError as e:  # an extra that is not installed says how to install it; others are faults
        if "pip install" not in str(e):
            raise
        _print_error(str(e))
        return 1
    except (PulsarException, ValueError, OSError) as e:
        _print_error(str(e))
        return 1


def _print_error(text: str) -> None:
    """Print an error. On a terminal line ends are escaped, too: what follows one might look like a line of
    this program."""
    click.echo(f"Error: {printable(text) if is_terminal(sys.stderr) else text}", err=True)
