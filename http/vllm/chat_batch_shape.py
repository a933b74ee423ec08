# SPDX-License-Identifier: Apache-2.0
"""Replies to several conversations at once."""

from collections.abc import Mapping, Sequence
from typing import Any

from pontil.http.stream.reply_shape import ChatShape, ReplyChoice, chat_usage_object
from pontil.http.stream.schema_watch import SchemaWatch
from pontil.runtime.accounting.counts import Usage
from pontil.runtime.grammar.processes.verdict import Verdict

# Fields about a prompt, which a chat has once for all its choices.
OF_PROMPTS = ("prompt_token_ids", "prompt_logprobs")


class ChatBatchShape:
    """The JSON of such a reply: one chat whose choices are those of the conversations, each written by its own shape.
    Fields about a prompt are in the choice that answers it."""

    def __init__(self, shapes: Sequence[ChatShape], schema_watch: SchemaWatch | None = None) -> None:
        self.shapes, self.schema_watch = tuple(shapes), schema_watch

    def content(self, index: int, text: str) -> str | None:
        return self.shapes[index].content(0, text)

    def whole(self, choices: Sequence[ReplyChoice], usage: Usage, verdicts: Mapping[int, Verdict]) -> dict[str, Any]:
        shown = []
        for index, (shape, choice) in enumerate(zip(self.shapes, choices, strict=True)):
            own = shape.whole([choice], usage, {0: verdicts[index]} if index in verdicts else {})
            about = {name: own[name] for name in OF_PROMPTS if name in own}
            shown.append(own["choices"][0] | {"index": index} | about)
        first = self.shapes[0]
        usage_shown = chat_usage_object(usage, self.reasoning_tokens())
        return {"object": first.whole_object} | first.base | {"choices": shown, "usage": usage_shown}

    def reasoning_tokens(self) -> int | None:
        """Return the count over all conversations; None if it is not exact for one of them."""
        counts = [shape.reasoning_tokens() for shape in self.shapes]
        return None if None in counts else sum(count or 0 for count in counts)
