"""The order of the site: what a reader wants to do, and the pages for it."""

from __future__ import annotations

from typing import Final

SECTIONS: Final[dict[str, tuple[str, ...]]] = {
    "Begin": (
        "installation",
        "quickstart",
        "tutorial",
        "cookbook",
        "envelope",
        "platforms",
    ),
    "Coming from": (
        "from-multiprocessing-queue",
        "from-celery",
        "from-redis-streams",
        "from-pulsar-client",
        "from-kafka",
        "from-other-languages",
    ),
    "Messages": (
        "producers",
        "subscriptions",
        "schemas",
        "transactions",
        "outbox",
        "compaction",
        "non-persistent",
        "memory",
        "policies",
        "testing",
    ),
    "Jobs and functions": (
        "jobs",
        "futures",
        "functions",
        "celery",
        "dramatiq",
        "taskiq",
        "huey",
        "faststream",
        "django",
    ),
    "Operate": (
        "operators-guide",
        "operations",
        "admin",
        "command-line",
        "server",
        "console",
        "admin-rest",
        "metrics",
        "traces",
        "cold-data",
        "recovery",
        "caveats",
    ),
    "Analyse": ("spark", "performance"),
    "Know": (
        "guarantees",
        "compatibility",
        "concurrency",
        "architecture",
        "glossary",
        "changelog",
        "contributing",
    ),
}
"""Pages by section. A page that is not there is not missed: it may come with a later part of the package. One
that is there and is in no section goes to the last."""

TITLES: Final = {
    "outbox": "Outbox and inbox",
    "from-multiprocessing-queue": "multiprocessing.Queue",
    "from-celery": "Celery",
    "from-redis-streams": "Redis Streams",
    "from-pulsar-client": "pulsar-client",
    "from-kafka": "Kafka",
    "from-other-languages": "Other languages",
    "spark": "Whole topics, Arrow and Spark",
    "readme": "README",
}
"""Shorter titles, for the navigation."""

REFERENCE: Final[dict[str, tuple[str, ...]]] = {
    "embeddedpulsar": ("embeddedpulsar",),
    "embeddedpulsar.schema": ("embeddedpulsar.schema",),
    "embeddedpulsar.asyncio": ("embeddedpulsar.asyncio",),
    "Admin": (
        "embeddedpulsar.admin.admin",
        "embeddedpulsar.admin.topics",
        "embeddedpulsar.admin.namespaces",
        "embeddedpulsar.admin.dead_letters",
        "embeddedpulsar.admin.transactions",
        "embeddedpulsar.policy_values",
    ),
    "embeddedpulsar.functions": ("embeddedpulsar.functions",),
    "embeddedpulsar.futures": ("embeddedpulsar.futures",),
    "embeddedpulsar.outbox": ("embeddedpulsar.outbox",),
    "embeddedpulsar.arrow": ("embeddedpulsar.arrow",),
    "embeddedpulsar.metrics": ("embeddedpulsar.metrics",),
    "embeddedpulsar.server": ("embeddedpulsar.server",),
    "embeddedpulsar.otel": ("embeddedpulsar.otel",),
    "embeddedpulsar.testing": ("embeddedpulsar.testing",),
}
"""Pages of the reference, each with the modules whose public names it has."""
