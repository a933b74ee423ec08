# SPDX-License-Identifier: Apache-2.0
"""Prompts with images and recordings: the positions, the logits and the greedy answer of transformers."""

import json
from pathlib import Path

import pytest
import torch
from architectures import read_model
from host_device import device_engine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omni_stages import BLOCKS, Passes
from shown_prompts import MediaQuestion, marks, prompt_of
from tiny import drain, rig, sequence
from tiny_omni import OmniPair
from torch import Tensor

from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.tile import TileSpan
from pontil.runtime.engine.sequences.streamed import StageStreams
from pontil.runtime.engine.tiles.plan import TilePlan
from pontil.runtime.errors import ModelError, RequestError
from pontil.runtime.models.layers.decoder import Decoder
from pontil.runtime.models.media_rows import MediaRows
from pontil.runtime.stages.graph.medium import IMAGE, MEDIA, SOUND, Medium
from pontil.runtime.stages.graph.stream_buffer import StreamFault
from pontil.runtime.stages.qwen3_omni.encoders.config import read_sections
from pontil.runtime.stages.qwen3_omni.encoders.media_prompt import MediaPrompt
from pontil.runtime.stages.qwen3_omni.encoders.positions import (
    ImagePlace,
    ThreeWayRotary,
    answer_shift,
    rotary_positions,
)
from pontil.runtime.stages.worker.streamed_media import name_media

COUNT = 8


class MediaPasses(Passes):
    """A sequence with media through the tiles of a worker, some rows at a time."""

    def __init__(self, model: Decoder, prompt: MediaPrompt) -> None:
        super().__init__(model)
        self.prompt = prompt

    @torch.inference_mode()
    def compute(self, ids: list[int], generated: bool) -> Tensor:
        """Compute token ids at the next positions; return the logits of the last one."""
        count, span = len(ids), TileSpan(self.length, len(ids), range(1, BLOCKS))
        rows, angles, deep = self.prompt.rows(self.length, ids)
        self.length += count
        plan = TilePlan(generated, ids, [span], [count - 1], [], [], rows, media=MediaRows(angles, deep))
        return self.logits(self.rig.runner.tiles.forward(plan))


def answered(model: Decoder, ids: list[int], prompt: MediaPrompt, cut: int) -> tuple[Tensor, list[int]]:
    """Return the logits at the prompt's end and a greedy answer, the prompt in passes of so many rows."""
    passes, tokens = MediaPasses(model, prompt), list[int]()
    for start in range(0, len(ids), cut):
        logits = passes.compute(ids[start : start + cut], False)
    first = logits
    while True:
        tokens.append(int(logits.argmax()))
        if len(tokens) == COUNT:
            return first, tokens
        logits = passes.compute(tokens[-1:], True)


CASES = {
    "an image": MediaQuestion.of(7, (4, 6), 9),
    "images": MediaQuestion.of(3, (2, 2), (8, 4), 1, (4, 4)),
    "a recording": MediaQuestion.of(5, ("sound", 60), 8),
    "both": MediaQuestion.of((4, 4), 2, ("sound", 33), 6, (6, 2), ("sound", 33), 3),
}


@pytest.mark.parametrize("case", CASES)
def test_a_prompt_with_media_is_answered_as_by_transformers(
    pair: OmniPair, library: KernelLibrary | None, case: str
) -> None:
    asked, model = CASES[case], read_model(pair.path, kernels=library)
    assert isinstance(model, Decoder)
    given = asked.for_transformers()
    with torch.inference_mode():
        expected = pair.hugging.thinker(**given).logits[0, -1:]
        found = pair.hugging.thinker.generate(
            **given, max_new_tokens=COUNT, do_sample=False, eos_token_id=None, pad_token_id=0
        )
    prompt = prompt_of(pair, model, asked)
    for cut in (len(asked.prompt), 5):
        logits, tokens = answered(model, asked.prompt, prompt, cut)
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
        assert tokens == found[0, len(asked.prompt) :].tolist()


