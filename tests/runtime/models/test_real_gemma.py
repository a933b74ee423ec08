# SPDX-License-Identifier: Apache-2.0
"""Gemma 3 270M from its quantized file, against transformers' own reading of the same file, past its window of 512."""

from pathlib import Path

import kernels
import pytest
import torch
from architectures import read_model
from tiny import drain, rig, sequence
from transformers import Gemma3ForCausalLM, Gemma3TextConfig
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from pontil.runtime.engine.sequences.batch import Batch, Span
from pontil.runtime.engine.tiles.rows import plan_of
from pontil.runtime.loaders.builtin import resolve_model

FILE = resolve_model("gemma3-270m", Path.home() / ".cache" / "pontil")
pytestmark = pytest.mark.long
LENGTH = 600


def as_transformers_reads_it() -> Gemma3ForCausalLM:
    facts = load_gguf_checkpoint(str(FILE))["config"]
    config = Gemma3TextConfig(**{key: value for key, value in facts.items() if key != "model_type"})
    model = Gemma3ForCausalLM(config).float().eval()
    tensors = load_gguf_checkpoint(str(FILE), return_tensors=True, model_to_load=model)["tensors"]
    left = model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()}, strict=False)
    assert (left.missing_keys, left.unexpected_keys) == (["lm_head.weight"], [])
    return model


@pytest.mark.parametrize("computing", ["torch", "kernels"])
def test_logits_and_greedy_tokens_equal_those_of_transformers(computing: str) -> None:
    library = kernels.opened() if computing == "kernels" else None
    hugging, ours = as_transformers_reads_it(), read_model(FILE, kernels=library)
    ids = [2, *torch.randint(3, 250_000, (LENGTH - 1,), generator=torch.Generator().manual_seed(1)).tolist()]
    one, computed = sequence("a", ids), rig(ours, blocks=60)
    computed.scheduler.add(one)
    computed.scheduler.admit()
    computed.scheduler.memory.grow(one, LENGTH)
    with torch.inference_mode():
        expected = hugging(torch.tensor([ids])).logits[0, ::7]
        batch = Batch((Span(one, 0, LENGTH),))
        tiles = batch.tiles() if library is None else batch.mixed_tiles()
        hidden = torch.cat(
            [computed.runner.tiles.forward(plan_of(tile, [*range(tile.rows)], [], [])) for tile in tiles]
        )
        torch.testing.assert_close(computed.runner.tiles.project(hidden[::7]), expected, atol=2e-3, rtol=1e-4)
    prompt = torch.tensor([[2, 651, 6102, 576, 6081, 603]])
    wanted = hugging.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=64, do_sample=False, eos_token_id=None
    )
    fresh = rig(ours, blocks=60).engine
    fresh.add(sequence("b", prompt[0].tolist(), 64))
    assert drain(fresh)["b"] == wanted[0, prompt.shape[1] :].tolist()
