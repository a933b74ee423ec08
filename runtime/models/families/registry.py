# SPDX-License-Identifier: Apache-2.0
"""Models by the names in the table of architectures."""

from importlib import import_module

from pontil.runtime.errors import ModelError
from pontil.runtime.models.architectures import ARCHITECTURES
from pontil.runtime.models.config import DraftLayerForm, ModelConfig
from pontil.runtime.models.layers.decoder import Decoder, SharedParts
from pontil.runtime.models.layers.draft_layer import DraftLayer, StateJoin
from pontil.runtime.models.layers.fused_block import kernels_fit
from pontil.runtime.models.model import Model
from pontil.runtime.models.weights import Weights


def build_model(config: ModelConfig, weights: Weights) -> Model:
    """Build the model of a checkpoint. Raises ModelError for an unknown architecture."""
    row = ARCHITECTURES.get(config.architecture)
    if row is None:
        raise unknown_architecture(config.architecture)
    if weights.kernels is not None and not kernels_fit(config, weights.dtype, weights.partition.size):
        raise ModelError(f"the kernels cannot compute this model in {weights.dtype}: use --kernels torch")
    return decoder_class(row.target)(config, weights)


def build_draft_layer(config: ModelConfig, weights: Weights, target: Model, form: DraftLayerForm) -> DraftLayer:
    """Build the layer that guesses for a target of the same sizes. Raises ModelError."""
    assert isinstance(target, Decoder)
    decoder = decoder_class(ARCHITECTURES[config.architecture].target)
    join = StateJoin(config, weights, form, decoder.norm_offset)
    shared = SharedParts(target.embedding, target.head, form.without_norms)
    return DraftLayer(decoder(config, weights, shared), join, form.feeds_normed)


def build_embedder(config: ModelConfig, weights: Weights, score_rows: int = 0) -> Decoder:
    """Build a decoder whose last hidden states are all that is wanted, or so many rows of a head besides. Raises
    ModelError."""
    row = ARCHITECTURES.get(config.architecture)
    if row is None:
        raise unknown_architecture(config.architecture)
    if config.recurrent is not None:
        raise ModelError("a model with recurrent layers answers with text only: choose another one to embed or score")
    return decoder_class(row.target)(config, weights, SharedParts(None, [], one_place=True, score_rows=score_rows))


def unknown_architecture(name: str) -> ModelError:
    known = ", ".join(sorted(ARCHITECTURES))
    return ModelError(f"the architecture {name!r} is not supported; supported are: {known}")


def decoder_class(target: str) -> type[Decoder]:
    module, _, name = target.partition(":")
    found: type[Decoder] = getattr(import_module(f"pontil.runtime.models.families.{module}"), name)
    return found
