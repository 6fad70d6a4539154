"""Where the secrets of a function come from."""

from __future__ import annotations

import os
from typing import Any, Final, Protocol

from embeddedpulsar.functions.user_code import named_class


class SecretsProvider(Protocol):
    """The interface of a provider, which an application may write.

    Example:
        >>> class FileSecrets:
        ...     def provide_secret(self, secret_name, path_to_secret):
        ...         with open(path_to_secret) as file:
        ...             return file.read()
        >>> with open("pin.txt", "w") as file:
        ...     written = file.write("1234")
        >>> FileSecrets().provide_secret("pin", "pin.txt")
        '1234'
    """

    def provide_secret(self, secret_name: str, path_to_secret: Any) -> str | None:
        """Return a secret; None if there is none.

        Args:
            secret_name: its name.
            path_to_secret: what the configuration of the function has for that name.
        """


class ClearTextSecretsProvider:
    """A secret is what stands in the configuration."""

    def provide_secret(self, secret_name: str, path_to_secret: Any) -> str | None:
        """Return the text.

        Example:
            >>> ClearTextSecretsProvider().provide_secret("pin", "1234")
            '1234'
        """
        return None if path_to_secret is None else str(path_to_secret)


class EnvironmentBasedSecretsProvider:
    """A secret is in the environment variable of its name."""

    def provide_secret(self, secret_name: str, path_to_secret: Any) -> str | None:
        """Return the value of the variable.

        Example:
            >>> EnvironmentBasedSecretsProvider().provide_secret("no such variable", "")
        """
        return os.environ.get(secret_name)


_OURS: Final = {one.__name__: one for one in (ClearTextSecretsProvider, EnvironmentBasedSecretsProvider)}


def provider_of(class_name: str, py: str = "") -> SecretsProvider:
    """An object of the class of that name; those of this module by their last name.

    Example:
        >>> type(provider_of("secretsprovider.ClearTextSecretsProvider")).__name__
        'ClearTextSecretsProvider'
    """
    made: SecretsProvider = named_class(class_name, py, _OURS, "secretsprovider")()
    return made
