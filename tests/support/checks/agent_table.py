# SPDX-License-Identifier: Apache-2.0
"""The sessions of the tests' coding agent, the steps in which workers are killed under them, and the tables
of agents in docs/guide/clients.md."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import product
from typing import Any

from agent_shapes import Shape, write_shapes
from client_environment import CLIENTS as FOLDER
from client_environment import pinned
from client_table import PAGE
from open_agents import OPEN_AGENTS, PI, OpenAgent

TASK_FILE = FOLDER / "agent_task.json"
TASK: dict[str, Any] = json.loads(TASK_FILE.read_text())
# However slow a machine is, nothing is given up. A prompt that is computed again takes as long as it took.
WAITS = ("first-byte", "stream-idle", "prefill", "failover", "kv-transfer")
PATIENT = tuple(word for wait in WAITS for word in (f"--{wait}-timeout", "1200"))
# Names of the steps by the tool that is asked for; the last answer is in words.
STEPS = ("read", "edit", "run", "answer")
ROLES = ("prefill", "decode")


@dataclass(frozen=True)
class AgentClient:
    """A client of the coding agent: its name on the page, the key of its pinned version, the name of its adapter, and
    the steps in which a prefill worker is killed when the model is asked, and a decode worker once it answers."""

    name: str
    pin: str
    adapter: str
    prefill: str
    decode: str

    @property
    def is_javascript(self) -> bool:
        return not self.pin.startswith("python:")

    @property
    def key(self) -> str:
        """The name of its API key, by which its usage is found."""
        return f"{'js' if self.is_javascript else 'python'}-{self.adapter}"


AGENT_CLIENTS = (
    AgentClient("anthropic (Python)", "python:anthropic", "anthropic", "read", "edit"),
    AgentClient("openai (Python), Responses", "python:openai", "responses", "edit", "run"),
    AgentClient("openai (Python), chat", "python:openai", "chat", "run", "answer"),
    AgentClient("ollama (Python)", "python:ollama", "ollama", "answer", "answer"),
    AgentClient("langchain-anthropic", "python:langchain-anthropic", "langchain-anthropic", "read", "run"),
    AgentClient("litellm, Anthropic's provider", "python:litellm", "litellm", "edit", "answer"),
    AgentClient("@anthropic-ai/sdk", "@anthropic-ai/sdk", "anthropic", "run", "read"),
    AgentClient("openai (JavaScript), Responses", "openai", "responses", "answer", "edit"),
    AgentClient("ollama (JavaScript)", "ollama", "ollama", "edit", "answer"),
)


def moments() -> set[tuple[str, str]]:
    """Return the steps and roles in which workers are killed, over all clients."""
    return {(getattr(client, role), role) for client in AGENT_CLIENTS for role in ROLES}


ALL_MOMENTS = set(product(STEPS, ROLES))


# The session of an agent of its own, in which workers are killed at other moments.
OWN_MOMENTS = "first request", "second answer"


@dataclass(frozen=True)
class RecordedTable:
    """A table of the page, whose rows have their names first and the days on which they were recorded last."""

    heads: tuple[str, ...]

    @property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(rf"^\| {self.heads[0]} \|.*\n(?:\|.*\n)+", re.MULTILINE)

    def dated(self) -> dict[str, tuple[str, ...]]:
        """Return the rows of the page by their names."""
        (found,) = self.pattern.findall(PAGE.read_text())
        _, _, *rows = (tuple(cell.strip() for cell in line.strip("|").split("|")) for line in found.splitlines())
        return {row[0]: row for row in rows}

    def rows(self) -> list[tuple[str, ...]]:
        """Return the rows of the page without their days."""
        return [row[:-1] for row in self.dated().values()]

    def write(self, names: Sequence[str], recorded: Iterable[tuple[str, ...]]) -> None:
        """Write the rows of these names: those that were recorded now, and the others as they stand there."""
        today = datetime.now(timezone.utc).date().isoformat()
        kept = self.dated() | {row[0]: (*row, today) for row in recorded}
        rows = [self.heads, ("---",) * len(self.heads), *(kept[name] for name in names)]
        table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
        PAGE.write_text(self.pattern.sub(lambda _: table, PAGE.read_text()))


SESSIONS = RecordedTable(("agent by", "version", "prefill killed in", "decode killed in", "session", "on"))
REQUESTS = RecordedTable(("coding agent", "version", "asks", "requests that were answered", "on"))


def session_row(client: AgentClient | OpenAgent, outcome: str) -> tuple[str, ...]:
    if isinstance(client, OpenAgent):
        return client.name, client.version, *OWN_MOMENTS, outcome
    package, _, rest = client.name.replace(",", " ,").partition(" ")
    name = f"`{package}` {rest}".replace(" ,", ",").strip()
    return name, pinned()[client.pin], client.prefill, client.decode, outcome


def session_rows(outcomes: Mapping[str, str]) -> list[tuple[str, ...]]:
    return [session_row(one, outcomes[one.key]) for one in (*AGENT_CLIENTS, PI) if one.key in outcomes]


def write_sessions(outcomes: Mapping[str, str]) -> None:
    SESSIONS.write([session_row(one, "")[0] for one in (*AGENT_CLIENTS, PI)], session_rows(outcomes))


def request_row(agent: OpenAgent, requests: int) -> tuple[str, ...]:
    return agent.name, agent.version, f"`{agent.path}`", str(requests)


def write_requests(shapes: Mapping[str, Shape]) -> None:
    """Write the table and the recorded requests."""
    write_shapes(shapes)
    rows = [request_row(agent, shapes[agent.key]["requests"]) for agent in OPEN_AGENTS if agent.key in shapes]
    REQUESTS.write([agent.name for agent in OPEN_AGENTS], rows)
