# SPDX-License-Identifier: Apache-2.0
"""Tokens of many sequences in one message: most of a token's cost on its way to the proxy is per message."""

from collections.abc import Iterator, Sequence

from pontil.runtime.errors import MalformedFrame
from pontil.runtime.wire.messages import Step, Tokens

# Fields of a row before the ids.
HEAD = 5


def is_plain(frame: Tokens) -> bool:
    """Return whether a row can carry everything in this frame."""
    return (
        frame.finish_reason is None
        and frame.generated_tokens is None
        and frame.logprobs is None
        and frame.prompt_logprobs is None
        and frame.queue_seconds is None
        and frame.computed_tokens is None
        and frame.draft_tokens is None
        and frame.first_cached_tokens is None
        and frame.pulled_bytes is None
        and frame.frames is None
        and frame.prompt_tokens is not None
        and frame.cached_tokens is not None
    )


def joined(frames: Sequence[Tokens]) -> Iterator[Tokens | Step]:
    """Yield the same tokens in fewer messages. Frames of one choice keep their order as long as each choice has at most
    one. All frames have one sender; one Step goes to each receiver."""
    plain: dict[str, list[Tokens]] = {}
    for frame in frames:
        if is_plain(frame):
            plain.setdefault(frame.receiver, []).append(frame)
        else:
            yield frame
    for receiver, some in plain.items():
        if len(some) == 1:
            yield some[0]
        else:
            yield Step(
                some[0].sender, receiver, [frame.request_id for frame in some], [row_of(frame) for frame in some]
            )


def row_of(frame: Tokens) -> list[int]:
    prompt, cached = frame.prompt_tokens, frame.cached_tokens
    assert prompt is not None and cached is not None, "a plain frame has both"
    return [frame.attempt, frame.choice, frame.index, prompt, cached, *frame.ids]


def rows_of(step: Step) -> Iterator[tuple[str, list[int]]]:
    """Return each row with its request. Raise MalformedFrame for rows that do not match the requests."""
    if len(step.rows) != len(step.requests) or min(map(len, step.rows), default=HEAD + 1) <= HEAD:
        raise MalformedFrame("a step whose rows are not those of its requests")
    return zip(step.requests, step.rows, strict=True)


def frame_of(step: Step, request: str, row: list[int]) -> Tokens:
    """Return the Tokens that a row stands for."""
    return Tokens(
        step.sender, step.receiver, request, row[0], row[2], row[HEAD:], row[1], prompt_tokens=row[3],
        cached_tokens=row[4],
    )  # fmt: skip
