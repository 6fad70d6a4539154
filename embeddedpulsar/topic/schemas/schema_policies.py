"""Policies that decide which schemas a topic accepts, and who may do without one."""

from __future__ import annotations

from typing import Any, Final

from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.schema_enums import SchemaCompatibilityStrategy
from embeddedpulsar.topic.policies.creation_policy import checked_flag
from embeddedpulsar.topic.policies.topic_policy import TopicPolicy, reading


def strategy_of(value: Any) -> SchemaCompatibilityStrategy:
    """A strategy, given as such or by its name.

    Raises:
        InvalidConfiguration: it is none.

    Example:
        >>> strategy_of("BACKWARD")
        <SchemaCompatibilityStrategy.BACKWARD: 3>
    """
    if isinstance(value, SchemaCompatibilityStrategy):
        return value
    if isinstance(value, str) and value in SchemaCompatibilityStrategy.__members__:
        return SchemaCompatibilityStrategy[value]
    names = ", ".join(SchemaCompatibilityStrategy.__members__)
    raise InvalidConfiguration(f"a compatibility strategy is one of {names}, not {value!r}")


def _form(value: Any) -> str | None:
    strategy = strategy_of(value)
    return None if strategy == SchemaCompatibilityStrategy.UNDEFINED else strategy.name


SCHEMA_COMPATIBILITY: Final = TopicPolicy[SchemaCompatibilityStrategy](
    "schema_compatibility_strategy",
    lambda settings, own: SchemaCompatibilityStrategy[settings.schemaCompatibilityStrategy],
    _form,
    reading(strategy_of, "a strategy"),
)
"""Which schemas a topic accepts beside those that it has."""

SCHEMA_VALIDATION: Final = TopicPolicy[bool](
    "schema_validation_enforced",
    lambda settings, own: settings.isSchemaValidationEnforced,
    checked_flag,
    bool,
)
"""Whether a producer without a schema is refused on a topic that has one."""

SCHEMA_AUTO_UPDATE: Final = TopicPolicy[bool](
    "is_allow_auto_update_schema",
    lambda settings, own: settings.isAllowAutoUpdateSchemaEnabled,
    checked_flag,
    bool,
)
"""Whether producers and consumers add their schemas; otherwise only those that were uploaded are accepted."""
