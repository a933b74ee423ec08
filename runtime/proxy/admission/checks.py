# SPDX-License-Identifier: Apache-2.0
"""Admission checks: requests must fit the context, and be no more than the workers can be expected to serve."""

import secrets
from collections.abc import Sequence

from pontil.runtime.errors import RequestError, Unavailable
from pontil.runtime.proxy.routing.policy import WorkerLoad

# Requests admitted per seat of the workers' batches: those beyond the seats wait in a queue.
REQUESTS_PER_SEAT = 4
SEED_BITS = 63
# Larger numbers are not shown: they may have thousands of digits.
FAR = 1 << 63


def most_choices(workers: Sequence[WorkerLoad]) -> int:
    """Return the most choices that are admitted at once."""
    return REQUESTS_PER_SEAT * sum([worker.seats for worker in workers])


def check_together(workers: Sequence[WorkerLoad], wanted: int, param: str = "prompt", named: str = "") -> None:
    """Raise RequestError for a request of several prompts that asks for more choices than are ever admitted at once:
    a retry would not help. The prompts are those of `param`, and are `named` so; absent: by its plural."""
    named = named or f"{param}s"
    if workers and wanted > most_choices(workers):
        says = f"the {named} ask for {wanted} choices together, but {most_choices(workers)} are all that can be taken"
        raise RequestError(f"{says}: send fewer {named} at once, or ask for a smaller n", param=param)


def check_seats(workers: Sequence[WorkerLoad], n: int) -> None:
    """Raise RequestError for more choices than the smallest worker has seats."""
    seats = min([worker.seats for worker in workers], default=n)
    if n > seats:
        raise RequestError(f"n is {n}, but a worker serves at most {seats} choices at once: ask for less", param="n")


def check_capacity(workers: Sequence[WorkerLoad], in_flight: int, wanted: int = 1) -> None:
    """Raise Unavailable if `wanted` more choices than the `in_flight` ones exceed the limit that holds until the
    workers' rates are measured: refused at once rather than queued without bound."""
    limit = most_choices(workers)
    if workers and in_flight + wanted > limit:
        says = f"{in_flight} requests are in flight, which is all that can be taken: try again in a moment"
        raise Unavailable(says, retry_after=1.0)


def maximum(context: int) -> str:
    """Return the words of OpenAI's error, which clients look for."""
    return f"This model's maximum context length is {context} tokens."


def token_budget(
    prompt_tokens: int, wanted: int | None, default: int | None, context: int, names: tuple[str, str]
) -> int:
    """Return how many tokens may be generated: as many as `wanted`, else `default`, else the rest of the context.

    Raises RequestError when prompt and answer do not fit. `names` are the parameters that the prompt and `wanted` came
    from.
    """
    prompt_name, wanted_name = names
    if prompt_tokens >= context:
        raise RequestError(
            f"{maximum(context)} However, the prompt has {prompt_tokens} tokens, and at least one is generated: "
            "shorten the prompt",
            param=prompt_name,
            code="context_length_exceeded",
        )
    room = context - prompt_tokens
    if wanted is None:
        return room if default is None else min(default, room)
    if wanted > room:
        raise RequestError(
            f"{maximum(context)} However, the prompt has {prompt_tokens} tokens and {wanted_name} asks for "
            f"{wanted if wanted < FAR else 'far'} more: ask for at most {room}",
            param=wanted_name,
            code="context_length_exceeded",
        )
    return wanted


def mint_seed() -> int:
    """Return a seed for a request without one, so that a replay draws the same tokens."""
    return secrets.randbits(SEED_BITS)
