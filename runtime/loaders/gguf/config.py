# SPDX-License-Identifier: Apache-2.0
"""The model configuration that a GGUF file's metadata states. No torch."""

from __future__ import annotations

import math
from pathlib import Path

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.architectures import checked, unknown
from pontil.runtime.loaders.facts.json_fields import MOST
from pontil.runtime.loaders.gguf.header import GgufHeader
from pontil.runtime.loaders.gguf.parts import read_parts
from pontil.runtime.models.architectures import BY_GGUF_NAME, Architecture
from pontil.runtime.models.config import (
    ExpertConfig,
    Factors,
    LatentConfig,
    ModelConfig,
    RopeScaling,
    RoutingConfig,
    SharedExpertConfig,
)


class GgufFacts:
    """The metadata fields that begin with the architecture's name."""

    def __init__(self, header: GgufHeader, architecture: str) -> None:
        self.header, self.architecture = header, architecture

    def key(self, name: str) -> str:
        return f"{self.architecture}.{name}"

    def required(self, name: str) -> int:
        value = self.header.integer(self.key(name))
        if value is None:
            raise ModelError(f"the GGUF file does not state {self.key(name)} as one number: it cannot be run")
        return value

    def optional(self, name: str, default: int) -> int:
        return self.required(name) if self.states(name) else default

    def states(self, name: str) -> bool:
        return self.key(name) in self.header.metadata or self.key(name) in self.header.arrays

    def decimal(self, name: str, default: float) -> float:
        """Return a number as the model's authors wrote it: GGUF stores float32, of which the shortest decimal is
        meant."""
        value = self.header.number(self.key(name))
        if value is not None and not abs(value) <= MOST:
            raise ModelError(f"the GGUF file states {self.key(name)} as {value:g}: fetch it again")
        return default if value is None else float(f"{value:.7g}")

    def text(self, name: str, default: str) -> str:
        return self.header.text(self.key(name)) or default


SOFTMAX, SIGMOID = "softmax", "sigmoid"
GATES = {1: SOFTMAX, 2: SIGMOID}
# Tensors of a layer with experts.
CHOICE_BIAS, PRODUCT_BIAS = "exp_probs_b.bias", "ffn_gate_inp.bias"


def architecture_of(header: GgufHeader) -> Architecture:
    """Return the only architecture of the file's name, or that with experts and their scores as in the file. Raises
    ModelError."""
    name = header.text("general.architecture")
    if name not in BY_GGUF_NAME:
        raise unknown(name, tuple(BY_GGUF_NAME))
    rows, facts = BY_GGUF_NAME[name], GgufFacts(header, name)
    has_experts, scores = facts.optional("expert_count", 0) > 0, gate(facts, SOFTMAX)
    suited = (row for row in rows if row.has_experts == has_experts and row_scores(row) == scores)
    return rows[0] if len(rows) == 1 else next(suited, rows[0])


def row_scores(row: Architecture) -> str:
    return str(row.defaults.get("scoring_func", SOFTMAX))


def gate(facts: GgufFacts, default: str) -> str:
    number = facts.optional("expert_gating_func", 0)
    if number not in (0, *GATES):
        raise ModelError(
            f"the model rates experts by {facts.key('expert_gating_func')} {number}: this version does not"
        )
    return GATES.get(number, default)


def experts(facts: GgufFacts, architecture: Architecture, layers: int) -> ExpertConfig:
    """Return the mixture of experts: weights are divided by their sum unless the file or the row says otherwise."""
    defaults, tensors, last = architecture.defaults, facts.header.tensors, f"blk.{layers - 1}."
    size = facts.optional("expert_feed_forward_length", facts.required("feed_forward_length"))
    normalize = facts.header.metadata.get(facts.key("expert_weights_norm"), defaults.get("norm_topk_prob", True))
    shared, biased = facts.optional("expert_shared_count", 0), last + CHOICE_BIAS in tensors
    limit = defaults.get("swiglu_limit")
    return ExpertConfig(
        count=facts.required("expert_count"),
        per_token=facts.required("expert_used_count"),
        intermediate_size=size,
        normalize=normalize is not False,
        dense_layers=tuple(range(min(facts.optional("leading_dense_block_count", 0), layers))),
        shared=SharedExpertConfig("shared_experts", shared * size) if shared else None,
        routing=RoutingConfig(
            scores="sigmoid" if gate(facts, row_scores(architecture)) == SIGMOID else "softmax",
            bias=biased,
            product_bias=last + PRODUCT_BIAS in tensors,
            groups=max(facts.optional("expert_group_count", 1), 1),
            kept_groups=max(facts.optional("expert_group_used_count", 1), 1),
            group_best=2 if biased else 1,
            factor=facts.decimal("expert_weights_scale", 1.0),
        ),
        clamp=None if limit is None else (float(defaults["swiglu_alpha"]), float(limit)),
    )


