# SPDX-License-Identifier: Apache-2.0
"""The four how-tos of CONTRIBUTING.md, carried out in a copy of the checkout that is then launched."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from served import ROOT, Served, launched, wait_for
from tiny_llama import write_tiny_llama

STEP = re.compile(
    r"^(?:Create `(?P<new>[^`]+)`|In `(?P<path>[^`]+)`, (?P<side>below|above) `(?P<line>[^`]+)`):\n\n"
    r"```\w+\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
HOW_TOS = ("Add a model", "Add a request parameter", "Add an endpoint", "Add a connector")


def steps(how_to: str) -> list[re.Match[str]]:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    (section,) = re.findall(rf"^## {how_to}$(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    return list(STEP.finditer(section))


def carry_out(step: re.Match[str], checkout: Path) -> None:
    if step["new"]:
        path = checkout / step["new"]
        assert not path.exists(), f"{step['new']} is there already"
        path.write_text(step["code"])
        return
    path = checkout / step["path"]
    lines = path.read_text().splitlines(keepends=True)
    (at,) = [number for number, line in enumerate(lines) if line.rstrip("\n") == step["line"]]
    at += step["side"] == "below"
    path.write_text("".join([*lines[:at], step["code"], *lines[at:]]))


def copy_of_the_checkout(folder: Path) -> Path:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    # Unchanged modules need not be compiled again, by any of the processes that are started here.
    for room in ("gpu_ops", "http", "launcher", "runtime"):
        for compiled in (ROOT / room).rglob("__pycache__"):
            # One that is being written has its own name once it is whole.
            copy = folder / compiled.relative_to(ROOT)
            shutil.copytree(compiled, copy, ignore=shutil.ignore_patterns("*.pyc.*"))
    return folder


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy in which all four how-tos were carried out."""
    copy = copy_of_the_checkout(tmp_path_factory.mktemp("checkout"))
    for how_to in HOW_TOS:
        found = steps(how_to)
        assert found, how_to
        for step in found:
            carry_out(step, copy)
    return copy


@pytest.fixture(scope="module")
def glass(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The copy, launched with a prefill and a decode worker, the new model and the new connector."""
    folder = tmp_path_factory.mktemp("launch")
    write_tiny_llama(folder / "glass")
    config = folder / "glass" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_type": "glass", "architectures": ["Glass"]}))
    arguments = ("--model", str(folder / "glass"), "--prefill", "cpu:0", "--decode", "cpu:1")
    with launched(
        folder, *arguments, "--kv-connector", "glass", "--disagg", "always", app=checkout / "app.py"
    ) as served:
        yield served


def test_the_model_serves_through_the_connector(glass: Served) -> None:
    answer = glass.complete("hello", model=None, max_tokens=4, ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 4
    wait_for(lambda: glass.metric('pontil_handoffs_total{result="complete"}'), 30, "a handoff")


def test_the_parameter_is_accepted_and_described(glass: Served) -> None:
    answer = glass.complete("hello", model=None, max_tokens=1, note=True)
    assert answer["usage"]["completion_tokens"] == 1
    assert glass.request("POST", "/v1/completions", {"prompt": "hello", "nota": True}).status == 400
    described = json.dumps(glass.get("/openapi.json"))
    assert '"note"' in described and "changes nothing" in described


def test_the_endpoint_answers_and_is_described(glass: Served) -> None:
    assert glass.get("/hello") == {"hello": "world"}
    assert "/hello" in glass.get("/openapi.json")["paths"]


def test_the_lint_of_a_commit_is_that_of_ci() -> None:
    assert "scripts/lint.sh" in (ROOT / ".pre-commit-config.yaml").read_text()
    assert "scripts/lint.sh" in (ROOT / "scripts" / "test.sh").read_text()
