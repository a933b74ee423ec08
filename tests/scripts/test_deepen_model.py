# SPDX-License-Identifier: Apache-2.0
"""Models for measurements of speculation: what they answer, whatever part of a text they have read."""

from pathlib import Path

import gguf
import pytest
from architectures import read_model
from converter import convert
from deepen_model import deepen
from tiny import drain, reference, rig, sequence

Q8, F32 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.F32


def answer(path: Path, prompt: list[int]) -> list[int]:
    ours = rig(read_model(path))
    ours.engine.add(sequence("a", prompt, max_tokens=12))
    return drain(ours.engine)["a"]


@pytest.mark.parametrize("kind", [F32, Q8])
def test_a_deeper_model_answers_as_the_one_that_it_was_made_from(
    tmp_path: Path, kind: gguf.GGMLQuantizationType
) -> None:
    given = convert(reference(), tmp_path / "given.gguf", kind=kind)
    deepen(given, 3, False, tmp_path / "deep.gguf")
    assert answer(tmp_path / "deep.gguf", [5, 6, 7]) == answer(given, [5, 6, 7])
    assert read_model(tmp_path / "deep.gguf").config.num_layers == 3 * read_model(given).config.num_layers


@pytest.mark.parametrize("times", [1, 3])
def test_models_that_count_need_no_more_than_the_last_token(tmp_path: Path, times: int) -> None:
    """Answers that repeat themselves are guessed by what was found in them, and a draft model that has read a part of
    a text guesses other tokens than the model that has read all of it."""
    deepen(convert(reference(), tmp_path / "given.gguf", kind=Q8), times, True, tmp_path / "counting.gguf")
    for prompt in ([7], [5, 6, 7], [20, 3, 9, 7]):
        assert answer(tmp_path / "counting.gguf", prompt) == list(range(8, 20))
