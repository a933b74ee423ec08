# SPDX-License-Identifier: Apache-2.0
"""Settings of a client, which follow its key in the file of API keys: `weight=2 requests=8`."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from pontil.launcher.options.sources import closest
from pontil.runtime.config.readers import Reader, number, whole

# Names with values, in the order of the table below. The proxy makes an Allowance of them.
Settings = tuple[tuple[str, Any], ...]
MOST_TOKENS = 2**31 - 1


def yes_or_no(value: str) -> bool:
    if value not in ("yes", "no"):
        raise ValueError("must be yes or no")
    return value == "yes"


SETTINGS: Mapping[str, Reader] = MappingProxyType(
    {
        "weight": number(0.01, 1000),
        "requests": whole(1),
        "tokens": whole(1),
        "rate": number(0.01, 1e6),
        "token_rate": number(1, MOST_TOKENS),
        "priority": yes_or_no,
    }
)


def read_key_settings(words: Iterable[str]) -> Settings:
    """Parse settings. Raises ValueError in words that follow the name of the line and never quote it: it may contain a
    key."""
    found: dict[str, Any] = {}
    for word in words:
        name, is_setting, value = word.partition("=")
        if not is_setting:
            raise ValueError("is no key, or has something behind it that is no setting like weight=2.")
        if name not in SETTINGS:
            near = closest(name, SETTINGS)
            raise ValueError(
                f"has an unknown setting: did you mean {near!r}?"
                if near
                else f"has an unknown setting: there are {', '.join(SETTINGS)}."
            )
        if name in found:
            raise ValueError(f"sets {name} twice: leave one out.")
        try:
            found[name] = SETTINGS[name](value)
        except ValueError as error:
            raise ValueError(f"sets {name}, which {error}.") from None
    return tuple((name, found[name]) for name in SETTINGS if name in found)
