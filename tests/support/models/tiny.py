# SPDX-License-Identifier: Apache-2.0
"""A tiny random Llama, in transformers and in our engine."""

from collections.abc import Hashable
from dataclasses import dataclass

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from pontil.gpu_ops.products.batch_invariance import BatchInvariance
from pontil.runtime.cache.layout import KVLayout, choose_kv_dtype, layout_for
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.engine.drafts.drafter import Drafter
from pontil.runtime.engine.drafts.model import DraftModel
from pontil.runtime.engine.drafts.step_drafts import StepDrafts
from pontil.runtime.engine.engine import Engine
from pontil.runtime.engine.prompt_turns import StepBudget
from pontil.runtime.engine.runner.model_runner import ModelRunner
from pontil.runtime.engine.sampling.sampler import Sampled
from pontil.runtime.engine.scheduler import Scheduler
from pontil.runtime.engine.sequences.batch import Batch
from pontil.runtime.engine.sequences.sequence import Sequence
from pontil.runtime.engine.tiles.runner import torch_products
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.models.families.llama import Llama
from pontil.runtime.models.model import Model
from pontil.runtime.models.weights import Weights
from pontil.runtime.sampling_params import SamplingParams

VOCAB = 97
MEASURED: dict[Hashable, BatchInvariance] = {}


def reference(tie: bool = True, seed: int = 7) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        rope_theta=10000.0,
        tie_word_embeddings=tie,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).float().eval()


def config(tie: bool = True) -> ModelConfig:
    return ModelConfig("llama", VOCAB, 48, 80, 2, 6, 2, 8, 1024, 1e-6, 10000.0, tie, "float32", (1,))


@dataclass
class Rig:
    """One engine with its parts as attributes."""

    engine: Engine
    scheduler: Scheduler
    runner: ModelRunner
    pool: BlockPool
    storage: KVStorage


def rig(
    model: Model, *, blocks: int = 200, block_size: int = 16, seats: int = 40, budget: int = 256, caching: bool = True,
    drafts: int = 0, cells: str = "auto", drafter: Drafter | None = None,
) -> Rig:  # fmt: skip
    layout = layout_of(model, block_size, cells)
    storage = KVStorage(layout, blocks, model.device)
    pool = BlockPool(blocks)
    scheduler = Scheduler(pool, layout, seats, StepBudget(budget), caching, drafts=StepDrafts(drafts, drafter))
    runner = runner_of(model, storage)
    return Rig(Engine(runner, scheduler), scheduler, runner, pool, storage)


def runner_of(model: Model, storage: KVStorage) -> ModelRunner:
    """A runner whose row counts are measured once for equal products: that takes longer than most tests."""
    products = torch_products(model.linears), torch_products(model.head)
    shapes = tuple(
        tuple((type(one), one.out_features, one.in_features, one.dtype, one.bias is None) for one in some)
        for some in products
    )
    key = (shapes, model.device, torch.get_num_threads())
    runner = ModelRunner(model, storage, classes=MEASURED.get(key))
    MEASURED[key] = runner.tiles.classes
    return runner


def layout_of(model: Model, block_size: int = 16, cells: str = "auto") -> KVLayout:
    dtype = "float32" if model.dtype == torch.float32 else "bfloat16"
    return layout_for(model.config, block_size, choose_kv_dtype(cells, dtype), packed=model.kernels is not None)


def draft_model(model: Model, blocks: int = 200, vocab_size: int = VOCAB, caching: bool = True) -> DraftModel:
    layout = layout_of(model)
    runner = runner_of(model, KVStorage(layout, blocks, model.device))
    return DraftModel(runner, BlockPool(blocks), layout, vocab_size, caching)


def build(
    hugging: LlamaForCausalLM, tie: bool = True, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Model:
    state = {name: tensor.clone() for name, tensor in hugging.state_dict().items()}
    if tie:
        state.pop("lm_head.weight", None)
    return Llama(config(tie), Weights(state.items(), torch.device(device), dtype))


def sequence(name: str, prompt: list[int], max_tokens: int = 8, **params: object) -> Sequence:
    settings: dict[str, object] = {"max_tokens": max_tokens, "seed": 1, "temperature": 0.0, "ignore_eos": True}
    return Sequence(name, prompt, SamplingParams(**(settings | params)), frozenset())  # type: ignore[arg-type]


def name_of(sequence: Sequence) -> str:
    """Return the sequence's id, with the choice's number if there are several."""
    return sequence.id if sequence.params.n == 1 else f"{sequence.id}/{sequence.branch.choice}"


def drain(engine: Engine) -> dict[str, list[int]]:
    """Step until idle; return the output of every sequence that has one."""
    tokens: dict[str, list[int]] = {}
    while engine.has_work:
        for output in engine.step():
            assert output.ids == output.sequence.output[output.index :]
            tokens[name_of(output.sequence)] = output.sequence.output
    return tokens


def computed_by(engine: Engine) -> int:
    """Step until idle; return the number of positions computed for requests, generated ones included."""
    count = 0
    run = engine.runner.run

    def counting(batch: Batch) -> list[Sampled]:
        nonlocal count
        count += sum(span.count for span in batch.spans if span.sequence.draws)
        return run(batch)

    engine.runner.run = counting  # type: ignore[method-assign]
    try:
        drain(engine)
    finally:
        engine.runner.run = run  # type: ignore[method-assign]
    return count


def check_free(one: Rig) -> None:
    """Check that nothing is left of any sequence."""
    one.pool.check()
    assert one.pool.available == one.pool.capacity and not one.engine.sequences and not one.scheduler.prefix.claims
