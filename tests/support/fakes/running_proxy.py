# SPDX-License-Identifier: Apache-2.0
"""The proxy process, started as a program with a test's own configuration."""

import http.client
import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scripted_site import HttpAnswer

from pontil.launcher.host.ports import bound_socket

ROOT = Path(__file__).resolve().parents[3]
DEADLINE = 30.0


@contextmanager
def proxy(
    folder: Path, tokenizer_folder: Path, listener: socket.socket | None = None, **config: Any
) -> Iterator[subprocess.Popen[str]]:
    """Run a proxy on the bound `listener`, or on one of its own."""
    bound = listener or bound_socket("--port", "127.0.0.1", 0)
    values = {
        "host": "127.0.0.1", "port": 0, "model": str(tokenizer_folder), "served_model_name": "tiny",
        "control": f"ipc://{folder}/control", "version": "0", "self_test": False, "listeners": [bound.fileno()],
    } | config  # fmt: skip
    with subprocess.Popen(
        [sys.executable, str(ROOT / "tests/support/fakes/proxy_process.py"), json.dumps(values)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={"PYTHONPATH": str(ROOT)}, cwd=folder, pass_fds=[bound.fileno()],
    ) as process:  # fmt: skip
        bound.close()
        try:
            yield process
        finally:
            process.kill()


def heard(process: subprocess.Popen[str], kind: str) -> Any:
    """Wait for a report of this `kind` and return it."""
    assert process.stdout is not None and process.stderr is not None
    for line in process.stdout:
        said, value = json.loads(line)
        if said == kind:
            return value
    raise AssertionError(process.stderr.read())


def ask(address: str, asked: Mapping[str, Any]) -> HttpAnswer:
    """Send a chat if `asked` holds tools, else a completion; the server must respond."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)
    body: dict[str, Any] = {"max_tokens": 2, **asked}
    if "tools" in asked:
        path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": "hi"}]
    else:
        path, body["prompt"] = "/v1/completions", "hi"
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    answer = HttpAnswer(connection.getresponse())
    connection.close()
    return answer
