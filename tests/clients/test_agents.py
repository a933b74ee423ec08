# SPDX-License-Identifier: Apache-2.0
"""A coding agent with a real model and each of the clients that agents are built on: it has the model read a file, edit
it, run it and tell of it, while workers are killed."""

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_table import (
    AGENT_CLIENTS,
    ALL_MOMENTS,
    PATIENT,
    SESSIONS,
    STEPS,
    TASK,
    TASK_FILE,
    AgentClient,
    moments,
    session_rows,
)
from client_environment import CLIENTS as FOLDER
from client_environment import NotInstalled, node_modules, python_of_clients
from client_table import FAILS, PASSES
from open_agents import PI, ServerForAgent
from oracle import at_rest
from recording_front import recording_front
from served import Served, launched, wait_for

from pontil.launcher.roles import read_usage

MODEL = "qwen2.5-coder-1.5b"
# However slow the machine is: only a system that hangs ends a session so.
TIMEOUT = 1800.0
HERE = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
# A task that the model does with another agent's prompt. Small models may go on asking without end: they are stopped.
SUM, EDIT, EDITED = "print(40 + 1)\n", "Use the edit tool on sum.py: replace 40 + 1 by 40 + 2.", "42\n"
MOST_REQUESTS = 4
Told = list[dict[str, Any]]


def test_a_worker_of_each_role_is_killed_in_each_step() -> None:
    assert moments() == ALL_MOMENTS and len(TASK["steps"]) == len(STEPS)


def test_the_page_has_the_sessions_that_are_run() -> None:
    assert SESSIONS.rows() == session_rows({one.key: PASSES for one in (*AGENT_CLIENTS, PI)})


class CoderSystem:
    """A launch with a key for each client, who share their prefixes."""

    def __init__(self, served: Served, keys: dict[str, str]) -> None:
        self.served, self.keys = served, keys

    def usage(self, key: str) -> tuple[int, int, int]:
        """Return the requests, prompt tokens and completion tokens that are billed to a key."""
        rows = [row for row in read_usage(self.served.usage_log) if row["api_key"] == key]
        names = ("requests", "prompt_tokens", "completion_tokens")
        one, two, three = (sum(row[name] for row in rows) for name in names)
        return one, two, three


@pytest.fixture(scope="module")
def coder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoderSystem]:
    folder = tmp_path_factory.mktemp("coder")
    keys = {key: secrets.token_hex(16) for key in ("undisturbed", PI.key, *(client.key for client in AGENT_CLIENTS))}
    file = folder / "api.keys"
    file.touch(0o600)
    file.write_text("".join(f"{name}={key}\n" for name, key in keys.items()))
    flags = ("--model", MODEL, "--kv-cache-memory", "512MiB", "--api-keys", str(file), "--share-prefixes", *PATIENT)
    # On a fast machine a worker is killed so often that its launch would give it up.
    flags += ("--restart-attempts", "100")
    with launched(folder, *flags, variables={"PONTIL_ADMIN_KEY": secrets.token_hex(16)}) as served:
        yield CoderSystem(served, keys)


@pytest.fixture(scope="module")
def undisturbed(coder: CoderSystem, tmp_path_factory: pytest.TempPathFactory) -> Told:
    """The facts of each step of a session by chats in which nobody is killed."""
    client = next(one for one in AGENT_CLIENTS if one.adapter == "chat")
    return session(coder, client, tmp_path_factory.mktemp("undisturbed"), "undisturbed", {})


def command_of(client: AgentClient, folder: Path) -> list[str]:
    """Return the command line of an agent up to the address. JavaScript's modules find packages beside themselves."""
    if not client.is_javascript:
        return [str(python_of_clients()), str(FOLDER / "python" / "agent_session.py")]
    (folder / "node_modules").symlink_to(node_modules())
    for module in (FOLDER / "js").glob("*.mjs"):
        (folder / module.name).write_bytes(module.read_bytes())
    return ["node", str(folder / "agent.mjs")]


