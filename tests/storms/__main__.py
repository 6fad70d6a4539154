"""``python -m tests.storms``: see `tests.storms.commands`."""

from __future__ import annotations

import sys

from tests.storms.commands import main

sys.exit(main())
