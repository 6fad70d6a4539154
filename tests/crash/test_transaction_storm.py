"""SIGKILL among transactions: the short form of `python -m tests.storms transactions`."""

from __future__ import annotations

import pytest

from tests.children import run_python

STORM = """
import sys
from tests.storms import commands as storms
sys.exit(storms.main(["transactions", *sys.argv[1:]]))
"""

# The same storm, but clerks acknowledge one order in eight without its transaction.
CARELESS = """
import sys
from tests.storms import transaction_workload, commands as storms

acknowledge = transaction_workload.Consumer.acknowledge

def careless(consumer, message, *, txn=None):
    if txn is not None and int(message.data()) % 8 == 0:
        txn = None
    acknowledge(consumer, message, txn=txn)

transaction_workload.Consumer.acknowledge = careless
sys.exit(storms.main(["transactions", *sys.argv[1:]]) != 1)
"""


def test_orders_are_booked_once_and_whole(tmp_path):
    """Clerks that are killed, stopped and frozen; what is acknowledged is visible, all of it and once."""
    options = ("--kills", "12", "--orders", "200", "--quiet", "--folder", str(tmp_path))
    assert "clean" in run_python(STORM, *options, timeout_s=400)


@pytest.mark.slow
def test_the_storm_finds_a_mistake(tmp_path):
    """An acknowledgement that is not part of the transaction is found out."""
    options = ("--kills", "12", "--orders", "400", "--quiet", "--folder", str(tmp_path))
    assert "PROBLEM" in run_python(CARELESS, *options, timeout_s=400)
