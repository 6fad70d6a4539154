"""The list in docs/concurrency.md of what relies on the interpreter lock, beside what the source says."""

from __future__ import annotations

import re

from tests.source_tree import ROOT

PACKAGE = ROOT / "embeddedpulsar"
# How comments and docstrings say that a step is whole because no other thread runs meanwhile.
PHRASES = (
    r"no other thread (can )?comes? between",
    r"No other thread comes between",
    r"one atomic (call|step)",
    r"Every step is atomic",
    r"# atomic: of",
    r"(result|append|appending to the list|`pop`|`append`) is one step",
    r"[Ii]n (one|single) steps?: other threads",
    r"identity, in one step",
    r"One step each, because",
    r"# one step: the messages",
    r"changed by single calls",
    r"No lock, so every order of two threads",
    r"wake-up. It takes no lock",
    # And how they say that two threads may do the same at once.
    r"[Tt]wo threads (may|can|at once|that|had|rang|read|add)",
    r"[Oo]f two threads",
    r"two (at a time|that (look|run) at once)",
    r"another thread (took|removed|removes|has just|was faster|closed|joined|that sees)",
    r"[Oo]ther threads (hand|append|add|do|only)",
)


def test_each_place_that_says_so_is_in_the_list():
    """And the files of the list are there."""
    page = (ROOT / "docs" / "concurrency.md").read_text("utf-8")
    section = page.partition("## Without the interpreter lock")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`([\w/]+\.py)`", row)}
    pattern = re.compile("|".join(PHRASES))
    # A sentence may go on in the next line.
    saying = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if pattern.search(re.sub(r"\n\s*(# )?", " ", path.read_text("utf-8")))
    }
    assert len(saying) >= 25
    assert saying <= listed
    assert all((PACKAGE / name).is_file() for name in listed)
