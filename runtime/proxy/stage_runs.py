# SPDX-License-Identifier: Apache-2.0
"""The proxy's view of requests through several stages of its model, which the room of stages serves."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from pontil.runtime.errors import GraphError
from pontil.runtime.foundation.entry_points import entry_point
from pontil.runtime.foundation.staged_model import StagedModel
from pontil.runtime.proxy.metrics.all_series import Metrics
from pontil.runtime.proxy.requests.stream import Stream
from pontil.runtime.proxy.self_test import StageTrial
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.wire.messages import Message, PassDone, Starved

Handlers = Mapping[type[Message], Callable[[Any], None]]


class StageRuns(Protocol):
    """The runs of one proxy."""

    @property
    def graph(self) -> StagedModel | None: ...

    @property
    def handlers(self) -> Handlers:
        """The handlers of messages that workers send about streams between stages."""

    def trials(self) -> Sequence[StageTrial]:
        """Return what the self-test tries beside the routes of a request."""

    def try_out(self, prompt: list[int], params: SamplingParams, cache_salt: str) -> Stream:
        """Begin a self-test through all stages: at once, and billed to no caller."""


class NoRuns:
    """Those of a model of one stage. No worker has anything to say about streams: such messages are stale."""

    graph = None

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics

    @property
    def handlers(self) -> Handlers:
        return {Starved: self.drop, PassDone: ignore}

    def drop(self, message: Message) -> None:
        self.metrics.dropped.labels("stale").inc()

    def trials(self) -> Sequence[StageTrial]:
        return ()

    def try_out(self, prompt: list[int], params: SamplingParams, cache_salt: str) -> Stream:
        raise AssertionError("a model of one stage has no trials of several")


def ignore(message: Message) -> None:
    """Do nothing: a report of the last pass may come after the end of its request."""


def graph_of(name: str | None) -> StagedModel | None:
    graph: StagedModel | None = None if name is None else entry_point("graph-named")(name)
    if name is not None and graph is None:
        raise GraphError(f"there is no model of several stages named {name}: see runtime/stages/graph/catalog.py")
    return graph
