# SPDX-License-Identifier: Apache-2.0
"""Conversion of prompts to token ids."""

from dataclasses import dataclass
from functools import partial

from pontil.http.intake.encoder import Encoder, TextLimit
from pontil.http.intake.ordered_executor import OrderedExecutor
from pontil.http.openai.chat.prompt import ChatPrompt, Message
from pontil.http.openai.chat.tool_prompt import teacher_for
from pontil.runtime.chat.chat_template import ChatTemplate, PromptTooLong
from pontil.runtime.chat.dialect import Dialect
from pontil.runtime.chat.reasoning_parser import THINK, THOUGHT
from pontil.runtime.errors import RequestError
from pontil.runtime.tokenizer.tokenizer import Tokenizer

# Longer chats, in characters, are rendered in a thread, so that other streams are not held up.
LONG_CHAT = 20_000
MANY_MESSAGES = 256


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """A tokenized chat; `thinking` is true if the output continues with reasoning."""

    ids: list[int]
    thinking: bool


class PromptReader:
    """A model's tokenizer and chat template. Its methods raise RequestError for invalid input."""

    def __init__(self, tokenizer: Tokenizer, dialect: Dialect, encoder: Encoder) -> None:
        self.tokenizer, self.dialect, self.encoder = tokenizer, dialect, encoder
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
        """Render and tokenize a chat, whose recordings have become text. The template writes the special tokens
        itself, so more are seldom wanted."""
        for recording in prompt.recordings:
            says = f"{recording.place} is a recording, which only /v1/chat/completions takes: send text"
            raise RequestError(says, param=recording.place, code="unsupported_parameter")
        render = partial(self.rendered, prompt, self.encoder.most_bytes(limit))
        try:
            text = await self.executor.run(render, prompt.characters) if is_long(prompt) else render()
        except PromptTooLong:
            raise self.encoder.too_long(param, limit) from None
        ids = await self.text_ids(text, limit, add_special_tokens, param)
        return ReadPrompt(ids, opens_reasoning(prompt, text))

    def rendered(self, prompt: ChatPrompt, most: int) -> str:
        template = self.tool_template if prompt.about_tools else self.template
        note_unread(prompt, template)
        check_roles(prompt, template)
        if prompt.about_tools and not template.knows_tools:
            prompt = self.teacher.taught(prompt)
        return template.render(
            [known_role(message, template) for message in prompt.messages],
            add_generation_prompt=prompt.add_generation_prompt,
            tools=prompt.tools.shown or None,
            documents=prompt.documents or None,
            continue_final_message=prompt.continue_final_message,
            variables={**prompt.options, **prompt.variables},
            most=most,
        )


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
