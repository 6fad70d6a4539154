"""Checks a store. The check reads all of it, changes nothing, and may run while other processes use it.

Exit status: 0 without damage, 1 with damage or with files that could not be read, 2 if PATH is not a readable
store or an option is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from embeddedpulsar.cli.engine import (
    NOTES,
    SYSTEM_CLOCK,
    UNVERIFIED,
    Problem,
    StoreReport,
    TopicReport,
    check_store,
    directory_of,
    why_no_store,
)
from embeddedpulsar.cli.terminal import ProgressLine, end_after_broken_pipe, line_text, standard_streams
from embeddedpulsar.error_text import counted
from embeddedpulsar.exceptions import TopicNotFound, UnsupportedVersionError
from embeddedpulsar.topic_name import TopicName

CLEAN: Final = 0
DAMAGED: Final = 1
NO_STORE: Final = 2
_LISTED_TOPICS: Final = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the store given on the command line, and return the exit status."""
    with standard_streams():
        return _main(arguments)


def _main(arguments: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m embeddedpulsar.cli.check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("path", metavar="PATH", help="directory of the store")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.add_argument("--all", action="store_true", help=f"list the topics even if over {_LISTED_TOPICS}")
    parser.add_argument("--topic", metavar="NAME", help="check this topic alone")
    options = parser.parse_args(arguments)
    try:
        # The real path, so that what is printed is found from any directory.
        root = os.path.realpath(directory_of(options.path))
    except ValueError as error:
        print(error, file=sys.stderr)
        return NO_STORE
    text = refusal(root)
    if text:
        print(text, file=sys.stderr)
        return NO_STORE
    progress = ProgressLine(sys.stderr)
    begun = SYSTEM_CLOCK.monotonic()
    # Three ends that are no report: a store of a later release or a topic that is not there, a file that
    # cannot be read, an interrupt. None of them says that something is damaged. The line of progress is
    # removed before anything is printed.
    try:
        topic = options.topic and TopicName.parse(options.topic).full
        report = check_store(root, is_closed=False, topic=topic, on_progress=progress.show_if_due)
    except (UnsupportedVersionError, TopicNotFound) as e:
        progress.end()
        print(e, file=sys.stderr)
        return NO_STORE
    except OSError as e:
        progress.end()
        print(_unreadable(root, e), file=sys.stderr)
        return NO_STORE
    except KeyboardInterrupt:
        progress.end()
        print("interrupted; nothing was changed", file=sys.stderr)
        return 130
    progress.end()
    seconds = SYSTEM_CLOCK.monotonic() - begun
    if options.json:
        lines = iter((json.dumps(report.json(), indent=2, ensure_ascii=False),))
    else:
        lines = _picture(root, report, seconds, options.all)
    try:
        # The report is made while it is printed, so its head is there before a long list of topics.
        print(*lines, sep="\n", flush=True)
    except BrokenPipeError:  # the reader of the output has closed it
        end_after_broken_pipe()
    # What could not be verified fails the check as well: a script must not take it for whole.
    return DAMAGED if report.damage or report.unverified else CLEAN


def refusal(root: str) -> str:
    """Return why the directory is not a store; "" if it is one."""
    try:
        return why_no_store(root)
    except OSError as e:
        return _unreadable(root, e)


def _unreadable(root: str, error: OSError) -> str:
    """What a program must be allowed to do, for an error."""
    reason = f"{error.filename or root} cannot be read: {error.strerror or error}"
    return f"{reason}; a check needs to read all of {root}, as its owner can"


def _picture(root: str, report: StoreReport, seconds: float, lists_all: bool) -> Iterator[str]:
    subscriptions = sum(topic.subscriptions for topic in report.of_topics)
    counts = [
        counted(report.topics, "topic"),
        counted(subscriptions, "subscription"),
        counted(report.ledgers, "ledger"),
        counted(report.frames, "entry"),
        counted(report.messages, "message"),
    ]
    yield line_text(root)
    version = f"; format version {report.format_version}" if report.format_version else ""
    yield f"  {', '.join(counts)}, read in {seconds:.1f} s{version}"
    if report.living:
        yield f"  {counted(report.living, 'process')} had it open meanwhile"
    # Topics that were copied, or in use when the machine stopped, and were not opened since. An empty one has
    # nothing to recover.
    unclean = [topic for topic in report.of_topics if topic.found.is_unclean and topic.found.frames]
    if unclean:
        why = "a copy, or the machine was restarted"
        yield f"  {counted(len(unclean), 'topic')} will be recovered when opened: {why}"
    txns = report.transactions
    if txns.entries or txns.open or txns.prepared:
        yield (
            f"  {counted(txns.entries, 'entry')} of transactions: {txns.aborted_entries:,} aborted, "
            f"{txns.undecided_entries:,} undecided; {txns.open:,} open, {txns.prepared:,} prepared"
        )
    # A small store lists all topics; a large one those with damage, unless all are asked for.
    shown = [topic for topic in report.of_topics if lists_all or len(report.of_topics) <= _LISTED_TOPICS]
    shown = shown or [topic for topic in report.of_topics if topic.damage]
    if shown:
        yield ""
        yield from _table(shown)
    unverified = "Not verified (this is no damage, and no repair helps)"
    # In the order of what the reader has to do: damage first, then what no repair helps against, and notes at
    # last.
    for title, problems in (
        ("Damage", report.damage),
        (unverified, report.unverified),
        ("Notes", report.notes),
    ):
        if problems:
            yield ""
            yield f"{title}:"
            yield from _described(root, problems)
    yield ""
    # The last line is the verdict, which a terminal shows however long the list above is.
    if report.damage:
        files = counted(len({problem.path for problem in report.damage}), "file")
        yield f"{counted(len(report.damage), 'damaged place')} in {files}. Nothing was changed."
    elif report.unverified:
        files = counted(len({problem.path for problem in report.unverified}), "file")
        yield f"No damage was found, but {files} could not be verified. Nothing was changed."
    else:
        yield "Everything is whole."


def _table(topics: list[TopicReport]) -> Iterator[str]:
    width = max(len(_shown_name(topic)) for topic in topics)
    yield f"  {'topic'.ljust(width)}  subscriptions  ledgers      messages"
    for topic in topics:
        contents = topic.found
        places = len(topic.damage)
        verdict = counted(places, "damaged place") if places else "whole"
        # Damage comes before it: a topic that is damaged and not fully read is damaged.
        if not places and any(problem.kind in UNVERIFIED for problem in contents.problems):
            verdict = "not verified"
        yield (
            f"  {_shown_name(topic).ljust(width)}  {topic.subscriptions:>13,}  {contents.ledgers:>7,}"
            f"  {contents.messages:>12,}  {verdict}"
        )


def _described(root: str, problems: list[Problem]) -> Iterator[str]:
    for problem in problems:
        path = line_text(os.path.relpath(problem.path, root))
        place = f"{path} at {problem.offset}" if problem.offset else path
        yield f"  {place}"
        yield f"    {problem.kind}: {line_text(problem.text)}"
        yield f"    {problem.meaning}"
        # A note asks for nothing.
        if problem.kind not in NOTES:
            yield f"    to do: {problem.remedy}"


def _shown_name(topic: TopicReport) -> str:
    return line_text((topic.name or os.path.basename(topic.directory)).removeprefix("persistent://"))


if __name__ == "__main__":
    sys.exit(main())
