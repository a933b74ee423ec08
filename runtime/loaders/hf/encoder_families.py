# SPDX-License-Identifier: Apache-2.0
"""The kinds of text encoders in Hugging Face directories, and the layers by which their files score pairs of texts. No
torch here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.json_fields import section, short
from pontil.runtime.models.encoder_config import ScoreHead

SCORING = "ForSequenceClassification"


@dataclass(frozen=True, slots=True)
class EncoderFamily:
    """The differences of a `model_type` from BERT: the beginning of its tensors' names, and other names of theirs and
    of fields of config.json, each with BERT's; and the layers that score a pair."""

    architecture: str
    prefix: str
    head: ScoreHead
    fields: Mapping[str, str] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)
    kinds: int = 2

    def usual(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of config.json by BERT's names."""
        return {self.fields.get(name, name): value for name, value in data.items()}

    def usual_name(self, stored: str) -> str:
        """Return BERT's name of a tensor."""
        name = stored.removeprefix(self.prefix)
        for own, usual in self.tensors.items():
            name = re.sub(own, usual, name)
        return name


ROBERTA = EncoderFamily("roberta", "roberta.", ScoreHead("classifier.dense", "tanh", "classifier.out_proj"))
DISTIL_LAYER = r"^transformer\.layer\.(\d+)\."
FAMILIES = {
    "bert": EncoderFamily("bert", "bert.", ScoreHead("pooler.dense", "tanh", "classifier")),
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "distilbert": EncoderFamily(
        "distilbert",
        "distilbert.",
        ScoreHead("pre_classifier", "relu", "classifier"),
        fields={
            "dim": "hidden_size",
            "hidden_dim": "intermediate_size",
            "n_layers": "num_hidden_layers",
            "n_heads": "num_attention_heads",
            "activation": "hidden_act",
        },
        tensors={
            DISTIL_LAYER: r"encoder.layer.\1.",
            r"\.attention\.q_lin\.": ".attention.self.query.",
            r"\.attention\.k_lin\.": ".attention.self.key.",
            r"\.attention\.v_lin\.": ".attention.self.value.",
            r"\.attention\.out_lin\.": ".attention.output.dense.",
            r"\.sa_layer_norm\.": ".attention.output.LayerNorm.",
            r"\.ffn\.lin1\.": ".intermediate.dense.",
            r"\.ffn\.lin2\.": ".output.dense.",
            r"\.output_layer_norm\.": ".output.LayerNorm.",
        },
        kinds=0,
    ),
}


def family_of(data: Mapping[str, Any]) -> EncoderFamily:
    """Return the family of a model. Raises ModelError for one that is no encoder."""
    family = FAMILIES.get(str(data.get("model_type")))
    if family is None:
        raise ModelError(f"the model_type is {short(data.get('model_type'))}: encoders here are {', '.join(FAMILIES)}")
    return family


def score_head(data: dict[str, Any]) -> ScoreHead | None:
    """Return the layers that score a pair; None for a model without them. Raises ModelError for a classifier of another
    kind. What is made of the number is in either of two places, by the version of sentence-transformers."""
    if not classifies(data):
        return None
    check_labels(data)
    inner = section(data, "sentence_transformers")
    stated = data.get("sbert_ce_default_activation_function") or inner.get("activation_fn")
    function = str(stated or "Sigmoid").rpartition(".")[2]
    if function not in ("Sigmoid", "Identity"):
        raise ModelError(f"the model makes its score by {short(stated)}: this version has Sigmoid and Identity")
    return replace(family_of(data).head, squashed=function == "Sigmoid")


def classifies(data: Mapping[str, Any]) -> bool:
    """Return whether the files of a model have a head that sorts or scores texts."""
    names = data.get("architectures")
    return isinstance(names, list) and any(str(name).endswith(SCORING) for name in names)


def check_labels(data: Mapping[str, Any]) -> None:
    """Raise ModelError for a model that sorts texts into several classes, and does not score them."""
    names = data.get("id2label")
    labels = len(names) if isinstance(names, dict) else data.get("num_labels", 2)
    if labels != 1:
        raise ModelError(f"the model has {short(labels)} labels: one that scores pairs of texts has a single one")
