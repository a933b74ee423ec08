# SPDX-License-Identifier: Apache-2.0
"""The served model, its name and its description."""

from collections.abc import Sequence
from typing import Any

from pontil.runtime.config.proxy_config import ProxyConfig
from pontil.runtime.errors import RequestError
from pontil.runtime.foundation.staged_model import group_of
from pontil.runtime.proxy.fleet.registry_snapshot import RegistrySnapshot
from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.proxy.requests.ticket import ChosenAdapter


def model_object(proxy: Proxy, name: str, vocab_size: int, snapshot: RegistrySnapshot) -> dict[str, Any]:
    """Return the description of a model, from what its workers say of it."""
    return {
        "id": name,
        "object": "model",
        "created": int(proxy.books.started),
        "owned_by": "pontil",
        "root": name,
        "parent": None,
        "max_model_len": snapshot.known_context,
        "vocab_size": vocab_size,
        "dtype": snapshot.dtype,
        "kv_cache_dtype": snapshot.kv_cache_dtype,
        "system_fingerprint": snapshot.system_fingerprint(proxy.config.version),
    }


class ServedModel:
    """The model's name and description."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.name = proxy.config.served_model_name
        self.vocab_size = proxy.tokenizer.vocab_size

    def check(self, name: str | None) -> ChosenAdapter | None:
        """Return the adapter of that name, or None for the model itself, which a request without a name means. Refuse
        another model's name."""
        if name is None or name == self.name:
            return None
        if (digest := self.proxy.adapters.find(name)) is not None:
            return ChosenAdapter(name, digest)
        check_name(self.proxy.config, name, self.name, self.adapters)
        return None

    @property
    def adapters(self) -> Sequence[str]:
        """The names of the adapters that workers have, or will have."""
        return self.proxy.adapters.names

    @property
    def described_adapters(self) -> list[dict[str, Any]]:
        """The objects of the adapters, as models whose parent is the model."""
        return [self.described | {"id": name, "root": name, "parent": self.name} for name in self.adapters]

    @property
    def known_context(self) -> int | None:
        """The longest sequence in tokens; None while no worker is registered."""
        return self.proxy.registry.generating.known_context

    @property
    def described(self) -> dict[str, Any]:
        """The model object; fields that only workers know are null while there are none."""
        snapshot = self.proxy.registry.generating.snapshot()
        return model_object(self.proxy, self.name, self.vocab_size, snapshot) | self.modalities

    @property
    def modalities(self) -> dict[str, Any]:
        """The forms in which the model takes questions and gives answers, where these are more than text."""
        graph = self.proxy.graph
        if graph is None:
            return {}
        input_modalities = ["text"] if graph.recognizer is None else ["text", "audio"]
        encoder = graph.encoder
        if encoder is not None and self.proxy.registry.of(group_of(graph, encoder)).available:
            input_modalities = ["text", "audio", "image"]
        output_modalities = ["text", "audio"] if graph.answers_in_sound else ["text"]
        return {
            "input_modalities": input_modalities,
            "output_modalities": output_modalities,
            "voices": list(graph.voices),
        }


# The verbs for what models do with text, by the role of their workers; the one that generates has several.
DOES = {"embed": "embed", "rerank": "score"}
GENERATE = "generate"


def models_by_name(config: ProxyConfig) -> dict[str, str]:
    """Return what each model does with text, by its name."""
    texts = {name: DOES[role] for role, name in config.text_models.items()}
    return {config.served_model_name: GENERATE} | texts


def check_name(
    config: ProxyConfig, name: str | None, own: str, adapters: Sequence[str] = (), status: int = 404
) -> None:
    """Refuse the name of another model than an endpoint's `own`, one of those that are served with this status.
    Adapters are named to whoever asks for none of them."""
    if name is None or name == own:
        return
    models = models_by_name(config)
    if name not in models:
        raise no_model(name, [*models, *adapters])
    says = f"the model {name!r:.200} {models[name]}s text and does not {models[own]} it: ask {own!r}"
    raise RequestError(says, status=status, param="model", code="model_not_found")


def no_model(name: str, served_names: Sequence[str]) -> RequestError:
    says = f"there is no model {name!r:.200}: this server has {' and '.join(map(repr, served_names))}"
    return RequestError(says, status=404, param="model", code="model_not_found")
