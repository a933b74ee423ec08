# SPDX-License-Identifier: Apache-2.0
"""The devices of the stages of a model of several, as a flag or a placement file names them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.host.device_list import DeviceItem, parse_list
from pontil.launcher.options.sources import load_toml

# The phases of a stage with tokens, each of which workers of their own can do.
PHASES = ("prefill", "decode")
FORMS = "talker=2, talker.decode=0,1 or code2wav=cpu"
ENTRY = re.compile(r"([A-Za-z0-9_-]{1,64})(?:\.([A-Za-z0-9_-]{1,64}))?=(.*)", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True)
class PlacedStage:
    """The devices of the workers of one stage that compute one phase of it, or (None) all of it."""

    node: str
    phase: str | None
    items: tuple[DeviceItem, ...]

    @property
    def name(self) -> str:
        return self.node if self.phase is None else f"{self.node}.{self.phase}"

    def __str__(self) -> str:
        return f"{self.name}={','.join(map(str, self.items)) or 'none'}"


def stem(node: str, role: str) -> str:
    """Return the name, without a number, of the workers of a stage that is not the first."""
    return f"{node}-{role}" if role in PHASES else node


def stages(value: Any) -> tuple[PlacedStage, ...]:
    """Parse entries like `talker.decode=0,1` with commas between them. A part without `=` continues the device list
    before it. Raises ValueError with words that follow a flag's name."""
    items = value if isinstance(value, list) else str(value).split(",")
    parts = [part.strip() for item in items for part in str(item).split(",")]
    entries: list[str] = []
    for part in parts:
        if "=" in part or not entries:
            entries.append(part)
        else:
            entries[-1] += f",{part}"
    return tuple(map(entry, entries))


def entry(text: str) -> PlacedStage:
    match = ENTRY.fullmatch(text)
    if match is None:
        raise ValueError(f"must be a list of stages and their devices like {FORMS}")
    return PlacedStage(match[1], match[2], parse_list(match[3]))


def read_placement(path: Path) -> tuple[PlacedStage, ...]:
    """Read a placement file: TOML with `stage = "devices"` or `stage.phase = "devices"`. Raises OptionError."""
    return tuple(placed_in(path.name, load_toml(path, "placement file")))


def placed_in(file: str, values: Mapping[str, Any]) -> Iterator[PlacedStage]:
    for node, value in values.items():
        if isinstance(value, dict):
            yield from (
                PlacedStage(node, phase, listed(f"{node}.{phase} in {file}", devices))
                for phase, devices in value.items()
            )
        else:
            yield PlacedStage(node, None, listed(f"{node} in {file}", value))


def listed(name: str, value: Any) -> tuple[DeviceItem, ...]:
    """Parse a list of devices as a device flag does: a text, a number or an array of these."""
    parts: Sequence[Any] = value if isinstance(value, list) else [value]
    if not all(isinstance(part, str | int) and not isinstance(part, bool) for part in parts):
        raise OptionError(f"{name} must be a list of devices like {FORMS.partition('=')[2].partition(',')[0]} or cpu.")
    try:
        return parse_list(",".join(map(str, parts)))
    except ValueError as error:
        raise OptionError(f"{name} {error}, not {value!r}.") from None
