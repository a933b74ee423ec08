# SPDX-License-Identifier: Apache-2.0
"""The endpoints that generate."""

import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from sanic import HTTPResponse, Request

from pontil.http.fields.audio_output import AudioOutput
from pontil.http.fields.sampling import SamplingFields
from pontil.http.intake.body import BodyReader, understood
from pontil.http.openai.chat.function_call_shape import FunctionCallShape
from pontil.http.openai.chat.parsed_shape import ParsedChatShape
from pontil.http.openai.chat.request import ChatRequest, read_chat
from pontil.http.openai.completions.kv_transfer import remote_kv
from pontil.http.openai.completions.preparation import Preparation, ReadyChat, ReadyRequest
from pontil.http.openai.completions.request import CompletionRequest, read_completion
from pontil.http.openai.completions.sounds import open_sounds
from pontil.http.stream.answer_checker import AnswerChecker
from pontil.http.stream.rendering import KeepAnswer, ReplyFormat, keep_nothing, reply
from pontil.http.stream.reply_shape import ChatShape, CompletionShape, ReplyHeading, ShownText
from pontil.http.stream.resumable_routes import ResumableRoutes, check_not_continued, heading_of
from pontil.http.stream.schema_watch import SchemaWatch
from pontil.runtime.chat.answer_reader import AnswerReader
from pontil.runtime.proxy.fleet.registry_snapshot import RegistrySnapshot

T = TypeVar("T")


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
        remote = remote_kv(self.proxy, wanted, ticket.name)
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
            self.proxy.tokenizer, params.skip_special_tokens, params.logprobs is not None, apart, echo, added,
            continued,
        )  # fmt: skip
