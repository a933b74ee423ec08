# SPDX-License-Identifier: Apache-2.0
"""The preparation of requests that generate: from what was read to work that can be submitted."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from pontil.http.fields.sampling import SamplingFields
from pontil.http.fields.structured_output import OutputStructure
from pontil.http.fields.tools import ToolFields
from pontil.http.intake.encoder import TextLimit
from pontil.http.intake.grammar_check import GrammarCheck
from pontil.http.intake.served_model import ServedModel
from pontil.http.openai.chat.prompt_reader import PromptReader
from pontil.http.openai.chat.request import ChatRequest
from pontil.http.openai.chat.tool_calling import structure_of
from pontil.http.openai.completions.kv_transfer import moved, remote_kv
from pontil.http.openai.completions.request import DEFAULT_TOKENS, CompletionRequest, Prompt
from pontil.runtime.errors import RequestError
from pontil.runtime.proxy.admission.checks import check_together, token_budget
from pontil.runtime.proxy.fleet.registry_snapshot import RegistrySnapshot
from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.proxy.requests.generation import Generation
from pontil.runtime.proxy.requests.remote_kv import RemoteKV
from pontil.runtime.proxy.requests.ticket import Ticket


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
        remote = remote_kv(self.proxy, wanted, ticket.name, len(wanted.prompts))
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
        self, ticket: Ticket, wanted: ChatRequest, snapshot: RegistrySnapshot, prompt_name: str,
        remote: RemoteKV | None = None,
    ) -> ReadyChat:  # fmt: skip
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
        self, prompt: list[int], wanted: CompletionRequest | ChatRequest, snapshot: RegistrySnapshot, prompt_name: str,
        default: int | None = None,
    ) -> Generation:  # fmt: skip
        """Return the work on one prompt, fitted to the context."""
        sampling, handling, context = wanted.sampling, wanted.handling, snapshot.context_length
        wanted_tokens = default if sampling.max_tokens is None else sampling.max_tokens
        prompt = handling.cut(prompt, context - max(1, wanted_tokens or 0))
        names = (prompt_name, sampling.max_tokens_name)
        budget = token_budget(len(prompt), sampling.max_tokens, default, context, names)
        return Generation(prompt, sampling.fitted(budget))

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
