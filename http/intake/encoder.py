# SPDX-License-Identifier: Apache-2.0
"""Tokenization off the event loop, and the limits on texts and token ids that the context sets."""

from dataclasses import dataclass
from functools import partial

from pontil.http.intake.ordered_executor import OrderedExecutor
from pontil.runtime.errors import RequestError
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
