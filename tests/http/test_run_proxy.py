# SPDX-License-Identifier: Apache-2.0
"""The proxy as a process: ready, table updates, drain, and failure to start."""

import hashlib
import http.client
import json
import resource
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from effort import by_default
from running_proxy import DEADLINE, heard, proxy

from pontil.launcher.host.ports import bound_socket
from pontil.runtime.wire.links.sockets import PeerServer, open_context


def tell(process: subprocess.Popen[str], command: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(command) + "\n")
    process.stdin.flush()


def get(address: str, path: str, key: str | None = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=DEADLINE)
    connection.request("GET", path, headers={"authorization": f"Bearer {key}"} if key else {})
    response = connection.getresponse()
    answer = response.status, json.loads(response.read())
    connection.close()
    return answer


def test_ready_table_drain(tmp_path: Path, tokenizer_folder: Path) -> None:
    with proxy(tmp_path, tokenizer_folder) as process:
        address = heard(process, "ready")["url"]
        assert get(address, "/health")[0] == 200 and get(address, "/ready")[0] == 503
        rows = [{"name": "decode:0", "role": "decode", "pid": None, "state": "given up", "device": "cuda:1"}]
        tell(process, {"kind": "table", "rows": rows})
        while len(shown := get(address, "/admin/topology")[1]["processes"]) < 2:
            pass
        assert shown[1] == rows[0] | {"state": "GIVEN_UP"}
        assert 0 <= get(address, "/admin/topology")[1]["age_seconds"] < DEADLINE
        tell(process, {"kind": "drain", "timeout": 5.0})
        assert heard(process, "heavy") == []
        assert process.wait(DEADLINE) == 0
        assert process.stderr is not None
        assert process.stderr.read() == "", "a good run says nothing"


def test_keys_are_asked_for_and_change_while_it_serves(tmp_path: Path, tokenizer_folder: Path) -> None:  # F5
    """Run sanic by itself, unlike the other tests."""
    old, new = ("sk-old-0123456789", "sk-new-0123456789")
    digests = {key: hashlib.sha256(key.encode()).hexdigest() for key in (old, new)}
    with proxy(tmp_path, tokenizer_folder, callers=[["alice", digests[old]]]) as process:
        address = heard(process, "ready")["url"]
        assert get(address, "/health")[0] == 200 and get(address, "/admin/topology")[0] == 200
        for path in ("/v1/models", "/metrics", "/nothing"):
            assert get(address, path)[0] == 401
        assert [get(address, "/v1/models", key)[0] for key in (old, new)] == [200, 401]
        tell(process, {"kind": "client_keys", "callers": [["bob", digests[new]]], "admin": None})
        while get(address, "/v1/models", new)[0] != 200:
            pass
        assert get(address, "/v1/models", old)[0] == 401
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE) == 0 and process.stderr is not None
        said = process.stderr.read()
        assert said == "", "who is refused is no fault of ours"
        assert not [secret for secret in (old, new, *digests.values()) if secret in said]


def test_it_may_open_as_many_files_as_the_system_allows(tmp_path: Path, tokenizer_folder: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        with proxy(tmp_path, tokenizer_folder) as process:
            heard(process, "ready")
            most = min(hard, 1 << 20) if hard != resource.RLIM_INFINITY else 1 << 20
            assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (most, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("how", by_default({"SIGTERM"}, ["end of the supervisor", "SIGTERM"]))
def test_other_ends(tmp_path: Path, tokenizer_folder: Path, how: str) -> None:
    with proxy(tmp_path, tokenizer_folder) as process:
        heard(process, "ready")
        if how == "SIGTERM":
            process.send_signal(signal.SIGTERM)
        else:
            assert process.stdin is not None
            process.stdin.close()
        assert process.wait(DEADLINE) == 0


def test_what_cannot_start_says_why(tmp_path: Path, tokenizer_folder: Path) -> None:
    with bound_socket("--port", "127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        bound = bound_socket("--port", "127.0.0.1", port)
        taken.listen()
        with proxy(tmp_path, tokenizer_folder, bound, port=port) as process:
            reason = heard(process, "failed")
            assert reason == (
                f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another --host or --port"
            )
            assert process.wait(DEADLINE) == 1
            assert process.stderr is not None and "Traceback" not in process.stderr.read()
    with proxy(tmp_path, tokenizer_folder, model="/no/such/model") as process:
        assert "/no/such/model" in heard(process, "failed")
    context = open_context()
    held = PeerServer(context, "tcp://127.0.0.1:*")
    with proxy(tmp_path, tokenizer_folder, control=held.endpoint) as process:
        assert "cannot listen on tcp://" in heard(process, "failed")
    context.destroy(linger=0)
