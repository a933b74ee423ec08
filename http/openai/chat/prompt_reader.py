# SPDX-License-Identifier: Apache-2.0
"""Conversion of prompts to token ids off the event loop: chats are rendered by the model's template, texts encoded,
within the limits on both that the context sets."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pontil.http.fields.recording import Recording
from pontil.http.intake.ordered_executor import OrderedExecutor
from pontil.http.openai.chat.changing_lines import KnownLine, settled
from pontil.http.openai.chat.prompt import ChatPrompt, Message
from pontil.http.openai.chat.tool_prompt import teacher_for
from pontil.runtime.chat.chat_template import ChatTemplate, PromptTooLong, strftime_at
from pontil.runtime.chat.dialect import Dialect
from pontil.runtime.chat.reasoning_parser import THINK, THOUGHT
from pontil.runtime.errors import RequestError
from pontil.runtime.proxy.requests.prompt_reuse import PromptParts
from pontil.runtime.timeline.received import timed
from pontil.runtime.timeline.timeline import TOKENIZE
from pontil.runtime.tokenizer.tokenizer import Tokenizer

# Texts up to this many characters are encoded at once: a thread would cost more than they do.
SHORT_TEXT = 4_000
# Longer texts have a queue of their own, so that an ordinary long prompt never waits for one that takes seconds.
HUGE_TEXT = 64 << 10
# Bytes of text that are always accepted, whatever the context could hold, and bytes per token of the context.
LEAST_BOUND = 2 << 20
BYTES_PER_TOKEN = 16
# Factor on the limit for text that is only counted or will be truncated.
NOT_KEPT_WHOLE = 2
# Larger numbers are not shown: they may have thousands of digits.
FAR = 1 << 63


@dataclass(frozen=True, slots=True)
class TextLimit:
    """The limit of a text: a `context` in tokens, None while no worker has reported one. A text that will be truncated
    or only counted is not `whole`, and may be longer."""

    context: int | None
    whole: bool = True


class Encoder:
    """One tokenizer for all requests. At most two texts are encoded at a time, from two FIFO queues.

    A text of more bytes than the context's tokens could stand for is refused before it is encoded.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.ordinary, self.huge = OrderedExecutor(), OrderedExecutor()

    def most_bytes(self, limit: TextLimit) -> int:
        """Return the limit on a text's bytes."""
        context = limit.context
        most = LEAST_BOUND
        if context is not None:
            most = min(context * self.tokenizer.longest_token, max(LEAST_BOUND, context * BYTES_PER_TOKEN))
        return most if limit.whole else NOT_KEPT_WHOLE * most

    def check(self, text: str, param: str, limit: TextLimit) -> None:
        """Raise RequestError for a text that cannot fit."""
        most = self.most_bytes(limit)
        # A character has at most four bytes.
        if len(text) > most or (4 * len(text) > most and len(text.encode(errors="replace")) > most):
            raise self.too_long(param, limit)

    def too_long(self, param: str, limit: TextLimit) -> RequestError:
        """Return the error with OpenAI's code for an exceeded context."""
        context, most = limit.context, self.most_bytes(limit)
        context_note = "" if context is None else f"{maximum(context)} "
        says = f"{context_note}{param} has more than {most} bytes of text, which is all that is taken: shorten it"
        return RequestError(says, param=param, code="context_length_exceeded")

    async def encode(self, text: str, add_special_tokens: bool, limit: TextLimit, param: str = "prompt") -> list[int]:
        """Return the text's token ids. Raises RequestError for a text that cannot fit, Unavailable where too much is
        queued."""
        self.check(text, param, limit)
        with timed(TOKENIZE):
            if len(text) <= SHORT_TEXT:
                return self.tokenizer.encode(text, add_special_tokens)
            executor = self.ordinary if len(text) <= HUGE_TEXT else self.huge
            return await executor.run(partial(self.tokenizer.encode_unlocked, text, add_special_tokens), len(text))


def maximum(context: int) -> str:
    """Return the words of OpenAI's error, which clients look for."""
    return f"This model's maximum context length is {context} tokens."


def token_budget(
    prompt_tokens: int, max_tokens: int | None, default: int | None, context: int, names: tuple[str, str]
) -> int:
    """Return how many tokens may be generated: as many as `max_tokens`, else `default`, else the rest of the context.

    Raises RequestError when prompt and answer do not fit. `names` are the parameters that the prompt and `max_tokens`
    came from.
    """
    prompt_name, max_tokens_name = names
    if prompt_tokens >= context:
        raise RequestError(
            f"{maximum(context)} However, the prompt has {prompt_tokens} tokens, and at least one is generated: "
            "shorten the prompt",
            param=prompt_name,
            code="context_length_exceeded",
        )
    room = context - prompt_tokens
    if max_tokens is None:
        return room if default is None else min(default, room)
    if max_tokens > room:
        raise RequestError(
            f"{maximum(context)} However, the prompt has {prompt_tokens} tokens and {max_tokens_name} asks for "
            f"{max_tokens if max_tokens < FAR else 'far'} more: ask for at most {room}",
            param=max_tokens_name,
            code="context_length_exceeded",
        )
    return max_tokens


