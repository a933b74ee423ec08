# SPDX-License-Identifier: Apache-2.0
"""Compare the answers of a server on GPUs with those of one on CPUs, and with its own.

    python scripts/gpu_answers.py GPU_URL CPU_URL

Greedy answers must be equal up to the first token for which the CPU's two best were nearly tied: two processors round
differently. The GPU's answers, asked alone and all at once, must be equal token for token, which holds where it was
started with --deterministic. Exits with 1 if either fails, and says which question. Standard library only.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from ask import ask

TOKENS = 48
# The difference of two logprobs up to which rounding may decide between them.
NEAR = 0.15
QUESTIONS = (
    "The capital of France is",
    "Once upon a time there was a glassmaker who",
    "def quicksort(values):\n    if len(values) < 2:\n        return values\n",
    "The planets, from the Sun outwards, are",
    "Dear Sir or Madam,\nI am writing to",
    "1, 1, 2, 3, 5, 8, 13,",
    "Water boils at a temperature of",
    "To bake bread you need " * 20,
)

Answer = dict[str, Any]


def answer(url: str, question: str) -> Answer:
    """Return the tokens of a greedy answer, with the best logprobs at each."""
    body = {"prompt": question, "max_tokens": TOKENS, "temperature": 0, "logprobs": 2, "ignore_eos": True}
    reply, _ = ask(urlsplit(url).netloc, "POST", "/v1/completions", body)
    found: Answer = reply["choices"][0]["logprobs"]
    return found


def difference(ours: Answer, theirs: Answer) -> str | None:
    """Return what differs without a near tie in `theirs` to explain it, or None."""
    for place, (mine, other) in enumerate(zip(ours["tokens"], theirs["tokens"], strict=True)):
        if mine == other:
            continue
        best = sorted(theirs["top_logprobs"][place].values(), reverse=True)
        if len(best) > 1 and best[0] - best[1] <= NEAR:
            return None
        return f"token {place} is {mine!r} and not {other!r}, which leads by more than {NEAR}"
    return None


def main() -> None:
    gpu, cpu = sys.argv[1], sys.argv[2]
    failed = []
    alone = [answer(gpu, question) for question in QUESTIONS]
    for question, mine in zip(QUESTIONS, alone, strict=True):
        found = difference(mine, answer(cpu, question))
        if found is not None:
            failed.append(f"beside the CPU, {question[:40]!r}: {found}")
    with ThreadPoolExecutor(len(QUESTIONS)) as pool:
        together = list(pool.map(lambda question: answer(gpu, question), QUESTIONS))
    for question, mine, crowded in zip(QUESTIONS, alone, together, strict=True):
        if mine["tokens"] != crowded["tokens"]:
            failed.append(f"beside others, {question[:40]!r}: another answer than alone")
    for line in failed:
        print(line)
    print(f"{len(QUESTIONS)} questions, {len(failed)} differences")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
