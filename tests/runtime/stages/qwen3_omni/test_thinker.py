# SPDX-License-Identifier: Apache-2.0
"""The Thinker's text, by the engine that serves every other model."""

import torch
from architectures import read_model
from company import alone_in_company_and_again, handed_over
from tiny import drain, rig, sequence
from tiny_omni import OmniPair

from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.runtime.loaders.hf.directory import HfCheckpoint
from pontil.runtime.loaders.hf.tensor_files import TensorLocation

PROMPT = torch.randint(0, 300, (333,), generator=torch.Generator().manual_seed(3)).tolist()
LENGTHS = (1, 70)
COUNT = 12


def generated(pair: OmniPair, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    found = pair.hugging.thinker.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=COUNT, do_sample=False, eos_token_id=None,
        pad_token_id=0,
    )  # fmt: skip
    tokens: list[int] = found[0, len(prompt) :].tolist()
    return tokens


def test_greedy_tokens_equal_those_of_transformers(pair: OmniPair, library: KernelLibrary | None) -> None:
    expected = {str(length): generated(pair, PROMPT[:length]) for length in LENGTHS}
    assert all(len(set(tokens)) > 5 for tokens in expected.values())
    model = read_model(pair.path, kernels=library)
    ours = rig(model).engine
    for length in LENGTHS:
        ours.add(sequence(str(length), PROMPT[:length], COUNT))
    assert drain(ours) == expected
    assert handed_over(model, PROMPT[:70], COUNT) == expected["70"]


def test_company_chunks_and_replay_change_nothing(pair: OmniPair, library: KernelLibrary | None) -> None:
    alone_in_company_and_again(read_model(pair.path, torch.bfloat16, kernels=library), PROMPT)


def test_other_parts_are_named_and_not_read(pair: OmniPair) -> None:
    checkpoint = HfCheckpoint.open(pair.path)
    assert checkpoint.config.eos_token_ids == (2,)
    places = checkpoint.places
    assert {name.split(".")[0] for name in places} == {"model", "lm_head"}
    whole = [place for place in places.values() if isinstance(place, TensorLocation)]
    assert len(whole) == len(places) and {place.stored_name.split(".")[0] for place in whole} == {"thinker"}
    assert set(checkpoint.left_out) == {"thinker.audio_tower.", "thinker.visual.", "talker.", "code2wav."}
