# SPDX-License-Identifier: Apache-2.0
"""An answer as a client has it: all that must not depend on faults, and the times at which its tokens came."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Logprobs = list[Any]


@dataclass(slots=True)
class ChoiceContent:
    """One choice: its text, ids, logprobs and why it ended."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: Logprobs = field(default_factory=list)
    finish: str | None = None


@dataclass(slots=True)
class ChaosAnswer:
    """The choices by index, the tokens of prompt and answer by the server's count, and whether the end was marked.
    `continued` is how often its stream went on after a break, `repeated` the id of an event that came twice."""

    choices: dict[int, ChoiceContent] = field(default_factory=dict)
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    done: bool = False
    times: list[float] = field(default_factory=list)
    continued: int = 0
    repeated: str | None = None

    def take(self, event: Mapping[str, Any] | None, at: float) -> None:
        """Add an event of a stream, None for its end."""
        if event is None:
            self.done = True
            return
        self.take_usage(event.get("usage"))
        new = [self.take_choice(choice) for choice in event.get("choices") or ()]
        if any(new):
            self.times.append(at)

    def take_whole(self, body: Mapping[str, Any]) -> None:
        """Take an answer that came in one piece."""
        self.take_usage(body.get("usage"))
        for choice in body.get("choices") or ():
            self.take_choice(choice)
        self.done = True

    def take_usage(self, usage: Mapping[str, Any] | None) -> None:
        if usage:
            self.prompt_tokens = usage.get("prompt_tokens")
            self.completion_tokens = usage.get("completion_tokens")

    def take_choice(self, choice: Mapping[str, Any]) -> bool:
        """Add a choice, or a piece of one; return whether it brought a token."""
        content = self.choices.setdefault(int(choice.get("index") or 0), ChoiceContent())
        message = choice.get("delta") or choice.get("message") or choice
        content.text += message.get("text") or message.get("content") or ""
        ids = choice.get("token_ids") or []
        content.token_ids += ids
        content.logprobs += logprobs_of(choice.get("logprobs") or {})
        content.finish = choice.get("finish_reason") or content.finish
        return bool(ids)

    @property
    def missing(self) -> str | None:
        """The part of a whole answer that this one lacks."""
        if not self.choices or any(content.finish is None for content in self.choices.values()):
            return "no finish reason"
        if self.prompt_tokens is None or self.completion_tokens is None:
            return "no usage"
        return None if self.done else "no [DONE]"


def logprobs_of(logprobs: Mapping[str, Any]) -> Logprobs:
    """Return the logprobs of a chat's or a completion's choice, one entry for each token."""
    return list(logprobs.get("content") or logprobs.get("token_logprobs") or ())


def difference(expected: ChaosAnswer, answer: ChaosAnswer) -> str | None:
    """Return how an answer differs from the expected one, None if it does not."""
    if answer.missing:
        return f"it ended early, with {answer.missing}"
    if answer.repeated:
        return f"the event {answer.repeated} came twice"
    if set(expected.choices) != set(answer.choices):
        return f"it has choices {sorted(answer.choices)} and not {sorted(expected.choices)}"
    for index, content in sorted(expected.choices.items()):
        found_content = answer.choices[index]
        for name in ("text", "token_ids", "logprobs"):
            expected_value, found_value = getattr(content, name), getattr(found_content, name)
            if expected_value != found_value:
                return f"choice {index} differs in {name}{first_difference(expected_value, found_value)}"
        if content.finish != found_content.finish:
            return f"choice {index} ended by {found_content.finish} and not by {content.finish}"
    for name in ("prompt_tokens", "completion_tokens"):
        expected_value, found_value = getattr(expected, name), getattr(answer, name)
        if expected_value != found_value:
            return f"usage has {found_value} {name} and not {expected_value}"
    return None


def first_difference(expected: Sequence[Any], answer: Sequence[Any]) -> str:
    """Return in words where two texts or lists part."""
    place = next((i for i, (a, b) in enumerate(zip(expected, answer, strict=False)) if a != b), None)
    if place is None:
        return f": {len(answer)} long and not {len(expected)}"
    return f" from place {place} on: {answer[place : place + 8]!r} and not {expected[place : place + 8]!r}"
