# SPDX-License-Identifier: Apache-2.0
"""Costs of workers' steps, fitted to what heartbeats tell of them. Everything here takes the same time whatever it has
seen."""

from dataclasses import dataclass, field
from math import exp, inf

# Time constant in seconds of workers' computing, so that idle time forgets nothing.
MEMORY_SECONDS = 60.0
# Spread of rows, as a part of their mean, that weighs as much as what is assumed of a row: so many times a prompt
# token, as it reads its context for itself alone, and at most half of a step.
ASSUMED_SPREAD, PROMPT_TOKENS = 0.1, 2.0
# Fewest seconds that a rate is taken over.
SHORTEST = 2.0


@dataclass(slots=True)
class DecayingRate:
    """An amount per second, averaged over about the last `memory` seconds, or over those since it began."""

    memory: float
    amount: float = 0.0
    at: float | None = None
    began: float = 0.0

    def add(self, now: float, amount: float) -> None:
        if self.at is None:
            self.began = now
        self.amount = self.left(now) + amount
        self.at = now

    def left(self, now: float) -> float:
        return self.amount if self.at is None else self.amount * exp((self.at - now) / self.memory)

    def per_second(self, now: float) -> float:
        # Of one that began a moment ago not more is known than that there was something.
        seconds = max(SHORTEST, now - self.began)
        return self.left(now) / (self.memory * (1.0 - exp(-seconds / self.memory)))


@dataclass(slots=True)
class DecodeFit:
    """A line through seconds of a step by its rows, of steps without prompts. Sums are weighted by steps, and decay."""

    steps: float = 0.0
    rows: float = 0.0
    squares: float = 0.0
    seconds: float = 0.0
    products: float = 0.0

    def add(self, steps: int, rows: int, seconds: float) -> None:
        decay, mean, each = exp(-seconds / MEMORY_SECONDS), rows / steps, seconds / steps
        self.steps = self.steps * decay + steps
        self.rows = self.rows * decay + rows
        self.squares = self.squares * decay + rows * mean
        self.seconds = self.seconds * decay + seconds
        self.products = self.products * decay + rows * each

    def line(self, usual: float) -> tuple[float, float]:
        """Return the seconds of a step without rows, and of each row; zeros while nothing was seen. While steps have
        hardly differed in their rows, each is taken to be as long as `usual`, but all of them at most half of a
        step."""
        if not self.steps or not self.rows:
            return 0.0, 0.0
        rows, seconds = self.rows / self.steps, self.seconds / self.steps
        most = seconds / rows
        assumed = (ASSUMED_SPREAD * rows) ** 2
        spread = max(0.0, self.squares / self.steps - rows * rows)
        together = self.products / self.steps - rows * seconds
        row = min(max(0.0, (together + assumed * min(usual, most / 2)) / (spread + assumed)), most)
        return seconds - row * rows, row


@dataclass(slots=True)
class FittedCosts:
    """The costs of steps: of those that only decode, and of a prompt token beside or without them."""

    decode: DecodeFit = field(default_factory=DecodeFit)
    prompt_tokens: float = 0.0
    prompt_seconds: float = 0.0

    def add(self, steps: int, seconds: float, rows: int, prompt_tokens: int) -> None:
        """Learn from so many steps of a worker, in which so many tokens were drawn and prompt tokens computed."""
        if steps <= 0 or seconds <= 0.0:
            return
        if not prompt_tokens:
            if rows > 0:
                self.decode.add(steps, rows, seconds)
            return
        base, row = self.line
        decay = exp(-seconds / MEMORY_SECONDS)
        self.prompt_tokens = self.prompt_tokens * decay + prompt_tokens
        # At least a tenth is the prompt's own, however wrong the line is.
        own = max(0.1 * seconds, seconds - base * steps - row * rows)
        self.prompt_seconds = self.prompt_seconds * decay + own

    @property
    def line(self) -> tuple[float, float]:
        """The seconds of a step without rows, and of each row; zeros while nothing was seen."""
        token = self.prompt_seconds / self.prompt_tokens if self.prompt_tokens else inf
        return self.decode.line(PROMPT_TOKENS * token)

    def step(self, rows: float) -> float:
        """Return the seconds of a step of so many rows; 0 while nothing was seen."""
        base, row = self.line
        return base + row * rows

    def most_rows(self, seconds: float, most: float) -> float:
        """Return the most rows, at least one, whose step takes no longer."""
        base, row = self.line
        return max(1.0, min(most, (seconds - base) / row if row else most))

    def prompt_token(self, step_tokens: int) -> float | None:
        """Return the seconds of a prompt token in steps full of them; None while nothing was seen."""
        if not self.prompt_tokens:
            return None
        return self.prompt_seconds / self.prompt_tokens + self.line[0] / max(1, step_tokens)
