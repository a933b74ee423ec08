# SPDX-License-Identifier: Apache-2.0
"""A mixture of experts in a GGUF file, and which of several architectures of one name the file holds. What a file does
not state is as in the row of its architecture. No torch here."""

from __future__ import annotations

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.architectures import unknown
from pontil.runtime.loaders.gguf.facts import GgufFacts
from pontil.runtime.loaders.gguf.header import GgufHeader
from pontil.runtime.models.architectures import BY_GGUF_NAME, Architecture
from pontil.runtime.models.config import ExpertConfig, RoutingConfig, SharedExpertConfig

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
