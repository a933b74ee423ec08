# SPDX-License-Identifier: Apache-2.0
"""The entry of requests that use several stages of a model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pontil.runtime.errors import PontilError, RequestError, Unavailable
from pontil.runtime.foundation.staged_model import group_of
from pontil.runtime.proxy.admission.in_flight import InFlight
from pontil.runtime.proxy.fleet.registry import Registry
from pontil.runtime.proxy.fleet.registry_snapshot import RegistrySnapshot
from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.proxy.requests.stream import Stream, Wakeup
from pontil.runtime.proxy.requests.ticket import Ticket
from pontil.runtime.proxy.routing.policy import WorkerLoad
from pontil.runtime.proxy.self_test import StageTrial
from pontil.runtime.proxy.stage_runs import Handlers
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.stages.graph.catalog import GraphModel, GraphNode, SpeechPrompt
from pontil.runtime.stages.graph.medium import ENCODER, IMAGE, counted, media_of
from pontil.runtime.stages.runs.conductor import Conductor
from pontil.runtime.stages.runs.run import NO_TOKENS, StageRun, later_stages
from pontil.runtime.stages.runs.stream import RunStream
from pontil.runtime.wire.messages import PassDone, Starved

NO_OPTIONS: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class SoundRoute:
    """The workers of all stages that an answer in sound needs. The dispatcher chooses among them. It is asked for with
    the prompt `question`. With `needs_sound` every answer has some; a text of nothing to say has none."""

    workers: tuple[WorkerLoad, ...]
    question: str
    needs_sound: bool
    name: str = "sound"
    failure: str = "an answer in sound fails"

    @property
    def phases(self) -> dict[str, str]:
        """The workers by incarnation; the test is made again when they are others."""
        return {worker.incarnation: self.name for worker in self.workers}

    def objection(self, stream: Stream) -> str | None:
        assert isinstance(stream, RunStream)
        return "an answer in sound had no sound" if self.needs_sound and not stream.run.audio.size else None


def sound_routes(registry: Registry, graph: GraphModel | None) -> list[SoundRoute]:
    """Return the route of an answer in sound, if the model makes sound and each stage has a worker."""
    if graph is None or graph.audio is None:
        return []
    names = [graph.first, *(node.name for node in later_stages(graph))]
    loads = [registry.of(group_of(graph, name)).loads for name in names]
    workers = tuple(load for each in loads for load in each)
    return [SoundRoute(workers, graph.question, graph.audio_needs_states)] if all(loads) else []


class RunEntry:
    """The entry of requests through the stages of `graph`: `submit` for an answer in text and audio, `speak` for the
    audio of a text, `ask` for the text of a recording; the work that `answer` returns is submitted as others are. Each
    raises Unavailable, TooManyRequests or RequestError as `Proxy.submit` does, which `door` is. `encode` is the
    tokenizer's."""

    def __init__(
        self,
        graph: GraphModel,
        registry: Registry,
        in_flight: InFlight,
        conductor: Conductor,
        door: Callable[[Ticket, StageRun, RegistrySnapshot], Stream],
        encode: Callable[[str, bool, bool], list[int]],
    ) -> None:
        self.graph, self.registry, self.in_flight = graph, registry, in_flight
        self.conductor, self.door, self.encode = conductor, door, encode

    def submit(
        self,
        ticket: Ticket,
        prompt: list[int],
        params: SamplingParams,
        options: Mapping[str, Any] = NO_OPTIONS,
        media: bytes | None = None,
    ) -> RunStream:
        """Admit a request through all stages from the first on, and the one that encodes the prompt's `media`, if there
        are any. `options` are the client's for these stages, such as a voice."""
        work = self.run_work(prompt, params, options, media, later_stages(self.graph))
        return self.begin(ticket, work)

    def answer(self, prompt: list[int], params: SamplingParams, options: Mapping[str, Any], media: bytes) -> StageRun:
        """Return the work of an answer in text to a prompt with media. Raises Unavailable where nobody encodes them."""
        return self.run_work(prompt, params, options, media, ())

    def run_work(
        self,
        prompt: list[int],
        params: SamplingParams,
        options: Mapping[str, Any],
        media: bytes | None,
        later: tuple[GraphNode, ...],
    ) -> StageRun:
        graph, given = self.graph, dict[str, bytes]()
        if later and params.n != 1:
            # Their items are those of one sequence; a prompt's media are of all of its choices.
            raise RequestError(f"n is {params.n}, but an answer with audio has one choice: ask for n 1", param="n")
        if media is not None and graph.encoder is not None:
            later, given = (graph.node(graph.encoder), *later), {graph.encoder: media}
            options = {**options, ENCODER: self.encoder_of(graph.encoder)}
        for node in later:
            self.check_there(graph, node.name)
        first = graph.node(graph.first)
        run = StageRun(prompt, params, graph, first, self.conductor, later, given=given, options=options)
        run.image_tokens = counted(media_of(options), IMAGE)
        return run

    def encoder_of(self, node: str) -> list[str] | None:
        """Return what the rows of media depend on, besides their bytes; None where workers differ in it."""
        hellos = [worker.hello for worker in self.registry.of(group_of(self.graph, node)).workers]
        alike = {(hello.model_fingerprint, hello.dtype or "", hello.kernels or "") for hello in hellos}
        return list(alike.pop()) if len(alike) == 1 else None

    def speak(self, ticket: Ticket, data: bytes, options: Mapping[str, Any] = NO_OPTIONS, seed: int = 0) -> RunStream:
        """Admit a request for the audio of a text in UTF-8: to the stage that makes audio, whose stream has no text, or
        to all stages, where the first one speaks. That draws by the `seed`. Raises RequestError for a model whose audio
        needs more than a text."""
        graph = self.graph
        if graph.speech is not None:
            self.check_there(graph, graph.first)
            prompt = self.speech_prompt(graph.speech, data.decode(), options.get("voice"))
            return self.submit(ticket, prompt, self.speech_params(len(prompt), seed), options)
        if graph.audio is None or graph.audio_needs_states:
            raise RequestError(f"{graph.name} makes no audio of a text alone: ask for it with a chat", param="model")
        node = graph.node(graph.audio)
        return self.begin(ticket, StageRun([], NO_TOKENS, graph, node, self.conductor, data=data, options=options))

    def speech_prompt(self, speech: SpeechPrompt, text: str, voice: str | None) -> list[int]:
        before, plain, after = speech.of(text, voice or next(iter(self.graph.voices), None))
        return [*self.encode(before, False, True), *self.encode(plain, False, False), *self.encode(after, False, True)]

    def speech_params(self, prompt: int, seed: int) -> SamplingParams:
        """Return the settings of speech behind a prompt of so many tokens. Raises RequestError for one that is too
        long."""
        first = self.graph.node(self.graph.first)
        context = self.registry.of(None).known_context or 0
        if (room := context - prompt) < 1:
            says = f"the text has {prompt} tokens with its marks, and the model's context {context}: send a shorter one"
            raise RequestError(says, param="input", code="context_length_exceeded")
        return SamplingParams(max_tokens=min(first.max_tokens or room, room), seed=seed, **dict(first.sampling))

    @property
    def handlers(self) -> Handlers:
        return {Starved: self.conductor.on_starved, PassDone: self.conductor.on_pass_done}

    def trials(self) -> Sequence[StageTrial]:
        return sound_routes(self.registry, self.graph)

    def try_out(self, prompt: list[int], params: SamplingParams, cache_salt: str) -> RunStream:
        """Begin a self-test through all stages: at once, and billed to no caller."""
        graph = self.graph
        work = StageRun(prompt, params, graph, graph.node(graph.first), self.conductor, later_stages(graph))
        request = self.in_flight.open(Ticket("self-test", cache_salt=cache_salt), work, trial=True)
        self.conductor.dispatcher.enlist(request)
        return self.stream(work)

    async def ask(
        self, ticket: Ticket, node: str, data: bytes, options: Mapping[str, Any] = NO_OPTIONS, *, beside: bool = False
    ) -> str:
        """Have a node compute these bytes, and return the text that it makes of them. No tokens are billed. It is one
        request of its key, unless it is `beside` another. A caller that is cancelled cancels the work."""
        graph = self.graph
        work = StageRun([], NO_TOKENS, graph, graph.node(node), data=data, options=options, beside=beside)
        stream, wakeup = self.admit(ticket, work), Wakeup()
        stream.listen(wakeup.wake)
        try:
            while stream.end is None:
                await wakeup.wait()
        finally:
            stream.cancel()
        if isinstance(stream.end, PontilError):
            raise stream.end
        return work.text.decode("utf-8", "replace")

    def check_there(self, graph: GraphModel, node: str) -> None:
        """Raise Unavailable while a stage has no worker."""
        if not self.registry.of(group_of(graph, node)).available:
            raise Unavailable(f"no worker of the stage {node} is ready yet: try again in a moment")

    def admit(self, ticket: Ticket, work: StageRun) -> Stream:
        """Admit the request of a stage, which any worker of the stage may serve, whatever its release."""
        self.check_there(work.graph, work.node.name)
        return self.door(ticket, work, self.registry.of(work.group).snapshot_of_all())

    def begin(self, ticket: Ticket, work: StageRun) -> RunStream:
        self.admit(ticket, work)
        return self.stream(work)

    def stream(self, work: StageRun) -> RunStream:
        assert work.run is not None, "its keeper began a run"
        return RunStream(work.run, self.conductor.cancel, self.in_flight.turn)


def runs_of(proxy: Proxy) -> RunEntry:
    """Return the entry of a proxy's runs. Raises RequestError for a model of one stage."""
    if not isinstance(proxy.runs, RunEntry):
        raise RequestError("the model has no stages for audio: ask for text", param="model")
    return proxy.runs


def open_runs(proxy: Proxy, graph: GraphModel) -> RunEntry:
    """Open the entry of a proxy whose other parts are made."""
    conductor = Conductor(
        proxy.config, proxy.incarnation, proxy.dispatcher, proxy.in_flight, proxy.books, proxy.metrics, proxy.clock
    )
    if graph.speech is not None:
        # The first text that is plain whatever it looks like needs a copy of the vocabulary: made before anybody waits.
        proxy.tokenizer.encode("", False, parse_special=False)
    return RunEntry(
        graph,
        proxy.registry,
        proxy.in_flight,
        conductor,
        lambda ticket, work, snapshot: proxy.submit(ticket, work, snapshot=snapshot),
        proxy.tokenizer.encode,
    )
