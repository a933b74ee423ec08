# SPDX-License-Identifier: Apache-2.0
"""The endpoints that generate."""

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any, TypeVar

from sanic import HTTPResponse, Request

from pontil.http.fields.audio_output import AudioOutput
from pontil.http.fields.sampling import SamplingFields
from pontil.http.fields.structured_output import OutputStructure
from pontil.http.fields.tools import ToolFields
from pontil.http.intake.body import BodyReader
from pontil.http.intake.encoder import TextLimit
from pontil.http.intake.grammar_check import GrammarCheck
from pontil.http.intake.served_model import ServedModel
from pontil.http.openai.chat.function_call_shape import FunctionCallShape
from pontil.http.openai.chat.parsed_shape import ParsedChatShape
from pontil.http.openai.chat.prompt_reader import PromptReader
from pontil.http.openai.chat.request import ChatRequest, read_chat
from pontil.http.openai.chat.spoken_shape import SpokenForm, spoken_form
from pontil.http.openai.chat.tool_calling import structure_of
from pontil.http.openai.completions.kv_transfer import remote_kv
from pontil.http.openai.completions.request import DEFAULT_TOKENS, CompletionRequest, Prompt, read_completion
from pontil.http.openai.sound.route import SoundRoutes
from pontil.http.stream.answer_checker import AnswerChecker
from pontil.http.stream.rendering import reply
from pontil.http.stream.reply_shape import ChatShape, CompletionShape, ReplyHeading, ShownText
from pontil.http.stream.resumable_routes import ResumableRoutes, check_limits, context_of, heading_of, release_of
from pontil.http.stream.schema_watch import SchemaWatch
from pontil.runtime.chat.answer_reader import AnswerReader
from pontil.runtime.errors import RequestError
from pontil.runtime.proxy.admission.checks import check_together, token_budget
from pontil.runtime.proxy.fleet.registry_snapshot import RegistrySnapshot
from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.proxy.requests.generation import Generation
from pontil.runtime.proxy.requests.stream import Stream
from pontil.runtime.proxy.requests.ticket import Ticket
from pontil.runtime.proxy.routing.prompt_prefix import PromptPrefix
from pontil.runtime.proxy.routing.remote_kv import KeepPrompt, RemoteKV
from pontil.runtime.sampling_params import SamplingParams

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Admitted:
    """One prompt, fitted to the context."""

    prompt: list[int]
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class ReadyChat:
    """A chat that can be submitted by its `ticket`. `thinking` as in ReadPrompt; `snapshot` is what all
    decisions on it used."""

    ticket: Ticket
    wanted: ChatRequest
    thinking: bool
    admitted: Admitted
    snapshot: RegistrySnapshot


