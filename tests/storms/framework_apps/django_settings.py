"""The settings of a user of Django."""

from __future__ import annotations

from tests.storms.framework_apps import STORE

TASKS = {
    "default": {
        "BACKEND": "embeddedpulsar.frameworks.django.TaskBackend",
        "QUEUES": ["default", "urgent"],
        "OPTIONS": {"path": STORE, "max_attempts": 100},
    }
}
USE_TZ = True
