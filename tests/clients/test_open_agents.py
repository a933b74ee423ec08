# SPDX-License-Identifier: Apache-2.0
"""Coding agents from npm, unchanged and with their own prompts: each request of theirs is answered. The model's weights
are random here, so that nothing is done; test_agents.py has one of them work with a real model."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_shapes import Shape, cut
from agent_table import PATIENT, REQUESTS
from client_environment import NotInstalled
from open_agents import OPEN_AGENTS, OpenAgent, ServerForAgent
from oracle import at_rest
from recording_front import recording_front
from served import Served, launched
from tiny_llama import write_tiny_llama

TIMEOUT = 1800.0
TASK = 'Change greet.py so that it prints "hello, world".'
# Their prompts have tens of thousands of letters, each a token here.
CONTEXT = 1 << 18


def test_the_page_has_the_agents_that_are_run() -> None:
    assert [row[:3] for row in REQUESTS.rows()] == [(one.name, one.version, f"`{one.path}`") for one in OPEN_AGENTS]


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("roomy")
    write_tiny_llama(folder / "small", max_model_len=CONTEXT)
    model = ("--model", str(folder / "small"), "--kv-cache-memory", "256MiB")
    with launched(folder, "--share-devices", *model, *PATIENT) as served:
        yield served


@pytest.mark.long
@pytest.mark.parametrize("agent", OPEN_AGENTS, ids=lambda agent: agent.key)
def test_each_request_of_an_agent_is_answered(
    agent: OpenAgent, roomy: Served, tmp_path: Path, agent_shapes: dict[str, Shape]
) -> None:
    (work := tmp_path / "work").mkdir()
    (home := tmp_path / "home").mkdir()
    (work / "greet.py").write_text('print("hello, moon")\n')
    with recording_front(roomy.port) as front:
        model = roomy.get("/v1/models")["data"][0]["id"]
        try:
            command, variables = agent.command(ServerForAgent(front.url, model, "unused", home), TASK)
        except NotInstalled as reason:
            pytest.skip(f"{agent.name} is not installed: {reason}")
        done = subprocess.run(
            command, cwd=work, env=os.environ | variables, capture_output=True, timeout=TIMEOUT, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    at_rest(roomy)
    asked = [one for one in front.exchanges if one.path.partition("?")[0] == agent.path]
    assert asked, done.stderr
    assert not [one for one in front.exchanges if one.status != 200], front.exchanges
    with_tools = [one for one in asked if one.body.get("tools")]
    shape = {"path": agent.path, "body": cut(with_tools[-1].body), "ignored": with_tools[-1].ignored}
    agent_shapes[agent.key] = shape | {"version": agent.version, "requests": len(front.exchanges)}
