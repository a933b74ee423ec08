# SPDX-License-Identifier: Apache-2.0
"""The scripts that prove a checkout on a GPU, as far as they run without one."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gpu_answers
import gpu_bench
import gpu_parts
import gpu_peer
import pytest
import torch
from forked_program import run_program
from step_packages import FakeSampling

from pontil.gpu_ops.draws.filtered_draws import DRAWS
from pontil.gpu_ops.products.torch_products import EXPERTS, PRODUCTS

BENCH = str(Path(__file__).resolve().parents[2] / "scripts" / "gpu_bench.py")
PROOF = str(Path(BENCH).with_name("gpu_proof.sh"))


@pytest.mark.long
def test_the_bench_runs_without_a_gpu_and_reads_another_process() -> None:
    done = run_program([BENCH, "--device", "cpu", "--shape", "tiny"], computing=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {"copy", "matrix", "decode_1", "decode_4", "decode_8", "prefill", "pull"} == set(found)
    assert all(found[name]["ms"] > 0 for name in ("decode_1", "decode_4", "decode_8", "prefill")) and found["pull"] > 0


class FakeVllm:
    """The classes of vLLM that the script uses, with the arguments that vLLM 0.11 documents. A step takes no time."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int]] = []

    def LLM(self, *, model: str, load_format: str, **others: Any) -> "FakeVllm":  # noqa: N802
        config = json.loads(Path(model, "config.json").read_text())
        assert load_format == "dummy" and others["skip_tokenizer_init"] and not others["enable_prefix_caching"]
        ours = gpu_bench.shape_of("8b")
        assert (config["hidden_size"], config["num_hidden_layers"]) == (ours.hidden_size, ours.num_layers)
        assert (config["intermediate_size"], config["vocab_size"]) == (ours.intermediate_size, ours.vocab_size)
        return self

    def SamplingParams(self, *, temperature: float, max_tokens: int, ignore_eos: bool, detokenize: bool) -> int:  # noqa: N802
        assert temperature == 0 and ignore_eos and not detokenize
        return max_tokens

    def generate(self, prompts: list[dict[str, list[int]]], params: int, *, use_tqdm: bool) -> None:
        self.asked.append((len(prompts), len(prompts[0]["prompt_token_ids"]), params))


def test_vllm_is_measured_at_the_same_sizes(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(gpu_peer.CONFIG))
    vllm = FakeVllm()
    found = gpu_peer.measure(vllm, str(tmp_path), [1, 64], 32, 64)
    assert set(found) == {"decode_1", "decode_64", "prefill"}
    assert {(1, 32, gpu_peer.SHORT), (64, 32, gpu_peer.LONG), (1, 64, 1)} <= set(vllm.asked)


def test_vllm_sees_the_device_that_was_meant() -> None:
    assert [gpu_peer.visible(device, None) for device in ("cuda", "cuda:0", "cuda:3")] == ["0", "0", "3"]
    assert gpu_peer.visible("cuda:1", "5,GPU-ab,7") == "GPU-ab"


def test_figures_survive_a_vllm_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], *, timeout: float, **others: Any) -> Any:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", run)
    assert "no answer" in gpu_bench.beside(torch.device("cuda:0"))


def test_a_row_of_the_table_is_appended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "measurements.md"
    page.write_text("# Measurements\n")
    monkeypatch.setattr(gpu_bench, "MEASUREMENTS", page)
    for name in ("one", "two"):
        gpu_bench.record(name, "8b", {"copy": 1.5})
    lines = page.read_text().splitlines()
    assert lines.count("## GPUs") == 1 and [line for line in lines if "copy" in line] == [
        '| one | 8b | `{"copy": 1.5}` |', '| two | 8b | `{"copy": 1.5}` |',
    ]  # fmt: skip


def answered(tokens: str, *gaps: float) -> dict[str, Any]:
    best = [{"x": -0.1, "y": -0.1 - gap} for gap in gaps] or [{"x": -0.1}] * len(tokens)
    return {"tokens": list(tokens), "top_logprobs": best}


