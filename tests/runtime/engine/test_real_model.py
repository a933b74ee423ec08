# SPDX-License-Identifier: Apache-2.0
"""Batch-invariance of the real model, over hundreds of tokens (C16): alone, in a batch, in chunks and on replay."""

from pathlib import Path

import kernels
import pytest
import torch
from tiny import drain, sequence

from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.engine.engine import Engine
from pontil.runtime.engine.prompt_turns import StepBudget
from pontil.runtime.engine.runner.model_runner import ModelRunner
from pontil.runtime.engine.scheduler import Scheduler
from pontil.runtime.engine.sequences.sequence import Sequence
from pontil.runtime.loaders.builtin import resolve_model
from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.loaders.gguf.file import GgufCheckpoint
from pontil.runtime.models.families.registry import build_model
from pontil.runtime.models.weights import Packing, Weights
from pontil.runtime.tokenizer.tokenizer import Tokenizer, load_tokenizer

pytestmark = pytest.mark.long
TOKENS = 250
TEXTS = (
    "The capital of France is",
    "def quicksort(values):\n    if len(values) < 2:\n        return values\n",
    "Once upon a time there was a glassmaker who " * 12,
    "List of the planets, from the Sun outwards: " * 30,
)


@pytest.fixture(scope="module")
def path() -> Path:
    return resolve_model("smollm2-135m-instruct", Path.home() / ".cache" / "pontil")


@pytest.fixture(scope="module", params=["torch", "kernels", "int8", "gguf"])
def runner(request: pytest.FixtureRequest, path: Path) -> ModelRunner:
    checkpoint = open_checkpoint(path)
    config = checkpoint.config
    assert isinstance(checkpoint, GgufCheckpoint)
    library = None if request.param == "torch" else kernels.opened()
    tensors = checkpoint.levels() if request.param == "gguf" else checkpoint.tensors()
    weights = Weights(tensors, torch.device("cpu"), torch.bfloat16, Packing.of(library, request.param == "int8"))
    model = build_model(config, weights)
    layout = KVLayout(16, config.num_layers, config.num_kv_heads, config.head_dim, "bfloat16", library is not None)
    return ModelRunner(model, KVStorage(layout, 2500, torch.device("cpu")))


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> Tokenizer:
    return load_tokenizer(path)


def run(runner: ModelRunner, sequences: list[Sequence], budget: int) -> dict[str, list[int]]:
    layout = runner.storage.layout
    engine = Engine(runner, Scheduler(BlockPool(2500), layout, 64, StepBudget(budget)))
    for one in sequences:
        engine.add(one)
    return drain(engine)


def crowd_of(count: int, prompts: dict[str, list[int]]) -> list[Sequence]:
    """The first prompt, and others beside it."""
    every = list(prompts.values())
    return [sequence(f"{number}", every[number % len(every)][: 500 - 9 * number], TOKENS) for number in range(count)]


def test_a_crowd_chunks_and_a_replay_change_no_token(runner: ModelRunner, tokenizer: Tokenizer) -> None:
    prompts = {text[:20]: tokenizer.encode(text, add_special_tokens=False) for text in TEXTS}
    alone = {name: run(runner, [sequence(name, ids, TOKENS)], 256)[name] for name, ids in prompts.items()}
    crowd = [sequence(name, ids, TOKENS) for name, ids in prompts.items()]
    crowd += [sequence(f"n{i}", prompts["The capital of Franc"][: 1 + i % 5] * (1 + i), 40 + i) for i in range(28)]
    together = run(runner, crowd, 70)
    assert {name: together[name] for name in prompts} == alone
    for count in (2, 3, 8, 31):
        assert run(runner, crowd_of(count, prompts), 256)["0"] == alone[next(iter(prompts))]
    for name, ids in prompts.items():
        replay = sequence(name, ids, TOKENS)
        replay.output += alone[name][: TOKENS // 2]
        assert run(runner, [replay], 100)[name] == alone[name]
