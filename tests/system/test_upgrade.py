# SPDX-License-Identifier: Apache-2.0
"""An upgrade behind one proxy: workers of the previous version of pontil, from its own checkout, and new ones with
another revision of the model serve side by side, until the old ones have drained."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from served import ROOT, START_TIMEOUT, Served, launched, wait_for
from tiny_llama import write_tiny_llama

pytestmark = pytest.mark.long

# The commit with which the wire began at 0.1: older processes are not served.
PREVIOUS = "14363a1f"
PROMPT = [5, 6, 7, 8, 9, 10, 11, 12]
NAME = ("--served-model-name", "tiny", "--kv-cache-memory", "8MiB")


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The previous version, checked out beside this one."""
    folder = tmp_path_factory.mktemp("previous")
    packed = subprocess.run(["git", "-C", str(ROOT), "archive", PREVIOUS], capture_output=True)
    if packed.returncode:
        pytest.skip(f"there is no commit {PREVIOUS} here to compare with")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed.stdout, check=True)
    return folder / "app.py"


def ask(served: Served, tokens: int = 12) -> tuple[str, tuple[int, ...]]:
    """Return the fingerprint of what answered, and the answer."""
    body = {
        "model": "tiny", "prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
        "return_token_ids": True,
    }  # fmt: skip
    reply = served.request("POST", "/v1/completions", body)
    answer: dict[str, Any] = reply.json()
    assert reply.status == 200, answer
    return answer["system_fingerprint"], tuple(answer["choices"][0]["token_ids"])


def workers(served: Served) -> list[dict[str, Any]]:
    return [row for row in served.get("/admin/topology")["processes"] if row["role"] == "mixed"]


def test_the_old_drains_as_the_new_comes(tmp_path: Path, previous: Path) -> None:  # C8, C16
    models = {}
    for seed, name in enumerate(("old", "new")):
        (tmp_path / name).mkdir()
        (tmp_path / f"{name}-run").mkdir()
        write_tiny_llama(tmp_path / name, seed=seed)
        models[name] = ("--model", str(tmp_path / name), "--role", "mixed", *NAME)
    door = f"ipc://{tmp_path}/control"
    joins = ("--join", door)
    proxy = ("--role", "proxy", "--control", door, "--model", str(tmp_path / "new"), "--served-model-name", "tiny")
    with (
        launched(tmp_path, *proxy, ready=False) as served,
        launched(tmp_path / "old-run", *models["old"], *joins, ready=False, app=previous) as old,
    ):
        wait_for(lambda: "ready on http" in served.output.read_text(), START_TIMEOUT, "the proxy")
        wait_for(lambda: len(workers(served)) == 1, START_TIMEOUT, "the old worker")
        before = ask(served)
        assert ask(served) == before
        ends = threading.Event()
        during: list[tuple[str, tuple[int, ...]]] = []

        def keep_asking() -> None:
            while not ends.is_set():
                during.append(ask(served))

        with ThreadPoolExecutor(5) as pool, ExitStack() as stack:
            # Also after a failure, which would be waited for in vain.
            stack.callback(ends.set)
            asking = [pool.submit(keep_asking) for _ in range(4)]
            with launched(tmp_path / "new-run", *models["new"], "--revision", "b", *joins, ready=False):
                wait_for(lambda: len(workers(served)) == 2, START_TIMEOUT, "the new worker")
                assert sorted(row.get("revision", "") for row in workers(served)) == ["", "b"]
                wait_for(lambda: {one[0] for one in during[-40:]} > {before[0]}, 60, "answers of both")
                long = pool.submit(ask, served, 400)
                drain = [sys.executable, str(previous), "drain", "mixed:0", "--pid", str(old.process.pid)]
                subprocess.run(drain, check=True, capture_output=True, timeout=120)
                count = len(during)
                wait_for(lambda: len(during) > count + 12, 60, "more answers")
                # Requests that were on their way to the old worker when it drained were among the first four.
                assert before[0] not in {one[0] for one in during[count + 4 :]}
                assert len(long.result(60)[1]) == 400
                assert old.stop() == 0
                after = ask(served)
                ends.set()
                for one in asking:
                    one.result(60)
        assert set(during) == {before, after} and before != after, "no answer is of two models"
        assert served.metric("pontil_ledger_imbalance") == 0