class GenerationRoutes:
    """Handlers over one proxy. Their exceptions become error objects in one place.

    Every decision about a request before its dispatch uses one snapshot of the registry, taken when its body was
    read."""

    def __init__(
        self, proxy: Proxy, model: ServedModel, prompts: PromptReader, bodies: BodyReader, grammars: GrammarCheck,
        answers: AnswerChecker,
    ) -> None:  # fmt: skip
        self.proxy, self.model, self.prompts = proxy, model, prompts
        self.bodies, self.grammars, self.answers = bodies, grammars, answers
        self.sounds = SoundRoutes(proxy, model, bodies)
        self.resumable = ResumableRoutes(proxy)

    async def completions(self, request: Request) -> HTTPResponse | None:
        wanted = await self.bodies.read(request, self.reading(request, read_completion))
        return await self.answer_completion(request, wanted)

    async def answer_completion(
        self, request: Request, wanted: CompletionRequest, form: type[CompletionShape] = CompletionShape
    ) -> HTTPResponse | None:
        """Answer a completion that has been read, in this form."""
        ticket, snapshot = self.ticket(wanted, request), self.snapshot_for(request)
        remote = remote_kv(self.proxy, wanted, request.ctx.request_id, len(wanted.prompts))
        # Checked before any grammar is compiled or prompt tokenized.
        check_together(snapshot.workers, len(wanted.prompts) * wanted.sampling.params.n)
        check_limits(self.proxy, request, len(wanted.prompts))
        if wanted.sampling.structure is not None:
            wanted = replace(wanted, sampling=await self.usable(wanted.sampling))
        limit = TextLimit(snapshot.known_context, wanted.handling.is_whole)
        admitted = [
            self.fit(await self.prompt_ids(prompt, wanted, limit), wanted, DEFAULT_TOKENS, "prompt", snapshot)
            for prompt in wanted.prompts
        ]
        shown = self.shown(wanted.sampling, wanted.echo, added=self.added(wanted))
        heading = heading_of(request) or self.heading("cmpl", snapshot)
        shape = form(heading, wanted.delivery, shown)
        shape.schema_watch = self.schema_watch(wanted.sampling)
        self.bodies.in_flight.let_go(request)
        if len(admitted) > 1 and context_of(request) is not None and wanted.delivery.stream:
            raise RequestError("pontil-resume is for one prompt: send several requests", param="prompt")
        prefixes = await prefixes_of(admitted, ticket, self.proxy)
        stream, made = self.resumable.stream(
            request, wanted.delivery, admitted[0].params, shape, heading,
            lambda: self.submit(ticket, admitted, snapshot, prefixes, remote),
        )  # fmt: skip
        return await reply(request, stream, made)

    def reading(self, request: Request, read: Callable[..., T]) -> Callable[[dict[str, Any]], T]:
        """Return the parser for this request's body."""
        return partial(read, vocab_size=self.model.vocab_size, ignored=self.bodies.ignored(request))

    def added(self, wanted: CompletionRequest) -> tuple[int, ...]:
        """Return the ids that the tokenizer put before the texts of an echoed request."""
        is_text = wanted.echo and wanted.handling.add_special_tokens and isinstance(wanted.prompts[0], str)
        return tuple(self.proxy.tokenizer.encode("", True)) if is_text else ()

    async def usable(self, sampling: SamplingFields) -> SamplingFields:
        """Return the fields with a structure that can be used."""
        return replace(sampling, structure=await self.grammars.check(sampling.structure))

    def schema_watch(self, sampling: SamplingFields) -> SchemaWatch | None:
        """Return the check of the answers' ends, if they may follow their grammar and not their schema."""
        structure = sampling.structure
        if structure is None or structure.schema is None or structure.is_exact:
            return None
        return SchemaWatch(self.answers, structure.schema)

    async def prompt_ids(self, prompt: Prompt, wanted: CompletionRequest, limit: TextLimit) -> list[int]:
        if not isinstance(prompt, str):
            return list(prompt)
        return await self.prompts.text_ids(prompt, limit, wanted.handling.add_special_tokens)

    async def chat(self, request: Request) -> HTTPResponse | None:
        wanted = await self.bodies.read(request, self.reading(request, read_chat))
        return await self.answer_chat(request, wanted)

    async def answer_chat(self, request: Request, wanted: ChatRequest) -> HTTPResponse | None:
        """Answer a chat that has been read."""
        ticket = self.ticket(wanted, request)
        self.sounds.check(wanted, request)
        check_limits(self.proxy, request)
        remote = remote_kv(self.proxy, wanted, request.ctx.request_id)
        ready = await self.ready(ticket, await self.sounds.heard(wanted, ticket), request, "messages")
        heading = heading_of(request) or self.heading("chatcmpl", ready.snapshot)
        shape = self.chat_shape(ready, heading)
        shape.schema_watch = self.schema_watch(ready.wanted.sampling)
        self.bodies.in_flight.let_go(request)
        if wanted.audio is not None:
            if context_of(request) is not None:
                raise RequestError("an answer in sound cannot be continued: leave out pontil-resume", param="audio")
            return await self.answer_spoken(request, ready, shape, wanted.audio)
        prefixes = await prefixes_of([ready.admitted], ticket, self.proxy)
        stream, made = self.resumable.stream(
            request, wanted.delivery, ready.admitted.params, shape, heading,
            lambda: self.submit(ticket, [ready.admitted], ready.snapshot, prefixes, remote),
        )  # fmt: skip
        return await reply(request, stream, made)

    async def answer_spoken(
        self, request: Request, ready: ReadyChat, shape: ChatShape, wanted: AudioOutput
    ) -> HTTPResponse | None:
        """Answer a chat in sound: through all stages of the model."""
        assert isinstance(shape, SpokenForm)
        admitted = ready.admitted
        stream = self.sounds.submit(ready.ticket, admitted.prompt, admitted.params, wanted, request)
        return await reply(request, stream, shape, write=partial(shape.written, stream))

    async def ready(self, ticket: Ticket, wanted: ChatRequest, request: Request, prompt_name: str) -> ReadyChat:
        """Tokenize a chat and fit it to the context. Errors call its prompt by this name."""
        snapshot = self.snapshot_for(request)
        if wanted.sampling.structure is not None:
            wanted = replace(wanted, sampling=await self.usable(wanted.sampling))
        return await self.fitted(ticket, wanted, snapshot, prompt_name)

    def snapshot_for(self, request: Request) -> RegistrySnapshot:
        """Return the snapshot for the decisions about a request."""
        return self.proxy.registry.generating.snapshot(release_of(request))

    def ticket(self, wanted: CompletionRequest | ChatRequest, request: Request) -> Ticket:
        """Return the ticket of a request that was read. Raises RequestError for another model, or a priority that its
        caller may not ask for."""
        self.model.check(wanted.model)
        return wanted.handling.complete(request.ctx.ticket, share_prefixes=self.proxy.config.share_prefixes)

    async def fitted(
        self, ticket: Ticket, wanted: ChatRequest, snapshot: RegistrySnapshot, prompt_name: str
    ) -> ReadyChat:
        """Tokenize a chat, whose own structure is usable, and fit it to the context."""
        handling = wanted.handling
        limit = TextLimit(snapshot.known_context, handling.is_whole)
        prompt = await self.prompts.chat(wanted.prompt, limit, handling.add_special_tokens, prompt_name)
        wanted = await self.with_structure(wanted, prompt.thinking)
        admitted = self.fit(prompt.ids, wanted, None, prompt_name, snapshot)
        return ReadyChat(ticket, wanted, prompt.thinking, admitted, snapshot)

    async def rendered(self, wanted: ChatRequest) -> list[int]:
        """Return the prompt with which a chat would be answered."""
        self.model.check(wanted.model)
        snapshot, handling = self.proxy.registry.generating.snapshot(), wanted.handling
        limit = TextLimit(snapshot.known_context, handling.is_whole)
        prompt = await self.prompts.chat(wanted.prompt, limit, handling.add_special_tokens)
        return self.fit(prompt.ids, wanted, None, "messages", snapshot).prompt

    async def with_structure(self, wanted: ChatRequest, thinking: bool) -> ChatRequest:
        """Return the request with the grammar of its tools, and room for reasoning, checked in the form that workers
        get."""
        tools, own = wanted.prompt.tools, wanted.sampling.structure
        structure = await self.structure(tools, own, thinking)
        try:
            await self.grammars.check(structure)
        except RequestError as error:
            if error.param != "tools":
                raise
            structure = await self.structure(await self.grammars.relaxed(tools), own, thinking)
            await self.grammars.check(structure)
        return wanted if structure is own else replace(wanted, sampling=replace(wanted.sampling, structure=structure))

    async def structure(self, tools: ToolFields, own: OutputStructure | None, thinking: bool) -> OutputStructure | None:
        # The tools' schemas may be as large as a body may be.
        make = partial(structure_of, tools, own, self.prompts.dialect, thinking)
        return await self.prompts.executor.run(make, 0) if tools.tools else make()

    def chat_shape(self, ready: ReadyChat, heading: ReplyHeading | None = None) -> ChatShape:
        wanted = ready.wanted
        continued = wanted.prompt.continued if wanted.echo else ""
        if wanted.echo and not continued:
            wanted.prompt.ignored.note("echo")
        shown = self.shown(wanted.sampling, continued=continued)
        made = (heading or self.heading("chatcmpl", ready.snapshot), wanted.delivery, shown)
        if not (wanted.include_reasoning or self.prompts.dialect.thinks):
            wanted.prompt.ignored.note("include_reasoning")
        if not self.prompts.dialect.reads(wanted.prompt.tools.functions):
            return spoken_form(ChatShape, wanted.audio, self.proxy.graph)(*made)
        parsed = FunctionCallShape if wanted.prompt.tools.legacy else ParsedChatShape
        form = spoken_form(parsed, wanted.audio, self.proxy.graph)
        return form(*made, partial(self.answer_reader, ready), wanted.include_reasoning)

    def answer_reader(self, ready: ReadyChat) -> AnswerReader:
        """Return the reader of one answer. A grammar written by the client leaves no room for reasoning."""
        structure = ready.wanted.sampling.structure
        thinking = ready.thinking and (structure is None or structure.written)
        return self.prompts.dialect.reader(ready.wanted.prompt.tools.functions, thinking, structure is not None)

    def heading(self, kind: str, snapshot: RegistrySnapshot) -> ReplyHeading:
        name, fingerprint = f"{kind}-{secrets.token_hex(12)}", snapshot.system_fingerprint(self.proxy.config.version)
        return ReplyHeading(name, int(time.time()), self.model.name, fingerprint)

    def shown(
        self, sampling: SamplingFields, echo: bool = False, added: tuple[int, ...] = (), continued: str = ""
    ) -> ShownText:
        """Return what the reply shows. Logprobs of an echoed prompt are shown with the answer's, not apart."""
        params = sampling.params
        apart = params.prompt_logprobs is not None and not (echo and params.logprobs is not None)
        return ShownText(
            self.proxy.tokenizer, params.skip_special_tokens, params.logprobs is not None, apart, echo, added,
            continued,
        )  # fmt: skip

    def fit(
        self, prompt: list[int], wanted: CompletionRequest | ChatRequest, default: int | None, prompt_name: str,
        snapshot: RegistrySnapshot,
    ) -> Admitted:  # fmt: skip
        sampling, handling, context = wanted.sampling, wanted.handling, snapshot.context_length
        wanted_tokens = default if sampling.max_tokens is None else sampling.max_tokens
        prompt = handling.cut(prompt, context - max(1, wanted_tokens or 0))
        names = (prompt_name, sampling.max_tokens_name)
        budget = token_budget(len(prompt), sampling.max_tokens, default, context, names)
        return Admitted(prompt, sampling.fitted(budget))

    def submit(
        self, ticket: Ticket, admitted: Sequence[Admitted], snapshot: RegistrySnapshot,
        prefixes: Sequence[PromptPrefix] = (), remote: RemoteKV | None = None,
    ) -> Stream:  # fmt: skip
        """Submit all of the prompts, or none. A router discards the answer to a prompt that is only to be kept, so
        that one choice of it is enough."""
        keeps = isinstance(remote, KeepPrompt)
        works = [
            Generation(one.prompt, replace(one.params, n=1) if keeps else one.params, prefix, remote)
            for one, prefix in zip_longest(admitted, prefixes)
        ]
        return self.proxy.submit(ticket, *works, snapshot=snapshot)


async def prefixes_of(admitted: Sequence[Admitted], ticket: Ticket, proxy: Proxy) -> Sequence[PromptPrefix]:
    """Return what of the prompts workers have cached, as far as is known."""
    return await proxy.dispatcher.lookup.prepare([one.prompt for one in admitted], ticket.cache_salt)
