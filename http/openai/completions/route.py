# SPDX-License-Identifier: Apache-2.0
"""The endpoints that generate."""

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from sanic import HTTPResponse, Request

from pontil.http.fields.audio_output import AudioOutput
from pontil.http.fields.sampling import SamplingFields
from pontil.http.fields.structured_output import OutputStructure
from pontil.http.fields.tools import ToolFields
from pontil.http.intake.body import BodyReader, understood
from pontil.http.intake.encoder import TextLimit, token_budget
from pontil.http.intake.grammar_check import GrammarCheck
from pontil.http.intake.served_model import ServedModel
from pontil.http.openai.chat.parsed_shape import FunctionCallShape, ParsedChatShape
from pontil.http.openai.chat.prompt_reader import PromptReader
from pontil.http.openai.chat.request import ChatRequest, read_chat
from pontil.http.openai.chat.tool_calling import structure_of
from pontil.http.openai.completions.remote_prompt import moved, remote_kv
from pontil.http.openai.completions.request import DEFAULT_TOKENS, CompletionRequest, Prompt, read_completion
from pontil.http.openai.completions.sounds import open_sounds
from pontil.http.stream.answer_checker import AnswerChecker
from pontil.http.stream.reply import KeepAnswer, ReplyFormat, keep_nothing, reply
from pontil.http.stream.reply_shape import ChatShape, CompletionShape, ReplyHeading, ShownText
from pontil.http.stream.resumable_routes import ResumableRoutes, check_not_continued, heading_of
from pontil.http.stream.schema_watch import SchemaWatch
from pontil.runtime.chat.answer_reader import AnswerReader
from pontil.runtime.errors import RequestError
from pontil.runtime.proxy.admission.control import check_together
from pontil.runtime.proxy.fleet.registry_snapshot import RegistrySnapshot
from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.proxy.requests.generation import Generation
from pontil.runtime.proxy.requests.remote_kv import RemoteKV
from pontil.runtime.proxy.requests.ticket import Ticket

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReadyRequest:
    """Works that can be submitted by their `ticket`. `sampling` is as workers get it; `snapshot` is what all decisions
    used."""

    ticket: Ticket
    works: Sequence[Generation]
    sampling: SamplingFields
    snapshot: RegistrySnapshot


@dataclass(frozen=True, slots=True)
class ReadyChat(ReadyRequest):
    """A chat that can be submitted. `thinking` as in ReadPrompt."""

    wanted: ChatRequest
    thinking: bool


