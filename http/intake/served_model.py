# SPDX-License-Identifier: Apache-2.0
"""The served model, its name and its description."""

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from pontil.runtime.config.proxy_config import FurtherModel, ProxyConfig
from pontil.runtime.errors import OtherAdapter, OtherModel, RequestError, Unavailable
from pontil.runtime.foundation.staged_model import group_of
from pontil.runtime.proxy.fleet.registry import WorkerGroup
from pontil.runtime.proxy.fleet.registry_snapshot import RegistrySnapshot
from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.proxy.requests.ticket import ChosenAdapter, Replay


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
    """A model that generates: its name, its tokenizer and its description. `key` is that of its workers."""

    def __init__(self, proxy: Proxy, key: str | None = None) -> None:
        self.proxy, self.key = proxy, key
        # The first model's options are the proxy's own.
        self.options: ProxyConfig | FurtherModel = proxy.config
        if key is not None:
            self.options = next(model for model in proxy.config.further_models if model.name == key)
        self.name = key or proxy.config.served_model_name
        self.tokenizer = proxy.in_flight.tokenizer_of(key)
        self.vocab_size = self.tokenizer.vocab_size

    @property
    def workers(self) -> WorkerGroup:
        return self.proxy.registry.of(self.key)

    @property
    def names(self) -> Sequence[str]:
        """The names that clients may ask for: its own, and those of its adapters."""
        return (self.name, *self.adapters)

    def check(self, name: str | None, replay: Replay | None = None) -> ChosenAdapter | None:
        """Return the adapter of that name, or None for the model itself, which a request without a name means. Refuse
        another model's name, one that is not served yet, and a replay of what was answered with another adapter. At
        the one worker that a replay is for it need not be served."""
        adapter = None if name is None or name == self.name else self.adapter_of(name, replay)
        if replay is not None:
            check_recorded(name, adapter, replay.adapter)
            self.check_its(name, adapter, replay.worker)
        if adapter is None:
            check_name(self.proxy.config, name, self.name, self.adapters)
        elif self.key is None and (replay is None or replay.worker is None):
            self.proxy.adapters.check_served(adapter.name, adapter.digest)
        return adapter

    def check_its(self, name: str | None, adapter: ChosenAdapter | None, worker: str | None) -> None:
        """Raise OtherModel for a replay at a worker of another model, or of what no model here is."""
        if worker is None:
            return
        groups = [one.group for one in self.proxy.registry.workers.values() if one.hello.name == worker]
        if groups and self.key not in groups:
            raise OtherModel("it is of another model than its worker has")
        if adapter is None and name is not None and name not in models_by_name(self.proxy.config):
            raise OtherModel("it is of a model that is not here")

    def adapter_of(self, name: str, replay: Replay | None) -> ChosenAdapter | None:
        """Return the adapter for which a name stands, where the request is to be computed; None where it stands for
        none. Raises Unavailable while nobody is here who knows. Adapters come and go for the first model, and are those
        of the launch for others."""
        if self.key is None:
            self.proxy.adapters.check_known(name)
            if (change := self.proxy.adapters.book.changes.get(name)) is not None:
                found = ChosenAdapter(name, change.digest, change.directory, change.invocation)
                return found if change.stands_for else None
        # A worker of another revision may begin with adapters of its own.
        named = () if replay is None else (one.hello for one in self.workers.workers if one.hello.name == replay.worker)
        hello = next(iter(named), self.workers.any_hello)
        if hello is None and self.key is not None and name in self.options.adapter_paths:
            raise Unavailable("no worker is ready yet: try again in a moment")
        if hello is None or name not in hello.adapters:
            return None
        return ChosenAdapter(name, hello.adapters[name], invocation=tuple(hello.invocations.get(name, ())))

    @property
    def adapters(self) -> Sequence[str]:
        """The names of the adapters that workers have, or will have."""
        hello = self.workers.any_hello
        if self.key is None:
            return self.proxy.adapters.names
        return tuple(self.options.adapter_paths) if hello is None else tuple(hello.adapters)

    @property
    def described_adapters(self) -> list[dict[str, Any]]:
        """The objects of the adapters, as models whose parent is the model."""
        return [self.described | {"id": name, "root": name, "parent": self.name} for name in self.adapters]

    @property
    def known_context(self) -> int | None:
        """The longest sequence in tokens; None while no worker is registered."""
        return self.workers.known_context

    @property
    def described(self) -> dict[str, Any]:
        """The model object; fields that only workers know are null while there are none."""
        about = model_object(self.proxy, self.name, self.vocab_size, self.workers.snapshot()) | self.modalities
        sleeps = self.proxy.config.model_memory is not None
        return about | {"state": self.proxy.waking.state(self.key)} if sleeps else about

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


def check_recorded(name: str | None, adapter: ChosenAdapter | None, recorded: str | None) -> None:
    """Raise OtherAdapter for what was recorded with another adapter, or with none: it cannot be compared."""
    if recorded is None or recorded == ("" if adapter is None else adapter.digest):
        return
    now = "no adapter any more" if adapter is None else "another adapter than when this was recorded"
    raise OtherAdapter(f"{name!r:.200} stands for {now}")


class HasModel(Protocol):
    """Handlers over one model."""

    @property
    def model(self) -> ServedModel: ...


R = TypeVar("R", bound=HasModel)


class NamedRoutes(Generic[R]):
    """The handlers of each model of a server, by the names that clients may ask for at one moment. A name that there is
    not is left to the first ones, which refuse it."""

    def __init__(self, first: R, beside: Sequence[R]) -> None:
        self.first = first
        # Looked at in threads, where workers are not.
        self.by_name = {name: routes for routes in (first, *beside) for name in routes.model.names} if beside else {}

    def of(self, name: object) -> R:
        return self.by_name.get(name, self.first) if isinstance(name, str) else self.first


# The verbs for what models do with text, by the role of their workers; those that generate have several.
DOES = {"embed": "embed", "rerank": "score"}
GENERATE = "generate"


def models_by_name(config: ProxyConfig) -> dict[str, str]:
    """Return what each model does with text, by its name."""
    texts = {name: DOES[role] for role, name in config.text_models.items()}
    return dict.fromkeys((config.served_model_name, *config.further_names), GENERATE) | texts


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
    if models[name] == models[own]:
        says = f"this endpoint asks {own!r:.200} only"
    else:
        says = f"the model {name!r:.200} {models[name]}s text and does not {models[own]} it: ask {own!r}"
    raise RequestError(says, status=status, param="model", code="model_not_found")


def no_model(name: str, served_names: Sequence[str]) -> RequestError:
    says = f"there is no model {name!r:.200}: this server has {' and '.join(map(repr, served_names))}"
    return RequestError(says, status=404, param="model", code="model_not_found")
