# SPDX-License-Identifier: Apache-2.0
"""Prompts to token ids."""

import asyncio
from functools import partial

from pontil.http.chat_prompt import ChatPrompt, Message
from pontil.runtime.errors import RequestError
from pontil.runtime.text.chat_template import ChatTemplate
from pontil.runtime.text.tokenizer import Tokenizer

# Longer texts are tokenized in a thread, so that other streams go on meanwhile.
LONG_TEXT = 20_000


class PromptReader:
    """A model's tokenizer and chat template. Raises RequestError for what they cannot take."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
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

    async def chat_ids(self, prompt: ChatPrompt, add_special_tokens: bool = False) -> list[int]:
        """The template writes the special tokens itself, so that more of them are seldom wanted."""
        template = self.tool_template if prompt.tools else self.template
        render = partial(
            template.render,
            [known_role(message, template) for message in prompt.messages],
            add_generation_prompt=prompt.add_generation_prompt,
            tools=prompt.tools or None,
            documents=prompt.documents or None,
            continue_final_message=prompt.continue_final_message,
            variables=prompt.variables,
        )
        size = sum(len(message.get("content", "")) for message in prompt.messages)
        long = size > LONG_TEXT or prompt.tools or prompt.documents or prompt.variables
        text = await asyncio.to_thread(render) if long else render()
        return await self.text_ids(text, add_special_tokens)


def known_role(message: Message, template: ChatTemplate) -> Message:
    """The role "developer" is the newer name of "system", and few templates know it."""
    if message["role"] == "developer" and not template.mentions("developer"):
        return message | {"role": "system"}
    return message
