# SPDX-License-Identifier: Apache-2.0
"""Mistral (Jiang et al., 2023): Llama with a sliding window in every layer, which the configuration states."""

from pontil.runtime.models.families.llama import Llama


class Mistral(Llama):
    """Differs by `config.windows`."""
