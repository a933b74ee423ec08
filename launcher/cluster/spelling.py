# SPDX-License-Identifier: Apache-2.0
"""The words that pass options to another launch."""

from collections.abc import Collection
from typing import Any

from pontil.launcher.options.options import OPTIONS, LaunchOptions, flag_name


def words_for(options: LaunchOptions, names: Collection[str]) -> list[str]:
    """Return the flags, among fields of these names, that give a launch the same values. Defaults need none."""
    return [
        word
        for each in OPTIONS
        if each.name in names and (value := getattr(options, each.name)) != each.default
        for word in spelled(flag_name(each), value)
    ]


def spelled(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}={text_of(value)}"]


def text_of(value: Any) -> str:
    """Return the text from which an option's reader makes this value."""
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    # Readers take no exponents.
    return f"{value:.9f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
