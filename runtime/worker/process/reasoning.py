# SPDX-License-Identifier: Apache-2.0
"""The budget of a request's reasoning, made from what its proxy says of the prompt."""

from functools import partial

from pontil.runtime.chat.reasoning_watch import TokenReasoning, closing_ids
from pontil.runtime.engine.sequences.thinking_budget import ThinkingBudget
from pontil.runtime.errors import RequestError
from pontil.runtime.grammar.grammar_text import Thought
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.worker.start.assembly import WorkerResources

NAME = "thinking_token_budget"


def budget_of(params: SamplingParams, stops: frozenset[int], machine: WorkerResources) -> ThinkingBudget | None:
    """Return the budget, if the request has one. Raise RequestError where the marker that keeps it may not be drawn."""
    if params.thinking_token_budget is None:
        return None
    thought = Thought.__members__.get(params.thought or "", Thought.NONE)
    if thought is Thought.NONE:
        raise RequestError(f"{NAME} is for a model that reasons: leave it out", param=NAME)
    tokenizer, size = machine.tokenizer, machine.config.vocab_size
    closing = closing_ids(tokenizer, thought)
    banned_ids = frozenset(params.bad_token_ids) | (stops if params.min_tokens else frozenset())
    allowed_ids = frozenset(params.allowed_token_ids or closing)
    if max(closing) >= size or not allowed_ids.issuperset(closing) or not banned_ids.isdisjoint(closing):
        says = f"cannot be kept: the token {', '.join(map(str, closing))}, which ends reasoning, may not be drawn"
        raise RequestError(f"{NAME} {says}", param=NAME)
    watch = partial(TokenReasoning, tokenizer, thought)
    return ThinkingBudget(params.thinking_token_budget, closing, 4 * -(-size // 32), watch)
