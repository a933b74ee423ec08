# SPDX-License-Identifier: Apache-2.0
"""Sound from codes: that of transformers from all codes at once, as far as a chunk sees, for any division."""

from dataclasses import replace

import kernels
import pytest
import torch
from omni_stages import chunks, sounds
from tiny_omni import CODES, GROUPS, OmniPair, omni_code2wav
from torch import Tensor

from pontil.runtime.stages.graph.catalog import CODES_POLICY, QWEN3_OMNI
from pontil.runtime.stages.graph.policies import ChunkPolicy, LeftContext
from pontil.runtime.stages.qwen3_omni.config_file import read_code2wav_config

# Frames that the tiny model's layers and convolutions look back: 2 layers of a window of 7, and less than 16 more.
REACH = 2 * 6 + 16


def codes(frames: int) -> Tensor:
    return torch.randint(0, CODES, (frames, GROUPS), generator=torch.Generator().manual_seed(frames))


def whole(pair: OmniPair, found: Tensor) -> Tensor:
    """Return the sound that transformers makes of all codes at once."""
    with torch.inference_mode():
        made: Tensor = pair.hugging.code2wav(found.T.unsqueeze(0))[0, 0]
    return made


@pytest.mark.parametrize(
    "frames, policy",
    [
        (1, CODES_POLICY), (11, CODES_POLICY), (12, CODES_POLICY), (31, CODES_POLICY), (97, CODES_POLICY),
        (70, LeftContext(10, REACH)), (66, LeftContext(33, REACH, lead=(1, 2, 30))),
    ],
)  # fmt: skip
@pytest.mark.parametrize("by_kernels", [False, True])
def test_sound_in_chunks_is_that_of_all_codes_at_once(
    pair: OmniPair, frames: int, policy: ChunkPolicy, by_kernels: bool
) -> None:
    ours, found = omni_code2wav(pair.path, kernels.opened() if by_kernels else None), codes(frames)
    parts, expected = sounds(ours, found, policy), whole(pair, found)
    lengths = [ours.config.samples(new.stop) - ours.config.samples(new.start) for new, _ in chunks(frames, policy)]
    assert [len(part) for part in parts] == lengths and all(lengths)
    torch.testing.assert_close(torch.cat(parts), expected, atol=1e-4, rtol=0)


def test_a_chunk_that_sees_too_little_differs_and_is_as_long(pair: OmniPair) -> None:
    """Only where the codes that it lacks would matter: not in the chunks of the lead."""
    ours, found, policy = omni_code2wav(pair.path), codes(40), LeftContext(10, 2, lead=(5, 15))
    made, expected = torch.cat(sounds(ours, found, policy)), whole(pair, found)
    assert made.shape == expected.shape
    far, exact = (made - expected).abs(), ours.config.samples(20)
    assert far[:exact].max() < 1e-4 < far[exact:].max()


def test_chunks_behind_the_lead_are_those_of_transformers(pair: OmniPair) -> None:
    """It begins each of them where the frames begin, and leaves out what the last row of the one before lacked."""
    ours, found = omni_code2wav(pair.path), codes(31)
    with torch.inference_mode():
        theirs = pair.hugging.code2wav.chunked_decode(found.T.unsqueeze(0), 10, 3)[0, 0]
    lost = 10 * ours.config.samples_per_frame - ours.config.samples(10)
    parts = sounds(ours, found, LeftContext(10, 3))
    torch.testing.assert_close(torch.cat([parts[0], *(part[lost:] for part in parts[1:])]), theirs, atol=1e-5, rtol=0)


def test_a_chunk_does_not_depend_on_frames_after_it_or_far_before(pair: OmniPair) -> None:
    ours, found, policy = omni_code2wav(pair.path), codes(60), LeftContext(20, 5)
    parts = sounds(ours, found, policy)
    again = sounds(ours, torch.cat([codes(14), found[14:41], codes(19)]), policy)
    assert not torch.equal(again[0], parts[0]) and torch.equal(again[1], parts[1])
    assert torch.equal(ours.decode(found[15:40], 5), parts[1])


def test_the_first_sound_is_less_than_a_second(pair: OmniPair) -> None:
    """At the published sizes. The samples of the last frame that lack the next one are less than half of it."""
    config = replace(read_code2wav_config(pair.path), ratios=(2, 2), rates=(8, 5, 4, 3))
    assert config.samples_per_frame == 1920
    assert {1920 * frames - config.samples(frames) for frames in (1, 2, 25, 300)} == {555} and config.samples(0) == 0
    first, *_ = chunks(400)
    assert config.samples(len(first[0])) == 12 * 1920 - 555 < QWEN3_OMNI.sample_rate
    # The lead ends where the first chunk of the reference implementation does.
    assert [new.stop for new, context in chunks(400) if len(context) == new.start] == [12, 24, 48, 96, 192, 300]
