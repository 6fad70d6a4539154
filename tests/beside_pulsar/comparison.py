"""Runs the scenarios on both sides, and prints where they agree and where they differ."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
import tempfile
import traceback
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.beside_pulsar import contents, limits, operations, policies, statistics
from tests.beside_pulsar.broker_side import broker_side
from tests.beside_pulsar.known import KNOWN
from tests.beside_pulsar.side import Side
from tests.beside_pulsar.store_side import store_side

Scenario = Callable[[Side], Any]
SCENARIOS: dict[str, Scenario] = {
    scenario.__name__: scenario
    for module in (statistics, operations, limits, contents, policies)
    for scenario in module.SCENARIOS
}


def value_of(scenario: Scenario, side: Side) -> Any:
    """What a scenario returns, as plain JSON; its traceback if it fails. Closes the side."""
    try:
        value = scenario(side)
    except Exception:
        value = {"failed": traceback.format_exc().splitlines()[-3:]}
    finally:
        side.close()
    return json.loads(json.dumps(value, default=lambda one: bytes(one).decode(), sort_keys=True))


def difference(pulsar: Any, embedded: Any) -> list[str]:
    """The lines in which the values of Pulsar (-) and of embeddedpulsar (+) differ; [] if they are equal."""
    texts = [json.dumps(value, indent=1, sort_keys=True).splitlines() for value in (pulsar, embedded)]
    return list(difflib.unified_diff(*texts, "Pulsar", "embeddedpulsar", lineterm="", n=2))


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, and return 1 if a scenario differs that is not known to, 2 without the URLs of a broker."""
    parser = argparse.ArgumentParser(prog="python -m tests.beside_pulsar", description=__doc__)
    parser.add_argument("--service-url", help="pulsar://host:port of a broker")
    parser.add_argument("--admin-url", help="http://host:port of its web service")
    parser.add_argument("--all", action="store_true", help="print known differences, too")
    parser.add_argument("scenarios", nargs="*", help=f"default all: {', '.join(SCENARIOS)}")
    options = parser.parse_args(arguments)
    if not options.service_url or not options.admin_url:
        print(
            "nothing to compare with: --service-url and --admin-url of a broker are needed", file=sys.stderr
        )
        return 2
    unknown = set(options.scenarios) - set(SCENARIOS)
    if unknown:
        print(f"no such scenario: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    return _compare(options.service_url, options.admin_url, options.scenarios or SCENARIOS, options.all)


def _compare(
    service_url: str, admin_url: str, names: Sequence[str] | dict[str, Any], everything: bool
) -> int:
    unexpected = 0
    with tempfile.TemporaryDirectory() as place:
        for name in names:
            namespace = f"public/beside-{uuid.uuid4().hex[:12]}"
            ours = value_of(SCENARIOS[name], store_side(Path(place) / name, namespace))
            theirs = value_of(SCENARIOS[name], broker_side(service_url, admin_url, namespace))
            lines = difference(theirs, ours)
            print(_verdict(name, lines), flush=True)
            unexpected += bool(lines) != (name in KNOWN)
            if lines and (everything or name not in KNOWN):
                print(*lines, sep="\n", flush=True)
    return 1 if unexpected else 0


def _verdict(name: str, lines: list[str]) -> str:
    if not lines:
        return f"{'agrees':8} {name}" + (" (a known difference is gone)" if name in KNOWN else "")
    return f"{'known' if name in KNOWN else 'DIFFERS':8} {name}" + (
        f": {KNOWN[name]}" if name in KNOWN else ""
    )
