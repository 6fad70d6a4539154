"""How a test runs pytest with the plug-in of the package."""

from __future__ import annotations

from importlib.metadata import entry_points

from tests.source_tree import ROOT

PYTHONPATH = str(ROOT)
"""The path of the processes, which run in folders of their own."""

PLUG_IN = () if "embeddedpulsar" in entry_points(group="pytest11").names else ("-p", "embeddedpulsar_pytest")
"""The arguments of pytest where the package was installed before it had the plug-in."""
