"""The log of a client: failures without a caller to raise them to, and objects opened and closed."""

from __future__ import annotations

from typing import Any

from embeddedpulsar._engine.platform import package_log
from embeddedpulsar.client.common.network_options import ConsoleLogger, FileLogger
from embeddedpulsar.enums import LoggerLevel

_NAME = package_log.NAME


class ClientLog:
    """Logs to the ``logger`` argument of the client, or by default to the logger ``embeddedpulsar``.

    ``logging`` is imported with the first message, because the import is a large part of the cost of opening
    a client. Any thread may call the log. It never raises, and it is never called under a lock for which
    other processes wait.
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

    @property
    def is_shared(self) -> bool:
        """Whether this is the package's own log, and not that of one client."""
        return self._argument is None

    def exception(self, text: str, *values: object) -> None:
        self._get().error(text, *values, exc_info=True)

    def warning(self, text: str, *values: object) -> None:
        """Log a condition that the user should look into."""
        self._get().warning(text, *values)

    @property
    def is_heard(self) -> bool:
        """Whether anything may come of `info`: for a caller that would have to make the values."""
        return self._argument is not None or package_log.is_heard()

    def info(self, text: str, *values: object) -> None:
        """Log a normal event. Does nothing if no logger can be enabled for it."""
        if self._argument is not None:
            self._get().info(text, *values)
        else:
            package_log.info(text, *values)

    def close(self) -> None:
        """Close the file of a `FileLogger`. A later message opens it again."""
        if self._logger is not None and isinstance(self._argument, ConsoleLogger | FileLogger):
            for handler in self._logger.handlers:
                handler.close()

    def _get(self) -> Any:
        if self._logger is None:
            self._logger = _make(self._argument)
        return self._logger


def _make(argument: object) -> Any:
    import logging

    if not isinstance(argument, ConsoleLogger | FileLogger):
        return logging.getLogger(_NAME)
    # The logger is outside the tree of loggers, so that two clients may log to different places.
    logger = logging.Logger(_NAME, _level(argument.log_level))  # noqa: LOG001
    handler = argument.make_handler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-5s %(name)s | %(message)s"))
    logger.addHandler(handler)
    return logger


def _level(level: LoggerLevel) -> int:
    return {LoggerLevel.Debug: 10, LoggerLevel.Info: 20, LoggerLevel.Warn: 30}.get(level, 40)
