# SPDX-License-Identifier: Apache-2.0
"""Sound from codes: that of transformers for every division into chunks, and of the length that was foretold."""

from dataclasses import replace

import kernels
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_omni import CODES, GROUPS, OmniPair, omni_code2wav
from torch import Tensor

from pontil.runtime.stages.qwen3_omni.code2wav import chunks
from pontil.runtime.stages.qwen3_omni.config_file import read_code2wav_config


def codes(frames: int) -> Tensor:
    return torch.randint(0, CODES, (frames, GROUPS), generator=torch.Generator().manual_seed(frames))


@pytest.mark.parametrize("by_kernels", [False, True])
@pytest.mark.parametrize("frames, size, left", [(1, 300, 25), (31, 300, 25), (31, 10, 3), (30, 10, 25), (12, 1, 2)])
def test_sound_is_that_of_transformers(pair: OmniPair, frames: int, size: int, left: int, by_kernels: bool) -> None:
    ours, found = omni_code2wav(pair.path, kernels.opened() if by_kernels else None), codes(frames)
    with torch.inference_mode():
        expected = pair.hugging.code2wav.chunked_decode(found.T.unsqueeze(0), size, left)[0, 0]
    parts = [ours.decode_chunk(found, chunk) for chunk in chunks(frames, size, left)]
    lengths = [ours.config.samples(one.end - one.start, one.context) for one in chunks(frames, size, left)]
    assert [len(part) for part in parts] == lengths
    torch.testing.assert_close(torch.cat(parts), expected, atol=1e-5, rtol=0)


def test_a_chunk_does_not_depend_on_frames_after_it_or_far_before(pair: OmniPair) -> None:
    ours, found = omni_code2wav(pair.path), codes(60)
    whole = [ours.decode_chunk(found, chunk) for chunk in chunks(60, 20, 5)]
    others = torch.cat([codes(14), found[14:41], codes(19)])
    again = [ours.decode_chunk(others, chunk) for chunk in chunks(60, 20, 5)]
    assert not torch.equal(again[0], whole[0]) and torch.equal(again[1][:5], whole[1][:5])
    assert torch.equal(ours.decode(found[15:40], 5), whole[1])


@given(st.integers(0, 2000), st.integers(1, 400), st.integers(0, 60))
def test_chunks_hold_every_frame_once(frames: int, size: int, left: int) -> None:
    found = list(chunks(frames, size, left))
    assert [frame for one in found for frame in range(one.start, one.end)] == list(range(frames))
    assert all(0 <= one.context == min(one.start, left) and one.first >= 0 for one in found)
    assert all(one.end - one.start == size for one in found[:-1])


def test_samples_of_the_published_sizes(pair: OmniPair) -> None:
    """Every chunk leaves out the same number of samples, whatever it has before it."""
    config = replace(read_code2wav_config(pair.path), ratios=(2, 2), rates=(8, 5, 4, 3))
    assert config.samples_per_frame == 1920
    lost = {config.samples_per_frame * frames - config.samples(frames, context)
            for frames in (1, 2, 25, 300) for context in (0, 1, 25)}  # fmt: skip
    assert lost == {555} and config.samples(0) == 0
