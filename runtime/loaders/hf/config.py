# SPDX-License-Identifier: Apache-2.0
"""The model configuration of a Hugging Face directory: config.json, and generation_config.json for the end tokens.

No torch here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.architectures import check_range, check_scaling, checked, unknown
from pontil.runtime.loaders.facts.form_choice import WeightScheme
from pontil.runtime.loaders.facts.json_fields import MOST, integer, layer_count, number, read_json, section, short
from pontil.runtime.loaders.facts.weight_schemes import weight_block, weight_scheme
from pontil.runtime.loaders.hf.experts import UNGATED, expert_config
from pontil.runtime.loaders.hf.recurrent import recurrent_config
from pontil.runtime.loaders.hf.rope import FULL, SLIDING, local_theta, rope_scaling, rotated_dim, score_factor, theta
from pontil.runtime.models.architectures import ARCHITECTURES, Architecture
from pontil.runtime.models.config import Factors, LatentConfig, ModelConfig


def latent_config(data: dict[str, Any]) -> LatentConfig:
    """Raises ModelError for a missing size."""
    return LatentConfig(
        rank=integer(data, "kv_lora_rank"),
        query_rank=None if data.get("q_lora_rank") is None else integer(data, "q_lora_rank"),
        key_dim=integer(data, "qk_nope_head_dim"),
        rotary_dim=integer(data, "qk_rope_head_dim"),
        value_dim=integer(data, "v_head_dim"),
    )


DTYPES = ("bfloat16", "float16", "float32")
FIXED: dict[str, Any] = {"mlp_bias": False}
"""What this version computes, whatever the architecture."""


def read_hf_config(directory: Path, part: str | None = None) -> ModelConfig:
    """Read the configuration of the text model, or of another part, by its architecture, of a model of several. Raises
    ModelError for another architecture, an unsupported feature, or a missing field."""
    data = text_model(read_json(directory / "config.json"), part)
    name = data.get("model_type")
    if name not in tuple(ARCHITECTURES):
        raise unknown(name, tuple(ARCHITECTURES))
    architecture = ARCHITECTURES[name]
    data = {**architecture.defaults, **data}
    refuse_unsupported(data, {**FIXED, **architecture.fixed})
    return checked(model_config(architecture, data, end_ids(directory, data)))


def read_weight_scheme(directory: Path, part: str | None = None) -> WeightScheme | None:
    """Read the scheme by which the weights of the text model, or of another part, are quantized. Raises ModelError."""
    return weight_scheme(text_model(read_json(directory / "config.json"), part))


def read_section_scheme(directory: Path, path: tuple[str, ...]) -> WeightScheme | None:
    """Read the scheme of a part whose fields are in a section of config.json, within others: its own, or else that of
    what is around it. Raises ModelError."""
    return weight_scheme(nested(read_json(directory / "config.json"), path))


def text_model(data: dict[str, Any], part: str | None = None) -> dict[str, Any]:
    """Return the text model's fields; some files have them in a section of their own, beside one for an image
    encoder."""
    found = data.get("model_type")
    rows = (row for row in ARCHITECTURES.values() if found is not None and row.nested_in == found)
    inner = next((row for row in rows if part in (None, row.name)), None)
    if inner is None:
        return data
    if data.get("vision_config") and not inner.others:
        raise ModelError(
            f"this model reads images too (model_type {found}): this version runs {inner.name} models only"
        )
    return {**nested(data, inner.section), "model_type": inner.name}


def nested(data: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """The fields of a section within sections, with those around it that it leaves open."""
    for key in path:
        data = data | {name: value for name, value in section(data, key).items() if value is not None}
    return data


def model_config(architecture: Architecture, data: dict[str, Any], eos_token_ids: tuple[int, ...]) -> ModelConfig:
    hidden, heads = integer(data, "hidden_size"), integer(data, "num_attention_heads")
    biased = bool(data.get("attention_bias"))
    experts = expert_config(architecture, data) if architecture.has_experts else None
    scaling, latent = rope_scaling(data), latent_config(data) if architecture.latent else None
    head_dim = latent.stored_dim if latent else integer(data, "head_dim", hidden // max(heads, 1))
    rotated = rotated_dim(data, head_dim, architecture.partial_rotary) if has_positions(architecture, data) else 0
    max_model_len = integer(data, "max_position_embeddings")
    if scaling is not None and scaling.kind == "yarn":
        # Its product with a factor that no model has may be infinite.
        check_scaling(scaling)
        max_model_len = max(max_model_len, int(scaling.original_max_len * scaling.factor))
    return ModelConfig(
        architecture=architecture.name,
        vocab_size=integer(data, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=integer(data, "intermediate_size" if experts or not architecture.has_experts else UNGATED),
        num_layers=layer_count(data),
        num_heads=heads,
        num_kv_heads=1 if latent else integer(data, "num_key_value_heads", heads),
        head_dim=head_dim,
        max_model_len=max_model_len,
        rms_norm_eps=number(data, "rms_norm_eps", 1e-6),
        rope_theta=theta(data),
        tie_word_embeddings=bool(data.get("tie_word_embeddings", False)),
        dtype=dtype(data),
        eos_token_ids=eos_token_ids,
        bos_token_id=integer(data, "bos_token_id") if data.get("bos_token_id") is not None else None,
        rope_scaling=scaling,
        local_rope_theta=local_theta(data) if architecture.local_positions else None,
        windows=windows(architecture, data),
        factors=factors(architecture, data, latent),
        qkv_bias=architecture.qkv_bias or biased,
        output_bias=biased and architecture.output_bias and not architecture.qkv_bias,
        experts=experts,
        mixer=latent or recurrent_config(architecture, data),
        rotary_dim=latent.rotary_dim if latent else rotated,
        interleaved=bool(data.get("rope_interleave")),
        weight_block=weight_block(data),
        sinks=architecture.sinks,
        head_norms=architecture.optional_head_norms and bool(data.get("use_qk_norm")),
    )


def has_positions(architecture: Architecture, data: dict[str, Any]) -> bool:
    """Return whether heads are rotated: not in a model that may do without, unless it says so. Raises ModelError."""
    if "position_embedding_type" not in architecture.defaults:
        return True
    kind = data.get("position_embedding_type")
    if kind not in (None, "nope", "rope"):
        raise ModelError(f"the model has position_embedding_type = {short(kind)}: this version runs rope and nope only")
    return bool(kind == "rope")


def factors(architecture: Architecture, data: dict[str, Any], latent: LatentConfig | None) -> Factors:
    """Raises ModelError for one that is no number or out of range."""
    if "residual_multiplier" not in architecture.defaults:
        return Factors(query_scalar(architecture, data, latent))
    multiplier = number(data, "attention_multiplier")
    check_range("the model's attention_multiplier", multiplier)
    stated = (number(data, name) for name in ("embedding_multiplier", "residual_multiplier", "logits_scaling"))
    return Factors(multiplier**-2, *stated)


def query_scalar(architecture: Architecture, data: dict[str, Any], latent: LatentConfig | None) -> float | None:
    if latent is not None:
        # Scores are multiplied by the square of the factor.
        return latent.query_dim / score_factor(data) ** 4
    return number(data, "query_pre_attn_scalar") if architecture.local_positions else None


def windows(architecture: Architecture, data: dict[str, Any]) -> tuple[int | None, ...]:
    """Return the window of each layer; empty if no layer has one."""
    use, stated = architecture.window_use, data.get("sliding_window") is not None
    used = {"never": False, "asked": stated and data.get("use_sliding_window"), "stated": stated, "always": True}
    if not used[use]:
        return ()
    window, layers = integer(data, "sliding_window"), layer_count(data)
    found = tuple(window if slides else None for slides in sliding_layers(architecture, data, layers))
    return found if found != (None,) * layers else ()


def sliding_layers(architecture: Architecture, data: dict[str, Any], layers: int) -> list[bool]:
    if architecture.window_layers == "all":
        return [True] * layers
    kinds = data.get("layer_types")
    if kinds is None and architecture.window_layers == "pattern":
        pattern = integer(data, "sliding_window_pattern")
        return [(layer + 1) % max(pattern, 1) != 0 for layer in range(layers)]
    if kinds is None:
        return [layer >= integer(data, "max_window_layers") for layer in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in (FULL, SLIDING) for kind in kinds):
        raise ModelError(f"config.json needs as layer_types a list of {layers} times {FULL} or {SLIDING}")
    return [kind == SLIDING for kind in kinds]


def refuse_unsupported(data: dict[str, Any], fixed: dict[str, Any]) -> None:
    """Raise ModelError that names every field with a value that is not computed here."""
    faults = []
    for key, only in fixed.items():
        if data.get(key) not in (None, only):
            known = "models without it" if only is None else f"{only!r} only"
            faults.append(f"the model has {key} = {short(data[key])}: this version runs {known}")
    if faults:
        raise ModelError("; ".join(faults))


def dtype(data: dict[str, Any]) -> str:
    name = data.get("dtype") or data.get("torch_dtype") or "float32"
    if name not in DTYPES:
        raise ModelError(f"the model's weights are {short(name)}: this version reads {', '.join(DTYPES)}")
    # Quantized weights are numbers of no such type; their files mostly name that of the kernels they were made for.
    return "bfloat16" if weight_scheme(data) is not None and name == "float16" else str(name)


def end_ids(directory: Path, data: dict[str, Any]) -> tuple[int, ...]:
    """Return the end tokens. generation_config.json takes precedence: chat models list their end-of-turn tokens
    there."""
    generation = directory / "generation_config.json"
    found = read_json(generation).get("eos_token_id") if generation.is_file() else None
    found = data.get("eos_token_id") if found is None else found
    # Some files name the end of a turn only.
    found = data.get("im_end_token_id") if found is None else found
    ids = found if isinstance(found, list) else [] if found is None else [found]
    if not all(type(item) is int and abs(item) <= MOST for item in ids):
        raise ModelError(f"the model's eos_token_id is {short(found)}: it must be a token id or a list of them")
    return tuple(dict.fromkeys(ids))
