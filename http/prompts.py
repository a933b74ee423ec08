# SPDX-License-Identifier: Apache-2.0
"""Prompts to token ids."""

import asyncio
from dataclasses import dataclass
from functools import partial

from pontil.http.chat_prompt import ChatPrompt, Message
from pontil.http.tool_prompt import taught
from pontil.runtime.errors import RequestError
from pontil.runtime.text.chat_template import ChatTemplate
from pontil.runtime.text.dialect import Dialect
from pontil.runtime.text.reasoning_parser import THINK, THOUGHT
from pontil.runtime.text.tokenizer import Tokenizer

# Longer texts are tokenized in a thread, so that other streams go on meanwhile.
LONG_TEXT = 20_000


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """A chat as the model sees it; `thinking` tells whether the answer goes on with reasoning."""

    ids: list[int]
    thinking: bool


class PromptReader:
    """A model's tokenizer and chat template. Raises RequestError for what they cannot take."""

    def __init__(self, tokenizer: Tokenizer, dialect: Dialect) -> None:
        self.tokenizer, self.dialect = tokenizer, dialect
        self.template = ChatTemplate(tokenizer.chat_template, tokenizer.roles)
        self.tool_template = self.template
        if tokenizer.tool_template is not None:
            self.tool_template = ChatTemplate(tokenizer.tool_template, tokenizer.roles)

    async def text_ids(self, text: str, add_special_tokens: bool = True) -> list[int]:
        encode = partial(self.tokenizer.encode, text, add_special_tokens)
        ids = await asyncio.to_thread(encode) if len(text) > LONG_TEXT else encode()
        if not ids:
            raise RequestError("the prompt is empty: give at least one token", param="prompt")
        return ids

    async def chat(self, prompt: ChatPrompt, add_special_tokens: bool = False) -> ReadPrompt:
        """The template writes the special tokens itself, so that more of them are seldom wanted."""
        template = self.tool_template if prompt.about_tools else self.template
        if prompt.about_tools and not template.knows_tools:
            prompt = taught(prompt, self.dialect)
        render = partial(
            template.render,
            [known_role(message, template) for message in prompt.messages],
            add_generation_prompt=prompt.add_generation_prompt,
            tools=prompt.tools.shown or None,
            documents=prompt.documents or None,
            continue_final_message=prompt.continue_final_message,
            variables=prompt.variables,
        )
        size = sum(len(message.get("content", "")) for message in prompt.messages)
        long = size > LONG_TEXT or prompt.about_tools or prompt.documents or prompt.variables
        text = await asyncio.to_thread(render) if long else render()
        return ReadPrompt(await self.text_ids(text, add_special_tokens), opens_reasoning(prompt, text))


def known_role(message: Message, template: ChatTemplate) -> Message:
    """The role "developer" is the newer name of "system", and few templates know it."""
    if message["role"] == "developer" and not template.mentions("developer"):
        return message | {"role": "system"}
    return message


def opens_reasoning(prompt: ChatPrompt, text: str) -> bool:
    """Whether the template, or the message to be continued, has begun what the model only ends."""
    if prompt.continue_final_message:
        last = str(prompt.messages[-1]["content"])
        return last.rfind(THINK) > last.rfind(THOUGHT)
    return text.rstrip().endswith(THINK)
