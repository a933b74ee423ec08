# SPDX-License-Identifier: Apache-2.0
"""What a request asks of generation, checked once at the edge and carried unchanged to every worker."""

from __future__ import annotations

from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, cast

from pontil.runtime.errors import MalformedFrame


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """One request's generation settings. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 keep the whole vocabulary.

    `seed` is always set: the proxy mints one when the client gave none, so that a replay draws the same tokens.
    """

    max_tokens: int
    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    ignore_eos: bool = False

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def to_wire(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_wire(cls, data: dict[str, Any]) -> SamplingParams:
        """Raises MalformedFrame for a missing field or a wrong type; unknown fields are ignored."""
        values: dict[str, Any] = {}
        for field in fields(cls):
            if field.name in data:
                values[field.name] = checked(field.name, data[field.name], cast("str", field.type))
            elif field.default is MISSING:
                raise MalformedFrame(f"the sampling parameters lack {field.name}")
        return cls(**values)


PLAIN: dict[str, tuple[type, ...]] = {"int": (int,), "float": (float, int), "bool": (bool,)}
ITEMS = {"tuple[str, ...]": str, "tuple[int, ...]": int}


def checked(name: str, value: Any, kind: str) -> Any:
    """`value` as the field's type has it. `kind` is the annotation's text."""
    if kind in PLAIN and type(value) in PLAIN[kind]:
        return value
    if kind in ITEMS and isinstance(value, list | tuple) and all(type(item) is ITEMS[kind] for item in value):
        return tuple(value)
    raise MalformedFrame(f"the sampling parameter {name} has a value of the wrong type")