# Longer chats, in characters, are rendered in a thread, so that other streams are not held up.
LONG_CHAT = 20_000
MANY_MESSAGES = 256


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """A tokenized chat; `thinking` is true if the output continues with reasoning. It is made of `parts`."""

    ids: list[int]
    thinking: bool
    parts: PromptParts


class PromptReader:
    """A model's tokenizer and chat template. `lines` of chats get the places that keep prompts alike. Its methods raise
    RequestError for invalid input."""

    def __init__(self, tokenizer: Tokenizer, dialect: Dialect, lines: Sequence[KnownLine]) -> None:
        self.tokenizer, self.dialect, self.encoder = tokenizer, dialect, Encoder(tokenizer)
        self.lines = lines
        self.executor = OrderedExecutor()
        self.template = ChatTemplate(tokenizer.chat_template, tokenizer.roles)
        self.tool_template = self.template
        if tokenizer.tool_template is not None:
            self.tool_template = ChatTemplate(tokenizer.tool_template, tokenizer.roles)
        self.teacher = teacher_for(self.tool_template, dialect.calls)

    async def text_ids(
        self, text: str, limit: TextLimit, add_special_tokens: bool = True, param: str = "prompt"
    ) -> list[int]:
        """Return the ids of a text that is not empty."""
        ids = await self.encoder.encode(text, add_special_tokens, limit, param)
        if not ids:
            raise RequestError("the prompt is empty: give at least one token", param="prompt")
        return ids

    async def chat(
        self, prompt: ChatPrompt, limit: TextLimit, add_special_tokens: bool = False, param: str = "messages"
    ) -> ReadPrompt:
        """Render and tokenize a chat, whose recordings and images have become text. The template writes the special
        tokens itself, so more are seldom wanted."""
        for medium in prompt.media:
            kind = "a recording" if isinstance(medium, Recording) else "an image"
            says = f"{medium.place} is {kind}, which only /v1/chat/completions takes: send text"
            raise RequestError(says, param=medium.place, code="unsupported_parameter")
        render = partial(self.rendered, prompt, self.encoder.most_bytes(limit))
        try:
            text, parts = await self.executor.run(render, prompt.characters) if is_long(prompt) else render()
        except PromptTooLong:
            raise self.encoder.too_long(param, limit) from None
        ids = await self.text_ids(text, limit, add_special_tokens, param)
        return ReadPrompt(ids, opens_reasoning(prompt, text), parts)

    def rendered(self, prompt: ChatPrompt, most: int) -> tuple[str, PromptParts]:
        """Return the text of a chat, and what it is made of."""
        template = self.tool_template if prompt.about_tools else self.template
        prompt, found_lines = settled(prompt, self.lines)
        prompt.ignored.lines |= found_lines
        parts = PromptParts.of(prompt.tools.shown, prompt.messages)
        note_unread(prompt, template)
        check_roles(prompt, template)
        if prompt.about_tools and not template.knows_tools:
            prompt = self.teacher.taught(prompt)
        clock = {} if prompt.at is None else {"strftime_now": partial(strftime_at, prompt.at)}
        text = template.render(
            [known_role(message, template) for message in prompt.messages],
            add_generation_prompt=prompt.add_generation_prompt,
            tools=prompt.tools.shown or None,
            documents=prompt.documents or None,
            continue_final_message=prompt.continue_final_message,
            variables={**prompt.options, **prompt.variables} | clock,
            most=most,
        )
        return text, parts


def check_roles(prompt: ChatPrompt, template: ChatTemplate) -> None:
    """Refuse roles whose messages the template leaves out."""
    for role in sorted(prompt.own_roles):
        if not template.shows(role):
            says = f"messages of the role {role} are left out by the model's chat template: use one that it knows"
            raise RequestError(says, param="messages")


def note_unread(prompt: ChatPrompt, template: ChatTemplate) -> None:
    """Note what was given for the template and is not read by it (F3)."""
    documents = ["documents"] if prompt.documents else []
    for name in (*prompt.options, *documents):
        if name not in template.variables:
            prompt.ignored.note(prompt.places.get(name, name))
    for name in prompt.variables:
        if name not in template.variables:
            prompt.ignored.note(f"chat_template_kwargs.{name}")


def is_long(prompt: ChatPrompt) -> bool:
    """Return whether rendering may be slow; the size of tools, documents and variables is unknown and counts as
    large."""
    unknown = bool(prompt.about_tools or prompt.documents or prompt.variables)
    return unknown or prompt.characters > LONG_CHAT or len(prompt.messages) > MANY_MESSAGES


def known_role(message: Message, template: ChatTemplate) -> Message:
    """Replace the role "developer", the newer name of "system", where the template does not know it."""
    if message["role"] == "developer" and not template.mentions("developer"):
        return message | {"role": "system"}
    return message


def opens_reasoning(prompt: ChatPrompt, text: str) -> bool:
    """Return whether the template, or the message to be continued, has opened reasoning that the model has to close."""
    if prompt.continue_final_message:
        last = str(prompt.messages[-1]["content"])
        return last.rfind(THINK) > last.rfind(THOUGHT)
    return text.rstrip().endswith(THINK)
