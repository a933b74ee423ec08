# SPDX-License-Identifier: Apache-2.0
"""The codes of a frame after its first one: those of transformers, alone and in any company."""

from dataclasses import replace

import pytest
import torch
from tiny_omni import OmniPair, code_predictor, omni_talker
from torch import Tensor
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeTalkerCodePredictorConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration,
)
from workers import Silent

from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.products.linear import Linear
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.engine.sampling.sampler import uniform
from pontil.runtime.models.weights import Packing, Weights
from pontil.runtime.stages.graph.catalog import QWEN3_OMNI
from pontil.runtime.stages.qwen3_omni.code_predictor import CodePredictor, FrameNumbers, PredictorDecoder
from pontil.runtime.stages.qwen3_omni.config import OTHER_CODES
from pontil.runtime.stages.qwen3_omni.config_file import read_talker_config
from pontil.runtime.stages.qwen3_omni.speech_loading import load_talker_decoder
from pontil.runtime.stages.qwen3_omni.stage import OmniTalker
from pontil.runtime.stages.worker.stage_loading import load_stage
from pontil.runtime.worker.start.loading import PartWeights

# More than a tile of torch's products.
FRAMES = 37


def numbers(groups: int) -> list[FrameNumbers]:
    """Every third frame has the most likely codes."""
    return [
        None if frame % 3 == 0 else [uniform(frame, 0, 7, group) for group in range(1, groups)]
        for frame in range(FRAMES)
    ]


def inputs(hidden: int, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    states, entering = (torch.randn(FRAMES, hidden, generator=generator) for _ in range(2))
    return states, torch.randint(0, 64, (FRAMES,), generator=generator), entering


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bits_of_a_frame_in_any_company(pair: OmniPair, library: KernelLibrary | None, dtype: torch.dtype) -> None:
    predictor = omni_talker(pair.path, dtype, library).predictor
    states, first, entering = inputs(predictor.decoder.config.hidden_size)
    drawn = numbers(predictor.groups)
    together = predictor.complete(states, first, entering, drawn)
    assert torch.equal(together[:, 0], first) and together.shape == (FRAMES, predictor.groups)
    for start, end in ((0, 1), (1, 2), (4, 9), (30, 37)):
        some = slice(start, end)
        assert torch.equal(predictor.complete(states[some], first[some], entering[some], drawn[some]), together[some])
    turned = list(reversed(range(FRAMES)))
    again = predictor.complete(states[turned], first[turned], entering[turned], [drawn[one] for one in turned])
    assert torch.equal(again[turned], together)
    certain = predictor.complete(states, first, entering, [None] * FRAMES)
    assert torch.equal(certain[::3], together[::3]) and not torch.equal(certain, together)


def test_a_frame_that_is_not_finite_harms_no_later_one(pair: OmniPair, library: KernelLibrary | None) -> None:
    predictor = omni_talker(pair.path, torch.float32, library).predictor
    states, first, entering = inputs(predictor.decoder.config.hidden_size)
    drawn = numbers(predictor.groups)
    expected = predictor.complete(states, first, entering, drawn)
    predictor.complete(states * torch.nan, first, entering, drawn)
    assert torch.equal(predictor.complete(states, first, entering, drawn), expected)


def test_no_frames_are_no_codes(pair: OmniPair) -> None:
    predictor = omni_talker(pair.path).predictor
    nothing = torch.empty(0, predictor.decoder.config.hidden_size)
    assert predictor.complete(nothing, torch.empty(0, dtype=torch.int64), nothing, []).shape == (0, predictor.groups)


@pytest.mark.parametrize("groups", [2, 16, 19])
def test_codes_of_many_groups_are_those_of_transformers(
    pair: OmniPair, library: KernelLibrary | None, groups: int
) -> None:
    """Frames of more than one block of KV memory, too."""
    torch.manual_seed(4)
    sizes = Qwen3OmniMoeTalkerCodePredictorConfig(**(code_predictor() | {"num_code_groups": groups}))
    model = Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration(sizes).float().eval()
    config = replace(read_talker_config(pair.path).predictor, max_model_len=groups)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    weights = Weights(state.items(), torch.device("cpu"), torch.float32, Packing.of(library))
    predictor = CodePredictor(PredictorDecoder(config, groups, weights), groups, OTHER_CODES)
    states, first, entering = inputs(config.hidden_size)
    codes = predictor.complete(states[:3], first[:3], entering[:3], [None] * 3)
    for frame in range(3):
        found = model.generate(
            inputs_embeds=torch.stack([states[frame], entering[frame]]).unsqueeze(0), max_new_tokens=groups - 1,
            do_sample=False,
        )  # fmt: skip
        assert codes[frame, 1:].tolist() == found[0].tolist()


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_products_of_a_stage_are_as_its_decoders_are(pair: OmniPair, deterministic: bool) -> None:
    config = WorkerConfig(
        "talker:0", "mixed", "cpu", (0,), str(pair.path), "tiny", "", "", graph=QWEN3_OMNI.name, node="talker",
        deterministic=deterministic,
    )  # fmt: skip
    decoder = load_talker_decoder(pair.path, torch.device("cpu"), torch.float32)
    parts = PartWeights(config, decoder.device, decoder.dtype, None, Silent())
    stage = load_stage(config, decoder, parts.read).talker
    assert isinstance(stage, OmniTalker)
    talker = stage.talker
    products = [talker.project_text.up, talker.project_hidden.down, *talker.predictor.decoder.linears]
    assert {one.deterministic for one in products if isinstance(one, Linear)} == {deterministic}
