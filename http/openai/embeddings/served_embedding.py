# SPDX-License-Identifier: Apache-2.0
"""The embedding model that is served beside the one that generates: its name, its tokenizer and its description."""

from typing import Any

from pontil.http.intake.served_model import model_object
from pontil.http.openai.chat.prompt_reader import Encoder
from pontil.runtime.proxy.fleet.registry_snapshot import RegistrySnapshot
from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.tokenizer.tokenizer import Tokenizer


class ServedEmbedding:
    """The model's description."""

    def __init__(self, proxy: Proxy, name: str, tokenizer: Tokenizer) -> None:
        self.proxy, self.name, self.tokenizer = proxy, name, tokenizer
        self.encoder = Encoder(tokenizer)
        self.vocab_size = tokenizer.vocab_size

    @classmethod
    def of(cls, proxy: Proxy, tokenizer: Tokenizer | None) -> "ServedEmbedding | None":
        """Return the model; None where there is none."""
        name = proxy.config.served_embedding_model_name
        return None if tokenizer is None or name is None else cls(proxy, name, tokenizer)

    @property
    def snapshot(self) -> RegistrySnapshot:
        return self.proxy.registry.of(self.name).snapshot()

    @property
    def described(self) -> dict[str, Any]:
        """The model object; fields that only workers know are null while there are none."""
        snapshot = self.snapshot
        about = model_object(self.proxy, self.name, self.vocab_size, snapshot)
        return about | {"kv_cache_dtype": None, "embedding_size": snapshot.embedding_size}
