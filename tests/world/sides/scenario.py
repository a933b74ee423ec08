# SPDX-License-Identifier: Apache-2.0
"""A scenario: a small play that is the same on both sides, with the facts that it must show there."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from side import Side

Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A row of the table in docs/internals/world.md. `facts` are those of Linux and zmq; `differs` has those that are
    others in the world."""

    name: str
    play: Callable[[Side], Facts]
    facts: Mapping[str, Any]
    differs: Mapping[str, Any] = field(default_factory=dict)
