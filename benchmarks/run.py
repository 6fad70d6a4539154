"""Measure named workloads beside their peers.

    python benchmarks/run.py publish_sync e2e_exclusive --seconds 20 --json out.json
    python benchmarks/run.py                            # every workload
    python benchmarks/run.py --smoke                    # about a second each: does everything still run?
    python benchmarks/run.py realistic --publish        # and into docs/performance.md, beside the others

Peers that need a server use redis-server and nats-server when they are installed
(benchmarks/peers/servers.sh) and a Pulsar broker where its jars were fetched (benchmarks/peers/pulsar.sh);
they are started on free loopback ports over a temporary directory and stopped.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    # Run as a file: the repository comes first on the path; this folder goes, so its modules have one name.
    sys.path[:] = [str(Path(__file__).resolve().parent.parent)] + [
        entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent
    ]

from benchmarks import document, host, report
from benchmarks.contest import Settings
from benchmarks.harness import hold

WORKLOADS = (
    "realistic",
    "jobs",
    "publish_sync",
    "publish_async",
    "publish_partitioned",
    "publish_1MiB",
    "publish_compressed",
    "send_many",
    "send_arrow",
    "publish_chunked_1GiB",
    "transactions",
    "e2e_exclusive",
    "non_persistent",
    "e2e_shared",
    "e2e_key_shared",
    "failover_takeover",
    "nack_storm",
    "delayed_million",
    "wakeup_latency",
    "compaction",
    "many_topics",
    "many_topics_consumer",
    "idle_herd",
    "open_large_topic",
    "ack_random",
    "offload",
    "duckdb_scan",
    "spark_scan",
    "spark_sink",
    "spark_stream_latency",
    "arrow_scan",
    "import_time",
)


def main(arguments: list[str] | None = None) -> int:
    """Run the workloads named on the command line and print their tables; 1 when a budget was missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", metavar="workload", help=f"any of: {' '.join(WORKLOADS)}")
    parser.add_argument("--json", metavar="FILE", help="write every round, the host and the verdicts to FILE")
    parser.add_argument("--seconds", type=float, default=20.0, help="time for each table (default 20)")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    parser.add_argument(
        "--size", type=int, default=100, help="bytes of a message where the workload lets it vary"
    )
    parser.add_argument("--dir", help="where the data go (default: the system's temporary directory)")
    parser.add_argument(
        "--smoke", action="store_true", help="about one second per workload; figures mean nothing"
    )
    parser.add_argument(
        "--save",
        action="store_true",
        help="keep the figures in benchmarks/results, beside the newest ones of other workloads",
    )
    parser.add_argument(
        "--publish",
        action="store_true",
        help="--save, and put figures and picture into docs/performance.md; tables of other workloads stay",
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a budget is missed")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.workloads if name not in WORKLOADS]
    if unknown:
        parser.error(f"unknown workload {unknown[0]!r}; there are: {' '.join(WORKLOADS)}")
    settings = Settings(options.seconds, False, options.rounds, options.size)
    if options.smoke:
        settings = Settings(1.0, True, 2, options.size)
    place = Path(options.dir or tempfile.gettempdir())
    machine = host.describe(place)  # before the run: the load is what others do
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    results, missed = [], 0
    for name in options.workloads or WORKLOADS:
        workload = importlib.import_module(f"benchmarks.workloads.{name}")
        for contest in workload.contests(settings):
            table = hold(contest, settings, place, _say)
            _say("")
            sys.stdout.write("\n".join(report.lines(table)) + "\n\n")
            sys.stdout.flush()
            results.append(report.as_json(name, table, settings, date=now[:10], load=machine["load"][0]))
            missed += sum(verdict.got is not None and not verdict.met for verdict in table.verdicts)
    facts: dict[str, Any] = {
        "date": now,
        "host": machine,
        "settings": {"seconds": settings.seconds, "rounds": settings.rounds, "smoke": settings.smoke},
        "tables": results,
    }
    if options.json:
        Path(options.json).write_text(json.dumps(facts, indent=1) + "\n")
    if options.save or options.publish:
        kept = _save(facts)
        if options.publish:
            document.main([str(kept)])
    return 1 if missed and options.strict else 0


def _save(facts: dict[str, Any]) -> Path:
    """Write a results file of the day: these tables, and those of other workloads of the newest file."""
    newest = max(document.RESULTS.glob("*.json"), default=None)
    kept = document.RESULTS / f"{facts['date'][:10]}-{platform.node()}.json"
    tables = report.merged(newest, facts["tables"], WORKLOADS)
    if newest is not None:  # packages of the other tables that are not installed here
        versions = json.loads(newest.read_text("utf-8"))["host"]["versions"] | facts["host"]["versions"]
        facts = facts | {"host": facts["host"] | {"versions": versions}}
    kept.write_text(json.dumps(facts | {"tables": tables}, indent=1) + "\n")
    return kept


def _say(text: str) -> None:
    """One line of progress that the next one replaces; nothing when nobody watches."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[2K{text[:110]}")
        sys.stderr.flush()


if __name__ == "__main__":
    raise SystemExit(main())
