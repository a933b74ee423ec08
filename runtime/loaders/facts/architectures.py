# SPDX-License-Identifier: Apache-2.0
"""Conditions that every configuration must fulfil, whichever file it was read from.

No torch here.
"""

from __future__ import annotations

from dataclasses import asdict

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.json_fields import MOST, MOST_LAYERS, short
from pontil.runtime.models.architectures import ARCHITECTURES
from pontil.runtime.models.config import (
    ExpertConfig,
    LatentConfig,
    ModelConfig,
    RecurrentConfig,
    RopeScaling,
    RoutingConfig,
)

# The largest that each size can be, some times what any model has: tables are made for all positions, and names for all
# experts of all layers.
SIZES = {
    "vocab_size": 1 << 24,
    "hidden_size": 1 << 18,
    "intermediate_size": 1 << 22,
    "num_layers": MOST_LAYERS,
    "num_heads": 1 << 14,
    "num_kv_heads": 1 << 14,
    "head_dim": 1 << 14,
    "max_model_len": 1 << 25,
}
MOST_EXPERTS, MOST_EXPERTS_OF_ALL = 4096, 1 << 17
# The fields of a configuration that say what a model multiplies by.
FACTORS = {
    "query_scalar": "query_pre_attn_scalar",
    "embedding": "embedding_multiplier",
    "residual": "residual_multiplier",
    "logits": "logits_scaling",
}
# The base of rotary positions, and the factors that stretch them.
LEAST_THETA, LARGEST_THETA = 1.5, 1e15
LEAST_FACTOR, LARGEST_FACTOR = 1e-6, 1e6


def unknown(name: object, known: tuple[str, ...]) -> ModelError:
    return ModelError(f"the architecture {short(name)} is not known: this version runs {', '.join(known)}")


def checked(config: ModelConfig) -> ModelConfig:
    """Return `config` itself. Raises ModelError for sizes that no model can have."""
    for name, most in SIZES.items():
        check_size(f"the model's {name}", getattr(config, name), most)
    check_range("the model's rms_norm_eps", config.rms_norm_eps, 0.0, 1.0)
    if config.num_heads % config.num_kv_heads:
        raise ModelError(f"{config.num_heads} query heads cannot share {config.num_kv_heads} key/value heads evenly")
    check_rotary(config)
    for name, factor in asdict(config.factors).items():
        if factor is not None:
            check_range(f"the model's {FACTORS[name]}", factor)
    for window in config.windows:
        if window is not None:
            check_size("the model's sliding_window", window, MOST)
    check_scaling(config.rope_scaling)
    check_experts(config.experts, config.num_layers)
    check_latent(config.latent)
    check_recurrent(config.recurrent, config.num_layers)
    return config


def check_size(what: str, size: int, most: int) -> None:
    if size < 1:
        raise ModelError(f"{what} is {size}: it must be positive")
    if size > most:
        raise ModelError(f"{what} is {size}: this version runs models with at most {most}")


def check_range(what: str, value: float, least: float = LEAST_FACTOR, most: float = LARGEST_FACTOR) -> None:
    if not least <= value <= most:
        raise ModelError(f"{what} is {value}: it must be from {least:g} to {most:g}")


def check_rotary(config: ModelConfig) -> None:
    # Some architectures may have no positions.
    least = 0 if "position_embedding_type" in ARCHITECTURES[config.architecture].defaults else 2
    for name, theta in {"rope_theta": config.rope_theta, "local rope_theta": config.local_rope_theta}.items():
        if theta is not None:
            check_range(f"the model's {name}", theta, LEAST_THETA, LARGEST_THETA)
    if config.rotary_dim is None and config.head_dim % 2:
        raise ModelError(f"the model's head_dim is {config.head_dim}: rotary positions need an even one")
    if config.rotary_dim is not None and (config.rotary_dim % 2 or not least <= config.rotary_dim <= config.head_dim):
        raise ModelError(
            f"the model turns {config.rotary_dim} of {config.head_dim} dimensions of a head: rotary positions need an "
            "even number of them"
        )


def check_latent(latent: LatentConfig | None) -> None:
    for name, size in {} if latent is None else asdict(latent).items():
        if size is not None:
            check_size(f"the {name} of the model's latent attention", size, SIZES["head_dim"])


def check_recurrent(recurrent: RecurrentConfig | None, layers: int) -> None:
    if recurrent is None:
        return
    for name in ("key_heads", "value_heads", "key_dim", "value_dim", "width"):
        check_size(f"the {name} of the model's recurrent layers", getattr(recurrent, name), SIZES["head_dim"])
    if recurrent.value_heads % recurrent.key_heads:
        raise ModelError(f"{recurrent.value_heads} value heads cannot share {recurrent.key_heads} key heads evenly")
    if len(recurrent.layers) == layers:
        raise ModelError("the model has recurrent layers only: this version runs models with attention among them")


BOUNDS = {
    "llama3": ("low_freq_factor", "high_freq_factor"),
    "yarn": ("beta_fast", "beta_slow", "attention_factor"),
}
"""The numbers of a kind of scaling that have to be positive."""


def check_scaling(scaling: RopeScaling | None) -> None:
    if scaling is None or scaling.kind == "factors":
        return
    check_range("the factor of the rotary positions", scaling.factor)
    for name in BOUNDS.get(scaling.kind, ()):
        check_range(f"the rotary positions' {name}", getattr(scaling, name))
    if scaling.kind == "llama3" and scaling.high_freq_factor <= scaling.low_freq_factor:
        raise ModelError("the rotary positions' high_freq_factor is not above their low_freq_factor: fix config.json")
    if scaling.kind == "yarn" and scaling.beta_fast < scaling.beta_slow:
        raise ModelError("the rotary positions' beta_fast is below their beta_slow: fix config.json")
    if scaling.kind in BOUNDS and not 1 <= scaling.original_max_len <= SIZES["max_model_len"]:
        size = scaling.original_max_len
        raise ModelError(f"the rotary positions' original_max_position_embeddings is {size}: fix config.json")


def check_experts(experts: ExpertConfig | None, layers: int) -> None:
    if experts is None:
        return
    check_size("the number of experts in a layer", experts.count, min(MOST_EXPERTS, MOST_EXPERTS_OF_ALL // layers))
    if not 1 <= experts.per_token <= experts.count:
        raise ModelError(f"{experts.per_token} of {experts.count} experts cannot be chosen for each token")
    check_size("the experts' intermediate size", experts.intermediate_size, SIZES["intermediate_size"])
    if experts.shared is not None:
        size = experts.shared.intermediate_size
        check_size("the shared expert's intermediate size", size, SIZES["intermediate_size"])
    for name, value in zip(("swiglu_alpha", "swiglu_limit"), experts.clamp or (), strict=False):
        check_range(f"the model's {name}", value)
    check_range("the experts' routed_scaling_factor", experts.routing.factor)
    check_groups(experts, experts.routing)


def check_groups(experts: ExpertConfig, routing: RoutingConfig) -> None:
    if routing.groups < 1 or experts.count % routing.groups:
        raise ModelError(f"{experts.count} experts cannot be divided into {routing.groups} groups evenly")
    if not 1 <= routing.kept_groups <= routing.groups:
        raise ModelError(f"{routing.kept_groups} of {routing.groups} groups of experts cannot be kept")
    size = experts.count // routing.groups
    if experts.per_token > routing.kept_groups * size or routing.group_best > size:
        raise ModelError(f"groups of {size} experts are too small for {experts.per_token} experts of each token")
