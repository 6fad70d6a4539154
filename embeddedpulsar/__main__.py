"""`python -m embeddedpulsar`: see `embeddedpulsar.cli.main`."""

import sys

from embeddedpulsar.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