def test_an_engine_answers_them_in_company(pair: OmniPair, library: KernelLibrary | None) -> None:
    """Prompts with media and without, at once, in steps of few rows: each as alone, and as transformers does."""
    model = read_model(pair.path, kernels=library)
    assert isinstance(model, Decoder)
    text = list(range(40, 75))
    ids = torch.tensor([text])
    found = pair.hugging.thinker.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=COUNT, do_sample=False, eos_token_id=None,
        pad_token_id=0,
    )  # fmt: skip
    expected = {"text": found[0, len(text) :].tolist()}
    engines = [rig(model, budget=16).engine]
    if library is None:
        engines.append(device_engine(model, budget=16)[0])
    for name, asked in CASES.items():
        for engine in engines:
            one = sequence(name, asked.prompt, COUNT)
            one.streams = StageStreams(media=prompt_of(pair, model, asked))
            engine.add(one)
        found = pair.hugging.thinker.generate(
            **asked.for_transformers(), max_new_tokens=COUNT, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        expected[name] = found[0, len(asked.prompt) :].tolist()
    for engine in engines:
        engine.add(sequence("text", text, COUNT))
        assert drain(engine) == expected


PARTS = st.one_of(st.integers(1, 5), st.tuples(st.sampled_from([2, 4, 6, 10]), st.sampled_from([2, 4, 8])))


def test_an_image_that_nobody_names_is_not_taken_for_another_one_at_its_place(pair: OmniPair) -> None:
    """Ids name the place, and not what is shown there."""
    model = read_model(pair.path)
    assert isinstance(model, Decoder)
    asked = [MediaQuestion.of(20, (8, 8)), MediaQuestion.of(20, (8, 8))]
    asked[1].images = [(patches.flip(0), grid) for patches, grid in asked[1].images]
    assert asked[0].prompt == asked[1].prompt

    def answers(count: int) -> list[list[int]]:
        """Answer the last so many of these questions one after the other, with one prefix cache."""
        used, found = rig(model), list[list[int]]()
        for number, one in enumerate(asked[-count:]):
            shown = sequence(f"a{number}", one.prompt, COUNT, temperature=0.0)
            shown.streams = StageStreams(media=prompt_of(pair, model, one))
            name_media(shown.prefix, shown.prompt, {MEDIA: [["image", 16, 1, 4, 4]]}, shown.id)
            used.engine.add(shown)
            drain(used.engine)
            found.append(shown.output)
        return found

    first, second = answers(2)
    assert [second] == answers(1) and first != second


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(PARTS, min_size=1, max_size=6))
def test_positions_are_those_of_transformers(pair: OmniPair, parts: list[int | tuple[int, int]]) -> None:
    asked = MediaQuestion.of(*parts)
    grids = torch.tensor([grid for _, grid in asked.images]) if asked.images else None
    ids = torch.tensor([asked.prompt])
    expected, shift = pair.hugging.thinker.model.get_rope_index(ids, grids, attention_mask=torch.ones_like(ids))
    images, place = list[ImagePlace](), 0
    for part in parts:
        if isinstance(part, int):
            place += part
        else:
            images.append(ImagePlace(place + 1, part[0] // 2, part[1] // 2))
            place += images[-1].rows + 2
    assert torch.equal(torch.from_numpy(rotary_positions(place, images)).float(), expected[:, 0])
    assert answer_shift(images) == int(shift)


def test_text_is_turned_as_in_a_prompt_without_media(pair: OmniPair) -> None:
    """With the same bits: it may stand in a tile with rows of either kind."""
    model = read_model(pair.path)
    assert isinstance(model, Decoder)
    rotary = prompt_of(pair, model, CASES["a recording"]).angles.rotary
    places = torch.arange(500)
    for mine, usual in zip(rotary(places.expand(3, -1)), model.global_rotary(places), strict=True):
        assert torch.equal(mine, usual)


@pytest.mark.parametrize(
    "prompt", ["", "a", "aaa", "ai", "ia", "iaa", "aaia", "aaii", "xaaxiia", "aaxiixa", "aaixi", "aax"]
)
def test_positions_that_are_not_those_of_the_media_are_refused(prompt: str) -> None:
    """The right one would be two for a recording, then two for an image."""
    ids = ids_of(prompt)
    if prompt == "aaii":
        assert len(small(ids).places) == 4
        return
    with pytest.raises(RequestError):
        small(ids)


def ids_of(letters: str) -> list[int]:
    return [{"a": marks()[SOUND], "i": marks()[IMAGE], "x": 7}[letter] for letter in letters]


def small(ids: list[int]) -> MediaPrompt:
    media = [Medium(SOUND, 2, 1), Medium(IMAGE, 2, 1, 1, 2)]
    return MediaPrompt(ids, media, marks(), lambda ids: torch.zeros(len(ids), 4), ThreeWayRotary(4, 1e4, (1, 1, 0)))


def test_rows_can_be_computed_as_those_of_media_arrive() -> None:
    prompt = small(ids_of("xaaxiix"))
    # Behind the media no row is one of them: what is before may be in a cache, or come from another worker.
    assert [prompt.ready(start, 9) for start in (0, 1, 3, 4, 6, 7)] == [1, 0, 1, 0, 3, 2]
    prompt.push(torch.ones(1, 1, 4))
    assert prompt.ready(0, 9) == 2 and prompt.ready(0, 1) == 1
    prompt.push(torch.ones(1, 1, 4))
    assert prompt.known == 4
    prompt.push(torch.ones(2, 3, 4))
    assert prompt.ready(0, 9) == 9 and prompt.embedded.sum(1).tolist() == [0, 4, 4, 0, 4, 4, 0]
    assert prompt.deep.sum(2).tolist() == [[0, 0, 0, 0, 4, 4, 0]] * 2


@pytest.mark.parametrize(
    "rows",
    [torch.ones(5, 1, 4), torch.ones(1, 1, 5), torch.ones(1, 4), torch.ones(1, 0, 4), torch.ones(1, 1, 4) / 0,
     torch.ones(1, 1, 4, dtype=torch.float16)],
)  # fmt: skip
def test_rows_that_are_not_those_of_the_media_are_refused(rows: Tensor) -> None:
    with pytest.raises(StreamFault):
        small(ids_of("xaaxiix")).push(rows)


@pytest.mark.parametrize("sections", [[4, 2], [4, 2, 3], [2, 4, 2], [4, -2, 6], "no", [4.0, 2, 2]])
def test_sections_that_cannot_be_are_refused(pair: OmniPair, tmp_path: Path, sections: object) -> None:
    rope = {"rope_type": "default", "mrope_section": sections}
    (tmp_path / "config.json").write_text(json.dumps({"thinker_config": {"text_config": {"rope_parameters": rope}}}))
    with pytest.raises(ModelError):
        read_sections(tmp_path, read_model(pair.path).config, "thinker_config")
