"""Storms from the command line.

    python -m tests.storms kill --cycles 1000
    python -m tests.storms types --kills 300
    python -m tests.storms producers --kills 300
    python -m tests.storms volatile --kills 300
    python -m tests.storms operations --kills 300
    python -m tests.storms functions --kills 200
    python -m tests.storms outbox --kills 500
    python -m tests.storms frameworks --tasks 10000
    python -m tests.storms transactions --kills 500
    python -m tests.storms spark --kills 200
    python -m tests.storms hostile --minutes 30
    python -m tests.storms threads --messages 20000
    python -m tests.storms dispatch --seeds 10000
    python -m tests.storms backups --stores 10000
    python -m tests.storms power-loss --images 10000
    python -m tests.storms corruption --cases 2000

The options --seed, --workspace and --quiet may stand before the name of the storm or behind it.
Prints what was tried and every violation with the seed that repeats it; the exit status is 1 if there is one.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from typing import Final

from tests.storms import (
    backup_storm,
    corruption,
    framework_storm,
    function_storm,
    kill_storm,
    operations_storm,
    outbox_storm,
    power_loss,
    producer_storm,
    spark_storm,
    store_corruption,
    thread_storm,
    transaction_storm,
    type_storm,
    volatile_storm,
)
from tests.storms.dispatch import dispatch_setup, dispatch_storm
from tests.storms.hostile import hostile_storm

_SHOWN: Final = 50
_LINE_EACH: Final = 500
"""Done between two lines of progress in a file."""
_LINE_EACH_KILLS: Final = 50
_KILLING: Final = (
    "kill",
    "types",
    "producers",
    "operations",
    "volatile",
    "functions",
    "outbox",
    "frameworks",
    "transactions",
    "spark",
    "hostile",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the storm that the command line names; 0 if nothing was found."""
    options = _parser().parse_args(arguments)
    if options.storm == "backups":
        report = backup_storm.run(options, None if options.quiet else _show_progress)
        print(report)
        return 0 if report.is_clean else 1
    if options.storm == "threads":
        threads = thread_storm.run(options)
        print(threads)
        return 0 if threads.is_clean else 1
    if options.storm in _KILLING:  # these keep their folder when something was wrong
        return _kills(options)
    with tempfile.TemporaryDirectory(prefix="storm-", dir=options.workspace) as workspace:
        if options.storm == "power-loss":
            return _power_loss(options, workspace)
        if options.storm == "dispatch":
            return _dispatch(options, workspace)
        return _corruption(options, workspace)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.storms",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _common_options(parser, seed=1, workspace=None, quiet=False)
    storms = parser.add_subparsers(dest="storm", required=True)
    for name, text, add_options in (
        ("kill", "processes killed at any moment", kill_storm.add_options),
        ("types", "consumers of one subscription killed at any moment", type_storm.add_options),
        ("producers", "producers of one topic killed at any moment", producer_storm.add_options),
        ("volatile", "users of a non-persistent topic killed at any moment", volatile_storm.add_options),
        (
            "operations",
            "operators, producers and consumers killed at any moment",
            operations_storm.add_options,
        ),
        (
            "transactions",
            "transactions of several topics killed at any moment",
            transaction_storm.add_options,
        ),
        ("functions", "workers of a function killed at any moment", function_storm.add_options),
        (
            "outbox",
            "relays, writers and consumers of an outbox killed at any moment",
            outbox_storm.add_options,
        ),
        ("frameworks", "workers of frameworks of jobs killed at any moment", framework_storm.add_options),
        ("spark", "driver and workers of a streaming query killed at any moment", spark_storm.add_options),
        (
            "hostile",
            "kills, stops, freezes, interrupts, removed files, daemons, hung workers",
            hostile_storm.add_options,
        ),
        ("backups", "backups at random moments of random flows, restored", backup_storm.add_options),
        ("threads", "threads of one process that change every microsecond", thread_storm.add_options),
        ("dispatch", "consumers of one subscription in every order, simulated", _dispatch_options),
        ("power-loss", "disks that a power loss may leave", _power_loss_options),
        ("corruption", "files damaged in every way", _corruption_options),
    ):
        storm = storms.add_parser(name, help=text, description=text)
        unset = argparse.SUPPRESS  # what is not told behind the name is left as it was told before it
        _common_options(storm, seed=unset, workspace=unset, quiet=unset)
        add_options(storm)
    return parser


