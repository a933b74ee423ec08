# SPDX-License-Identifier: Apache-2.0
"""The command `pontil pull` as a real process: exit codes, its end by signals, and a launch that finds the model."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import APP, ROOT
from fake_hub import MODEL, FakeHub, HubFault, fake_hub
from forked_program import fork_program, run_program
from served import wait_for
from tiny_llama import write_tiny_llama

TOKEN = "hf_secret"
CUT = 100_000


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeHub]:
    origin = tmp_path / "origin"
    write_tiny_llama(origin)
    with fake_hub({path.name: path.read_bytes() for path in origin.iterdir()}) as server:
        yield server


@pytest.fixture
def variables(hub: FakeHub, tmp_path: Path) -> dict[str, str]:
    return {"PONTIL_CACHE": str(tmp_path / "cache"), "HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN}


def pontil(variables: dict[str, str], *words: str, folder: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    return run_program([str(APP), *words], variables, folder)


def test_a_pulled_model_is_found_without_a_network(hub: FakeHub, variables: dict[str, str]) -> None:
    done = pontil(variables, "pull", MODEL, "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert row["name"] == MODEL and row["fetched_bytes"] > 0 and "config.json 0 of 0 MB\n" in done.stderr
    again = pontil(variables, "pull", MODEL)
    assert again.returncode == 0 and again.stdout == f"{MODEL}: {row['path']} (was here)\n"
    plan = pontil(variables | {"HF_ENDPOINT": "http://127.0.0.1:9"}, "launch", "--dry-run", "--model", MODEL)
    assert plan.returncode == 0 and "MiB" in plan.stdout, plan.stderr
    assert TOKEN not in done.stdout + done.stderr + again.stderr + plan.stdout


@pytest.mark.parametrize("name", ["gpt-17", "a/b/c", "./model", "owner/model:../x.gguf", str(ROOT)])
def test_a_bad_name_fetches_nothing(hub: FakeHub, variables: dict[str, str], name: str) -> None:
    done = pontil(variables, "pull", MODEL, name)
    assert done.returncode == 2 and f"{name!r} is no model to fetch" in done.stderr
    assert hub.asked == [] and "Traceback" not in done.stderr


def test_a_refusal_is_said_in_one_sentence(hub: FakeHub, variables: dict[str, str]) -> None:
    hub.faults = [HubFault(status=401, where="/api/")]
    done = pontil(variables, "pull", "nobody/nothing")
    assert done.returncode == 1 and done.stderr.startswith("Error: nobody/nothing cannot be fetched: there is no such")
    assert len(done.stderr.splitlines()) == 1 and TOKEN not in done.stderr


def test_a_local_folder_hides_a_model_of_the_hub(variables: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / MODEL).mkdir(parents=True)
    done = pontil(variables, "pull", MODEL, folder=tmp_path)
    assert done.returncode == 2 and "must be no path here" in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
def test_a_pull_that_is_ended_goes_on_where_it_was(
    hub: FakeHub, variables: dict[str, str], tmp_path: Path, number: int, code: int
) -> None:
    hub.faults = [HubFault(cut=CUT, hangs=True, where=f"/{MODEL}/resolve/{hub.commit}/model")]
    with (tmp_path / "said").open("w") as said:
        files = [said.fileno()] * 3
        words = [str(APP), "pull", MODEL]
        process = fork_program(words, ROOT, files, {**os.environ, **variables}, computing=False)
    assert hub.hung.wait(60)
    blobs = tmp_path / "cache" / "hub" / "models--tiny--llama" / "blobs"
    wait_for(lambda: any(path.stat().st_size for path in blobs.glob("*.partial")), 60, "bytes of the file")
    process.send_signal(number)
    assert process.wait(60) == code
    if number == signal.SIGINT:
        assert "Interrupted: what was fetched is kept" in (tmp_path / "said").read_text()
    assert "Traceback" not in (tmp_path / "said").read_text()
    (partial,) = blobs.glob("*.partial")
    size = partial.stat().st_size
    hub.asked.clear()
    done = pontil(variables, "pull", MODEL)
    assert done.returncode == 0, done.stderr
    wanted = dict(hub.asked_files())
    assert 0 < size <= CUT and wanted["model.safetensors"] == f"bytes={size}-"
    assert (Path(done.stdout.split()[1]) / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
