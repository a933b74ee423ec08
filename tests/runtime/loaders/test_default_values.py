# SPDX-License-Identifier: Apache-2.0
"""Fields that config.json leaves out: what transformers' configuration classes assume, or a refusal."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.config import read_config
from pontil.runtime.models.config import ModelConfig

# Classes, and what has to be said because they have no value for it.
CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v2": ("DeepseekV2Config", {"num_experts_per_tok": 6}),
    "deepseek_v3": ("DeepseekV3Config", {}),
    "mixtral": ("MixtralConfig", {}),
    "gpt_oss": ("GptOssConfig", {}),
    "glm4": ("Glm4Config", {}),
    # A part of 4096 / 96 dimensions, the head that it assumes, cannot be rotated.
    "glm4_moe": ("Glm4MoeConfig", {"head_dim": 128}),
    "qwen3_moe": ("Qwen3MoeConfig", {}),
}
# Sizes that differ from model to model, without which nothing is loaded.
SIZES = {
    "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_experts_per_tok", "moe_intermediate_size", "num_local_experts", "n_routed_experts", "num_experts",
    "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
}  # fmt: skip


def read(folder: Path, fields: dict[str, Any]) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(fields))
    return read_config(folder)


@pytest.mark.parametrize("name", CLASSES)
def test_a_missing_field_has_the_value_that_transformers_assumes(name: str, tmp_path: Path) -> None:
    kind, said = CLASSES[name]
    fields = getattr(transformers, kind)(**said).to_dict()
    assert fields["model_type"] == name
    whole = read(tmp_path, fields)
    for key in fields:
        try:
            found = read(tmp_path, {other: value for other, value in fields.items() if other != key})
        except ModelError:
            assert key in SIZES | set(said), f"{key} is missing, and transformers assumes {fields[key]!r}"
            continue
        assert found == whole, key


@pytest.mark.parametrize("name", CLASSES)
def test_fields_that_are_missing_together_have_these_values_too(name: str, tmp_path: Path) -> None:
    kind, said = CLASSES[name]
    fields = getattr(transformers, kind)(**said).to_dict()
    whole = read(tmp_path, fields)
    assert read(tmp_path, {key: value for key, value in fields.items() if key in SIZES | set(said)}) == whole