class Preparation:
    """The preparation for one model. Every decision about a request before its dispatch uses one snapshot of the
    registry."""

    def __init__(self, proxy: Proxy, model: ServedModel, prompts: PromptReader, grammars: GrammarCheck) -> None:
        self.proxy, self.model, self.prompts, self.grammars = proxy, model, prompts, grammars

    def complete(self, ticket: Ticket, wanted: CompletionRequest | ChatRequest) -> Ticket:
        """Return the ticket of a request that was read. Raises RequestError for another model, or a priority that its
        caller may not ask for."""
        self.model.check(wanted.model)
        return wanted.handling.complete(ticket, share_prefixes=self.proxy.config.share_prefixes)

    def snapshot(self, ticket: Ticket) -> RegistrySnapshot:
        return self.proxy.registry.generating.snapshot(ticket.release)

    async def completion(self, ticket: Ticket, wanted: CompletionRequest) -> ReadyRequest:
        """Compile the grammar of a completion, tokenize its prompts and fit them to the context."""
        ticket = self.complete(ticket, wanted)
        snapshot = self.snapshot(ticket)
        remote = remote_kv(self.proxy, wanted.kv_transfer, wanted.sampling, ticket.name, len(wanted.prompts))
        # Checked before any grammar is compiled or prompt tokenized.
        check_together(snapshot.workers, len(wanted.prompts) * wanted.sampling.params.n)
        self.proxy.admissions.check_limits(ticket, len(wanted.prompts))
        wanted = replace(wanted, sampling=await self.usable(wanted.sampling))
        limit = TextLimit(snapshot.known_context, wanted.handling.is_whole)
        works = []
        for prompt in wanted.prompts:
            ids = await self.prompt_ids(prompt, wanted, limit)
            works.append(moved(self.fit(ids, wanted, snapshot, "prompt", DEFAULT_TOKENS), remote))
        return ReadyRequest(ticket, works, wanted.sampling, snapshot)

    async def prompt_ids(self, prompt: Prompt, wanted: CompletionRequest, limit: TextLimit) -> list[int]:
        if not isinstance(prompt, str):
            return list(prompt)
        return await self.prompts.text_ids(prompt, limit, wanted.handling.add_special_tokens)

    async def chat(
        self, ticket: Ticket, wanted: ChatRequest, prompt_name: str = "messages", remote: RemoteKV | None = None
    ) -> ReadyChat:
        """Compile the grammars of a chat whose ticket is complete, tokenize it and fit it to the context. Errors call
        its prompt by this name."""
        snapshot = self.snapshot(ticket)
        wanted = replace(wanted, sampling=await self.usable(wanted.sampling))
        return await self.fitted(ticket, wanted, snapshot, prompt_name, remote)

    async def fitted(
        self,
        ticket: Ticket,
        wanted: ChatRequest,
        snapshot: RegistrySnapshot,
        prompt_name: str,
        remote: RemoteKV | None = None,
    ) -> ReadyChat:
        """Tokenize a chat, whose own structure is usable, and fit it to the context."""
        handling = wanted.handling
        limit = TextLimit(snapshot.known_context, handling.is_whole)
        prompt = await self.prompts.chat(wanted.prompt, limit, handling.add_special_tokens, prompt_name)
        wanted = await self.with_structure(wanted, prompt.thinking)
        work = moved(self.fit(prompt.ids, wanted, snapshot, prompt_name), remote)
        return ReadyChat(ticket, [work], wanted.sampling, snapshot, wanted, prompt.thinking)

    async def rendered(self, wanted: ChatRequest) -> list[int]:
        """Return the prompt with which a chat would be answered."""
        self.model.check(wanted.model)
        snapshot, handling = self.proxy.registry.generating.snapshot(), wanted.handling
        limit = TextLimit(snapshot.known_context, handling.is_whole)
        prompt = await self.prompts.chat(wanted.prompt, limit, handling.add_special_tokens)
        return self.fit(prompt.ids, wanted, snapshot, "messages").prompt

    def fit(
        self,
        prompt: list[int],
        wanted: CompletionRequest | ChatRequest,
        snapshot: RegistrySnapshot,
        prompt_name: str,
        default: int | None = None,
    ) -> Generation:
        """Return the work on one prompt, fitted to the context."""
        sampling, handling, context = wanted.sampling, wanted.handling, snapshot.context_length
        wanted_tokens = default if sampling.max_tokens is None else sampling.max_tokens
        prompt = handling.cut(prompt, context - max(1, wanted_tokens or 0))
        names = (prompt_name, sampling.max_tokens_name)
        budget = token_budget(len(prompt), sampling.max_tokens, default, context, names)
        params = replace(sampling.fitted(budget), hide_end_token=self.proxy.config.hide_end_token)
        return Generation(prompt, params)

    async def look_up(self, ready: ReadyRequest) -> None:
        """Look for the prompts in what workers have cached, as far as is known."""
        lookup, prompts = self.proxy.dispatcher.lookup, [work.prompt for work in ready.works]
        prefixes = await lookup.prepare(prompts, ready.ticket.cache_salt)
        for work, prefix in zip(ready.works, prefixes, strict=False):
            work.prefix = prefix

    async def usable(self, sampling: SamplingFields) -> SamplingFields:
        """Return the fields with a structure that can be used, if they have one."""
        if sampling.structure is None:
            return sampling
        return replace(sampling, structure=await self.grammars.check(sampling.structure))

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


