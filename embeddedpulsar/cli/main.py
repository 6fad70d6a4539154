"""The program ``embeddedpulsar``, which manages and shows the topics of a store."""

from __future__ import annotations

import sys
from collections.abc import Sequence

_NEEDED = ("click", "rich")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program, and return its exit status.

    0: done. 1: an error, which is printed in one line. 2: the command line is wrong, or the packages of the
    program are not installed. 130: interrupted. 141: the reader of the output has closed it. `check` has its
    own.

    Args:
        arguments: without the name of the program; default: those of the process.
    """
    # click and rich are extra requirements. They are imported here, so that a program without them gets an
    # instruction; an ImportError of anything else is a fault and comes out.
    try:
        from embeddedpulsar.cli.program import run
        from embeddedpulsar.cli.terminal import decoded_arguments
    except ImportError as e:
        if e.name not in _NEEDED:
            raise
        print(
            f"the command line needs {' and '.join(_NEEDED)}: pip install 'embeddedpulsar[cli]'",
            file=sys.stderr,
        )
        return 2
    return run(decoded_arguments(sys.argv[1:]) if arguments is None else list(arguments))
