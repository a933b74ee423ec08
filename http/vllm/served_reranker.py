# SPDX-License-Identifier: Apache-2.0
"""The model that scores pairs of texts beside the one that generates."""

from __future__ import annotations

from typing import Any

from pontil.http.openai.embeddings.served_embedding import ServedEmbedding
from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.tokenizer.pair_encoder import PairEncoder


class ServedReranker(ServedEmbedding):
    """The model's description, and how it reads pairs."""

    def __init__(self, proxy: Proxy, name: str, pairs: PairEncoder) -> None:
        super().__init__(proxy, name, pairs.tokenizer)
        self.pairs = pairs

    @classmethod
    def with_pairs(cls, proxy: Proxy, pairs: PairEncoder | None) -> ServedReranker | None:
        """Return the model; None where there is none."""
        name = proxy.config.served_reranking_model_name
        return None if pairs is None or name is None else cls(proxy, name, pairs)

    @property
    def described(self) -> dict[str, Any]:
        return super().described | {"embedding_size": None}
