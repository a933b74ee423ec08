# SPDX-License-Identifier: Apache-2.0
"""Real clients, each in a scripted session with one prefill and one decode worker: their scripts print facts, which are
checked here. Only `--long` installs and runs those of Python that the suite has not."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from client_environment import CLIENTS as FOLDER
from client_environment import NotInstalled, node_modules, python_of_clients
from client_facts import CLIENTS, EMBEDDINGS, Facts, RealClient, check
from client_table import FAILS, PASSES, WRITE, Outcomes, rows_of_page
from oracle import at_rest
from served import Served

ABORTED = 'pontil_request_success_total{finished_reason="abort"}'
# Each call of a session has less.
SESSION_TIMEOUT = 240.0
# No session leaves this machine: not by a proxy, and not for litellm's list of prices.
HERE = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
ALL = [
    pytest.param(client, step, id=f"{client.name}-{step}",
                 marks=[] if client.is_quick else [pytest.mark.long])
    for client in CLIENTS for step in client.steps if step != EMBEDDINGS
]  # fmt: skip


def command_of(client: RealClient, script: str, folder: Path) -> list[str]:
    """Return the command line of a session, without arguments. JavaScript's modules find packages beside themselves."""
    if not client.is_javascript:
        python = sys.executable if client.is_of_the_suite else str(python_of_clients())
        return [python, str(FOLDER / "python" / script)]
    (folder / "node_modules").symlink_to(node_modules())
    for module in (FOLDER / "js").glob("*.mjs"):
        (folder / module.name).write_bytes(module.read_bytes())
    return ["node", str(folder / script)]


def run_session(client: RealClient, served: Served, folder: Path, script: str, model: int = 0) -> Facts:
    """Run a session with the server's model of this number."""
    command, before = command_of(client, script, folder), served.metric(ABORTED)
    name = served.get("/v1/models")["data"][model]["id"]
    done = subprocess.run(
        [*command, f"http://127.0.0.1:{served.port}/v1", name], cwd=folder, capture_output=True, text=True,
        timeout=SESSION_TIMEOUT, stdin=subprocess.DEVNULL, env=os.environ | HERE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    at_rest(served)
    facts: Facts = json.loads(done.stdout.splitlines()[-1])
    return facts | {"aborted": served.metric(ABORTED) - before}


@pytest.fixture(scope="module")
def facts_of(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Callable[[RealClient], Facts]:
    """Facts by client; each session is run once, when the first of its steps is checked."""
    told: dict[str, Facts] = {}
    # Reasons by language: no installation is tried twice.
    absent: dict[bool, str] = {}

    def facts(client: RealClient) -> Facts:
        if client.name not in told and client.is_javascript not in absent:
            try:
                told[client.name] = run_session(client, served, tmp_path_factory.mktemp("session"), client.script)
            except NotInstalled as reason:
                absent[client.is_javascript] = f"the clients are not installed: {reason}"
        if client.name not in told:
            pytest.skip(absent[client.is_javascript])
        return told[client.name]

    return facts


@pytest.mark.parametrize(("client", "step"), ALL)
def test_a_step_of_a_session(
    client: RealClient, step: str, facts_of: Callable[[RealClient], Facts], outcomes: Outcomes
) -> None:
    facts = facts_of(client)
    outcomes[client.name, step] = FAILS
    check(client, step, facts)
    outcomes[client.name, step] = PASSES


@pytest.mark.parametrize("client", [one for one in CLIENTS if one.embeddings], ids=lambda client: client.name)
def test_a_session_with_an_embedding_model(
    client: RealClient, both_models: Served, tmp_path: Path, outcomes: Outcomes
) -> None:
    assert client.embeddings is not None
    try:
        facts = run_session(client, both_models, tmp_path, client.embeddings, model=1)
    except NotInstalled as reason:
        pytest.skip(f"the clients are not installed: {reason}")
    outcomes[client.name, EMBEDDINGS] = FAILS
    check(client, EMBEDDINGS, facts)
    outcomes[client.name, EMBEDDINGS] = PASSES


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_the_page_says_what_passed(client: RealClient, outcomes: Outcomes, request: pytest.FixtureRequest) -> None:
    passed = {step: outcomes[client.name, step] for step in client.steps if (client.name, step) in outcomes}
    if not request.config.getoption(WRITE, default=False):
        shown = rows_of_page()[client.name][1]
        assert passed == {step: shown[step] for step in passed}, "write the page: it says how"