def session(coder: CoderSystem, client: AgentClient, folder: Path, key: str, kills: dict[tuple[str, str], str]) -> Told:
    """Return what a session tells of each step. `kills` are workers by the step and the event at which they die."""
    (work := folder / "work").mkdir()
    (work / TASK["file"]["name"]).write_text(TASK["file"]["text"])
    try:
        command = command_of(client, folder)
    except NotInstalled as reason:
        pytest.skip(f"the clients are not installed: {reason}")
    url = f"http://127.0.0.1:{coder.served.port}"
    arguments = [url, MODEL, coder.keys[key], client.adapter, str(TASK_FILE)]
    if client.is_javascript:
        arguments += [sys.executable, str(FOLDER / "python" / "agent_tools.py")]
    told, left = list[dict[str, Any]](), dict(kills)
    with subprocess.Popen(
        [*command, *arguments], cwd=work, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
        env=os.environ | HERE,
    ) as agent:  # fmt: skip
        assert agent.stdout is not None
        for line in agent.stdout:
            said = json.loads(line)
            if victim := left.pop((STEPS[len(told)], said.pop("event")), None):
                coder.served.kill(victim)
            if "completion" in said:
                told.append(said)
        assert agent.wait(TIMEOUT) == 0
    assert not left, "a worker was to be killed at what never was"
    return told


@pytest.mark.long
@pytest.mark.parametrize("client", AGENT_CLIENTS, ids=lambda client: client.key)
def test_a_session_is_the_same_through_kills(
    client: AgentClient, coder: CoderSystem, undisturbed: Told, tmp_path: Path, agent_outcomes: dict[str, str]
) -> None:
    agent_outcomes[client.key] = FAILS
    assert [[call["name"] for call in told["calls"]] for told in undisturbed] == [
        [] if tool is None else [tool] for tool in TASK["steps"]
    ]
    assert TASK["printed"].strip() in undisturbed[-1]["text"]
    at_rest(coder.served)
    kills = {(client.prefill, "asks"): "prefill:0", (client.decode, "begins"): "decode:0"}
    told = session(coder, client, tmp_path, client.key, kills)
    # The same conversation is the same prompt, to the token, through each API.
    assert told == undisturbed
    program = tmp_path / "work" / TASK["file"]["name"]
    done = subprocess.run((sys.executable, program), capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == TASK["printed"]
    at_rest(coder.served)
    sums = len(told), sum(one["prompt"] for one in told), sum(one["completion"] for one in told)
    wait_for(lambda: coder.usage(client.key)[0] == len(told), 60, "a row for each request")
    assert coder.usage(client.key) == sums
    agent_outcomes[client.key] = PASSES


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path a small model repeats without mistakes."""
    with tempfile.TemporaryDirectory(prefix="pi") as folder:
        yield Path(folder)


@pytest.mark.long
def test_an_open_agent_edits_a_file_through_kills(
    coder: CoderSystem, tmp_path: Path, short_folder: Path, agent_outcomes: dict[str, str]
) -> None:
    """The prefill worker is killed under its first request, the decode worker in the midst of its second answer."""
    agent_outcomes[PI.key] = FAILS
    program = short_folder / "sum.py"
    program.write_text(SUM)
    at_rest(coder.served)
    with recording_front(coder.served.port) as front:
        server = ServerForAgent(front.url, MODEL, coder.keys[PI.key], tmp_path)
        try:
            command, variables = PI.command(server, EDIT)
        except NotInstalled as reason:
            pytest.skip(f"{PI.name} is not installed: {reason}")
        around = os.environ | HERE | variables
        with subprocess.Popen(command, cwd=short_folder, stdin=subprocess.DEVNULL, env=around) as agent:
            asked = front.exchanges
            wait_for(lambda: agent.poll() is not None or asked, TIMEOUT, "the first request")
            coder.served.kill("prefill:0")
            wait_for(lambda: agent.poll() is not None or (asked[1:] and asked[1].pieces > 1), TIMEOUT, "another answer")
            coder.served.kill("decode:0")
            wait_for(lambda: agent.poll() is not None or len(asked) > MOST_REQUESTS, TIMEOUT, "the end")
            agent.terminate()
    done = subprocess.run((sys.executable, program), capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == EDITED
    answered = [one.status for one in asked[:MOST_REQUESTS]]
    assert len(answered) > 1 and set(answered) == {200}
    at_rest(coder.served)
    agent_outcomes[PI.key] = PASSES
