# SPDX-License-Identifier: Apache-2.0
"""Running estimates for drafts: the seconds of a step by its rows, and how often a guess is right."""

# The weight of earlier observations after each new one.
FORGET_COST, FORGET_RATE = 0.97, 0.98
# The weight of what is known of guesses after each token for which nothing was guessed, and the weight that is left.
FORGET_UNUSED, LEAST_WEIGHT = 0.99, 4.0
# An observation counts at most this many times what was expected: the system may have run something else meanwhile.
MOST_SURPRISE = 4.0
# Without evidence one more row takes this share of a step of one row; the assumption weighs so much, in rows squared.
ROW_SHARE, ASSUMED = 0.05, 0.25
# The assumption that a number of rows lies on the line weighs as much as so many steps.
ASSUMED_STEPS = 1.0


class LinearCost:
    """The seconds of a step: so many for the weights, and so many for each row. Least squares, of which old
    observations fade; an assumption replaces the slope while all observations have one number of rows. The line, of
    `base` seconds and `per_row` more for each row, is known from the first observation on."""

    def __init__(self) -> None:
        self.weight = self.rows = self.squares = self.total = self.products = 0.0
        self.base = self.per_row = 0.0

    @property
    def is_known(self) -> bool:
        return self.weight > 0

    def add(self, rows: int, seconds: float) -> None:
        if self.is_known:
            seconds = min(seconds, MOST_SURPRISE * self.seconds(rows))
        self.weight = self.weight * FORGET_COST + 1
        self.rows = self.rows * FORGET_COST + rows
        self.squares = self.squares * FORGET_COST + rows * rows
        self.total = self.total * FORGET_COST + seconds
        self.products = self.products * FORGET_COST + rows * seconds
        # Here, since a plan asks for it dozens of times.
        self.base, self.per_row = self.line()

    def line(self) -> tuple[float, float]:
        """Return the seconds without rows, and those of each row."""
        rows, seconds = self.rows / self.weight, self.total / self.weight
        variance = max(0.0, self.squares / self.weight - rows * rows)
        covariance = self.products / self.weight - rows * seconds
        assumed_slope = ROW_SHARE * seconds / (1 + ROW_SHARE * (rows - 1))
        slope = (covariance + ASSUMED * assumed_slope) / (variance + ASSUMED)
        # Of steps without rows alone no row is known to take any of their time.
        slope = min(max(slope, 0.0), seconds / rows) if rows else 0.0
        return seconds - slope * rows, slope

    def seconds(self, rows: int) -> float:
        return self.base + self.per_row * rows


class StepCost:
    """The seconds of a step of a model whose steps are not quite a line: kernels take rows in tiles. A step of a number
    of rows that occurred takes the mean of what it took, whatever the line of all steps becomes by others."""

    def __init__(self) -> None:
        self.line = LinearCost()
        # By rows: the sum of seconds, and their weight.
        self.means: dict[int, tuple[float, float]] = {}

    @property
    def is_known(self) -> bool:
        return self.line.is_known

    @property
    def per_row(self) -> float:
        return self.line.per_row

    def add(self, rows: int, seconds: float) -> None:
        if self.is_known:
            seconds = min(seconds, MOST_SURPRISE * self.seconds(rows))
        self.line.add(rows, seconds)
        total, weight = self.means.get(rows, (0.0, 0.0))
        self.means[rows] = total * FORGET_COST + seconds, weight * FORGET_COST + 1

    def seconds(self, rows: int) -> float:
        total, weight = self.means.get(rows, (0.0, 0.0))
        return (total + ASSUMED_STEPS * self.line.seconds(rows)) / (weight + ASSUMED_STEPS)

    def added(self, rows: int, more: int) -> float:
        """Return the seconds that so many more rows add to a step."""
        return max(0.0, self.seconds(rows + more) - self.seconds(rows)) if more else 0.0


class Rate:
    """The share of guesses that are right, those after a wrong one not counted. It starts from `share`, which weighs as
    much as `weight` guesses."""

    def __init__(self, share: float, weight: float) -> None:
        self.right, self.tried = share * weight, weight

    @property
    def share(self) -> float:
        return self.right / self.tried

    def add(self, guessed: int, right: int) -> None:
        tries = right + (right < guessed)
        decay = FORGET_RATE**tries
        self.right, self.tried = self.right * decay + right, self.tried * decay + tries

    def age(self) -> None:
        """Let what is known weigh less, with the share unchanged."""
        decay = min(1.0, max(FORGET_UNUSED, LEAST_WEIGHT / self.tried))
        self.right, self.tried = self.right * decay, self.tried * decay


def gain(share: float, count: int) -> float:
    """Return the expected number of right guesses of a draft."""
    return float(count) if share >= 1.0 else share * (1.0 - share**count) / (1.0 - share)


def depth(share: float, cost: float, most: int) -> int:
    """Return how many guesses are worth their cost: each costs so many tokens, and brings one if it and all before it
    are right."""
    count, right = 0, share
    while count < most and right > cost:
        count, right = count + 1, right * share
    return count
