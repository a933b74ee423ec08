# SPDX-License-Identifier: Apache-2.0
"""The questions of a load: prompts of random token ids, of fixed lengths or those of recorded conversations."""

import csv
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Smaller ids are often special tokens, which a server may treat differently.
FIRST_ORDINARY_ID = 100
COLUMNS = ("conversation", "prompt_tokens", "output_tokens", "shared_prefix_tokens")
# Words for prompts of text, most of which are one token of most vocabularies.
TEXT = """
time year people way day man thing woman life child world school state family student group country problem hand part
place case week company system program question work government number night point home water room mother area money
story fact month lot right study book eye job word business issue side kind head house service friend
"""
WORDS = TEXT.split()


@dataclass(frozen=True)
class Question:
    """One request: a prompt of token ids, and the number of tokens to generate."""

    prompt: list[int]
    tokens: int

    @property
    def text(self) -> str:
        """A prompt of about as many tokens in words, for servers that take no token ids. Equal ids give equal words."""
        return " ".join(WORDS[token_id % len(WORDS)] for token_id in self.prompt)


def random_ids(source: random.Random, count: int, vocabulary: int) -> list[int]:
    """Return so many ids, each equally likely: those that as many calls of `randrange` would return, in a third of the
    time. As many bits as the range needs are drawn for each, and again for those that are outside of it."""
    span, ids = vocabulary - FIRST_ORDINARY_ID, list[int]()
    bits = span.bit_length()
    while (missing := count - len(ids)) > 0:
        ids += [FIRST_ORDINARY_ID + drawn for drawn in map(source.getrandbits, [bits] * missing) if drawn < span]
    return ids


def fixed(prompt_tokens: int, output_tokens: int, vocabulary: int, seed: int) -> Iterator[Question]:
    """Yield questions of one size without end; no two share a prefix."""
    source = random.Random(seed)
    while True:
        yield Question(random_ids(source, prompt_tokens, vocabulary), output_tokens)


def recorded(path: Path, longest: int, vocabulary: int, seed: int) -> Iterator[Question]:
    """Yield the turns of recorded conversations, over and over in the file's order, with columns conversation,
    prompt_tokens, output_tokens and shared_prefix_tokens. A prompt begins with as many of its conversation's earlier
    ids as the recording shared. Turns of more than `longest` tokens, prompt and answer together, are left out.

    Raises ValueError if the file cannot be read, or has no such columns or no turn that is short enough.
    """
    turns = [turn for turn in read_turns(path) if turn["prompt_tokens"] + turn["output_tokens"] <= longest]
    if not turns:
        raise ValueError(f"{path} has no turn of at most {longest} tokens")
    return repeated(turns, vocabulary, seed)


def read_turns(path: Path) -> list[dict[str, int]]:
    """Read recorded turns. Raises ValueError for a file that has none, or cannot be read."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            if set(COLUMNS) <= set(rows.fieldnames or ()):
                return numbers_of(rows, path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is no text of numbers and commas: {error}") from None
    raise ValueError(f"{path} is no list of recorded turns: its first line must name {', '.join(COLUMNS)}")


def numbers_of(rows: "csv.DictReader[str]", path: Path) -> list[dict[str, int]]:
    try:
        return [{name: int(row[name]) for name in COLUMNS} for row in rows]
    except UnicodeDecodeError:
        raise
    except (TypeError, ValueError):
        raise ValueError(f"{path} has something else than whole numbers in line {rows.line_num}") from None


def repeated(turns: list[dict[str, int]], vocabulary: int, seed: int) -> Iterator[Question]:
    source = random.Random(seed)
    while True:
        histories: dict[int, list[int]] = {}
        for turn in turns:
            before = histories.get(turn["conversation"], [])[: turn["shared_prefix_tokens"]]
            new = random_ids(source, turn["prompt_tokens"] - len(before), vocabulary)
            histories[turn["conversation"]] = before + new
            yield Question(before + new, turn["output_tokens"])
