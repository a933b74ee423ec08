# SPDX-License-Identifier: Apache-2.0
"""Wrong numbers in config.json, in every field of every architecture: one sentence, or a model that can be computed."""

import json
import math
import random
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from config_fuzz import NUMBERS, SCALINGS, changed, config_of
from effort import examples
from tiny_bert import write_tiny_bert
from tiny_omni import write_tiny_omni

from pontil.gpu_ops.rotary import rotary_frequencies
from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.architectures import SIZES
from pontil.runtime.loaders.facts.layout import tensor_shapes
from pontil.runtime.loaders.hf.config import read_hf_config
from pontil.runtime.loaders.hf.encoder_directory import read_encoder_config
from pontil.runtime.loaders.hf.encoder_families import score_head
from pontil.runtime.models.architectures import ARCHITECTURES, Architecture
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.models.layers.rotary import stretched_by_turns, stretched_by_waves
from pontil.runtime.stages.qwen3_omni.config_file import read_code2wav_config, read_talker_config

READERS: dict[str, Callable[[Path], Any]] = {"talker": read_talker_config, "code2wav": read_code2wav_config}


def written(folder: Path, data: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(data))
    return folder


def numbers_of(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [one for each in value.values() for one in numbers_of(each)]
    if isinstance(value, list | tuple):
        return [one for each in value for one in numbers_of(each)]
    return [value] if isinstance(value, int | float) else []


def can_be_computed(config: ModelConfig) -> None:
    """Everything that is derived before weights are read is finite, and small."""
    assert all(math.isfinite(number) for number in numbers_of(asdict(config)))
    assert all(getattr(config, name) <= most for name, most in SIZES.items())
    assert math.isfinite(config.query_scale) and len(config.windows) in (0, config.num_layers)
    config.fingerprint()
    if config.head_dim <= 64 and config.num_layers * (config.experts.count if config.experts else 1) < 999:
        assert tensor_shapes(config)
        frequencies, scaling = rotary_frequencies(config.rotated, config.rope_theta), config.rope_scaling
        if scaling is not None and scaling.kind == "llama3":
            frequencies = stretched_by_waves(frequencies, scaling)
        if scaling is not None and scaling.kind == "yarn":
            frequencies = stretched_by_turns(frequencies, scaling, config)
        assert bool(torch.isfinite(frequencies).all())


@pytest.mark.parametrize("architecture", ARCHITECTURES.values(), ids=lambda one: one.name)
def test_a_wrong_number_is_refused_in_a_sentence_or_harmless(tmp_path: Path, architecture: Architecture) -> None:
    part = architecture.name if architecture.nested_in is not None else None
    chance = random.Random(architecture.name)
    for scaling in SCALINGS:
        can_be_computed(read_hf_config(written(tmp_path, config_of(architecture, scaling)), part))
    for _ in range(examples(60, 6000)):
        data = changed(config_of(architecture, chance.choice(SCALINGS)), chance)
        try:
            config = read_hf_config(written(tmp_path, data), part)
        except ModelError as error:
            assert len(str(error)) < 400 and "\n" not in str(error)
        else:
            can_be_computed(config)


@pytest.mark.parametrize("reader", READERS)
def test_a_wrong_number_of_the_parts_that_speak(tmp_path: Path, reader: str) -> None:
    write_tiny_omni(tmp_path)
    whole, chance = json.loads((tmp_path / "config.json").read_text()), random.Random(reader)
    READERS[reader](tmp_path)
    for _ in range(examples(60, 6000)):
        data = changed(whole, chance)
        try:
            config = READERS[reader](written(tmp_path, data))
        except ModelError as error:
            assert "\n" not in str(error)
        else:
            assert all(math.isfinite(number) for number in numbers_of(asdict(config)))


def test_a_wrong_number_of_an_encoder(tmp_path: Path) -> None:
    write_tiny_bert(tmp_path)
    whole, chance = json.loads((tmp_path / "config.json").read_text()), random.Random(9)
    whole |= {
        "architectures": ["BertForSequenceClassification"],
        "id2label": {"0": "LABEL_0"},
        "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"},
    }
    for _ in range(examples(60, 6000)):
        try:
            folder = written(tmp_path, changed(whole, chance))
            config = read_encoder_config(folder)
            score_head(json.loads((folder / "config.json").read_text()))
        except ModelError as error:
            assert "\n" not in str(error)
        else:
            assert all(math.isfinite(number) for number in numbers_of(asdict(config)))
            assert config.num_layers <= SIZES["num_layers"] and config.vocab_size <= SIZES["vocab_size"]


def test_end_tokens_of_any_form(tmp_path: Path) -> None:
    written(tmp_path, config_of(ARCHITECTURES["llama"], {}))
    for value in NUMBERS:
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
        try:
            can_be_computed(read_hf_config(tmp_path))
        except ModelError as error:
            assert "eos_token_id" in str(error)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rope_theta": 10**400}, "a number as rope_theta"),
        ({"rope_theta": float("nan")}, "a number as rope_theta"),
        ({"rope_theta": 1.0}, "rope_theta is 1.0: it must be from 1.5"),
        ({"rope_scaling": SCALINGS[0] | {"factor": float("inf")}}, "a number as factor"),
        ({"rope_scaling": SCALINGS[0] | {"factor": 1e308}}, "the rotary positions is 1e.308: it must be from"),
        ({"rope_scaling": SCALINGS[0] | {"beta_fast": 0}}, "beta_fast is 0.0: it must be from 1e-06"),
        ({"rope_scaling": SCALINGS[1] | {"mscale": 1.0, "mscale_all_dim": -7.2134752}}, "mscale_all_dim is -7"),
        ({"num_hidden_layers": 10**8}, "num_layers is 100000000: it must be positive, and at most 1024"),
        ({"max_position_embeddings": 1 << 40}, "max_model_len is 1099511627776: .* at most 33554432"),
        ({"vocab_size": 1 << 41}, "a whole number as vocab_size"),
        ({"rms_norm_eps": -1}, "rms_norm_eps is -1"),
    ],
    ids=str,
)
def test_numbers_that_no_model_has(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    data = config_of(ARCHITECTURES["llama"], {}) | changes
    with pytest.raises(ModelError, match=says):
        read_hf_config(written(tmp_path, data))
