# SPDX-License-Identifier: Apache-2.0
"""Prompts to token ids."""

import asyncio
from functools import partial

from pontil.runtime.errors import RequestError
from pontil.runtime.text.chat_template import ChatTemplate
from pontil.runtime.text.tokenizer import Tokenizer

# Longer texts are tokenized in a thread, so that other streams go on meanwhile.
LONG_TEXT = 20_000


class PromptReader:
    """A model's tokenizer and chat template. Raises RequestError for what they cannot take."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.template = ChatTemplate(tokenizer.chat_template, tokenizer.bos_token, tokenizer.eos_token)

    async def text_ids(self, text: str, add_special_tokens: bool = True) -> list[int]:
        encode = partial(self.tokenizer.encode, text, add_special_tokens)
        ids = await asyncio.to_thread(encode) if len(text) > LONG_TEXT else encode()
        if not ids:
            raise RequestError("the prompt is empty: give at least one token", param="prompt")
        return ids

    async def chat_ids(self, messages: tuple[dict[str, str], ...], add_generation_prompt: bool = True) -> list[int]:
        """The template writes the special tokens itself."""
        size = sum(len(message["content"]) for message in messages)
        render = partial(self.template.render, messages, add_generation_prompt)
        text = await asyncio.to_thread(render) if size > LONG_TEXT else render()
        return await self.text_ids(text, add_special_tokens=False)
