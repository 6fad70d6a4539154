"""The logger of a function, and its log topic."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from embeddedpulsar.client.client import Client


def logger_of(full_name: str) -> logging.Logger:
    """The logger of a function: a child of ``embeddedpulsar.function``."""
    return logging.getLogger(f"embeddedpulsar.function.{full_name}")


class LogTopicHandler(logging.Handler):
    """Publishes records of a logger, each as one message with its level in the properties.

    What the publishing itself logs is not published.
    """

    def __init__(self, client: Client, topic: str, full_name: str, instance: int) -> None:
        super().__init__()
        self._producer: Final = client.create_producer(topic)
        self._properties: Final = {"fqn": full_name, "instance": str(instance)}

    def emit(self, record: logging.LogRecord) -> None:
        """Publish a record. What goes wrong is reported as other handlers do."""
        try:
            text = self.format(record).encode()
            self._producer.send(text, properties=self._properties | {"loglevel": record.levelname})
        except Exception:  # noqa: BLE001 - logging reports it; the function goes on
            self.handleError(record)

    def close(self) -> None:
        """Detach from the topic."""
        if self._producer.is_connected():
            self._producer.close()
        super().close()
