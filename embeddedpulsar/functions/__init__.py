"""Functions: code that is called with each message of its inputs, as in ``pulsar.functions``."""

from embeddedpulsar.functions.context import Context
from embeddedpulsar.functions.function import Function
from embeddedpulsar.functions.function_config import FunctionConfig, ProcessingGuarantees, WindowConfig
from embeddedpulsar.functions.serde import IdentitySerDe, PickleSerDe, SerDe
from embeddedpulsar.functions.supervisor import LocalRunner, Supervisor, run
from embeddedpulsar.functions.user_code import SecretsProvider

__all__ = [
    "Context",
    "Function",
    "FunctionConfig",
    "IdentitySerDe",
    "LocalRunner",
    "PickleSerDe",
    "ProcessingGuarantees",
    "SecretsProvider",
    "SerDe",
    "Supervisor",
    "WindowConfig",
    "run",
]
