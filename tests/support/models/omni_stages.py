# SPDX-License-Identifier: Apache-2.0
"""The stages of Qwen3-Omni, called one after the other in one process, without an engine."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from random_models import plain_cut
from tiny import rig
from torch import Tensor

from pontil.gpu_ops.draws.sampling import Shaping, greedy, sample
from pontil.gpu_ops.kernels.tile import KernelTile, TileSpan
from pontil.runtime.engine.sampling.sampler import uniform
from pontil.runtime.engine.tiles.plan import TilePlan
from pontil.runtime.models.hidden_states import HiddenStates
from pontil.runtime.models.model import Model
from pontil.runtime.stages.graph.catalog import CODES_POLICY
from pontil.runtime.stages.graph.policies import ChunkPolicy
from pontil.runtime.stages.qwen3_omni.code2wav import Code2Wav
from pontil.runtime.stages.qwen3_omni.config import FIRST_CODE
from pontil.runtime.stages.qwen3_omni.talker import Talker
from pontil.runtime.stages.qwen3_omni.talker_input import TalkerInput

BLOCKS = 40


class Passes:
    """One sequence through a model, some rows at a time, with KV memory of its own."""

    def __init__(self, model: Model) -> None:
        self.model, self.rig = model, rig(model, blocks=BLOCKS)
        self.length = 0

    @torch.inference_mode()
    def run(self, inputs: Tensor, generated: bool, states: HiddenStates | None = None) -> Tensor:
        """Compute token ids or embeddings at the next positions; return the results of all rows."""
        count, tiles, model = len(inputs), self.rig.runner.tiles, self.model
        span = TileSpan(self.length, count, range(1, BLOCKS))
        self.length += count
        plan = TilePlan(generated, [0] * count, [span], range(count), [], [])
        if model.kernels is not None:
            tile = KernelTile(self.rig.storage.tensor, [span], model.dtype)
            return model.forward_fused(inputs, tile, range(count), states)
        padding = tiles.padded(plan) - count
        padded = torch.cat([inputs, inputs.new_zeros(padding, *inputs.shape[1:])])
        places = tiles.tensor([*plan.positions, *[0] * padding])
        return model.forward(padded, places, tiles.attention(plan, plan.positions), states)[:count]

    @torch.inference_mode()
    def logits(self, result: Tensor) -> Tensor:
        return self.rig.runner.tiles.project(result)


@dataclass(frozen=True)
class ThinkerRun:
    """Greedy text of the Thinker, and its states at all positions but the last token's."""

    tokens: list[int]
    embedding: Tensor
    hidden: Tensor


def think(model: Model, layers: int, prompt: list[int], tokens: int, end: int | None = None) -> ThinkerRun:
    passes, answer, inputs = Passes(model), list[int](), torch.tensor(prompt)
    embeddings, hiddens = [], []
    while True:
        states = HiddenStates(layers)
        result = passes.run(inputs, bool(answer), states)
        assert states.embedding is not None and states.hidden is not None
        embeddings.append(states.embedding[: len(inputs)])
        hiddens.append(states.hidden[: len(inputs)])
        answer += greedy(passes.logits(result[-1:])).tolist()
        if len(answer) == tokens or answer[-1] == end:
            return ThinkerRun(answer, torch.cat(embeddings), torch.cat(hiddens))
        inputs = torch.tensor(answer[-1:])


