# SPDX-License-Identifier: Apache-2.0
"""The entry of requests that use several stages of a model."""

from collections.abc import Callable, Mapping
from typing import Any

from pontil.runtime.errors import GraphError, PontilError, RequestError, Unavailable
from pontil.runtime.foundation.staged_model import group_of
from pontil.runtime.proxy.admission.model_admissions import ModelAdmissions
from pontil.runtime.proxy.fleet.registry import Registry
from pontil.runtime.proxy.requests.bookkeeper import Bookkeeper
from pontil.runtime.proxy.requests.in_flight import InFlight
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.proxy.requests.stream import MessageTurn
from pontil.runtime.proxy.requests.ticket import Ticket
from pontil.runtime.proxy.wakeup import Wakeup
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.stages.graph.catalog import GraphModel, graph_named
from pontil.runtime.stages.runs.conductor import Conductor
from pontil.runtime.stages.runs.run import Run, later_stages
from pontil.runtime.stages.runs.stage_task import StageTask
from pontil.runtime.stages.runs.stream import RunStream

NO_OPTIONS: Mapping[str, Any] = {}
# A node makes no tokens, so its parameters say nothing.
NO_TOKENS = SamplingParams(max_tokens=0, seed=0)


class RunEntry:
    """The entry of requests through the stages of `graph`: `submit` for an answer in text and audio, `speak` for the
    audio of a text, `ask` for the text of a recording. Each raises Unavailable, TooManyRequests or RequestError as
    `Proxy.submit_all` does. Without a graph none may be called."""

    def __init__(
        self, graph: GraphModel | None, registry: Registry, admissions: ModelAdmissions, in_flight: InFlight,
        books: Bookkeeper, conductor: Conductor, turn: MessageTurn, is_draining: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.graph, self.registry, self.admissions, self.in_flight = graph, registry, admissions, in_flight
        self.books, self.conductor, self.turn, self.is_draining = books, conductor, turn, is_draining

    def submit(
        self, ticket: Ticket, prompt: list[int], params: SamplingParams, options: Mapping[str, Any] = NO_OPTIONS
    ) -> RunStream:
        """Admit a request through all stages from the first on. `options` are the client's for the later ones, such as
        a voice; the rest is as in `Proxy.submit_all`."""
        graph = self.the_graph
        if params.n != 1:
            raise RequestError(f"n is {params.n}, but an answer with audio has one choice: ask for n 1", param="n")
        later = later_stages(graph)
        for node in later:
            self.check_there(graph, node.name)
        task = StageTask(graph, graph.node(graph.first))
        request = self.admit(ticket, task, prompt, params)
        return self.begin(Run(graph, request, task, later, options, self.registry.workers), task)

    def speak(self, ticket: Ticket, data: bytes, options: Mapping[str, Any] = NO_OPTIONS) -> RunStream:
        """Admit a request to the stage that makes audio, for the audio of a text in UTF-8. Its stream has no text.
        Raises RequestError for a model whose audio needs more than a text."""
        graph = self.the_graph
        if graph.audio is None or graph.audio_needs_states:
            raise RequestError(f"{graph.name} makes no audio of a text alone: ask for it with a chat", param="model")
        task = StageTask(graph, graph.node(graph.audio), data=data, options=options)
        request = self.admit(ticket, task, [], NO_TOKENS)
        return self.begin(Run(graph, request, task, (), options, self.registry.workers), task)

    def try_out(self, prompt: list[int], params: SamplingParams, cache_salt: str) -> RunStream:
        """Begin a self-test through all stages: at once, and billed to no caller."""
        graph = self.the_graph
        task = StageTask(graph, graph.node(graph.first))
        request = self.in_flight.open(Ticket("self-test", cache_salt=cache_salt), prompt, params, stage=task)
        request.trial = True
        request.recorder.is_hidden = True
        task.run = run = Run(graph, request, task, later_stages(graph), NO_OPTIONS, self.registry.workers)
        self.conductor.begin(run)
        self.conductor.dispatcher.enlist(request)
        return RunStream(run, self.conductor.cancel, self.turn)

    async def ask(
        self, ticket: Ticket, node: str, data: bytes, options: Mapping[str, Any] = NO_OPTIONS, *, beside: bool = False
    ) -> str:
        """Have a node compute these bytes, and return the text that it makes of them. No tokens are billed. It is one
        request of its key, unless it is `beside` another. A caller that is cancelled cancels the work."""
        graph = self.the_graph
        task = StageTask(graph, graph.node(node), data=data, options=options, beside=beside)
        request = self.admit(ticket, task, [], NO_TOKENS)
        wakeup = Wakeup()
        request.mailbox.listener = wakeup.wake
        try:
            self.enter(request)
            while request.mailbox.end is None:
                await wakeup.wait()
        finally:
            self.in_flight.cancel(request)
        if isinstance(request.mailbox.end, PontilError):
            raise request.mailbox.end
        return task.text.decode("utf-8", "replace")

    @property
    def the_graph(self) -> GraphModel:
        if self.graph is None:
            raise RequestError("the model has no stages for audio: ask for text", param="model")
        return self.graph

    def check_there(self, graph: GraphModel, node: str) -> None:
        """Raise Unavailable while a stage has no worker."""
        if not self.registry.of(group_of(graph, node)).available:
            raise Unavailable(f"no worker of the stage {node} is ready yet: try again in a moment")

    def admit(self, ticket: Ticket, task: StageTask, prompt: list[int], params: SamplingParams) -> Request:
        """Check that a request can be admitted, and create it."""
        if self.is_draining():
            raise Unavailable("the server is shutting down: try again in a moment")
        self.check_there(task.graph, task.node.name)
        workers = self.registry.of(task.group).loads
        self.admissions.by_group[task.group].check(ticket, [(prompt, params)], workers, beside=task.beside)
        return self.in_flight.open(ticket, prompt, params, stage=task)

    def begin(self, run: Run, task: StageTask) -> RunStream:
        task.run = run
        self.conductor.begin(run)
        self.enter(run.first)
        return RunStream(run, self.conductor.cancel, self.turn)

    def enter(self, request: Request) -> None:
        admission = self.admissions.of(request)
        admission.enter(request)
        self.books.admit(request)
        admission.dispatch()


def graph_of(name: str | None) -> GraphModel | None:
    """Return the graph that the configuration names, if it names one."""
    found = None if name is None else graph_named(name)
    if name is not None and found is None:
        raise GraphError(f"there is no model of several stages named {name}: see runtime/stages/graph/catalog.py")
    return found
