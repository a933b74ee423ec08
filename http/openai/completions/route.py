# SPDX-License-Identifier: Apache-2.0
"""The endpoints that generate."""

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from sanic import HTTPResponse, Request

from pontil.http.fields.sampling import SamplingFields
from pontil.http.fields.service_tier import told_class
from pontil.http.fields.structured_output import OutputStructure
from pontil.http.fields.tools import ToolFields
from pontil.http.intake.body import BodyReader, check_type, understood
from pontil.http.intake.grammar_check import GrammarCheck
from pontil.http.intake.served_model import NamedRoutes, ServedModel
from pontil.http.openai.chat.kept_beginning import RETENTION, KeptBeginning, common
from pontil.http.openai.chat.parsed_shape import FunctionCallShape, ParsedChatShape
from pontil.http.openai.chat.prompt_reader import PromptReader, TextLimit, token_budget
from pontil.http.openai.chat.reasoning_switch import with_budget
from pontil.http.openai.chat.request import ChatRequest, read_chat
from pontil.http.openai.chat.tool_calling import structure_of
from pontil.http.openai.completions.ready_request import ReadyChat, ReadyRequest, as_recorded
from pontil.http.openai.completions.remote_prompt import moved, remote_kv
from pontil.http.openai.completions.request import DEFAULT_TOKENS, CompletionRequest, Prompt, read_completion
from pontil.http.openai.completions.sounds import open_sounds
from pontil.http.stream.answer_checker import AnswerChecker
from pontil.http.stream.receipts import ReceiptDesk, check_no_receipt
from pontil.http.stream.recording import SampleDesk
from pontil.http.stream.replay import replayed
from pontil.http.stream.reply import SERVER_SENT_EVENTS, KeepAnswer, ReplyFormat, StreamFraming, keep_nothing, reply
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


