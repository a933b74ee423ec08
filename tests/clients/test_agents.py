# SPDX-License-Identifier: Apache-2.0
"""A coding agent's session by two APIs that agents speak: it reads, edits and runs a file, and a worker is killed."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from client_environment import CLIENTS as FOLDER
from client_environment import NotInstalled, python_of_clients
from oracle import at_rest
from served import Served

TIMEOUT = 240.0
HERE = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
TOKENS = 200


@pytest.mark.long
@pytest.mark.parametrize("client", ["anthropic", "responses"])
def test_a_session_is_the_same_through_a_kill(served: Served, tmp_path: Path, client: str) -> None:
    try:
        python = python_of_clients()
    except NotInstalled as reason:
        pytest.skip(f"the clients are not installed: {reason}")
    undisturbed = session(served, python, tmp_path, client)
    text, facts = undisturbed
    assert [*facts["calls"][0]] == ["read_file"] and facts["tokens"] == TOKENS and text
    assert facts["calls"][1]["edit_file"]["text"] == facts["program"] and facts["calls"][2] == {
        "run_file": {"path": "program.py"}
    }
    assert session(served, python, tmp_path, client, kills="decode:0") == undisturbed
    at_rest(served)


def session(
    served: Served, python: Path, folder: Path, client: str, kills: str | None = None
) -> tuple[str, dict[str, Any]]:
    """Return the last answer and the facts of a session; kill a worker once a part of that answer has come."""
    name = served.get("/v1/models")["data"][0]["id"]
    command = [python, FOLDER / "python" / "agent_session.py", f"http://127.0.0.1:{served.port}", name, client]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder, env=os.environ | HERE) as agent:
        assert agent.stdout is not None
        pieces: list[str] = []
        for line in agent.stdout:
            pieces.append(json.loads(line))
            if kills is not None and len(pieces) == 10:
                served.kill(kills)
        assert agent.wait(TIMEOUT) == 0
    *texts, facts = pieces
    return "".join(texts), json.loads(facts)
