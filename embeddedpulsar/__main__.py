"""`python -m embeddedpulsar`: see `embeddedpulsar.cli.main`."""

import sys

from embeddedpulsar.cli.main import main

sys.exit(main())
