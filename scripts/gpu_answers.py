# SPDX-License-Identifier: Apache-2.0
"""Compare the answers of a server on GPUs with those of one on CPUs, and with its own.

    python scripts/gpu_answers.py GPU_URL CPU_URL [--long] [--models NAME,...]

Greedy answers must be equal up to the first token for which the CPU's two best were nearly tied: two processors round
differently. So must the GPU's answers, asked alone and all at once; with --alike, for a server that was started with
--deterministic, token for token. With --long a prompt of about 7,000 tokens is among them. With --models each question
is asked of each of these, adapters say. Exits with 1 if any differs, and says which question. Standard library only.
"""

import argparse
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
LONG = "To bake bread you need flour, water and time. " * 600

Answer = dict[str, Any]
# A model, "" being the server's own, and a prompt.
Question = tuple[str, str]


def answer(url: str, question: Question) -> Answer:
    """Return the tokens of a greedy answer, with the best logprobs at each."""
    model, prompt = question
    own: dict[str, object] = {"model": model} if model else {}
    body = own | {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "logprobs": 2, "ignore_eos": True}
    reply, _ = ask(urlsplit(url).netloc, "POST", "/v1/completions", body)
    found: Answer = reply["choices"][0]["logprobs"]
    return found


def named(question: Question) -> str:
    model, prompt = question
    return f"{model} {prompt[:40]!r}".strip()


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
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("gpu")
    parser.add_argument("cpu")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--alike", action="store_true")
    parser.add_argument("--models", default="")
    given = parser.parse_args()
    gpu, cpu = given.gpu, given.cpu
    prompts = (*QUESTIONS, LONG) if given.long else QUESTIONS
    # Neighbours are asked of different models.
    questions = [(model, prompt) for prompt in prompts for model in given.models.split(",")]
    failed = []
    alone = [answer(gpu, question) for question in questions]
    for question, mine in zip(questions, alone, strict=True):
        found = difference(mine, answer(cpu, question))
        if found is not None:
            failed.append(f"beside the CPU, {named(question)}: {found}")
    with ThreadPoolExecutor(len(questions)) as pool:
        together = list(pool.map(lambda question: answer(gpu, question), questions))
    for question, mine, crowded in zip(questions, alone, together, strict=True):
        found = difference(mine, crowded)
        if found is not None or (given.alike and mine["tokens"] != crowded["tokens"]):
            failed.append(f"beside others, {named(question)}: another answer than alone")
    for line in failed:
        print(line)
    print(f"{len(questions)} questions, {len(failed)} differences")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
