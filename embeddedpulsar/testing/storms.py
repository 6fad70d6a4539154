"""Storms from the command line.

    python -m embeddedpulsar.testing.storms kill --cycles 1000
    python -m embeddedpulsar.testing.storms types --kills 300
    python -m embeddedpulsar.testing.storms producers --kills 300
    python -m embeddedpulsar.testing.storms dispatch --seeds 10000
    python -m embeddedpulsar.testing.storms power-loss --images 10000
    python -m embeddedpulsar.testing.storms corruption --cases 2000

Prints what was tried and every violation with the seed that repeats it; the exit status is 1 if there is one.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from typing import Final

from embeddedpulsar.testing import (
    corruption,
    dispatch_setup,
    dispatch_storm,
    kill_storm,
    power_loss,
    producer_storm,
    store_corruption,
    type_storm,
)

_SHOWN: Final = 50


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the storm that the command line names; 0 if nothing was found."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["kill"]:  # it has options of its own, and keeps its folder when something was wrong
        report = kill_storm.run(words[1:])
        print(report)
        return 0 if report.is_clean else 1
    if words[:1] == ["types"]:
        reports = type_storm.run(words[1:], _show_kills)
        print(*reports, sep="\n")
        return 0 if all(report.is_clean for report in reports) else 1
    if words[:1] == ["producers"]:
        reports = producer_storm.run(words[1:], _show_kills)
        print(*reports, sep="\n")
        return 0 if all(report.is_clean for report in reports) else 1
    options = _parser().parse_args(words)
    with tempfile.TemporaryDirectory(prefix="storm-", dir=options.workspace) as workspace:
        if options.storm == "power-loss":
            return _power_loss(options, workspace)
        if options.storm == "dispatch":
            return _dispatch(options, workspace)
        return _corruption(options, workspace)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m embeddedpulsar.testing.storms", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default 1)")
    parser.add_argument("--workspace", help="where to work; a tmpfs such as /dev/shm is fastest")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    storms = parser.add_subparsers(dest="storm", required=True)
    storms.add_parser("kill", help="processes killed at any moment", add_help=False)
    storms.add_parser("types", help="consumers of one subscription killed at any moment", add_help=False)
    storms.add_parser("producers", help="producers of one topic killed at any moment", add_help=False)
    dispatch = storms.add_parser("dispatch", help="consumers of one subscription in every order, simulated")
    dispatch.add_argument("--seeds", type=int, default=10_000, help="how many (default 10000)")
    power = storms.add_parser("power-loss", help="disks that a power loss may leave")
    power.add_argument("--images", type=int, default=10_000, help="how many (default 10000)")
    power.add_argument("--steps", type=int, default=50, help="operations per script (default 50)")
    damage = storms.add_parser("corruption", help="files damaged in every way")
    damage.add_argument(
        "--cases",
        type=int,
        default=2_000,
        help="per kind of file, of a topic and of a store (default 2000)",
    )
    return parser


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


def _show_kills(name: str, kills: int, problems: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{name}: {kills} kills, {problems} problems ", end="", file=sys.stderr, flush=True)


def _show(violations: list[str]) -> int:
    for line in violations[:_SHOWN]:
        print(line)
    print(f"{len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
