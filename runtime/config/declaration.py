# SPDX-License-Identifier: Apache-2.0
"""The declaration of an option, of which its type, default, help and reader make the flag of `launch`, the key of the
configuration file, the variable of the environment and the field of the processes that are told it."""

from dataclasses import field, fields
from typing import Any

from pontil.runtime.config.readers import Reader

MODEL, PROCESSES, NETWORK = "Model", "Processes and devices", "Network"
ENGINE, SUPERVISION = "Engine", "Supervision"
SECTIONS = (MODEL, PROCESSES, NETWORK, ENGINE, SUPERVISION)


def option(section: str, default: Any, meaning: str, read: Reader, metavar: str = "") -> Any:
    return field(
        default=default, metadata={"section": section, "help": meaning, "read": read, "metavar": metavar or "TEXT"}
    )


def values_of(kind: type[Any], options: Any) -> dict[str, Any]:
    """Return the options of one kind out of all, as JSON values."""
    values = {option_field.name: getattr(options, option_field.name) for option_field in fields(kind)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def frozen(value: Any) -> Any:
    """Return a JSON value of a configuration with tuples in the place of its lists."""
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value
