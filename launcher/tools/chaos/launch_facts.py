# SPDX-License-Identifier: Apache-2.0
"""The launch under chaos, as its supervisor describes it."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pontil.launcher.control.control_client import CONNECT_TIMEOUT, SILENCE_TIMEOUT, ControlReply
from pontil.launcher.control.control_socket import NAME
from pontil.launcher.foundation.errors import LaunchError, OptionError

LONGEST_LINE = 1 << 24


async def converse(folder: Path, request: dict[str, Any]) -> ControlReply:
    """Send a request to the supervisor and return its final reply. Raises LaunchError."""
    try:
        opening = asyncio.open_unix_connection(str(folder / NAME), limit=LONGEST_LINE)
        reader, writer = await asyncio.wait_for(opening, CONNECT_TIMEOUT)
    except (OSError, asyncio.TimeoutError) as error:
        raise LaunchError(f"The launcher of {folder} cannot be asked: {error or 'it does not answer'}.") from None
    try:
        writer.write(json.dumps(request).encode() + b"\n")
        while line := await asyncio.wait_for(reader.readline(), SILENCE_TIMEOUT):
            message = json.loads(line) if line.strip() else {}
            if "end" in message:
                return ControlReply(message["end"], message["code"], message["facts"])
    except asyncio.TimeoutError:
        raise LaunchError(f"The launcher of {folder} does not answer: it hangs, or was stopped.") from None
    except (OSError, ValueError, KeyError) as error:
        raise LaunchError(f"The launcher of {folder} cannot be asked: {error}.") from None
    finally:
        writer.close()
    raise LaunchError(f"The launcher of {folder} ended before it was done.")


@dataclass(frozen=True, slots=True)
class ChildFacts:
    """One child of the launch. `starts` counts its processes so far."""

    name: str
    role: str
    group: str
    ranks: int
    ready: bool
    pids: tuple[int, ...]
    disturbed: bool
    given_up: bool
    starts: int


@dataclass(frozen=True, slots=True)
class ExitFacts:
    """A child's exit, at a time of the monotonic clock, with its cause in words and its last lines. Two with the same
    child and time are the same."""

    name: str
    at: float
    cause: str = field(compare=False)
    reason: str = field(compare=False)
    lines: tuple[str, ...] = field(compare=False)


@dataclass(frozen=True, slots=True)
class LaunchFacts:
    """A moment of the launch, and the terms of its chaos."""

    now: float
    silence: float
    restart_attempts: int
    restart_window: float
    usage_log: str | None
    folders: tuple[str, ...]
    children: tuple[ChildFacts, ...]
    exits: tuple[ExitFacts, ...]

    def child(self, name: str) -> ChildFacts | None:
        return next((child for child in self.children if child.name == name), None)


def read_facts(facts: Mapping[str, Any]) -> LaunchFacts:
    """Return the facts. Raises LaunchError for a supervisor of another version."""
    try:
        children = tuple(ChildFacts(**{**child, "pids": tuple(child["pids"])}) for child in facts["children"])
        exits = tuple(
            ExitFacts(row["name"], row["at"], row["cause"], row["reason"], tuple(row["lines"]))
            for row in facts["exits"]
        )
        terms = {name: facts[name] for name in ("silence", "restart_attempts", "restart_window", "usage_log")}
        return LaunchFacts(facts["now"], **terms, folders=tuple(facts["folders"]), children=children, exits=exits)
    except (KeyError, TypeError):
        raise LaunchError("The launch has another version of pontil: use the same for both.") from None


async def facts_of(folder: Path, since: float | None = None) -> LaunchFacts:
    """Ask the supervisor for the facts, with the exits since a time. Raises OptionError for a launch that allows no
    chaos, LaunchError for one that does not answer."""
    reply = await converse(folder, {"command": "chaos"} | ({} if since is None else {"since": since}))
    if reply.code:
        raise OptionError(reply.text) if reply.code == OptionError.exit_code else LaunchError(reply.text)
    return read_facts(reply.facts)
