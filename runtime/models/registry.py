# SPDX-License-Identifier: Apache-2.0
"""Architectures by name."""

from pontil.runtime.errors import ModelError
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.models.llama import Llama
from pontil.runtime.models.weights import Weights

ARCHITECTURES = {"llama": Llama}


def build_model(config: ModelConfig, weights: Weights) -> Llama:
    """The model of a checkpoint. Raises ModelError for an architecture that is not known."""
    architecture = ARCHITECTURES.get(config.architecture)
    if architecture is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ModelError(f"the architecture {config.architecture!r} is not supported; supported are: {known}")
    return architecture(config, weights)
