# SPDX-License-Identifier: Apache-2.0
"""The beginning of a chat that its client asks to be leased: by `prompt_cache_retention`, or by marks on its blocks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pontil.http.fields.recording import MediaPart, MixedContent
from pontil.http.openai.chat.prompt import ChatPrompt, Message
from pontil.http.schema.parameter import Parameter
from pontil.http.schema.parameter_types import WordType
from pontil.http.schema.reader import IgnoredFields

DAY = 86400
NAME = "prompt_cache_retention"
# OpenAI's words for what is done anyway, in both of its spellings, and the one that leases the prompt.
RETENTION = Parameter(NAME, WordType(("in_memory", "in-memory", "24h")), "`24h`: lease the prompt's KV for a day")
NOTHING_ASKED: Message = {"role": "user", "content": ""}


@dataclass(frozen=True, slots=True)
class KeptBeginning:
    """A beginning of a chat to be kept for `seconds`: so many of its `messages`, and so many characters, `cut`, of the
    content of the next one. Without a number of messages it is the whole prompt."""

    seconds: int
    messages: int | None = None
    cut: int = 0

    def heard(self, prompt: ChatPrompt, texts: Mapping[MediaPart, str]) -> "KeptBeginning":
        """Return the same of this prompt with text in the places of its recordings and images."""
        content = prompt.messages[self.messages or 0].get("content") if self.cut else None
        return replace(self, cut=len(content.heard(texts, self.cut))) if isinstance(content, MixedContent) else self

    def of(self, prompt: ChatPrompt) -> ChatPrompt:
        """Return a chat whose prompt begins with the tokens of this beginning, and goes on otherwise."""
        assert self.messages is not None, "the whole prompt needs no other chat"
        begun = list(prompt.messages[: self.messages])
        if self.cut:
            whole = prompt.messages[self.messages]
            said = {name: value for name, value in whole.items() if name != "tool_calls"}
            begun.append(said | {"content": whole["content"][: self.cut]})
        if all(message["role"] == "system" for message in begun):
            # Few templates render a chat in which nobody asks.
            begun.append(NOTHING_ASKED)
        return replace(
            prompt,
            messages=tuple(begun),
            add_generation_prompt=False,
            continue_final_message=False,
            ignored=IgnoredFields(),
        )


def longest_kept(marks: Iterable[KeptBeginning]) -> KeptBeginning | None:
    """Return the one that is kept for longest, the last of several."""
    found: KeptBeginning | None = None
    for mark in marks:
        if found is None or mark.seconds >= found.seconds:
            found = mark
    return found


def retained(values: Mapping[str, Any]) -> KeptBeginning | None:
    """Return what `prompt_cache_retention` asks for."""
    return KeptBeginning(DAY) if values[NAME] == "24h" else None


def without_retention(declared: Iterable[Parameter]) -> tuple[Parameter, ...]:
    """Return the parameters but this one, for an endpoint where it has an effect."""
    return tuple(parameter for parameter in declared if parameter.name != NAME)


def common(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many leading ids are the same."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
