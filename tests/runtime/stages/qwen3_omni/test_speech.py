# SPDX-License-Identifier: Apache-2.0
"""Text, codes and sound of the stages, one after the other, are those of transformers."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from architectures import read_model
from effort import by_default, examples
from omni_stages import Speaking, ThinkerRun, sound, speak, think
from tiny_omni import SPEAKERS, OmniPair, omni_code2wav, omni_talker
from torch import Tensor

from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.runtime.engine.sampling.sampler import uniform
from pontil.runtime.models.model import Model
from pontil.runtime.stages.qwen3_omni.code2wav import Code2Wav
from pontil.runtime.stages.qwen3_omni.talker import Talker
from pontil.runtime.stages.qwen3_omni.talker_input import TalkerInput

CHAT = (
    "<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nhello <|audio_pad|><|audio_pad|> there<|im_end|>\n"
    "<|im_start|>assistant\n"
)
TURNS = (
    "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\ntwo<|im_end|>\n<|im_start|>user\n<|image_pad|> three"
    "<|im_end|>\n<|im_start|>assistant\n"
)
TEXT_TOKENS, MOST_CODES = 9, examples(12, 26)


@dataclass(frozen=True)
class Stages:
    thinker: Model
    talker: Talker
    code2wav: Code2Wav

    def think(self, prompt: list[int], tokens: int = TEXT_TOKENS) -> ThinkerRun:
        return think(self.thinker, self.talker.config.accept_layer, prompt, tokens, 2)


@dataclass(frozen=True)
class Reference:
    """Results of transformers."""

    tokens: list[int]
    codes: Tensor
    sound: Tensor


@pytest.fixture(scope="module")
def stages(pair: OmniPair, library: KernelLibrary | None) -> Stages:
    thinker = read_model(pair.path, kernels=library)
    return Stages(thinker, omni_talker(pair.path, kernels=library), omni_code2wav(pair.path))


def referred(pair: OmniPair, prompt: list[int], speaker: str, tokens: int = TEXT_TOKENS, **more: Any) -> Reference:
    ids, codes, decode = torch.tensor([prompt]), list[Tensor](), pair.hugging.code2wav.chunked_decode

    def recorded(found: Tensor, **sizes: int) -> Tensor:
        codes.append(found[0].T.clone())
        made: Tensor = decode(found, **sizes)
        return made

    pair.hugging.code2wav.chunked_decode = recorded
    settings = {"talker_do_sample": False, "thinker_do_sample": False, "talker_max_new_tokens": MOST_CODES}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            text, made = pair.hugging.generate(
                ids, attention_mask=torch.ones_like(ids), return_audio=True, speaker=speaker,
                thinker_max_new_tokens=tokens, thinker_eos_token_id=2, **(settings | more),
            )  # fmt: skip
    finally:
        pair.hugging.code2wav.chunked_decode = decode
    return Reference(text[0, len(prompt) :].tolist(), codes[0], made[0, 0])


@pytest.mark.parametrize(
    "text, speaker, tokens",
    by_default(
        {(CHAT, "Ethan", 9), (CHAT, "chelsie", 2)},
        [(CHAT, "Ethan", 9), (TURNS, "chelsie", 9), (CHAT, "chelsie", 2), (CHAT, "ethan", 3)],
    ),
)
def test_greedy_speech_is_that_of_transformers(
    pair: OmniPair, stages: Stages, text: str, speaker: str, tokens: int
) -> None:
    prompt = pair.encoded(text)
    expected = referred(pair, prompt, speaker, tokens)
    thought = stages.think(prompt, tokens)
    assert thought.tokens == expected.tokens
    codes = speak(stages.talker, prompt, thought, speaker, MOST_CODES)
    assert torch.equal(codes, expected.codes)
    assert len(codes.unique(dim=0)) > 5
    made = sound(stages.code2wav, codes)
    assert made.shape == expected.sound.shape and expected.sound.std() > 0.1
    torch.testing.assert_close(made, expected.sound, atol=1e-4, rtol=0)


def one_at_a_time(states: int) -> Iterator[int]:
    return iter([1] * states)


def in_pieces(states: int) -> Iterator[int]:
    yield from (3, states - 7, 2, 2)


@pytest.mark.parametrize("text, seed", by_default({(TURNS, None)}, [(CHAT, 5), (TURNS, None)]), ids=["chat", "turns"])
def test_states_may_come_in_any_division(pair: OmniPair, stages: Stages, text: str, seed: int | None) -> None:
    prompt = pair.encoded(text)
    thought = stages.think(prompt)
    whole = speak(stages.talker, prompt, thought, "ethan", MOST_CODES, seed)
    for counts in (one_at_a_time, in_pieces):
        assert torch.equal(speak(stages.talker, prompt, thought, "ethan", MOST_CODES, seed, counts), whole)


class FixedDraws:
    """A stand-in for torch.multinomial: each draw is the first id whose cumulative probability exceeds its number. The
    Talker draws a first code, the code predictor the others of its frame, and so on."""

    def __init__(self, seed: int, start: int, groups: int) -> None:
        self.seed, self.start, self.groups, self.count = seed, start, groups, 0

    def __call__(self, masses: Tensor, num_samples: int) -> Tensor:
        assert num_samples == 1
        frame, group = divmod(self.count, self.groups)
        self.count += 1
        number = uniform(self.seed, 0, self.start + frame, group)
        cumulative = masses.double().cumsum(-1)
        return torch.searchsorted(cumulative, number * cumulative[:, -1:], right=True)


@pytest.mark.parametrize("seed", by_default({1}, [1, 2]))
def test_seeded_speech_is_that_of_transformers(
    pair: OmniPair, stages: Stages, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = pair.encoded(CHAT)
    thought = stages.think(prompt)
    codes = speak(stages.talker, prompt, thought, "ethan", MOST_CODES, seed)
    rows = len(prompt[prompt.index(301) - 1 :]) - 3 + 9
    monkeypatch.setattr(torch, "multinomial", FixedDraws(seed, rows, stages.talker.config.groups))
    expected = referred(pair, prompt, "ethan", talker_do_sample=True)
    assert torch.equal(codes, expected.codes)
    torch.testing.assert_close(sound(stages.code2wav, codes), expected.sound, atol=1e-4, rtol=0)


def test_a_prompt_of_text_needs_embeddings_only(pair: OmniPair, stages: Stages) -> None:
    prompt = pair.encoded(CHAT.replace("<|audio_pad|>", "and"))
    run = stages.think(prompt, 4)
    whole = speak(stages.talker, prompt, run, "ethan", MOST_CODES)
    embedded = stages.thinker.embed(torch.tensor(prompt + run.tokens[:-1]))
    assert torch.equal(embedded, run.embedding)
    given = TalkerInput(stages.talker, prompt, SPEAKERS["ethan"])
    given.push(embedded, None)
    given.end()
    speaking = Speaking(stages.talker, given, MOST_CODES)
    speaking.advance()
    assert torch.equal(torch.stack(speaking.frames), whole)
    media = TalkerInput(stages.talker, pair.encoded(CHAT), SPEAKERS["ethan"])
    with pytest.raises(AssertionError, match="positions of media have no second state"):
        media.push(embedded, None)


def test_an_answer_may_be_begun_in_the_prompt(pair: OmniPair, stages: Stages) -> None:
    """The reference implementation cuts such an answer short: it counts from the first generated token."""
    prompt = pair.encoded(CHAT)
    thought = stages.think(prompt)
    whole = speak(stages.talker, prompt, thought, "ethan", MOST_CODES)
    for begun in (1, 4):
        assert torch.equal(speak(stages.talker, prompt + thought.tokens[:begun], thought, "ethan", MOST_CODES), whole)


@pytest.mark.parametrize("states", by_default({1}, [0, 1, 2]))
def test_short_answers_end(pair: OmniPair, stages: Stages, states: int) -> None:
    """Answers of so many states of text: the mark of the text's end comes in the prompt, or right after it."""
    prompt = pair.encoded(CHAT)
    thought = stages.think(prompt, states + 1)
    assert len(thought.embedding) == len(prompt) + states
    whole = speak(stages.talker, prompt, thought, "ethan", MOST_CODES)
    assert len(whole) == MOST_CODES - 1
    assert torch.equal(speak(stages.talker, prompt, thought, "ethan", MOST_CODES, counts=one_at_a_time), whole)
