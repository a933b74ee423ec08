# SPDX-License-Identifier: Apache-2.0
"""A running system under load and faults, which must give the responses of an undisturbed run."""

import signal
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

from effort import is_long
from oracle import Rest, at_rest, check, settled
from served import Served, wait_for
from streams import Streams
from tiny_llama import write_tiny_llama

MODEL = "smollm2-135m-instruct"
STORY = "The old lighthouse keeper climbed the stairs every night, and every night the sea told him a little more. "
DRAWN = {"temperature": 0.9, "top_p": 0.95, "ignore_eos": True}
# Streams: greedy and sampled, several choices, everything that changes logits, a stop string, a grammar, an object that
# is closed at its budget with the logprobs of named tokens, and other ways to ask for structure; a chat with echo; few
# tokens, of which even a random draft layer guesses some.
ASKED: list[dict[str, Any]] = [
    {"prompt": STORY, "temperature": 0, "ignore_eos": True},
    {"prompt": [20 + 13 * i % 240 for i in range(300)], "temperature": 0, "ignore_eos": True},
    {"prompt": STORY, "seed": 11, **DRAWN},
    {"prompt": [204], "seed": 12, **DRAWN},
    {"prompt": STORY, "seed": 7, "n": 3, **DRAWN},
    {"prompt": "🎉🚀 Congratulations 👩‍🚀! Reply with emoji: 😀", "temperature": 0, "ignore_eos": True},
    {"prompt": STORY, "temperature": 0, "stop": ["lighthouse keeper had"], "ignore_eos": True},
    {
        "prompt": STORY, "seed": 3, "n": 2, "logprobs": 2, "presence_penalty": 0.5, "frequency_penalty": 0.3,
        "repetition_penalty": 1.1, "logit_bias": {"204": 2.5}, "min_tokens": 20, **DRAWN,
    },
    {
        "prompt": STORY, "seed": 21, "n": 2, "temperature": 0.9,
        "structured_outputs": {"json": {"type": "array", "items": {"type": "string"}, "minItems": 40}},
    },
    {
        "prompt": STORY, "seed": 5, "temperature": 1.0, "logprobs": 0, "logprob_token_ids": [204, 9],
        "response_format": {"type": "json_object"},
    },
    {"prompt": STORY, "seed": 6, "regex": "([a-z]+ )+[a-z]+", "max_tokens": 48, **DRAWN},
    {"prompt": STORY, "seed": 8, "ebnf": 'root ::= ("<" [a-z]+ ">")+', "max_tokens": 48, **DRAWN},
    {
        "prompt": STORY, "seed": 9, "max_tokens": 48, **DRAWN,
        "response_format": {"type": "structural_tag", "format": {"type": "sequence", "elements": [
            {"type": "json_schema", "json_schema": {"type": "boolean"}},
            {"type": "triggered_tags", "triggers": ["e"], "tags": [
                {"begin": "e", "content": {"type": "const_string", "value": "!"}, "end": ""},
            ]},
        ]}},
    },
    {
        "messages": [{"role": "user", "content": STORY}, {"role": "assistant", "content": "Once"}],
        "seed": 10, "echo": True, "add_generation_prompt": False, "continue_final_message": True,
        "max_tokens": 48, **DRAWN,
    },
    {
        "prompt": STORY, "temperature": 0, "logprobs": 2, "allowed_token_ids": [*range(100, 106)], "ignore_eos": True,
    },
]  # fmt: skip
TOKENS = 48 if is_long() else 300
SITES = count()
CAPITAL = "The capital of France is"
# The size that a worker chooses depends on what is free when it starts, and some start again: more often than an
# operator would want it.
OPTIONS = ("--kv-cache-memory", "512MiB", "--restart-attempts", "1000", "--restart-max-delay", "1")


def options(folder: Path, layers: int = 12) -> tuple[str, ...]:
    """For a launch. Only `--long` takes the real model: a small one starts and answers in a fraction of the time, and
    which tokens are moved does not matter to those that move them."""
    if is_long():
        return OPTIONS
    write_tiny_llama(folder / "small", num_layers=layers, max_model_len=2048, dtype="bfloat16")
    return ("--model", str(folder / "small"), "--served-model-name", MODEL, *OPTIONS, "--kv-cache-memory", "32MiB")


def bodies(salt: str, tokens: int = TOKENS) -> list[dict[str, Any]]:
    return [{"model": MODEL, "max_tokens": tokens, "cache_salt": f"{salt}{number}"} | body
            for number, body in enumerate(ASKED)]  # fmt: skip


class DisturbedSite:
    """A system that must answer as in an undisturbed run. `is_real`: its model knows something."""

    def __init__(self, served: Served, tokens: int = TOKENS, is_real: bool | None = None) -> None:
        self.served, self.tokens = served, tokens
        # Sites may share a system: what one asked, another must not find cached.
        self.salt, self.rounds = f"site {next(SITES)}, ", 0
        self.before: Rest = settled(served)
        self.capital = self.answer_about_a_capital()
        is_real = is_long() if is_real is None else is_real
        assert not is_real or self.capital.startswith(" Paris")

    @cached_property
    def answers(self) -> list[tuple[Any, ...]]:
        """The responses of an undisturbed run."""
        told = Streams(self.served, bodies(f"{self.salt}undisturbed", self.tokens)).finish()
        assert all(one.done and one.error is None for one in told)
        return [one.answer for one in told]

    def survives(
        self, harm: Callable[[Streams], None], *killed: str, mended: Callable[[], object] = lambda: None
    ) -> Rest:
        """Check that all streams give the undisturbed responses though `harm` is done, and that nothing is left of it
        after `mended`."""
        answers = self.answers
        before = replace(at_rest(self.served), free_blocks=self.before.free_blocks)
        self.rounds += 1
        streams = Streams(self.served, bodies(f"{self.salt}round {self.rounds}, ", self.tokens))
        harm(streams)
        for asked, told, expected in zip(ASKED, streams.finish(), answers, strict=True):
            assert told.error is None, told.error
            assert told.answer == expected, f"{asked}: {told.answer} was {expected}"
        mended()
        return check(self.served, before, *killed)

    def answer_about_a_capital(self) -> str:
        """The part of an answer that a working server repeats exactly."""
        return str(self.served.complete(CAPITAL, max_tokens=5)["choices"][0]["text"])

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        self.served.kill(name, number=number)

    def kills(self, name: str, tokens: int) -> Callable[[Streams], None]:
        """Return a fault that kills the process once every stream has so many tokens."""

        def harm(streams: Streams) -> None:
            wait_for(lambda: streams.all_have(tokens), 120, f"{tokens} tokens of every stream")
            self.kill(name)

        return harm

    def moves_streams_of(self, name: str, tokens: int) -> bool:
        """Check that streams survive such a death. Return whether one of them was moved: on a crowded machine all may
        have ended before it, which shows nothing."""
        before = self.failovers()
        self.survives(self.kills(name, tokens), name)
        return self.failovers() > before

    def failovers(self) -> float:
        return self.served.metric('pontil_failovers_total{cause="died"}')
