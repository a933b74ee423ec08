# SPDX-License-Identifier: Apache-2.0
"""Hub ids, against a hub of our own on loopback. The client reads its address on import: hence the child process."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tiny_llama import write_tiny_llama

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.builtin import is_hub_id, resolve_model

ROOT = Path(__file__).resolve().parents[3]
COMMIT = "c" * 40
RESOLVE = """
import sys
sys.path.insert(0, sys.argv[1])
import app
from pathlib import Path
from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.builtin import resolve_model
try:
    print(resolve_model(sys.argv[2], Path(sys.argv[3])))
except ModelError as error:
    sys.exit(f"{error}")
"""


class Hub(BaseHTTPRequestHandler):
    """Three answers of the hub's protocol: a model's description, its list of files, and one of its files."""

    folder: Path

    def answer(self, status: int, data: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"content-length": str(len(data)), "x-repo-commit": COMMIT, **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def do_GET(self) -> None:
        name = self.path.partition("?")[0].rpartition("/")[2]
        if not self.path.startswith(("/api/models/tiny/llama", "/tiny/llama/resolve/")):
            self.answer(404, b"{}", x_error_code="RepoNotFound")
        elif "/tree/" in self.path:
            sizes = {path.name: path.stat().st_size for path in sorted(self.folder.iterdir())}
            rows = [{"type": "file", "path": name, "size": size, "oid": "0" * 40} for name, size in sizes.items()]
            self.answer(200, json.dumps(rows).encode(), content_type="application/json")
        elif self.path.startswith("/api/"):
            files = [{"rfilename": path.name} for path in sorted(self.folder.iterdir())]
            body = {"id": "tiny/llama", "modelId": "tiny/llama", "sha": COMMIT, "private": False, "siblings": files}
            self.answer(200, json.dumps(body | {"tags": [], "downloads": 0}).encode(), content_type="application/json")
        else:
            data = (self.folder / name).read_bytes()
            self.answer(200, data, etag=f'"{hashlib.sha256(data).hexdigest()}"')

    do_HEAD = do_GET

    def log_message(self, *arguments: object) -> None:
        """Log nothing."""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "origin"
    write_tiny_llama(folder)
    (folder / "pytorch_model.bin").write_bytes(b"must not be fetched")
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("OurHub", (Hub,), {"folder": folder}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def resolve(endpoint: str, name: str, cache: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    command = [sys.executable, "-c", RESOLVE, str(ROOT), name, str(cache)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_a_hub_id_is_fetched_once_and_without_pickles(hub: str, tmp_path: Path) -> None:
    done = resolve(hub, "tiny/llama", tmp_path / "cache")
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names and "pytorch_model.bin" not in names
    offline = resolve("http://127.0.0.1:9", "tiny/llama", tmp_path / "cache")
    assert offline.stdout == done.stdout


def test_an_unreachable_hub_is_said_in_one_sentence(tmp_path: Path) -> None:
    done = resolve("http://127.0.0.1:9", "tiny/llama", tmp_path)
    assert done.returncode == 1 and "hub cannot be reached" in done.stderr and "Traceback" not in done.stderr


def test_an_unknown_id_is_said_in_one_sentence(hub: str, tmp_path: Path) -> None:
    done = resolve(hub, "nobody/nothing", tmp_path)
    assert done.returncode == 1 and "does not give nobody/nothing" in done.stderr and "Traceback" not in done.stderr


def test_without_the_extra_the_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelError, match=r"pip install pontil\[hub\]"):
        resolve_model("owner/model", tmp_path)


@pytest.mark.parametrize("name", ["model", "a/b/c", "../model", "a/..", "/etc/passwd", "a b/c", ""])
def test_what_is_no_hub_id(name: str) -> None:
    assert not is_hub_id(name)
