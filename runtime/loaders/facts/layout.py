# SPDX-License-Identifier: Apache-2.0
"""The tensors that a checkpoint of each architecture must hold, by Hugging Face's names. No torch here."""

from __future__ import annotations

import re
from collections.abc import Callable

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.name_list import name_list
from pontil.runtime.loaders.facts.weight_forms import Shape
from pontil.runtime.models.architectures import ARCHITECTURES, Architecture
from pontil.runtime.models.config import ExpertConfig, LatentConfig, ModelConfig, RecurrentConfig

ROPE_FACTORS = "model.rope_factors"


def tensor_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Return the shape of every tensor of the model in reading order. `lm_head.weight` is included only if it is not
    tied."""
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": (config.vocab_size, config.hidden_size)}
    for layer in range(config.num_layers):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in layer_shapes(config, layer).items()}
    shapes["model.norm.weight"] = (config.hidden_size,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    if config.rope_scaling is not None and config.rope_scaling.kind == "factors":
        shapes[ROPE_FACTORS] = (config.rotated // 2,)
    return shapes


def layer_shapes(config: ModelConfig, layer: int) -> dict[str, Shape]:
    attention = mixer_shapes(config, layer)
    if config.experts is not None and config.is_sparse(layer):
        mlp = expert_shapes(config.experts, config.hidden_size)
    else:
        mlp = mlp_shapes(config.hidden_size, config.intermediate_size)
    return norm_shapes(config) | attention | {f"mlp.{name}": shape for name, shape in mlp.items()}


def mixer_shapes(config: ModelConfig, layer: int) -> dict[str, Shape]:
    recurrent = config.recurrent if config.is_recurrent(layer) else None
    if recurrent is None:
        shapes = attention_shapes(config) if config.latent is None else latent_shapes(config, config.latent)
        return {f"self_attn.{name}": shape for name, shape in shapes.items()}
    mamba = recurrent.kind == "mamba2"
    shapes = (mamba_shapes if mamba else delta_shapes)(recurrent, config.hidden_size)
    return {f"{'mamba' if mamba else 'linear_attn'}.{name}": shape for name, shape in shapes.items()}


def delta_shapes(config: RecurrentConfig, hidden: int) -> dict[str, Shape]:
    values, heads = config.value_heads * config.value_dim, config.value_heads
    shapes: dict[str, Shape] = {"conv1d.weight": (config.channels, 1, config.width), "dt_bias": (heads,)}
    shapes |= {"A_log": (heads,), "norm.weight": (config.value_dim,), "out_proj.weight": (hidden, values)}
    inwards = {"qkvz": config.channels + values, "ba": 2 * heads}
    if config.kind == "gated_delta":
        inwards = {"qkv": config.channels, "z": values, "b": heads, "a": heads}
    return shapes | {f"in_proj_{name}.weight": (size, hidden) for name, size in inwards.items()}


def mamba_shapes(config: RecurrentConfig, hidden: int) -> dict[str, Shape]:
    inner, heads = config.value_heads * config.value_dim, config.value_heads
    shapes: dict[str, Shape] = dict.fromkeys(("dt_bias", "A_log", "D"), (heads,))
    shapes |= {"conv1d.weight": (config.channels, 1, config.width), "conv1d.bias": (config.channels,)}
    shapes |= {"norm.weight": (inner,), "in_proj.weight": (inner + config.channels + heads, hidden)}
    return shapes | {"out_proj.weight": (hidden, inner)}


def norm_shapes(config: ModelConfig) -> dict[str, Shape]:
    names = ["input_layernorm", "post_attention_layernorm"]
    if ARCHITECTURES[config.architecture].sandwich_norms:
        names += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    return {f"{name}.weight": (config.hidden_size,) for name in names}


def attention_shapes(config: ModelConfig) -> dict[str, Shape]:
    hidden = config.hidden_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    gated = ARCHITECTURES[config.architecture].gated_heads
    inwards = {"q_proj": 2 * queries if gated else queries, "k_proj": keys, "v_proj": keys}
    shapes: dict[str, Shape] = {f"{name}.weight": (size, hidden) for name, size in inwards.items()}
    shapes["o_proj.weight"] = (hidden, queries)
    if config.qkv_bias:
        shapes |= {f"{name}.bias": (size,) for name, size in inwards.items()}
    if config.output_bias:
        shapes["o_proj.bias"] = (hidden,)
    if ARCHITECTURES[config.architecture].head_norms or config.head_norms:
        shapes |= {f"{name}.weight": (config.head_dim,) for name in ("q_norm", "k_norm")}
    if config.sinks:
        shapes["sinks"] = (config.num_heads,)
    return shapes


def latent_shapes(config: ModelConfig, latent: LatentConfig) -> dict[str, Shape]:
    hidden, heads = config.hidden_size, config.num_heads
    queries: dict[str, Shape] = {"q_proj.weight": (heads * latent.query_dim, hidden)}
    if latent.query_rank is not None:
        queries = {
            "q_a_proj.weight": (latent.query_rank, hidden),
            "q_a_layernorm.weight": (latent.query_rank,),
            "q_b_proj.weight": (heads * latent.query_dim, latent.query_rank),
        }
    return queries | {
        "kv_a_proj_with_mqa.weight": (latent.stored_dim, hidden),
        "kv_a_layernorm.weight": (latent.rank,),
        "kv_b_proj.weight": (heads * (latent.key_dim + latent.value_dim), latent.rank),
        "o_proj.weight": (hidden, heads * latent.value_dim),
    }


def mlp_shapes(hidden: int, inner: int) -> dict[str, Shape]:
    return {"gate_proj.weight": (inner, hidden), "up_proj.weight": (inner, hidden), "down_proj.weight": (hidden, inner)}


def expert_shapes(experts: ExpertConfig, hidden: int) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {"gate.weight": (experts.count, hidden)}
    if experts.routing.bias:
        shapes["gate.e_score_correction_bias"] = (experts.count,)
    if experts.routing.product_bias:
        shapes["gate.bias"] = (experts.count,)
    for number in range(experts.count):
        expert = mlp_shapes(hidden, experts.intermediate_size)
        if experts.clamp is not None:
            expert |= {name.replace(".weight", ".bias"): shape[:1] for name, shape in expert.items()}
        shapes |= {f"experts.{number}.{name}": shape for name, shape in expert.items()}
    if experts.shared is not None:
        name, shared = experts.shared.name, mlp_shapes(hidden, experts.shared.intermediate_size)
        shapes |= {f"{name}.{part}": shape for part, shape in shared.items()}
        if experts.shared.gated:
            shapes[f"{name}_gate.weight"] = (1, hidden)
    return shapes


def usual_name(architecture: Architecture, stored: str) -> str | None:
    """The name that a tensor has in a model of one part, or None if it is of another part."""
    if stored.startswith(architecture.others):
        return None
    name = stored.removeprefix(architecture.prefix)
    for start, usual in architecture.renamed.items():
        if name.startswith(start):
            return usual + name.removeprefix(start)
    for part, usual in architecture.replaced.items():
        name = name.replace(part, usual)
    return name


def check_shapes(config: ModelConfig, wanted: dict[str, Shape], found: dict[str, Shape], source: object) -> None:
    """Raise ModelError that names every wanted tensor that is missing or has another shape, and every found one that
    this architecture would ignore."""
    faults = []
    missing = [name for name in wanted if name not in found]
    if missing:
        faults.append(f"lacks the tensor{'s' * (len(missing) > 1)} {name_list(missing)}")
    ignored = ignorable(config)
    extra = [name for name in found if name not in wanted and not ignored(name)]
    if extra:
        faults.append(f"holds {len(extra)} that {config.architecture} does not have: {name_list(extra)}")
    wrong = [
        f"{name} {list(found[name])}, not {list(shape)}"
        for name, shape in wanted.items()
        if name in found and found[name] != shape
    ]
    if wrong:
        faults.append(f"holds tensors whose shapes contradict its configuration: {'; '.join(wrong)}")
    if faults:
        raise ModelError(f"{source} {' and '.join(faults)}: fetch the model again, or another version of it")


def ignorable(config: ModelConfig) -> Callable[[str], bool]:
    """Return whether a tensor of that name may be there and is not read: one that repeats the configuration or another
    tensor, or one of the layers that guess further tokens, which follow the model's own."""
    names = {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq" for layer in range(config.num_layers)}
    names |= {"lm_head.weight"} if config.tie_word_embeddings else set()
    guessing = ARCHITECTURES[config.architecture].guessing_layers == "behind"

    def ignored(name: str) -> bool:
        layer = re.match(r"model\.layers\.(\d{1,5})\.", name) if guessing else None
        return name in names or (layer is not None and int(layer[1]) >= config.num_layers)

    return ignored