class GenerationRoutes:
    """Handlers over one proxy: each reads a request, prepares its work, submits that and sends the reply. Their
    exceptions become error objects in one place."""

    def __init__(self, preparation: Preparation, bodies: BodyReader, answers: AnswerChecker) -> None:
        self.preparation, self.bodies, self.answers = preparation, bodies, answers
        self.proxy, self.model, self.prompts = preparation.proxy, preparation.model, preparation.prompts
        self.sounds = open_sounds(self.proxy, self.model, bodies)
        self.resumable = ResumableRoutes(self.proxy)

    async def read(self, request: Request, read: Callable[..., T]) -> T:
        """Read this request's body by its parser."""
        ignored = self.bodies.ignored(request)
        return await self.bodies.read(request, partial(read, vocab_size=self.model.vocab_size, ignored=ignored))

    async def completions(self, request: Request) -> HTTPResponse | None:
        return await self.answer_completion(request, await self.read(request, read_completion))

    async def answer_completion(
        self, request: Request, wanted: CompletionRequest, form: type[CompletionShape] = CompletionShape
    ) -> HTTPResponse | None:
        """Answer a completion that has been read, in this form."""
        ready = await self.preparation.completion(request.ctx.ticket, wanted)
        shown = self.shown(ready.sampling, wanted.echo, added=self.added(wanted))
        shape = form(self.heading(request, "cmpl", ready.snapshot), wanted.delivery, shown)
        return await self.send(request, ready, shape)

    async def chat(self, request: Request) -> HTTPResponse | None:
        return await self.answer_chat(request, await self.read(request, read_chat))

    async def answer_chat(self, request: Request, wanted: ChatRequest) -> HTTPResponse | None:
        """Answer a chat that has been read."""
        ticket = self.preparation.complete(request.ctx.ticket, wanted)
        self.sounds.check(wanted, request)
        self.proxy.admissions.check_limits(ticket)
        remote = remote_kv(self.proxy, wanted.kv_transfer, wanted.sampling, ticket.name)
        ready = await self.preparation.chat(ticket, await self.sounds.heard(wanted, ticket), remote=remote)
        shape = self.chat_shape(ready, self.heading(request, "chatcmpl", ready.snapshot))
        if wanted.audio is not None:
            return await self.speak(request, ready, shape, wanted.audio)
        return await self.send(request, ready, shape)

    async def send(
        self, request: Request, ready: ReadyRequest, shape: ReplyFormat, keep: KeepAnswer = keep_nothing
    ) -> HTTPResponse | None:
        """Submit all of the works, or none, and send the reply in this form. A stream may be one that can be
        continued."""
        understood(request)
        shape.schema_watch = self.schema_watch(ready.sampling)
        await self.preparation.look_up(ready)
        submit = partial(self.proxy.submit, ready.ticket, *ready.works, snapshot=ready.snapshot)
        stream, shape = self.resumable.stream(request, ready.works, shape, submit)
        return await reply(request, stream, shape, keep)

    async def speak(
        self, request: Request, ready: ReadyChat, shape: ChatShape, wanted: AudioOutput
    ) -> HTTPResponse | None:
        """Send an answer in sound, which all stages of the model make."""
        understood(request)
        check_not_continued(request)
        shape.schema_watch = self.schema_watch(ready.sampling)
        return await self.sounds.answer(request, ready.ticket, ready.works[0], shape, wanted)

    def heading(self, request: Request, kind: str, snapshot: RegistrySnapshot) -> ReplyHeading:
        """Return the heading of a reply: the earlier one of a stream that is continued, else a new one."""
        if (begun := heading_of(request)) is not None:
            return begun
        fingerprint = snapshot.system_fingerprint(self.proxy.config.version)
        return ReplyHeading(f"{kind}-{secrets.token_hex(12)}", int(time.time()), self.model.name, fingerprint)

    def schema_watch(self, sampling: SamplingFields) -> SchemaWatch | None:
        """Return the check of the answers' ends, if they may follow their grammar and not their schema."""
        structure = sampling.structure
        if structure is None or structure.schema is None or structure.is_exact:
            return None
        return SchemaWatch(self.answers, structure.schema)

    def added(self, wanted: CompletionRequest) -> tuple[int, ...]:
        """Return the ids that the tokenizer put before the texts of an echoed request."""
        is_text = wanted.echo and wanted.handling.add_special_tokens and isinstance(wanted.prompts[0], str)
        return tuple(self.proxy.tokenizer.encode("", True)) if is_text else ()

    def chat_shape(self, ready: ReadyChat, heading: ReplyHeading) -> ChatShape:
        wanted = ready.wanted
        continued = wanted.prompt.continued if wanted.echo else ""
        if wanted.echo and not continued:
            wanted.prompt.ignored.note("echo")
        made = (heading, wanted.delivery, self.shown(ready.sampling, continued=continued))
        if not (wanted.include_reasoning or self.prompts.dialect.thinks):
            wanted.prompt.ignored.note("include_reasoning")
        if not self.prompts.dialect.reads(wanted.prompt.tools.functions):
            return self.sounds.form(ChatShape, wanted.audio)(*made)
        parsed = FunctionCallShape if wanted.prompt.tools.legacy else ParsedChatShape
        form = self.sounds.form(parsed, wanted.audio)
        return form(*made, partial(self.answer_reader, ready), wanted.include_reasoning)

    def answer_reader(self, ready: ReadyChat) -> AnswerReader:
        """Return the reader of one answer. A grammar written by the client leaves no room for reasoning."""
        structure = ready.sampling.structure
        thinking = ready.thinking and (structure is None or structure.written)
        return self.prompts.dialect.reader(ready.wanted.prompt.tools.functions, thinking, structure is not None)

    def shown(
        self, sampling: SamplingFields, echo: bool = False, added: tuple[int, ...] = (), continued: str = ""
    ) -> ShownText:
        """Return what the reply shows. Logprobs of an echoed prompt are shown with the answer's, not apart."""
        params = sampling.params
        apart = params.prompt_logprobs is not None and not (echo and params.logprobs is not None)
        return ShownText(
            self.proxy.tokenizer, params.skip_special_tokens, params.logprobs is not None, apart, echo, added, continued
        )
