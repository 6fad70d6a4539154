"""Figures that the pages take from the source are those of the source."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from embeddedpulsar._engine.log import segment_index
from embeddedpulsar._engine.log.log_opening import LedgerOptions
from embeddedpulsar._engine.platform import file_lock
from embeddedpulsar._engine.subscription import liveness_monitor
from embeddedpulsar._engine.subscription.state import replica
from embeddedpulsar.client.client import Client
from embeddedpulsar.client.consumer import consumer_config, delivery
from embeddedpulsar.settings import BrokerSettings
from tests.source_tree import ROOT


def default(function: Any, name: str) -> Any:
    """The default of an argument."""
    return inspect.signature(function).parameters[name].default


IN_WORDS = {3: "three"}
BACK_STOP_MS = f"{round(delivery.back_stop(0) * 1000)} ms"
IDLE_BACK_STOP_MS = f"{round(delivery.IDLE_BACK_STOP_S * 1000)} ms"
LONG_IDLE_BACK_STOP = f"{round(delivery.back_stop(1e9))} s"
PAUSES = (file_lock._FIRST_PAUSE_S, file_lock._LONGEST_PAUSE_S, file_lock._PATIENT_PAUSE_S)
FIRST_PAUSE, LONGEST_PAUSE, PATIENT_PAUSE = (round(pause * 1e6) for pause in PAUSES)
GROUP_TIME_MS = default(Client.subscribe, "ack_group_time_ms")

# Page -> sentences of it, with the figures as the source has them.
FIGURES: dict[str, list[str]] = {
    "architecture.md": [
        f"checks by itself after {BACK_STOP_MS}",
        f"every {IDLE_BACK_STOP_MS}",
        f"every {LONG_IDLE_BACK_STOP} for a consumer that has its",
        f"for the group time, by default {GROUP_TIME_MS} ms",
        f"`keepAliveIntervalSeconds` ({BrokerSettings().keepAliveIntervalSeconds})",
        f"while a subscription has {replica.LEAST_CONSUMERS} consumers or more",
    ],
    "concurrency.md": [
        f"{FIRST_PAUSE} µs to {LONGEST_PAUSE // 1000} ms at first",
        f"at most {PATIENT_PAUSE // 1000} ms. A blocking `flock`",
        f"at most {default(LedgerOptions.__new__, 'lock_timeout_s'):.0f} s.",
        f"the FIFOs of the {IN_WORDS[liveness_monitor.WATCHED]} that precede it",
    ],
    "testing.md": [
        f"`negative_ack_redelivery_delay_ms={consumer_config._SHORTEST_NACK_DELAY_MS}`, the shortest",
        f"are collected for {GROUP_TIME_MS} ms",
        f"`unacked_messages_timeout_ms` is at least {consumer_config._SHORTEST_ACK_TIMEOUT_MS // 1000} s",
    ],
    "glossary.md": [f"{segment_index.SLOT_SIZE} bytes per entry in a file beside the segment"],
}


@pytest.mark.parametrize("page", sorted(FIGURES))
def test_figures_are_those_of_the_source(page: str):
    """Each sentence stands in the page with the figure that the source has."""
    text = " ".join((ROOT / "docs" / page).read_text("utf-8").split())
    assert not [sentence for sentence in FIGURES[page] if sentence not in text]
