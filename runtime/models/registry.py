# SPDX-License-Identifier: Apache-2.0
"""Models by the names in the table of architectures."""

from importlib import import_module

from pontil.runtime.errors import ModelError
from pontil.runtime.models.architectures import ARCHITECTURES
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.models.decoder import Decoder
from pontil.runtime.models.fused_block import kernels_fit
from pontil.runtime.models.model import Model
from pontil.runtime.models.weights import Weights


def build_model(config: ModelConfig, weights: Weights) -> Model:
    """Build the model of a checkpoint. Raises ModelError for an unknown architecture."""
    row = ARCHITECTURES.get(config.architecture)
    if row is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ModelError(f"the architecture {config.architecture!r} is not supported; supported are: {known}")
    if weights.kernels is not None and not kernels_fit(config, weights.dtype, weights.partition.size):
        raise ModelError(f"the kernels cannot compute this model in {weights.dtype}: use --kernels torch")
    return decoder_class(row.target)(config, weights)


def decoder_class(target: str) -> type[Decoder]:
    module, _, name = target.partition(":")
    found: type[Decoder] = getattr(import_module(f"pontil.runtime.models.{module}"), name)
    return found
