# SPDX-License-Identifier: Apache-2.0
"""Sound of frames: that of plain torch modules, from a directory with the names of the published files."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_orpheus import BOOK, FIRST_CODE, FRAME_SAMPLES, TinyOrpheus, write_tiny_orpheus

from pontil.runtime.errors import ModelError
from pontil.runtime.stages.orpheus.config import read_snac_config
from pontil.runtime.stages.orpheus.snac import Snac
from pontil.runtime.stages.orpheus.snac_loading import load_snac, snac_identity
from pontil.runtime.stages.orpheus.speech_ids import read_speech_ids


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[TinyOrpheus]:
    """A directory that a test may change, and one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield write_tiny_orpheus(tmp_path / "model")
    torch.set_num_threads(threads)


def frames(count: int) -> list[list[int]]:
    drawn: list[list[int]] = torch.randint(0, BOOK, (count, 7), generator=torch.Generator().manual_seed(count)).tolist()
    return drawn


@pytest.mark.parametrize("count", [1, 4, 9])
def test_sound_is_that_of_plain_modules(tiny: TinyOrpheus, count: int) -> None:
    ours, found = load_snac(tiny.path), frames(count)
    noise, made = ours.noise(found), ours.decode(found)
    assert len(made) == count * FRAME_SAMPLES and made.std() > 0.1
    # Convolutions add in another order on each processor, which periodic activations magnify at a few samples.
    error = (made - tiny.snac.sound(found, noise)).abs()
    assert error.max() < 5e-4 and error.mean() < 5e-5


def test_the_noise_of_a_frame_is_its_own(tiny: TinyOrpheus) -> None:
    ours, found = load_snac(tiny.path), frames(3)
    whole, alone = ours.noise(found), ours.noise(found[1:2])
    rows = ours.config.frame_rows
    assert [torch.equal(one[size : 2 * size], other) for one, other, size in zip(whole, alone, rows, strict=True)]
    assert not torch.equal(whole[0][: rows[0]], alone[0])
    config = tiny.path / "snac/config.json"
    config.write_text(config.read_text().replace('"noise": true', '"noise": false'))
    assert not read_snac_config(tiny.path).noise


def test_the_ids_that_are_codes(tiny: TinyOrpheus) -> None:
    ids = read_speech_ids(tiny.path)
    assert (ids.codes, ids.end) == (tiny.codes, tiny.end)
    words = tiny.path / "tokenizer.json"
    words.write_text(words.read_text().replace(FIRST_CODE, "<other>"))
    with pytest.raises(ModelError, match="no tokens from <custom_token_10> on for 448 codes"):
        read_speech_ids(tiny.path)


@pytest.mark.parametrize(
    "changes, fault",
    [
        ({"vq_strides": [8, 4, 2, 1]}, "vq_strides"), ({"attn_window_size": 32}, "attn_window_size"),
        ({"depthwise": False}, "depthwise"), ({"decoder_rates": [0]}, "decoder_rates"),
        ({"decoder_rates": [2] * 5}, "cannot be halved 5 times"), ({"codebook_size": 0}, "codebook_size"),
        ({"encoder_dim": None}, "encoder_dim"), ({"sampling_rate": 32000}, "sampling_rate is 32000.* runs 24000 only"),
        ({"decoder_rates": [64] * 4}, "67108864 samples.* 65536 at most"),
    ],
)  # fmt: skip
def test_what_cannot_be_computed_is_named(tiny: TinyOrpheus, changes: dict[str, Any], fault: str) -> None:
    path = tiny.path / "snac/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ModelError, match=fault):
        read_snac_config(tiny.path)


def without_a_length(tensors: dict[str, Any]) -> None:
    del tensors["decoder.model.1.parametrizations.weight.original0"]


def with_another(tensors: dict[str, Any]) -> None:
    tensors["decoder.model.9.bias"] = torch.zeros(1)


def with_lengths_of_others(tensors: dict[str, Any]) -> None:
    tensors["decoder.model.1.parametrizations.weight.original0"] = torch.ones(5, 1, 1)


def with_no_number(tensors: dict[str, Any]) -> None:
    tensors["decoder.model.1.bias"][0] = torch.nan


@pytest.mark.parametrize("change", [without_a_length, with_another, with_lengths_of_others])
def test_tensors_are_checked(tiny: TinyOrpheus, change: Callable[[dict[str, Any]], None]) -> None:
    path, identity = tiny.path / "snac/model.safetensors", snac_identity(tiny.path)
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    assert snac_identity(tiny.path) != identity
    with pytest.raises(ModelError, match=r"decoder\.model\."):
        load_snac(tiny.path)


def test_a_decoder_that_makes_no_sound_is_not_served(tiny: TinyOrpheus, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny.path / "snac/model.safetensors"
    tensors = load_file(path)
    with_no_number(tensors)
    save_file(tensors, path)
    with pytest.raises(ModelError, match="SNAC makes no sound of a frame: fetch the model again"):
        load_snac(tiny.path)

    def fail(*arguments: object) -> torch.Tensor:
        raise RuntimeError("no room")

    monkeypatch.setattr(Snac, "decode", fail)
    with pytest.raises(ModelError, match="SNAC makes no sound of a frame: no room"):
        load_snac(tiny.path)
