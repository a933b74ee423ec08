# SPDX-License-Identifier: Apache-2.0
"""Conditions that every configuration must fulfil, whichever file it was read from.

No torch here.
"""

from __future__ import annotations

from dataclasses import asdict

from pontil.runtime.errors import ModelError
from pontil.runtime.models.config import ExpertConfig, LatentConfig, ModelConfig, RopeScaling, RoutingConfig

SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "max_model_len",
)


def unknown(name: object, known: tuple[str, ...]) -> ModelError:
    return ModelError(f"the architecture {name!r} is not known: this version runs {', '.join(known)}")


def checked(config: ModelConfig) -> ModelConfig:
    """Return `config` itself. Raises ModelError for sizes that no model can have."""
    for name in SIZES:
        if getattr(config, name) < 1:
            raise ModelError(f"the model's {name} is {getattr(config, name)}: it must be positive")
    if config.num_heads % config.num_kv_heads:
        raise ModelError(f"{config.num_heads} query heads cannot share {config.num_kv_heads} key/value heads evenly")
    check_rotary(config)
    if config.query_scalar is not None and config.query_scalar <= 0:
        raise ModelError(f"the model's query_pre_attn_scalar is {config.query_scalar}: it must be positive")
    for window in config.windows:
        if window is not None and window < 1:
            raise ModelError(f"the model's sliding_window is {window}: it must be positive")
    check_scaling(config.rope_scaling)
    check_experts(config.experts)
    check_latent(config.latent)
    return config


def check_rotary(config: ModelConfig) -> None:
    if config.rotary_dim is None and config.head_dim % 2:
        raise ModelError(f"the model's head_dim is {config.head_dim}: rotary positions need an even one")
    if config.rotary_dim is not None and (config.rotary_dim % 2 or not 0 < config.rotary_dim <= config.head_dim):
        raise ModelError(
            f"the model turns {config.rotary_dim} of {config.head_dim} dimensions of a head: rotary positions need an "
            "even number of them"
        )


def check_latent(latent: LatentConfig | None) -> None:
    for name, size in {} if latent is None else asdict(latent).items():
        if size is not None and size < 1:
            raise ModelError(f"the {name} of the model's latent attention is {size}: it must be positive")


def check_scaling(scaling: RopeScaling | None) -> None:
    if scaling is None or scaling.kind == "factors":
        return
    if scaling.factor <= 0:
        raise ModelError(f"the factor of the rotary positions is {scaling.factor}: it must be positive")
    if scaling.kind == "llama3" and scaling.high_freq_factor <= scaling.low_freq_factor:
        raise ModelError("the rotary positions' high_freq_factor is not above their low_freq_factor: fix config.json")
    if scaling.kind in ("llama3", "yarn") and scaling.original_max_len < 1:
        raise ModelError("the rotary positions' original_max_position_embeddings is not positive: fix config.json")


def check_experts(experts: ExpertConfig | None) -> None:
    if experts is None:
        return
    if not 1 <= experts.per_token <= experts.count:
        raise ModelError(f"{experts.per_token} of {experts.count} experts cannot be chosen for each token")
    if experts.intermediate_size < 1:
        raise ModelError(f"the experts' intermediate size is {experts.intermediate_size}: it must be positive")
    if experts.shared is not None and experts.shared.intermediate_size < 1:
        size = experts.shared.intermediate_size
        raise ModelError(f"the shared expert's intermediate size is {size}: it must be positive")
    check_groups(experts, experts.routing)


def check_groups(experts: ExpertConfig, routing: RoutingConfig) -> None:
    if routing.groups < 1 or experts.count % routing.groups:
        raise ModelError(f"{experts.count} experts cannot be divided into {routing.groups} groups evenly")
    if not 1 <= routing.kept_groups <= routing.groups:
        raise ModelError(f"{routing.kept_groups} of {routing.groups} groups of experts cannot be kept")
    size = experts.count // routing.groups
    if experts.per_token > routing.kept_groups * size or routing.group_best > size:
        raise ModelError(f"groups of {size} experts are too small for {experts.per_token} experts of each token")
