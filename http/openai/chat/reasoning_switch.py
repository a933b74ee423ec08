# SPDX-License-Identifier: Apache-2.0
"""Reasoning that a request turns on or off, by the variable that the model's chat template has for it, and its budget,
where the model reasons."""

from dataclasses import replace

from pontil.http.fields.sampling import THINKING_BUDGET
from pontil.http.openai.chat.prompt_reader import PromptReader
from pontil.http.openai.chat.request import ChatRequest
from pontil.runtime.chat.dialect import Dialect
from pontil.runtime.grammar.grammar_text import Thought

# Variables by which templates turn reasoning on and off.
SWITCHES = ("enable_thinking", "thinking")


def with_reasoning(chat: ChatRequest, prompts: PromptReader, thinks: bool, param: str) -> ChatRequest:
    """Return the chat with reasoning on or off, where the template can do that; the request's own variables go before.
    Where no reasoning is known, asking for it by this parameter has no effect."""
    template = prompts.tool_template if chat.prompt.about_tools else prompts.template
    switches = {name: thinks for name in SWITCHES if name in template.variables}
    if thinks and not (prompts.dialect.thinks or prompts.dialect.has_messages):
        chat.prompt.ignored.note(param)
        chat = limited(chat, param, Thought.NONE)
    return replace(chat, prompt=replace(chat.prompt, variables={**switches, **chat.prompt.variables}))


def with_budget(chat: ChatRequest, dialect: Dialect, is_open: bool) -> ChatRequest:
    """Return the chat with what a worker needs to keep its budget of reasoning, which may be open in the prompt."""
    structure = chat.sampling.structure
    # A grammar written by the client leaves no room for reasoning.
    has_room = structure is None or structure.written
    return limited(chat, THINKING_BUDGET.name, dialect.thought(is_open) if has_room else Thought.NONE)


def limited(chat: ChatRequest, param: str, thought: Thought) -> ChatRequest:
    """Return the chat with its budget of this reasoning; where there can be none, a budget has no effect."""
    params = chat.sampling.params
    if params.thinking_token_budget is None:
        return chat
    if thought is Thought.NONE:
        chat.prompt.ignored.note(param)
        params = replace(params, thinking_token_budget=None)
    else:
        params = replace(params, thought=thought.name)
    return replace(chat, sampling=replace(chat.sampling, params=params))
