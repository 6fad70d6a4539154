"""What a client logs: failures that have no caller to raise to, and what came and went."""

from __future__ import annotations

from typing import Any

from embeddedpulsar.client.common.network_options import ConsoleLogger, FileLogger
from embeddedpulsar.enums import LoggerLevel
from embeddedpulsar.platform import package_log

_NAME = package_log.NAME


class ClientLog:
    """Logs to the ``logger`` argument of the client, else to the logger ``embeddedpulsar``.

    ``logging`` is imported with the first message, because a client that has nothing to say should stay
    cheap. Any thread may call it; it never raises, and it is never called under a lock that other processes
    wait for.
    """

    __slots__ = ("_argument", "_logger")

    def __init__(self, logger: object = None) -> None:
        self._argument = logger
        self._logger: Any = None
        if logger is not None and not isinstance(logger, ConsoleLogger | FileLogger):
            import logging

            if not isinstance(logger, logging.Logger):
                raise ValueError(
                    "Logger is expected to be either None, logger.Logger, pulsar.ConsoleLogger or "
                    "pulsar.FileLogger"
                )
            self._logger = logger

    def exception(self, text: str, *values: object) -> None:
        """Log the exception being handled."""
        self._get().error(text, *values, exc_info=True)

    def warning(self, text: str, *values: object) -> None:
        """Log something the user should look into."""
        self._get().warning(text, *values)

    def info(self, text: str, *values: object) -> None:
        """Log something that is as it should be; not where no logger can have been asked for it."""
        if self._argument is not None:
            self._get().info(text, *values)
        else:
            package_log.info(text, *values)

    def _get(self) -> Any:
        if self._logger is None:
            self._logger = _make(self._argument)
        return self._logger


def _make(argument: object) -> Any:
    import logging

    if not isinstance(argument, ConsoleLogger | FileLogger):
        return logging.getLogger(_NAME)
    # A logger of its own, outside the tree: two clients may ask for different places.
    logger = logging.Logger(_NAME, _level(argument.log_level))  # noqa: LOG001
    handler = argument.make_handler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-5s %(name)s | %(message)s"))
    logger.addHandler(handler)
    return logger


def _level(level: LoggerLevel) -> int:
    return {LoggerLevel.Debug: 10, LoggerLevel.Info: 20, LoggerLevel.Warn: 30}.get(level, 40)
