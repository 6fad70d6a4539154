"""What a process imports: its memory is freed before the kernel reports its death."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

import pytest

PACKAGE = "embeddedpulsar."
PRODUCE = """
import sys
from embeddedpulsar import Client
with Client(sys.argv[1]) as client:
    client.create_producer("orders").send(b"1")
print(*sys.modules)
"""
CONSUME = """
import sys
from embeddedpulsar import Client, ConsumerType, InitialPosition
with Client(sys.argv[1]) as client:
    kind, earliest = ConsumerType[sys.argv[2]], InitialPosition.Earliest
    consumer = client.subscribe("orders", "s", kind, initial_position=earliest)
    consumer.acknowledge(consumer.receive(10_000))
print(*sys.modules)
"""
BOTH = """
import sys
from embeddedpulsar import Client, ConsumerType
with Client(sys.argv[1]) as client:
    producer, consumer = client.create_producer("fresh"), client.subscribe("fresh", "s", ConsumerType.Shared)
    producer.send(b"x")
    consumer.acknowledge(consumer.receive(10_000))
print(*sys.modules)
"""
SELDOM = (
    "_engine.cold.cold_ledger",
    "client.cluster_options",
    "client.consumer.due_entries",
    "_engine.log.log_survey",
    "_engine.log.chain_scan",
    "_engine.log.recovery",
    "client.consumer.reader",
    "client.consumer.table_view",
    "client.interceptors",
    "crypto.keys",
    "encryption",
    "_engine.format.avro_definition",
    "_engine.store.schema_compatibility",
)


@cache
def loaded_at_start() -> frozenset[str]:
    """By the interpreter, and by what an installation adds to its start."""
    return frozenset(listed("import sys; print(*sys.modules)"))


def loaded(program: str, *arguments: str) -> set[str]:
    """The modules that a program lists, without those that are there before it begins."""
    return listed(program, *arguments) - loaded_at_start()


def listed(program: str, *arguments: str) -> set[str]:
    """The words that a program prints."""
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    return set(done.stdout.split())


@pytest.mark.parametrize("consumer_type", ["Exclusive", "Failover", "Shared", "KeyShared"])
def test_consumers_and_producers_load_their_own(tmp_path, consumer_type: str):
    """A consumer loads no producers, dead letters and results, a producer no consumers and patterns. Neither
    loads OpenSSL, enumerations of signals, queues or `typing`, and sortedcontainers is for counts of
    redeliveries alone."""
    root = str(tmp_path / "store")
    producing, consuming = loaded(PRODUCE, root), loaded(CONSUME, root, consumer_type)
    for names in (producing, consuming):
        assert PACKAGE + "_engine.store.store" in names
        assert names.isdisjoint(("_hashlib", "asyncio", "inspect", "logging", "queue", "signal", "traceback"))
        assert "typing" not in names
        assert "sortedcontainers" not in names
    assert "re" not in producing
    # With those of the standard library, some 18 of which the finder of an editable install loaded before.
    assert len(producing) <= 160, sorted(producing)
    assert len(consuming) <= 192, sorted(consuming)
    assert PACKAGE + "results" not in consuming
    assert not [name for name in producing if name.startswith(PACKAGE + "client.consumer.consumer")]
    unwanted: tuple[str, ...] = ("client.producer.", "client.consumer.dead_letter")
    rare = ("_engine.log.log_survey", "_engine.log.log_check")
    unwanted += (
        "_engine.store.producers",
        "_engine.store.topic_journal",
        "_engine.store.topic_deletion",
        *rare,
    )
    assert not [name for name in consuming if name.removeprefix(PACKAGE).startswith(unwanted)]
    claiming = PACKAGE + "_engine.subscription.attachment.shared_attachment"
    assert (claiming in consuming) == (consumer_type in ("Shared", "KeyShared"))


def test_what_is_seldom_needed_is_loaded_by_who_needs_it(tmp_path):
    """A producer and a Shared consumer of a new topic load nothing of readers, interceptors, encryption,
    offloading, recovery, surveys, changes of policies and the compatibility of schemas."""
    names = [name.removeprefix(PACKAGE) for name in loaded(BOTH, str(tmp_path)) if name.startswith(PACKAGE)]
    assert not set(names) & set(SELDOM)
    assert len(names) <= 175, sorted(names)
