# SPDX-License-Identifier: Apache-2.0
"""A real launch of several models: a death of one, and sleep and waking in a memory that holds one of them."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from bench_models import ModelServer, WorkerWatch, ZipfRun
from command_line import app, obeyed
from served import Served, launched, wait_for

from pontil.runtime.accounting.usage_file import open_to_read

PROMPT = [3 + 7 * place % 200 for place in range(89)]
NAMES = ("model", "other")
REFUNDED = "its model was put to sleep, as another one was asked for"
OPTIONS = (
    "--role",
    "mixed",
    "--mixed",
    "cpu:0",
    "--share-devices",
    "--kv-cache-memory",
    "8MiB",
    "--restart-delay",
    "0.1",
)


def ask(served: Served, name: str, tokens: int = 8) -> dict[str, Any]:
    body = {
        "model": name,
        "prompt": PROMPT,
        "max_tokens": tokens,
        "ignore_eos": True,
        "seed": 1,
        "return_token_ids": True,
    }
    reply = served.request("POST", "/v1/completions", body)
    assert reply.status == 200, reply.text()
    told: dict[str, Any] = reply.json()
    assert told["model"] == name
    return told


def ids_of(answer: dict[str, Any]) -> list[int]:
    ids: list[int] = answer["choices"][0]["token_ids"]
    return ids


def prefixes(served: Served, method: str, path: str = "", body: Any = None) -> dict[str, Any]:
    reply = served.request(method, f"/v1/prefixes{path}", body)
    told: dict[str, Any] = reply.json()
    assert reply.status == 200, told
    return told


def states(served: Served) -> dict[str, str]:
    return {one["id"]: one["state"] for one in served.request("GET", "/v1/models").json()["data"]}


@pytest.fixture
def tables(tmp_path: Path, model: str) -> Path:
    """Two models, the same by their weights."""
    path = tmp_path / "models.toml"
    path.write_text("".join(f'[{name}]\nmodel = "{tmp_path / name}"\n' for name in NAMES))
    for name in NAMES:
        shutil.copytree(model, tmp_path / name)
    return path


def is_asked(served: Served, model: str) -> bool:
    return any(row["model"] == model for row in served.get("/admin/requests")["requests"])


@pytest.mark.long
def test_models_die_sleep_and_wake_each_by_itself(tmp_path: Path, tables: Path) -> None:
    with launched(tmp_path, "--models", str(tables), *OPTIONS) as served:
        alone = {name: ids_of(ask(served, name)) for name in NAMES}
        served.kill("other-mixed:0")
        assert ids_of(ask(served, "model")) == alone["model"]
        wait_for(
            lambda: served.request("GET", "/v1/models/other").json()["max_model_len"], 60, "the other one's return"
        )
        assert ids_of(ask(served, "other")) == alone["other"]
        obeyed(served.port, "scale", "--node", "other=2")
        served.kill("other-mixed:0")
        assert ids_of(ask(served, "other")) == alone["other"], "another worker of the same model"
        assert ids_of(ask(served, "model")) == alone["model"]
    with launched(tmp_path, "--models", str(tables), "--model-memory", "300MiB", *OPTIONS) as served:
        assert states(served) == {"model": "awake", "other": "asleep"}
        with ThreadPoolExecutor(1) as beside:
            long = beside.submit(ask, served, "model", 400)
            wait_for(lambda: is_asked(served, "model"), 60, "the long request's begin")
            assert ids_of(ask(served, "other")) == alone["other"]
            assert len(ids_of(long.result())) == 400, "the last requests of one that goes to sleep end first"
        assert states(served) == {"model": "asleep", "other": "awake"}
        woken = ask(served, "model")
        assert ids_of(woken) == alone["model"] and woken["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        wait_for(lambda: states(served) == {"model": "awake", "other": "asleep"}, 60, "the other one's sleep")
        served.kill("mixed:0")
        assert ids_of(ask(served, "other")) == alone["other"]


@pytest.mark.long
def test_a_worker_is_added_where_another_model_leaves(tmp_path: Path, tables: Path) -> None:
    with launched(tmp_path, "--models", str(tables), "--model-memory", "500MiB", *OPTIONS) as served:
        alone = {name: ids_of(ask(served, name)) for name in NAMES}
        assert states(served) == {"model": "awake", "other": "awake"}
        said = obeyed(served.port, "scale", "--node", "other=2")
        assert "other-mixed:1 waits until other models have left" in said and "other-mixed:1 is ready" in said
        assert states(served) == {"model": "asleep", "other": "awake"}
        served.kill("other-mixed:0")
        assert ids_of(ask(served, "other")) == alone["other"], "the new one answers"
        refused = app("scale", "--node", "other=4", "--port", str(served.port))
        assert refused.returncode == 1 and "There is no room for other-mixed:2 in --model-memory" in refused.stderr
        assert ids_of(ask(served, "model")) == alone["model"], "both workers of the other one leave for it"
        assert states(served) == {"model": "awake", "other": "asleep"}
        assert "is gone" in obeyed(served.port, "scale", "--node", "other=1")
        assert "sleeps, as its model does" in obeyed(served.port, "scale", "--node", "other=2")
        obeyed(served.port, "scale", "--node", "other=1")
        assert ids_of(ask(served, "other")) == alone["other"]
        assert states(served) == {"model": "awake", "other": "awake"}


@pytest.mark.long
def test_a_lease_ends_when_its_model_sleeps_and_can_be_had_again(tmp_path: Path, tables: Path) -> None:
    """A lease is refunded, though its blocks are found again where nobody has displaced them."""
    with launched(tmp_path, "--models", str(tables), "--model-memory", "300MiB", *OPTIONS) as served:
        kept = prefixes(served, "POST", body={"prompt": PROMPT, "ttl": "1h", "model": "model"})
        assert (kept["state"], kept["tokens"], states(served)["model"]) == ("held", 80, "awake")
        ask(served, "other")
        assert states(served) == {"model": "asleep", "other": "awake"}
        ended = prefixes(served, "GET", f"/{kept['id']}")
        assert (ended["state"], ended["reason"]) == ("refunded", REFUNDED)
        assert ended["byte_seconds"]["granted"] == ended["byte_seconds"]["held"] + ended["byte_seconds"]["refunded"]
        assert ended["byte_seconds"]["refunded"] > 0
        assert [one["id"] for one in prefixes(served, "GET")["data"] if one["state"] == "held"] == []
        again = prefixes(served, "POST", body={"prompt": PROMPT, "ttl": "1h", "model": "model"})
        assert states(served) == {"model": "awake", "other": "asleep"}, "a lease wakes its model"
        assert (again["state"], again["usage"]["prompt_tokens_details"]["cached_tokens"]) == ("held", 88)
        found = ask(served, "model")
        assert found["usage"]["prompt_tokens_details"]["cached_tokens"] == 88
        assert prefixes(served, "DELETE", f"/{again['id']}")["state"] == "released"
    with closing(open_to_read(served.usage_log)) as database:
        rows = dict(database.execute("SELECT id, outcome FROM leases").fetchall())
    assert rows == {kept["id"]: "refunded", again["id"]: "released"}


@pytest.mark.long
def test_five_models_under_a_zipf_load_in_the_memory_of_two_lose_nothing(tmp_path: Path, model: str) -> None:
    """A small run of scripts/bench_models.py, whose full one is in docs/guide/several-models.md."""
    names = [f"model-{number}" for number in range(5)]
    tables = tmp_path / "models.toml"
    tables.write_text("".join(f'[{name}]\nmodel = "{tmp_path / name}"\n' for name in names))
    for name in names:
        shutil.copytree(model, tmp_path / name)
    with launched(tmp_path, "--models", str(tables), "--model-memory", "500MiB", *OPTIONS) as served:
        server = ModelServer(served.port)
        run, watch = ZipfRun(server, names, skew=1.0, seed=1), WorkerWatch(server)
        watch.start()
        run.play(requests=30, clients=2)
        watch.ended.set()
        watch.join()
        assert not run.lost and sum(run.asked.values()) == 30 and set(run.asked) == set(names)
        assert not watch.deaths and sum(watch.summary()["wakes"].values()) >= 2
        assert "asleep" in server.states().values()