class Preparation:
    """The preparation for one model. Every decision about a request before its dispatch uses one snapshot of the
    registry."""

    def __init__(self, proxy: Proxy, model: ServedModel, prompts: PromptReader, grammars: GrammarCheck) -> None:
        self.proxy, self.model, self.prompts, self.grammars = proxy, model, prompts, grammars

    def complete(self, ticket: Ticket, generation_request: CompletionRequest | ChatRequest) -> Ticket:
        """Return the ticket of a request that was read. Raises RequestError for another model, or a priority that its
        caller may not ask for."""
        adapter = self.model.check(generation_request.model, ticket.replay)
        ticket = generation_request.handling.complete(ticket, share_prefixes=self.proxy.config.share_prefixes)
        return replace(ticket, adapter=adapter)

    async def snapshot(self, ticket: Ticket) -> RegistrySnapshot:
        """Return what a request goes by, once its model has a worker. Raises Unavailable where that takes too long."""
        workers, replay = self.model.workers, ticket.replay
        await self.proxy.waking.awake(self.model.key, ticket.caller)
        if replay is None or replay.worker is None:
            return workers.snapshot(ticket.release)
        return workers.snapshot_of(replay.worker)

    async def completion(
        self, ticket: Ticket, completion_request: CompletionRequest, most_tokens: int | None = DEFAULT_TOKENS
    ) -> ReadyRequest:
        """Compile the grammar of a completion, tokenize its prompts and fit them to the context. Of one that asks for
        no number of tokens each answer has at most `most_tokens`; None: what the context leaves."""
        ticket = self.complete(ticket, completion_request)
        snapshot = await self.snapshot(ticket)
        sampling, prompts = completion_request.sampling, len(completion_request.prompts)
        remote = remote_kv(self.proxy, completion_request.kv_transfer, sampling, ticket.name, prompts)
        # Checked before any grammar is compiled or prompt tokenized.
        check_together(snapshot.workers, len(completion_request.prompts) * completion_request.sampling.params.n)
        self.proxy.admissions.check_limits(ticket, len(completion_request.prompts))
        completion_request = replace(completion_request, sampling=await self.usable(completion_request.sampling))
        limit = TextLimit(snapshot.known_context, completion_request.handling.is_whole)
        works = []
        for prompt in completion_request.prompts:
            ids = await self.prompt_ids(prompt, completion_request, limit)
            works.append(moved(self.fit(ids, completion_request, snapshot, "prompt", most_tokens), remote))
        return ReadyRequest(ticket, works, completion_request.sampling, snapshot)

    async def prompt_ids(self, prompt: Prompt, completion_request: CompletionRequest, limit: TextLimit) -> list[int]:
        if not isinstance(prompt, str):
            return list(prompt)
        return await self.prompts.text_ids(prompt, limit, completion_request.handling.add_special_tokens)

    async def chat(
        self,
        ticket: Ticket,
        chat_request: ChatRequest,
        prompt_name: str = "messages",
        remote: RemoteKV | None = None,
        most_tokens: int | None = None,
    ) -> ReadyChat:
        """Compile the grammars of a chat whose ticket is complete, tokenize it and fit it to the context. Errors call
        its prompt by this name. Of one that asks for no number of tokens the answer has at most `most_tokens`."""
        snapshot = await self.snapshot(ticket)
        chat_request = replace(chat_request, sampling=await self.usable(chat_request.sampling))
        if ticket.replay is not None:
            chat_request = replace(chat_request, prompt=replace(chat_request.prompt, at=ticket.replay.at))
        return await self.fitted(ticket, chat_request, snapshot, prompt_name, remote, most_tokens)

    async def fitted(
        self,
        ticket: Ticket,
        chat_request: ChatRequest,
        snapshot: RegistrySnapshot,
        prompt_name: str,
        remote: RemoteKV | None = None,
        most_tokens: int | None = None,
    ) -> ReadyChat:
        """Tokenize a chat, whose own structure is usable, and fit it to the context."""
        handling = chat_request.handling
        limit = TextLimit(snapshot.known_context, handling.is_whole)
        prompt = await self.prompts.chat(chat_request.prompt, limit, handling.add_special_tokens, prompt_name)
        chat_request = await self.with_structure(chat_request, prompt.thinking)
        chat_request = with_budget(chat_request, self.prompts.dialect, prompt.thinking)
        ids = chat_request.expanded(prompt.ids)
        work = moved(self.fit(ids, chat_request, snapshot, prompt_name, most_tokens), remote)
        work.parts = prompt.parts
        if (kept := chat_request.kept) is not None:
            tokens = await self.kept_tokens(chat_request, kept, work.prompt, limit)
            work.wish = self.proxy.leases.wish(self.model.key, ticket.caller, kept.seconds, tokens, must=False)
            if remote is not None:
                work.wish.refuse("what is computed by other workers is not leased")
        works = [chat_request.work(work)]
        return ReadyChat(ticket, works, chat_request.sampling, snapshot, chat_request, prompt.thinking)

    async def kept_tokens(
        self, chat_request: ChatRequest, kept: KeptBeginning, ids: Sequence[int], limit: TextLimit
    ) -> int:
        """Return how many tokens of a chat's prompt are to be leased: those that any chat begins with that begins so.
        None where the template does not render that beginning."""
        if kept.messages is None:
            return len(ids)
        special = chat_request.handling.add_special_tokens
        try:
            begun = await self.prompts.chat(kept.of(chat_request.prompt), limit, special)
        except RequestError:
            return 0
        return common(ids, chat_request.beginning(begun.ids))

    async def rendered(self, chat_request: ChatRequest) -> list[int]:
        """Return the prompt with which a chat would be answered."""
        self.model.check(chat_request.model)
        snapshot, handling = self.model.workers.snapshot(), chat_request.handling
        limit = TextLimit(snapshot.known_context, handling.is_whole)
        prompt = await self.prompts.chat(chat_request.prompt, limit, handling.add_special_tokens)
        return self.fit(prompt.ids, chat_request, snapshot, "messages").prompt

    def fit(
        self,
        prompt: list[int],
        generation_request: CompletionRequest | ChatRequest,
        snapshot: RegistrySnapshot,
        prompt_name: str,
        default: int | None = None,
    ) -> Generation:
        """Return the work on one prompt, fitted to the context."""
        sampling, handling, context = generation_request.sampling, generation_request.handling, snapshot.context_length
        wanted_tokens = default if sampling.max_tokens is None else sampling.max_tokens
        prompt = handling.cut(prompt, context - max(1, wanted_tokens or 0))
        names = (prompt_name, sampling.max_tokens_name)
        budget = token_budget(len(prompt), sampling.max_tokens, default, context, names)
        params = replace(sampling.fitted(budget), hide_end_token=self.model.options.hide_end_token)
        return Generation(prompt, params, further=self.model.key)

    async def look_up(self, ready: ReadyRequest) -> None:
        """Look for the prompts in what workers have cached, as far as is known."""
        lookup, known = self.proxy.dispatcher.lookup, [(work, work.contents) for work in ready.works]
        contents = [found for _, found in known if found is not None]
        prefixes = await lookup.prepare(contents, ready.ticket, self.model.key)
        for work, prefix in zip([work for work, found in known if found is not None], prefixes, strict=False):
            work.prefix = prefix
        for work in ready.works:
            if work.wish is not None and work.wish.asks:
                self.proxy.leases.settle(work.wish, work.prefix)

    async def usable(self, sampling: SamplingFields) -> SamplingFields:
        """Return the fields with a structure that can be used, if they have one."""
        if sampling.structure is None:
            return sampling
        return replace(sampling, structure=await self.grammars.check(sampling.structure))

    async def with_structure(self, chat_request: ChatRequest, thinking: bool) -> ChatRequest:
        """Return the request with the grammar of its tools, and room for reasoning, checked in the form that workers
        get."""
        tools, own_structure = chat_request.prompt.tools, chat_request.sampling.structure
        structure = await self.structure(tools, own_structure, thinking)
        if structure is own_structure:
            return chat_request
        sampling = replace(chat_request.sampling, structure=structure)
        try:
            await self.usable(sampling)
        except RequestError as error:
            if error.param != "tools":
                raise
            structure = await self.structure(await self.grammars.relaxed(tools), own_structure, thinking)
            sampling = replace(sampling, structure=structure)
            await self.usable(sampling)
        return replace(chat_request, sampling=sampling)

    async def structure(
        self, tools: ToolFields, own_structure: OutputStructure | None, thinking: bool
    ) -> OutputStructure | None:
        # The tools' schemas may be as large as a body may be.
        make = partial(structure_of, tools, own_structure, self.prompts.dialect, thinking)
        return await self.prompts.executor.run(make, 0) if tools.tools else make()