@pytest.mark.parametrize(
    ("ours", "theirs", "differs"),
    [
        (answered("abc"), answered("abc"), False),
        (answered("abc"), answered("abd", 3.0, 3.0, 0.01), False),
        (answered("abc"), answered("abd", 0.01, 0.01, 3.0), True),
        # Behind a near tie the answers are others.
        (answered("abc"), answered("add", 3.0, 0.1, 3.0), False),
        (answered("abc"), answered("abd"), True),
    ],
)
def test_only_a_near_tie_explains_another_token(ours: dict[str, Any], theirs: dict[str, Any], differs: bool) -> None:
    assert (gpu_answers.difference(ours, theirs) is not None) == differs


def test_without_a_gpu_the_proof_says_so() -> None:
    done = run_program([BENCH, "--device", "cuda:9"], {"CUDA_VISIBLE_DEVICES": ""}, computing=True)
    assert done.returncode == 1 and "torch finds no GPU here" in done.stderr and "Traceback" not in done.stderr


def test_parts_are_compared_and_timed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of experts are a device's, and not computed here."""
    cpu = torch.device("cpu")
    products = gpu_parts.products_of(cpu, ((32, 64),), (2, 32, 16))
    monkeypatch.setitem(sys.modules, "flashinfer", FakeSampling().package)
    monkeypatch.setattr(gpu_parts, "VOCABULARY", 300)
    assert gpu_parts.compare(PRODUCTS, products, cpu) and gpu_parts.compare(DRAWS, products, cpu, 300)
    assert len(gpu_parts.pairs_of(EXPERTS, products, cpu)) == len(gpu_parts.ROWS)
    said = capsys.readouterr().out
    assert said.count(" ms, ours ") == len(gpu_parts.ROWS) + 2
    monkeypatch.setitem(sys.modules, "flashinfer", FakeSampling(more=2).package)
    assert not gpu_parts.compare(DRAWS, products, cpu, 300)


def proof(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["bash", PROOF, *arguments], capture_output=True, text=True, timeout=60)


def test_the_proof_names_the_steps_that_a_machine_cannot_do() -> None:
    """Cores have no kernels of Triton and nothing for the sanitizer; all that is left out does not fail."""
    steps = ["kernels", "second", "attention", "parts", "sanitizer"]
    done = proof("--device", "cpu", *steps)
    assert done.returncode == 0, done.stderr
    assert [line.partition(":")[0] for line in done.stdout.splitlines() if "left out" in line] == steps


def test_a_pair_is_on_both_devices_where_there_are_two(tmp_path: Path) -> None:
    """Its workers then reach each other's memory, and nothing else will do. `python` and `bash` only say what they
    were asked."""
    python, asked = tmp_path / "venv" / "bin" / "python", tmp_path / "asked"
    python.parent.mkdir(parents=True)
    for devices in (1, 2):
        count = f'case "$2" in *device_count*) exit {int(devices < 2)} ;; esac'
        # A server is asked once it has begun: it might be stopped before it has said a word.
        awaits = f'while [ "$1" = scripts/ask.py ] && [ ! -s {asked} ]; do sleep 0.01; done'
        python.write_text(f'#!/bin/sh\n{count}\n{awaits}\n[ "$1" != app.py ] || echo "$@" >> {asked}\n')
        python.chmod(0o755)
        done = proof("--alone", "--venv", str(tmp_path / "venv"), "pair")
        assert done.returncode == 0, done.stderr
        (pair,) = (line for line in asked.read_text().splitlines() if "--prefill" in line)
        assert f"--prefill cuda:0 --decode cuda:{devices - 1}" in pair and "--kv-connector cuda" in pair
        asked.unlink()


@pytest.mark.parametrize("word", ["nothing", "--nothing"])
def test_the_proof_refuses_what_it_does_not_know(word: str) -> None:
    done = proof(word)
    assert done.returncode == 1 and word in done.stderr
