# SPDX-License-Identifier: Apache-2.0
"""A model's notation of tool calls and reasoning."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pontil.runtime.chat.answer_reader import AnswerReader
from pontil.runtime.chat.calls.format import (
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    FENCE,
    FORMATS,
    GLM45,
    HARMONY,
    HERMES,
    KIMI_K2,
    LLAMA3_JSON,
    LLAMA4_PYTHONIC,
    MISTRAL,
    MISTRAL_V11,
    QWEN3_CODER,
    CallFormat,
)
from pontil.runtime.chat.calls.headed_call import Functions
from pontil.runtime.chat.harmony_parser import ENDS, HarmonyParser
from pontil.runtime.chat.reasoning_parser import THINK, THOUGHT, ReasoningParser
from pontil.runtime.chat.tool_call_parser import ToolCallParser
from pontil.runtime.grammar.grammar_text import Thought
from pontil.runtime.tokenizer.tokenizer import Tokenizer

AUTO = "auto"
CALL_PARSERS = (AUTO, *FORMATS, "none")
REASONING_PARSERS = (AUTO, "think", "none")
# For models that were trained for no format, or for one that is not known here.
FALLBACK = replace(HERMES, taught=True)
# Texts of a chat template, all of which tell a format. The first line that fits counts: formats share markers.
TELLTALES: tuple[tuple[CallFormat, tuple[str, ...]], ...] = (
    (HARMONY, ("<|channel|>", "<|message|>")),
    (DEEPSEEK_V3, ("<｜tool▁sep｜>", FENCE)),
    (DEEPSEEK_V31, ("<｜tool▁sep｜>",)),
    (KIMI_K2, ("<|tool_call_argument_begin|>",)),
    (GLM45, ("<arg_key>",)),
    (QWEN3_CODER, ("<function=", "<parameter=")),
    (MISTRAL_V11, ("[TOOL_CALLS]", "[ARGS]")),
    (MISTRAL, ("[TOOL_CALLS]",)),
    (LLAMA4_PYTHONIC, ("[func_name1(",)),
    (LLAMA3_JSON, ("<|start_header_id|>", '"parameters"')),
    (LLAMA3_JSON, ("<|header_start|>", '"parameters"')),
    (HERMES, ("<tool_call>",)),
)
# Other formats between Hermes' markers.
NOT_HERMES = ("<function=", "<arg_key>")


@dataclass(frozen=True, slots=True)
class Dialect:
    """`calls` None: calls are not read, and stay text. `thought_id` is the token that ends reasoning, if a single one
    does."""

    calls: CallFormat | None = None
    thinks: bool = False
    thought_id: int | None = None

    def reads(self, functions: Functions) -> bool:
        """Return whether an answer that may call these functions, if any, may be more than text."""
        return self.thinks or self.has_messages or bool(functions and self.calls)

    @property
    def has_messages(self) -> bool:
        return self.calls is not None and self.calls.messages

    def reader(self, functions: Functions, is_open: bool, is_constrained: bool = False) -> AnswerReader:
        """A reader for such an answer, which begins within reasoning that `is_open` in the prompt. One that
        `is_constrained` by a grammar has no calls without markers."""
        thinking = ReasoningParser(is_open) if self.thinks and not self.has_messages else None
        if self.has_messages:
            return AnswerReader(None, HarmonyParser(functions), self.thought_id)
        if not functions or self.calls is None:
            return AnswerReader(thinking, None, self.thought_id)
        calls = ToolCallParser(self.calls, functions, lenient=not is_constrained)
        return AnswerReader(thinking, calls, self.thought_id, self.calls.make_id)

    def thought(self, is_open: bool) -> Thought:
        """The reasoning before a structured answer."""
        if self.has_messages:
            return Thought.MESSAGE
        return (Thought.BEGUN if is_open else Thought.POSSIBLE) if self.thinks else Thought.NONE

    def __str__(self) -> str:
        calls = "as text" if self.calls is None else f"in the format {self.calls.name}"
        reasoning = "told apart" if self.thinks or self.has_messages else "not looked for"
        return f"calls of tools are read {calls}, reasoning is {reasoning}"


def dialect_of(tokenizer: Tokenizer, calls: str = AUTO, reasoning: str = AUTO) -> Dialect:
    """The dialect of the model with this tokenizer, by the names of CALL_PARSERS and REASONING_PARSERS."""
    sources = "\n".join(filter(None, (tokenizer.tool_template, tokenizer.chat_template)))
    form = calls_in(sources) if calls == AUTO else FORMATS.get(calls)
    thought = tokenizer.token_id(ENDS[0] if form is HARMONY else THOUGHT)
    has_think_tags = thought is not None and tokenizer.token_id(THINK) is not None
    return Dialect(
        calls=form,
        thinks=reasoning == "think" or (reasoning == AUTO and (THOUGHT in sources or has_think_tags)),
        thought_id=thought,
    )


def calls_in(template: str) -> CallFormat:
    """The format in which a chat template writes calls; if that is not known here, the one that is taught."""
    for form, texts in TELLTALES:
        if all(text in template for text in texts) and not (
            form is HERMES and any(map(template.__contains__, NOT_HERMES))
        ):
            return form
    return FALLBACK
