# SPDX-License-Identifier: Apache-2.0
"""Clients of other APIs than OpenAI's beside their sessions: the examples of their pages, and streams whose worker is
killed."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from client_environment import CLIENTS as FOLDER
from client_environment import NotInstalled, python_of_clients
from oracle import at_rest
from served import ROOT, Served

TIMEOUT = 240.0
HERE = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
# The page of each API, with the reason for the end of its example's answer.
PAGES = {"messages": "max_tokens", "ollama": "length"}


@pytest.fixture(scope="module")
def python() -> Path:
    try:
        return python_of_clients()
    except NotInstalled as reason:
        pytest.skip(f"the clients are not installed: {reason}")


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES)
def test_the_example_of_the_page(served: Served, python: Path, page: str) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "guide" / f"{page}.md").read_text(), re.DOTALL)
    program = example.replace("127.0.0.1:8000", f"127.0.0.1:{served.port}")
    done = subprocess.run(
        [python, "-c", program], capture_output=True, text=True, timeout=TIMEOUT, env=os.environ | HERE
    )
    assert done.returncode == 0 and PAGES[page] in done.stdout, done.stderr
    at_rest(served)


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES)
def test_a_stream_goes_on_when_its_worker_is_killed(served: Served, python: Path, page: str) -> None:
    """The client sees one stream, the same to the letter."""
    undisturbed = read_stream(served, python, page)
    assert read_stream(served, python, page, kills="decode:0") == undisturbed and undisturbed[1] == 400
    at_rest(served)


@pytest.mark.long
def test_batches_by_its_client(served: Served, python: Path) -> None:
    name = served.get("/v1/models")["data"][0]["id"]
    command = [python, FOLDER / "python" / "message_batches.py", f"http://127.0.0.1:{served.port}", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, env=os.environ | HERE)
    assert done.returncode == 0 and "batches: well" in done.stdout, done.stderr
    at_rest(served)


def read_stream(served: Served, python: Path, page: str, kills: str | None = None) -> tuple[str, int]:
    """Return the text and the count of a stream; kill a worker once a part of it has come."""
    name = served.get("/v1/models")["data"][0]["id"]
    command = [python, FOLDER / "python" / f"{page}_stream.py", f"http://127.0.0.1:{served.port}", name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | HERE) as client:
        assert client.stdout is not None
        pieces = []
        for line in client.stdout:
            pieces.append(json.loads(line))
            if kills is not None and len(pieces) == 10:
                served.kill(kills)
        assert client.wait(TIMEOUT) == 0
    *texts, tokens = pieces
    return "".join(texts), tokens
