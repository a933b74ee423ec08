# SPDX-License-Identifier: Apache-2.0
"""Which tensors a Llama checkpoint must hold, by Hugging Face's names, and what a configuration must fulfil.

No torch here.
"""

from __future__ import annotations

from pontil.runtime.errors import ModelError
from pontil.runtime.models.config import ModelConfig

KNOWN_ARCHITECTURES = ("llama",)
Shape = tuple[int, ...]


def check_architecture(name: object) -> None:
    if name not in KNOWN_ARCHITECTURES:
        raise ModelError(f"the architecture {name!r} is not known: this version runs {', '.join(KNOWN_ARCHITECTURES)}")


def checked(config: ModelConfig) -> ModelConfig:
    """`config` itself. Raises ModelError for sizes that cannot be a model."""
    sizes = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_layers",
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "max_model_len",
    )
    for name in sizes:
        if getattr(config, name) < 1:
            raise ModelError(f"the model's {name} is {getattr(config, name)}: it must be positive")
    if config.num_heads % config.num_kv_heads:
        raise ModelError(f"{config.num_heads} query heads cannot share {config.num_kv_heads} key/value heads evenly")
    if config.head_dim % 2:
        raise ModelError(f"the model's head_dim is {config.head_dim}: rotary positions need an even one")
    return config


def tensor_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Every tensor of the model in reading order. `lm_head.weight` is there only when it is not tied."""
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": (config.vocab_size, config.hidden_size)}
    for layer in range(config.num_layers):
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in layer_shapes(config).items()}
    shapes["model.norm.weight"] = (config.hidden_size,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    return shapes


def layer_shapes(config: ModelConfig) -> dict[str, Shape]:
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }


def check_shapes(config: ModelConfig, found: dict[str, Shape], source: object) -> None:
    """Raises ModelError for a tensor that is missing, has another shape, or that this architecture would ignore."""
    wanted = tensor_shapes(config)
    for name, shape in wanted.items():
        if name not in found:
            raise ModelError(f"{source} lacks the tensor {name}: fetch the model again")
        if found[name] != shape:
            raise ModelError(f"the tensor {name} in {source} has shape {list(found[name])}, not {list(shape)}")
    extra = [name for name in found if name not in wanted and name not in ignorable(config)]
    if extra:
        raise ModelError(f"{source} holds {len(extra)} tensors this version cannot run, among them {extra[0]}")


def ignorable(config: ModelConfig) -> set[str]:
    """Tensors that old or careless writers add and that repeat what the configuration or another tensor says."""
    names = {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq" for layer in range(config.num_layers)}
    return names | ({"lm_head.weight"} if config.tie_word_embeddings else set())