@dataclass
class Speaking:
    """The Talker's loop for one request: all at once, or as states come. With a `seed` codes are drawn at random."""

    talker: Talker
    given: TalkerInput
    most: int
    seed: int | None = None

    def __post_init__(self) -> None:
        self.passes = Passes(self.talker.decoder)
        self.firsts: list[int] = []
        self.frames: list[Tensor] = []
        self.result: Tensor | None = None
        self.embedding: Tensor | None = None
        self.done = False

    def advance(self) -> None:
        """Go on as far as the states that have come allow."""
        rows = self.given.take_prompt()
        if len(rows):
            self.result = self.passes.run(rows, generated=False)[-1:]
        if self.given.complete and not self.firsts:
            self.draw()
        while not self.done and self.embedding is not None:
            text = self.given.text(len(self.frames) - 1)
            if text is None:
                return
            self.result = self.passes.run((self.embedding + text).unsqueeze(0), generated=True)
            self.draw()

    def draw(self) -> None:
        """Draw a first code; complete its frame unless it was the last."""
        assert self.result is not None
        position = self.passes.length
        self.firsts.append(self.first_code(self.passes.logits(self.result)[0], position))
        self.done = self.firsts[-1] in self.talker.config.decoder.eos_token_ids or len(self.firsts) == self.most
        if not self.done:
            state = self.talker.decoder.normed(self.result)
            first = torch.tensor(self.firsts[-1:])
            numbers = None
            if self.seed is not None:
                numbers = [uniform(self.seed, 0, position, group) for group in range(1, self.talker.config.groups)]
            codes, embedding = self.talker.frames(state, first, [numbers])
            self.frames.append(codes[0])
            self.embedding = embedding[0]

    def first_code(self, logits: Tensor, position: int) -> int:
        logits = logits.clone()
        for code in set(self.firsts):
            logits[code] = logits[code] * FIRST_CODE.repetition_penalty ** (1 if logits[code] < 0 else -1)
        logits[list(self.talker.config.suppressed)] = -torch.inf
        if self.seed is None:
            return int(greedy(logits.unsqueeze(0)))
        values = (FIRST_CODE.temperature, FIRST_CODE.top_p, 0.0)
        temperature, top_p, min_p = (torch.tensor([one], dtype=torch.float64) for one in values)
        number = torch.tensor([uniform(self.seed, 0, position)], dtype=torch.float64)
        shaping = Shaping(temperature, torch.tensor([FIRST_CODE.top_k]), top_p, min_p)
        return int(sample(logits.unsqueeze(0), shaping, torch.tensor([0]), number))


def speak(
    talker: Talker,
    prompt: list[int],
    thought: ThinkerRun,
    speaker: str,
    most: int,
    seed: int | None = None,
    counts: Callable[[int], Iterator[int]] = lambda states: iter([states]),
) -> Tensor:
    """Return the codes int64 [frames, groups]. `counts` divides the states among calls."""
    number = talker.config.speaker(speaker)
    assert number is not None
    speaking = Speaking(talker, TalkerInput(talker, prompt, number), most, seed)
    assert speaking.given.rows > 9
    start = 0
    for count in counts(len(thought.embedding)):
        some = slice(start, start + count)
        speaking.given.push(thought.embedding[some], thought.hidden[some])
        speaking.advance()
        start += count
    assert start == len(thought.embedding)
    speaking.given.end()
    speaking.advance()
    assert speaking.passes.length == speaking.given.rows + len(speaking.frames)
    return torch.stack(speaking.frames) if speaking.frames else torch.empty(0, talker.config.groups, dtype=torch.int64)


def chunks(frames: int, policy: ChunkPolicy = CODES_POLICY) -> Iterator[tuple[range, range]]:
    """Yield the frames of each chunk of so many, and those shown before them."""
    return ((new, context) for _, new, context in plain_cut([None] * frames, policy, None) if new)


def sounds(code2wav: Code2Wav, codes: Tensor, policy: ChunkPolicy = CODES_POLICY) -> list[Tensor]:
    """Return the samples of each chunk of codes int64 [frames, groups]."""
    cut = chunks(len(codes), policy)
    return [code2wav.decode(codes[new.start - len(context) : new.stop], len(context)) for new, context in cut]


def sound(code2wav: Code2Wav, codes: Tensor) -> Tensor:
    return torch.cat([torch.empty(0), *sounds(code2wav, codes)])
