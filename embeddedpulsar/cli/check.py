"""Checks a store. The check reads all of it, changes nothing, and may run while other processes use it.

Exit status: 0 without damage, 1 with damage, 2 if PATH is not a readable store or an option is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final, TextIO

from embeddedpulsar import damage
from embeddedpulsar.cli.progress_line import ProgressLine
from embeddedpulsar.cli.store_directory import refusal, rights
from embeddedpulsar.exceptions import UnsupportedVersionError
from embeddedpulsar.platform.clock import SYSTEM_CLOCK
from embeddedpulsar.storage import check
from embeddedpulsar.storage.check import Problem
from embeddedpulsar.testing import store_checks
from embeddedpulsar.testing.store_checks import StoreReport, TopicReport, check_store

CLEAN: Final = 0
DAMAGED: Final = 1
NO_STORE: Final = 2
_LISTED_TOPICS: Final = 20
_MEANINGS: Final = {
    damage.HOLE: "these messages are lost; readers report them and continue behind them",
    damage.LOST_TAIL: "what stood behind is lost",
    damage.MISSING_SEGMENT: "the messages of this ledger are lost, unless a copy of the file is restored",
    damage.SEGMENT_HEADER: "the header is derived from the entries where they are whole",
    damage.INDEX: "nothing is lost: the index is derived again when it is needed",
    damage.CONTROL: "nothing is lost: the words are derived again when the topic is opened",
    check.LINK: "readers verify the entries themselves",
    check.TRAILER: "the messages themselves are whole",
    damage.JOURNAL: "what it said is lost from there on: acknowledged messages may be delivered again",
    store_checks.META: "this is not found or opened until it is restored from a copy of the store",
    store_checks.POLICIES: "restore the file from a copy, or remove it and set the policies again",
    store_checks.SETTINGS: "the store cannot be opened until the line is mended",
    store_checks.ID_REUSE: "do not write to this store; restore store.ctl from a copy",
    store_checks.LEFTOVER: "harmless",
    store_checks.IN_USE: "harmless",
    store_checks.UNKNOWN_SETTING: "it has no effect",
    check.STRAY: "harmless: a later append to the topic removes it",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the store given on the command line, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m embeddedpulsar.cli.check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("path", metavar="PATH", help="directory of the store")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.add_argument("--all", action="store_true", help=f"list the topics even if over {_LISTED_TOPICS}")
    options = parser.parse_args(arguments)
    root = os.path.abspath(os.path.expanduser(options.path))
    text = refusal(root)
    if text:
        print(text, file=sys.stderr)
        return NO_STORE
    progress = Progress(sys.stderr)
    begun = SYSTEM_CLOCK.monotonic()
    try:
        report = check_store(root, is_closed=False, watch=progress)
    except UnsupportedVersionError as e:
        progress.end()
        print(e, file=sys.stderr)
        return NO_STORE
    except OSError as e:
        progress.end()
        print(f"{e.filename or root} cannot be read: {e.strerror or e}; {rights(root)}", file=sys.stderr)
        return NO_STORE
    except KeyboardInterrupt:
        progress.end()
        print("interrupted; nothing was changed", file=sys.stderr)
        return 130
    progress.end()
    seconds = SYSTEM_CLOCK.monotonic() - begun
    lines = [_as_json(root, report)] if options.json else _picture(root, report, seconds, options.all)
    try:
        print(*lines, sep="\n", flush=True)
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return DAMAGED if report.damage else CLEAN


class Progress:
    """Writes the progress of a check to a stream; see `ProgressLine`."""

    def __init__(self, stream: TextIO) -> None:
        self._line = ProgressLine(stream)
        self.end = self._line.end
        self._topic = ""
        self._bytes = 0

    def topic(self, number: int, count: int, directory: str) -> None:
        """See `store_checks.Watch.topic`."""
        self._topic = f"topic {number + 1} of {count}"
        self._tell()

    def ledger(self, path: str) -> None:
        """See `store_checks.Watch.ledger`."""
        try:
            self._bytes += os.stat(path).st_blocks * 512
        except FileNotFoundError:
            return  # the ledger was trimmed meanwhile
        self._tell()

    def _tell(self) -> None:
        if self._line.is_due:
            self._line.show(f"checking {self._topic}, {_size(self._bytes)} read")


def _picture(root: str, report: StoreReport, seconds: float, lists_all: bool) -> Iterator[str]:
    subscriptions = sum(topic.subscriptions for topic in report.of_topics)
    counts = [
        _count(report.topics, "topic"),
        _count(subscriptions, "subscription"),
        _count(report.ledgers, "ledger"),
        _count(report.frames, "entry"),
        _count(report.messages, "message"),
    ]
    yield root
    yield f"  {', '.join(counts)}, read in {seconds:.1f} s"
    if report.living:
        yield f"  {_count(report.living, 'process')} had it open meanwhile"
    unclean = [topic for topic in report.of_topics if topic.found.is_unclean and topic.found.frames]
    if unclean:
        why = "a copy, or the machine was restarted"
        yield f"  {_count(len(unclean), 'topic')} will be recovered when opened: {why}"
    shown = [topic for topic in report.of_topics if lists_all or len(report.of_topics) <= _LISTED_TOPICS]
    shown = shown or [topic for topic in report.of_topics if _damage_of(topic)]
    if shown:
        yield ""
        yield from _table(shown)
    notes = [problem for problem in report.problems if problem.kind in store_checks.NOTES]
    for title, problems in (("Damage", report.damage), ("Notes", notes)):
        if problems:
            yield ""
            yield f"{title}:"
            yield from _described(root, problems)
    yield ""
    if report.damage:
        files = _count(len({problem.path for problem in report.damage}), "file")
        yield f"{_count(len(report.damage), 'damaged place')} in {files}. Nothing was changed."
    else:
        yield "Everything is whole."


def _table(topics: list[TopicReport]) -> Iterator[str]:
    width = max(len(_shown_name(topic)) for topic in topics)
    yield f"  {'topic'.ljust(width)}  subscriptions  ledgers      messages"
    for topic in topics:
        found = topic.found
        places = _damage_of(topic)
        verdict = _count(places, "damaged place") if places else "whole"
        yield (
            f"  {_shown_name(topic).ljust(width)}  {topic.subscriptions:>13,}  {found.ledgers:>7,}"
            f"  {found.messages:>12,}  {verdict}"
        )


def _described(root: str, problems: list[Problem]) -> Iterator[str]:
    for problem in problems:
        path = os.path.relpath(problem.path, root)
        place = f"{path} at {problem.offset}" if problem.offset else path
        yield f"  {place}"
        yield f"    {problem.kind}: {problem.text}"
        meaning = _MEANINGS.get(problem.kind)
        if meaning:
            yield f"    {meaning}"


def _as_json(root: str, report: StoreReport) -> str:
    result: dict[str, Any] = {
        "path": root,
        "is_whole": not report.damage,
        "living_processes": report.living,
        "topics": [
            {
                "name": topic.name,
                "directory": os.path.relpath(topic.directory, root),
                "subscriptions": topic.subscriptions,
                "ledgers": topic.found.ledgers,
                "entries": topic.found.frames,
                "messages": topic.found.messages,
                "will_be_recovered": topic.found.is_unclean,
            }
            for topic in report.of_topics
        ],
        "problems": [
            {
                "kind": problem.kind,
                "path": os.path.relpath(problem.path, root),
                "offset": problem.offset,
                "text": problem.text,
                "is_damage": problem.kind not in store_checks.NOTES,
            }
            for problem in report.problems
        ],
    }
    return json.dumps(result, indent=2, ensure_ascii=False)


def _damage_of(topic: TopicReport) -> int:
    return sum(problem.kind not in store_checks.NOTES for problem in topic.found.problems)


def _shown_name(topic: TopicReport) -> str:
    return (topic.name or os.path.basename(topic.directory)).removeprefix("persistent://")


def _count(number: int, noun: str) -> str:
    if number != 1:
        noun = "entries" if noun == "entry" else f"{noun}es" if noun.endswith("ss") else f"{noun}s"
    return f"{number:,} {noun}"


def _size(count: int) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}"
        count //= 1024
    return f"{count:,} GiB"


if __name__ == "__main__":
    sys.exit(main())
