# SPDX-License-Identifier: Apache-2.0
"""The cost of grammars in a worker: compiling, each token's mask, replaying, and applying masks to logits.

    python scripts/bench_grammar.py [--model FILE_OR_FOLDER ...]

Without a model: the built-in ones that were fetched before. Texts that match each grammar are walked token by token;
each figure is the least of several runs, on one thread.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch  # noqa: E402

import app  # noqa: E402, F401
from pontil.gpu_ops.draws.logit_edits import allow_bits  # noqa: E402
from pontil.runtime.errors import RequestError  # noqa: E402
from pontil.runtime.grammar.grammar import Grammar, GrammarCompiler  # noqa: E402
from pontil.runtime.grammar.grammar_text import (  # noqa: E402
    grammar_of_choices,
    grammar_of_regex,
    grammar_of_rules,
    grammar_of_schema,
)
from pontil.runtime.tokenizer.tokenizer import Tokenizer, load_tokenizer  # noqa: E402

CACHE = Path("~/.cache/pontil").expanduser()
RUNS = 5
TEXT = {"type": "string", "maxLength": 200}
PERSON = {
    "type": "object",
    "properties": {
        "name": TEXT, "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"enum": ["new", "old", "paid", "free"]}, "maxItems": 4},
        "address": {"type": "object",
                    "properties": {"street": TEXT, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
                    "required": ["street", "zip"], "additionalProperties": False},
    },
    "required": ["name", "age", "email", "tags", "address"],
    "additionalProperties": False,
}  # fmt: skip
ADA = {
    "name": "Ada Lovelace, who wrote the first program", "age": 36, "email": "ada@example.org", "tags": ["new", "paid"],
    "address": {"street": "12 St James's Square, London", "zip": "01815"},
}  # fmt: skip
ANYTHING = {"list": [1, 2.5, None, True], "text": "some words, and\nanother line", "inner": {"a": {"b": ["c"]}}}
GRAMMARS: dict[str, tuple[str, str]] = {
    "schema": (grammar_of_schema(PERSON), json.dumps(ADA)),
    "any object": (grammar_of_schema({"type": "object"}), json.dumps(ANYTHING, indent=2)),
    "choice of 3": (grammar_of_choices(["positive", "negative", "neutral"]), "negative"),
    "regex": (grammar_of_regex(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(Z|[+-]\d{2}:\d{2})"), "2026-11-21T14:05:59+01:00"),
    "rules": (
        grammar_of_rules('start: sum\nsum: part (" + " part)*\npart: /[0-9]+/ | "(" sum ")"'),
        "1 + (22 + 3) + 4",
    ),
}


def timed(act: Callable[[], object]) -> float:
    """Return the least time of RUNS, in seconds."""
    found = []
    for _ in range(RUNS):
        begun = time.perf_counter()
        act()
        found.append(time.perf_counter() - begun)
    return min(found)


@dataclass(frozen=True)
class Walked:
    """Times in seconds: each token's mask with the step to it, and all tokens at once."""

    masks: list[float]
    replay: float


def walked(grammar: Grammar, ids: list[int], end: int) -> Walked:
    ends = frozenset({end})
    least = [float("inf")] * (len(ids) + 1)
    for _ in range(RUNS):
        guide = grammar.guide(ends)
        for place in range(len(ids) + 1):
            begun = time.perf_counter()
            guide.masks(ids[:place])
            least[place] = min(least[place], time.perf_counter() - begun)
        assert guide.failure is None, guide.failure
    return Walked(least, timed(lambda: grammar.guide(ends).masks(ids)))


def begin(grammar: Grammar) -> None:
    grammar.guide(frozenset()).follow([])


def bench(name: str, tokenizer: Tokenizer) -> None:
    begun = time.perf_counter()
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size)
    print(f"\n{name}: {tokenizer.vocab_size} ids, made ready in {time.perf_counter() - begun:.2f} s")
    print("grammar        compile    guide  first mask  mean mask    worst  replay/token")
    for title, (text, said) in GRAMMARS.items():
        compiled = timed(partial(compiler.compile, text))
        grammar = compiler.compile(text)
        ids = tokenizer.encode(said, add_special_tokens=False)
        guide = timed(partial(begin, grammar))
        begun = time.perf_counter()
        grammar.guide(frozenset()).masks([])
        first = time.perf_counter() - begun
        told = walked(grammar, ids, tokenizer.eos_ids[0])
        mean, worst = sum(told.masks) / len(told.masks), max(told.masks)
        print(
            f"{title:12} {compiled * 1e3:6.2f} ms {guide * 1e6:5.0f} us {first * 1e6:8.0f} us {mean * 1e6:7.0f} us "
            f"{worst * 1e6:5.0f} us {told.replay / max(1, len(ids)) * 1e6:10.1f} us"
        )


def bench_apply(vocabulary: int) -> None:
    words = torch.full((32, -(-vocabulary // 32)), 0x0F0F0F0F, dtype=torch.int32)
    for rows in (1, 8, 32):
        logits, row = torch.randn(rows, vocabulary), torch.arange(rows)
        spent = timed(partial(allow_bits, logits, row, words[:rows]))
        print(f"masks of {rows:2} rows applied to {vocabulary} logits each: {spent * 1e6:.0f} us")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, nargs="+", default=sorted(CACHE.glob("*/*.gguf")))
    torch.set_num_threads(1)
    for path in parser.parse_args().model:
        tokenizer = load_tokenizer(path, CACHE)
        try:
            bench(path.stem, tokenizer)
        except RequestError as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 1
        bench_apply(tokenizer.vocab_size)
    return 0


if __name__ == "__main__":
    sys.exit(main())
