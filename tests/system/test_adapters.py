# SPDX-License-Identifier: Apache-2.0
"""A real launch with adapters: the same answers in a pair, after kills and from its cache, and receipts that hold."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from killed_workers import kill, wait_for_records
from served import Served, launched
from tiny_adapters import write_adapter
from tiny_hybrid import write_tiny_hybrid
from tiny_latent import write_tiny_deepseek

from pontil.gpu_ops.parameters.adapters import LowRank
from pontil.launcher.cli import cli
from pontil.runtime.loaders.config import read_config
from pontil.runtime.loaders.facts.adapter_facts import adaptable_layers

PROMPT = [3 + 7 * place % 200 for place in range(89)]
NAMES = ("base", "one", "two", "late")
# The tokens that activate the last one, and the whole blocks before them.
INVOCATION, BEFORE = PROMPT[70:72], 64
OPTIONS = ("--kv-cache-memory", "8MiB", "--restart-delay", "0.1", "--share-devices", "--served-model-name", "base")
# A worker of one rank for each role, and one of two ranks; and the one that is killed.
SITES = (
    (("--prefill", "cpu", "--decode", "cpu"), "decode:0"),
    (("--role", "mixed", "--mixed", "cpu:0+cpu:0"), "mixed:0"),
)


def adapters_of(model: Path, folder: Path) -> list[str]:
    """Write adapters for all linear layers of a model, one that tokens activate among them; return the launch's options
    for them."""
    weights = adaptable_layers(read_config(model))
    words: list[str] = []
    for seed, name in enumerate(NAMES[1:]):
        torch.manual_seed(seed)
        layers = {layer: LowRank(torch.randn(4, size[1]), torch.randn(size[0], 4)) for layer, size in weights.items()}
        activated = {"alora_invocation_tokens": INVOCATION} if name == "late" else {}
        words += ["--adapter", f"{name}={write_adapter(folder / name, layers, **activated)}"]
    return words


def ask(served: Served, name: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    body = {"model": name, "prompt": PROMPT, "max_tokens": 8, "ignore_eos": True, "seed": 1, "return_token_ids": True}
    reply = served.request("POST", "/v1/completions", body, headers)
    assert reply.status == 200, reply.text()
    told: dict[str, Any] = reply.json()
    return told


def answers(served: Served) -> dict[str, tuple[list[int], int]]:
    told = {name: ask(served, name) for name in NAMES}
    return {
        name: (one["choices"][0]["token_ids"], one["usage"]["prompt_tokens_details"]["cached_tokens"])
        for name, one in told.items()
    }


@pytest.fixture(params=["dense", "mixture", "hybrid"])
def any_model(request: pytest.FixtureRequest, tmp_path: Path, model: str) -> str:
    """A dense model, or one whose experts or recurrent layers have adapters too."""
    if request.param == "dense":
        return model
    if request.param == "hybrid":
        write_tiny_hybrid(tmp_path / "hybrid", "bfloat16")
    else:
        write_tiny_deepseek(tmp_path / "mixture", "bfloat16", by_kernels=True)
    return str(tmp_path / request.param)


@pytest.mark.long
def test_adapters_across_the_handoff_and_kills(tmp_path: Path, any_model: str) -> None:
    model = any_model
    # The prompt is shorter than a block of a hybrid model.
    before, whole, records = (0, 0, len(NAMES)) if model.endswith("hybrid") else (BEFORE, len(PROMPT) - 1, 15)
    adapters = adapters_of(Path(model), tmp_path)
    with launched(tmp_path, "--model", model, "--role", "mixed", *adapters, *OPTIONS) as served:
        alone = answers(served)
        # The one that tokens activate finds what the model has computed before them.
        assert [cached for _, cached in alone.values()] == [0, 0, 0, before]
        assert len({str(ids) for ids, _ in alone.values()}) == len(NAMES)
        receipts = {name: ask(served, name, {"pontil-receipt": "1"}) for name in ("two", "late")}
    pair = ("--prefill", "cpu:0", "--decode", "cpu:0", "--disagg", "always")
    with launched(tmp_path, "--model", model, *pair, *adapters, *OPTIONS) as served:
        assert answers(served) == alone
        again = answers(served)
        assert {name: ids for name, (ids, _) in again.items()} == {name: ids for name, (ids, _) in alone.items()}
        assert [cached for _, cached in again.values()] == [whole] * len(NAMES)
        wait_for_records(served, records)
        kill(served, "prefill:0", "decode:0")
        assert answers(served) == again
    words = ["verify", str(tmp_path / "answer"), "--model", model]
    for name in ("late", "two"):
        (tmp_path / "answer").write_text(json.dumps(receipts[name]))
        made = CliRunner().invoke(cli, [*words, "--adapter", str(tmp_path / name)], standalone_mode=False)
        assert made.return_value == 0 and "are equal" in made.output, (made.output, made.exception)
    for other in ([], ["--adapter", str(tmp_path / "one")]):
        made = CliRunner().invoke(cli, [*words, *other], standalone_mode=False)
        assert made.return_value == 1 and "the adapter of the receipt is" in made.output, (made.output, made.exception)


@pytest.mark.long
def test_ranks_divide_adapters(tmp_path: Path, any_model: str) -> None:
    model = any_model
    adapters = adapters_of(Path(model), tmp_path)
    with launched(tmp_path, "--model", model, "--role", "mixed", *adapters, *OPTIONS) as served:
        alone = answers(served)
    two = ("--role", "mixed", "--mixed", "cpu:0+cpu:0")
    with launched(tmp_path, "--model", model, *two, *adapters, *OPTIONS) as served:
        assert answers(served) == alone


@pytest.mark.long
@pytest.mark.parametrize(("site", "killed"), SITES)
def test_adapters_come_and_go_while_a_launch_runs(
    tmp_path: Path, model: str, site: tuple[str, ...], killed: str
) -> None:
    """Loaded at run time, an adapter answers as one of the launch; a worker that is killed has it again."""
    adapters, json_type = adapters_of(Path(model), tmp_path), {"content-type": "application/json"}
    with launched(tmp_path, "--model", model, "--role", "mixed", *adapters, *OPTIONS) as served:
        expected = {name: ids for name, (ids, _) in answers(served).items()}

    def change(what: str, name: str, **more: str) -> str:
        reply = served.request("POST", f"/v1/{what}_lora_adapter", {"lora_name": name} | more, json_type)
        return f"{reply.status} {reply.text()}"

    told = ("--adapter-directory", str(tmp_path), "--adapter-memory", "128KiB")
    with launched(tmp_path, "--model", model, *site, *told, *OPTIONS) as served:
        for name in NAMES[1:]:
            assert change("load", name, lora_path=str(tmp_path / name)).startswith("200"), name
        assert {name: ids for name, (ids, _) in answers(served).items()} == expected
        # Its successor finds what it left by the digest alone.
        kill(served, killed)
        assert {name: ids for name, (ids, _) in answers(served).items()} == expected
        for name in NAMES[1:]:
            assert change("unload", name).startswith("200"), name
        assert served.request("POST", "/v1/completions", {"model": "one", "prompt": "x"}).status == 404
        # The other one's files under the first one's name: nothing of that one is found.
        assert change("load", "one", lora_path=str(tmp_path / "two")).startswith("200")
        assert ask(served, "one")["choices"][0]["token_ids"] == expected["two"]