def _common_options(
    parser: argparse.ArgumentParser, *, seed: object, workspace: object, quiet: object
) -> None:
    text = "the first seed (default 1); kills add chance of their own"
    parser.add_argument("--seed", type=int, default=seed, help=text)
    text = "where to work; a tmpfs such as /dev/shm is fastest"
    parser.add_argument("--workspace", default=workspace, help=text)
    parser.add_argument("--quiet", action="store_true", default=quiet, help="no progress")


def _dispatch_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=10_000, help="how many (default 10000)")


def _power_loss_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--images", type=int, default=10_000, help="how many (default 10000)")
    parser.add_argument("--steps", type=int, default=50, help="operations per script (default 50)")


def _corruption_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cases",
        type=int,
        default=2_000,
        help="per kind of file, of a topic and of a store (default 2000)",
    )


def _kills(options: argparse.Namespace) -> int:
    progress = None if options.quiet else _show_kills
    if options.storm == "kill":
        reports = [kill_storm.run(options)]
    elif options.storm == "types":
        reports = type_storm.run(options, progress)
    elif options.storm == "volatile":
        reports = [volatile_storm.run(options, progress)]
    elif options.storm == "operations":
        reports = [operations_storm.run(options, progress)]
    elif options.storm == "transactions":
        reports = [transaction_storm.run(options, progress)]
    elif options.storm == "functions":
        reports = [function_storm.run(options, progress)]
    elif options.storm == "outbox":
        reports = [outbox_storm.run(options, progress)]
    elif options.storm == "frameworks":
        reports = framework_storm.run(options, progress)
    elif options.storm == "spark":
        reports = [spark_storm.run(options, progress)]
    elif options.storm == "hostile":
        reports = [hostile_storm.run(options, progress)]
    else:
        reports = producer_storm.run(options, progress)
    print(*reports, sep="\n")
    return 0 if all(report.is_clean for report in reports) else 1


def _dispatch(options: argparse.Namespace, workspace: str) -> int:
    found = dispatch_storm.storm(
        options.seeds, options.seed, workspace, progress=None if options.quiet else _show_progress
    )
    print(
        f"{found.seeds} seeds of {', '.join(dispatch_setup.KINDS)}; {found.steps} steps, {found.entries} "
        f"entries, {found.deliveries} deliveries, {found.deaths} deaths"
    )
    return _show(found.violations)


def _power_loss(options: argparse.Namespace, workspace: str) -> int:
    found = power_loss.storm(
        options.images,
        options.seed,
        workspace,
        steps=options.steps,
        progress=None if options.quiet else _show_progress,
    )
    print(
        f"{found.images} images, {found.entries_judged} entries judged, {found.entries_lost} lost that were "
        f"not flushed, {found.chains} second and third crashes"
    )
    return _show(found.violations)


def _corruption(options: argparse.Namespace, workspace: str) -> int:
    found = corruption.storm(
        options.cases, options.seed, workspace, progress=None if options.quiet else _show_progress
    )
    print(
        f"{found.cases} cases of {', '.join(corruption.KINDS)}; {found.entries} entries read, "
        f"{found.lost} lost because their bytes were hit"
    )
    stores = store_corruption.storm(
        options.cases,
        options.seed,
        os.path.join(workspace, "stores"),
        progress=None if options.quiet else _show_progress,
    )
    print(
        f"{stores.cases} cases of {', '.join(store_corruption.KINDS)}; {stores.refused} refused to open, "
        f"{stores.redelivered} messages came again"
    )
    return _show(found.violations + stores.violations)


def _show_progress(done: int, violations: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{done} done, {violations} violations ", end="", file=sys.stderr, flush=True)
    elif done % _LINE_EACH == 0:
        print(f"{done} done, {violations} violations", file=sys.stderr, flush=True)


def _show_kills(name: str, kills: int, problems: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{name}: {kills} kills, {problems} problems ", end="", file=sys.stderr, flush=True)
    elif kills % _LINE_EACH_KILLS == 0:
        print(f"{name}: {kills} kills, {problems} problems", file=sys.stderr, flush=True)


def _show(violations: list[str]) -> int:
    for line in violations[:_SHOWN]:
        print(line)
    print(f"{len(violations)} violations")
    return 1 if violations else 0
