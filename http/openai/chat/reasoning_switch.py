# SPDX-License-Identifier: Apache-2.0
"""Reasoning that a request turns on or off, by the variable that the model's chat template has for it."""

from dataclasses import replace

from pontil.http.openai.chat.prompt_reader import PromptReader
from pontil.http.openai.chat.request import ChatRequest

# Variables by which templates turn reasoning on and off.
SWITCHES = ("enable_thinking", "thinking")


def with_reasoning(chat: ChatRequest, prompts: PromptReader, thinks: bool, param: str) -> ChatRequest:
    """Return the chat with reasoning on or off, where the template can do that; the request's own variables go before.
    Where no reasoning is known, asking for it by this parameter has no effect."""
    template = prompts.tool_template if chat.prompt.about_tools else prompts.template
    switches = {name: thinks for name in SWITCHES if name in template.variables}
    if thinks and not (prompts.dialect.thinks or prompts.dialect.has_messages):
        chat.prompt.ignored.note(param)
    return replace(chat, prompt=replace(chat.prompt, variables={**switches, **chat.prompt.variables}))
