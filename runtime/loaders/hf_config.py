# SPDX-License-Identifier: Apache-2.0
"""The model configuration of a Hugging Face directory: config.json, and generation_config.json for the ends.

No torch here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.llama_layout import check_architecture, checked
from pontil.runtime.models.config import ModelConfig

DTYPES = ("bfloat16", "float16", "float32")
# What this version computes; a config that says anything else would be run wrongly.
FIXED: dict[str, Any] = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "quantization_config": None}


def read_hf_config(directory: Path) -> ModelConfig:
    """Raises ModelError for another architecture, a feature of Llama that is not there yet, or a missing field."""
    data = read_json(directory / "config.json")
    check_architecture(data.get("model_type"))
    refuse_unsupported(data)
    hidden, heads = integer(data, "hidden_size"), integer(data, "num_attention_heads")
    return checked(
        ModelConfig(
            architecture=data["model_type"],
            vocab_size=integer(data, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=integer(data, "intermediate_size"),
            num_layers=integer(data, "num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=integer(data, "num_key_value_heads", heads),
            head_dim=integer(data, "head_dim", hidden // max(heads, 1)),
            max_model_len=integer(data, "max_position_embeddings", 2048),
            rms_norm_eps=number(data, "rms_norm_eps", 1e-6),
            rope_theta=number(rope(data), "rope_theta", number(data, "rope_theta", 10000.0)),
            tie_word_embeddings=bool(data.get("tie_word_embeddings", False)),
            dtype=dtype(data),
            eos_token_ids=end_ids(directory, data),
            bos_token_id=integer(data, "bos_token_id") if data.get("bos_token_id") is not None else None,
        )
    )


def read_json(path: Path) -> dict[str, Any]:
    """An object from a JSON file. Raises ModelError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON: fetch the model again") from error
    if not isinstance(data, dict):
        raise ModelError(f"{path} holds no JSON object: fetch the model again")
    return data


def integer(data: dict[str, Any], key: str, default: int | None = None) -> int:
    value = data.get(key)
    value = default if value is None else value
    if type(value) is not int:
        raise ModelError(f"config.json needs a whole number as {key}, not {value!r}")
    return value


def number(data: dict[str, Any], key: str, default: float) -> float:
    value = data.get(key)
    value = default if value is None else value
    if type(value) not in (int, float):
        raise ModelError(f"config.json needs a number as {key}, not {value!r}")
    return float(value)


def rope(data: dict[str, Any]) -> dict[str, Any]:
    """Newer files keep everything about rotary positions in one object, older ones only its scaling."""
    found = data.get("rope_parameters") or data.get("rope_scaling") or {}
    if not isinstance(found, dict):
        raise ModelError(f"config.json needs an object as rope_parameters, not {found!r}")
    return found


def refuse_unsupported(data: dict[str, Any]) -> None:
    scaling = rope(data).get("rope_type", rope(data).get("type", "default"))
    if scaling != "default":
        raise ModelError(f"the model scales its rotary positions ({scaling}): this version runs unscaled ones only")
    for key, only in FIXED.items():
        if data.get(key, only) != only:
            raise ModelError(f"the model has {key} = {short(data[key])}: this version runs {only!r} only")


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"


def dtype(data: dict[str, Any]) -> str:
    name = data.get("dtype") or data.get("torch_dtype") or "float32"
    if name not in DTYPES:
        raise ModelError(f"the model's weights are {name!r}: this version reads {', '.join(DTYPES)}")
    return str(name)


def end_ids(directory: Path, data: dict[str, Any]) -> tuple[int, ...]:
    """generation_config.json is the later word: chat models list their end-of-turn tokens there."""
    generation = directory / "generation_config.json"
    found = read_json(generation).get("eos_token_id") if generation.is_file() else None
    found = data.get("eos_token_id") if found is None else found
    ids = found if isinstance(found, list) else [] if found is None else [found]
    if not all(type(item) is int for item in ids):
        raise ModelError(f"the model's eos_token_id is {short(found)}: it must be a token id or a list of them")
    return tuple(dict.fromkeys(ids))