EMBEDDING, OUTPUT, ROPE_FACTORS = "token_embd.weight", "output.weight", "rope_freqs.weight"
BIASES = ("blk.0.attn_q.bias", "blk.0.attn_output.bias")
HEAD_NORM = "blk.0.attn_q_norm.weight"
NEUTRAL = {
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "rope.scale_linear": 1.0,
    "rope.scaling.alpha": 0.0,
    "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.yarn_ext_factor": 1.0,
}
"""Features that are not computed here, with the number (besides zero) that means "not needed"."""
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
ALL_FLOAT32 = 0
"""The value of general.file_type for a file in which nothing is quantized or rounded."""
GEMMA_LOCAL_THETA = 10000.0
"""The base that llama.cpp assumes of Gemma 3's layers with a window."""
LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"
"""DeepSeek's `mscale_all_dim`, a tenth of it."""
LARGEST_GEMMA_LAYERS = 62
"""Gemma 3 27B, which alone scales its queries differently; files do not state it, llama.cpp counts its layers."""


def read_gguf_config(path: Path) -> ModelConfig:
    return gguf_config(read_parts(path).header)


def gguf_config(header: GgufHeader) -> ModelConfig:
    """Read the configuration. Raises ModelError for another architecture, an unsupported feature, or a missing key."""
    architecture = architecture_of(header)
    facts = GgufFacts(header, str(architecture.gguf))
    hidden, heads = facts.required("embedding_length"), facts.required("attention.head_count")
    latent = latent_config(facts) if architecture.latent else None
    head_dim = latent.stored_dim if latent else facts.optional("attention.key_length", hidden // max(heads, 1))
    refuse_unsupported(facts, architecture, head_dim)
    local = architecture.local_positions
    layers = facts.required("block_count") - facts.optional("nextn_predict_layers", 0)
    if layers > len(header.tensors):
        raise ModelError(
            f"the GGUF file states {layers} layers and holds {len(header.tensors)} tensors: fetch it again"
        )
    return checked(
        ModelConfig(
            architecture=architecture.name,
            vocab_size=vocab_size(header),
            hidden_size=hidden,
            intermediate_size=facts.required("feed_forward_length"),
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=1 if latent else facts.optional("attention.head_count_kv", heads),
            head_dim=head_dim,
            max_model_len=facts.required("context_length"),
            rms_norm_eps=facts.decimal("attention.layer_norm_rms_epsilon", 1e-5),
            rope_theta=facts.decimal("rope.freq_base", architecture.gguf_rope_theta),
            tie_word_embeddings=OUTPUT not in header.tensors,
            dtype="float32" if header.integer("general.file_type") == ALL_FLOAT32 else "bfloat16",
            eos_token_ids=end_ids(header),
            bos_token_id=header.integer("tokenizer.ggml.bos_token_id"),
            rope_scaling=rope_scaling(facts, architecture),
            local_rope_theta=facts.decimal("rope.freq_base_swa", GEMMA_LOCAL_THETA) if local else None,
            windows=windows(facts, architecture, layers),
            factors=Factors(query_scalar(facts, layers, head_dim, latent) if local or latent else None),
            qkv_bias=architecture.qkv_bias or BIASES[0] in header.tensors,
            output_bias=BIASES[1] in header.tensors,
            experts=experts(facts, architecture, layers) if architecture.has_experts else None,
            mixer=latent,
            rotary_dim=latent.rotary_dim if latent else rotated(facts, architecture, head_dim),
            interleaved=bool(architecture.defaults.get("rope_interleave")),
            sinks=architecture.sinks,
            head_norms=architecture.optional_head_norms and HEAD_NORM in header.tensors,
        )
    )


def vocab_size(header: GgufHeader) -> int:
    """Return the number of the embedding's rows, which may exceed the entries of the vocabulary."""
    embedding = header.tensors.get(EMBEDDING)
    if embedding is None or len(embedding.shape) != 2:
        raise ModelError(f"the GGUF file has no tensor {EMBEDDING}: it holds no whole model")
    return embedding.shape[0]


def end_ids(header: GgufHeader) -> tuple[int, ...]:
    ids = [header.integer(f"tokenizer.ggml.{key}") for key in END_KEYS]
    return tuple(dict.fromkeys(number for number in ids if number is not None))


def windows(facts: GgufFacts, architecture: Architecture, layers: int) -> tuple[int | None, ...]:
    """Return the window of each layer; empty if no layer has one. Mistral's files call themselves llama."""
    form = architecture.gguf_windows
    if form != "pattern" and not facts.states("attention.sliding_window"):
        return ()
    window = facts.required("attention.sliding_window")
    if form == "all":
        return (window,) * layers if window else ()
    if form == "refused":
        return ()
    stated = facts.header.arrays.get(facts.key("attention.sliding_window_pattern"))
    if stated is not None and len(stated) == layers:
        return tuple(window if slides else None for slides in stated)
    pattern = facts.optional("attention.sliding_window_pattern", architecture.defaults["sliding_window_pattern"])
    return tuple(window if (layer + 1) % max(pattern, 1) else None for layer in range(layers))


def latent_config(facts: GgufFacts) -> LatentConfig:
    """Return the latent attention. Where a file states one KV head, the sizes of a head have names of their own."""
    key, value = (
        facts.optional(f"attention.{name}_length_mla", facts.required(f"attention.{name}_length"))
        for name in ("key", "value")
    )
    rotary = facts.required("rope.dimension_count")
    query_rank = facts.optional("attention.q_lora_rank", 0) or None
    return LatentConfig(facts.required("attention.kv_lora_rank"), query_rank, key - rotary, rotary, value)


def rotated(facts: GgufFacts, architecture: Architecture, head_dim: int) -> int | None:
    size = facts.optional("rope.dimension_count", head_dim)
    return size if architecture.partial_rotary and size != head_dim else None


def query_scalar(facts: GgufFacts, layers: int, head_dim: int, latent: LatentConfig | None) -> float:
    if latent is not None:
        strength = 1.0 + facts.decimal(LOG_MULTIPLIER, 0.0) * math.log(
            max(facts.decimal("rope.scaling.factor", 1.0), 1.0)
        )
        # Scores are multiplied by the square of it.
        return latent.query_dim / strength**4
    hidden, heads = facts.required("embedding_length"), facts.required("attention.head_count")
    return float(hidden // heads if layers == LARGEST_GEMMA_LAYERS else head_dim)


def rope_scaling(facts: GgufFacts, architecture: Architecture) -> RopeScaling | None:
    """Return the scaling of rotary frequencies; Llama 3.1's is stored as a tensor of divisors. Raises ModelError for an
    unknown kind."""
    if ROPE_FACTORS in facts.header.tensors:
        return RopeScaling("factors")
    kind, factor = facts.text("rope.scaling.type", "none"), facts.decimal("rope.scaling.factor", 1.0)
    if kind == "none":
        return None
    if kind == "linear":
        return RopeScaling("linear", factor=factor)
    if kind != "yarn":
        raise ModelError(f"the model scales its rotary positions ({kind}): this version runs linear, llama3, yarn only")
    return RopeScaling(
        "yarn",
        factor=factor,
        original_max_len=facts.required("rope.scaling.original_context_length"),
        beta_fast=facts.decimal("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=facts.decimal("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=facts.decimal("rope.scaling.attn_factor", 1.0) * yarn_strength(facts, factor),
        truncate=architecture.defaults.get("rope_scaling", {}).get("truncate", True),
    )


def yarn_strength(facts: GgufFacts, factor: float) -> float:
    """The factor of cosines and sines: with DeepSeek's multiplier, scores have it instead."""
    return 1.0 if facts.states(LOG_MULTIPLIER) else 0.1 * math.log(max(factor, 1.0)) + 1.0


def refuse_unsupported(facts: GgufFacts, architecture: Architecture, head_dim: int) -> None:
    keys = [] if architecture.latent else ["attention.value_length"]
    for key in keys if architecture.partial_rotary or architecture.latent else [*keys, "rope.dimension_count"]:
        size = facts.header.integer(facts.key(key))
        if size not in (None, head_dim):
            raise ModelError(f"the model's {key} is {size}, its heads have {head_dim}: this version needs them equal")
    for key, neutral in NEUTRAL.items():
        if facts.decimal(key, neutral) not in (0.0, neutral):
            raise ModelError(f"the model states {facts.key(key)}: this version does not compute that")
    if not architecture.latent and facts.states(LOG_MULTIPLIER):
        raise ModelError(f"the model states {facts.key(LOG_MULTIPLIER)}: this version does not compute that")
    if not architecture.has_experts and facts.optional("expert_count", 0):
        raise ModelError(f"the model is a mixture of experts of the kind {facts.architecture}: this version has none")
    window = facts.optional("attention.sliding_window", 0)
    if architecture.gguf_windows == "refused" and 0 < window < facts.required("context_length"):
        raise ModelError("the model states a sliding window, but not for which layers: use its safetensors files")