class GenerationRoutes:
    """Handlers over one model: each reads a request, prepares its work, submits that and sends the reply. Their
    exceptions become error objects in one place. Those of the first model are the routes; where it is `beside` others,
    a request goes on by those of the model that it names."""

    def __init__(
        self,
        preparation: Preparation,
        bodies: BodyReader,
        answers: AnswerChecker,
        beside: "Sequence[GenerationRoutes]" = (),
    ) -> None:
        self.preparation, self.bodies, self.answers, self.beside = preparation, bodies, answers, beside
        self.proxy, self.model, self.prompts = preparation.proxy, preparation.model, preparation.prompts
        self.sounds = open_sounds(self.proxy, self.model, bodies)
        self.resumable, self.receipts = ResumableRoutes(self.proxy), ReceiptDesk(self.proxy)
        config = self.proxy.config
        self.recorder = SampleDesk(self.proxy.fleet.recordings, config.number, config.proxies)

    async def read(
        self, request: Request, parser: Callable[..., T], check: Callable[[Request], None] = check_type
    ) -> T:
        """Read this request's body, whose content type passes this check, by its parser."""
        request.ctx.ticket, request.ctx.chosen = replayed(request), self
        ignored_fields, named_routes = self.bodies.ignored(request), self.named

        def understand(data: dict[str, Any]) -> T:
            chosen = request.ctx.chosen = named_routes.of(data.get("model"))
            return parser(data, vocab_size=chosen.model.vocab_size, ignored=ignored_fields)

        return await self.bodies.read(request, self.recorder.over(request, understand), check)

    @property
    def models(self) -> Sequence[ServedModel]:
        """The models that generate, the first one first."""
        return tuple(routes.model for routes in (self, *self.beside))

    @property
    def named(self) -> "NamedRoutes[GenerationRoutes]":
        return NamedRoutes(self, self.beside)

    def chosen(self, request: Request) -> "GenerationRoutes":
        """Return the routes of the model that a request which was read is for."""
        routes: GenerationRoutes = request.ctx.chosen
        return routes

    async def completions(self, request: Request) -> HTTPResponse | None:
        completion_request = await self.read(request, read_completion)
        return await self.chosen(request).answer_completion(request, completion_request)

    async def answer_completion(
        self, request: Request, completion_request: CompletionRequest, form: type[CompletionShape] = CompletionShape
    ) -> HTTPResponse | None:
        """Answer a completion that has been read, in this form."""
        ready = await self.preparation.completion(request.ctx.ticket, completion_request)
        shown_text = self.shown(ready.sampling, completion_request.echo, added=self.added(completion_request))
        shape = form(self.heading(request, "cmpl-", ready), completion_request.delivery, shown_text)
        return await self.send(request, ready, shape)

    async def chat(self, request: Request) -> HTTPResponse | None:
        chat_request = await self.read(request, read_chat)
        return await self.chosen(request).answer_chat(request, chat_request)

    async def answer_chat(self, request: Request, chat_request: ChatRequest) -> HTTPResponse | None:
        """Answer a chat that has been read."""
        ready = await self.ready_chat(request, chat_request)
        shape = self.chat_shape(ready, self.heading(request, "chatcmpl-", ready))
        shape.prompt_details = shape.prompt_details | ready.prompt_details
        return await self.send(request, ready, shape)

    async def ready_chat(
        self, request: Request, chat_request: ChatRequest, most_tokens: int | None = None, other_form: bool = False
    ) -> ReadyChat:
        """Prepare a chat. In another form its answer has `most_tokens`, or what the context leaves if that is less."""
        ticket = self.preparation.complete(request.ctx.ticket, chat_request)
        self.sounds.check(chat_request, request)
        self.proxy.admissions.check_limits(ticket)
        remote = remote_kv(self.proxy, chat_request.kv_transfer, chat_request.sampling, ticket.name)
        chat_request = chat_request.heard(await self.sounds.heard(chat_request.prompt, ticket))
        if other_form:
            chat_request = replace(chat_request, sampling=replace(chat_request.sampling, max_tokens=None))
        return await self.preparation.chat(ticket, chat_request, remote=remote, most_tokens=most_tokens)

    async def send(
        self,
        request: Request,
        ready: ReadyRequest,
        shape: ReplyFormat,
        keep: KeepAnswer = keep_nothing,
        framing: StreamFraming = SERVER_SENT_EVENTS,
    ) -> HTTPResponse | None:
        """Submit all of the works, or none, and send the reply in this form. A stream may be one that can be
        continued."""
        if isinstance(ready, ReadyChat) and ready.in_sound:
            return await self.say(request, ready, shape, keep)
        understood(request)
        ready = as_recorded(ready, request.ctx.request_id)
        shape.schema_watch = self.schema_watch(ready.sampling)
        name = self.name_of(ready)
        shape.receipts = self.receipts.open(request, ready.works, ready.snapshot, shape.heading.id, name)
        await self.preparation.look_up(ready)
        submit = partial(self.proxy.submit, ready.ticket, *ready.works, snapshot=ready.snapshot)
        stream, shape = self.resumable.stream(request, ready.works, shape, submit)
        return await reply(request, stream, shape, keep, framing=framing)

    async def say(
        self, request: Request, ready: ReadyChat, shape: ReplyFormat, keep: KeepAnswer
    ) -> HTTPResponse | None:
        """Send an answer in sound."""
        understood(request)
        check_not_continued(request)
        check_no_receipt(request, "an answer in sound")
        if ready.works[0].wish is not None:
            ready.works[0].wish = None
            ready.wanted.prompt.ignored.note(RETENTION.name)
        shape.schema_watch = self.schema_watch(ready.sampling)
        return await self.sounds.answer(request, ready.ticket, ready.works[0], shape, ready.wanted, keep)

    def heading(self, request: Request, prefix: str, ready: ReadyRequest) -> ReplyHeading:
        """Return the heading of a reply, whose id begins so: the earlier one of a stream that is continued, else a new
        one."""
        if (earlier_heading := heading_of(request)) is not None:
            return earlier_heading
        fingerprint = ready.snapshot.system_fingerprint(self.proxy.config.version)
        name, of_class = f"{prefix}{secrets.token_hex(12)}", told_class(ready.ticket, self.proxy.config.fair_by)
        return ReplyHeading(name, int(time.time()), self.name_of(ready), fingerprint, *of_class)

    def name_of(self, ready: ReadyRequest) -> str:
        """Return the name of the model or adapter that answers."""
        adapter = ready.ticket.adapter
        return self.model.name if adapter is None else adapter.name

    def schema_watch(self, sampling: SamplingFields) -> SchemaWatch | None:
        """Return the check of the answers' ends, if they may follow their grammar and not their schema."""
        structure = sampling.structure
        if structure is None or structure.schema is None or structure.is_exact:
            return None
        return SchemaWatch(self.answers, structure.schema)

    def added(self, completion_request: CompletionRequest) -> tuple[int, ...]:
        """Return the ids that the tokenizer put before the texts of an echoed request."""
        special = completion_request.handling.add_special_tokens
        is_text = completion_request.echo and special and isinstance(completion_request.prompts[0], str)
        return tuple(self.prompts.tokenizer.encode("", True)) if is_text else ()

    def chat_shape(self, ready: ReadyChat, heading: ReplyHeading) -> ChatShape:
        chat_request = ready.wanted
        continued_text = chat_request.prompt.continued if chat_request.echo else ""
        if chat_request.echo and not continued_text:
            chat_request.prompt.ignored.note("echo")
        shape_args = (heading, chat_request.delivery, self.shown(ready.sampling, continued=continued_text))
        if not (chat_request.include_reasoning or self.prompts.dialect.thinks):
            chat_request.prompt.ignored.note("include_reasoning")
        if not self.prompts.dialect.reads(chat_request.prompt.tools.functions):
            return self.sounds.form(ChatShape, chat_request.audio)(*shape_args)
        shape_type = FunctionCallShape if chat_request.prompt.tools.legacy else ParsedChatShape
        form = self.sounds.form(shape_type, chat_request.audio)
        return form(*shape_args, partial(self.answer_reader, ready), chat_request.include_reasoning)

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
            self.prompts.tokenizer,
            params.skip_special_tokens,
            params.logprobs is not None,
            apart,
            echo,
            added,
            continued,
        )
