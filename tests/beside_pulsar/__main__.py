"""``python -m tests.beside_pulsar``: see `tests.beside_pulsar.comparison`."""

from __future__ import annotations

import sys

from tests.beside_pulsar.comparison import main

sys.exit(main())
