# SPDX-License-Identifier: Apache-2.0
"""The answers of a launch to everything that must not depend on who computed it, or on how many ranks."""

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

from disturbed import DRAWN, MODEL, OPTIONS, STORY
from served import Served
from tiny_latent import write_tiny_deepseek

# Prompt lengths around the boundaries of blocks of 16, then what must not depend on who computed it.
ASKED: list[dict[str, Any]] = [
    *({"prompt": [20 + 13 * i % 240 for i in range(length)], "temperature": 0} for length in (1, 15, 16, 17, 300)),
    {"prompt": STORY, "seed": 11, **DRAWN},
    {"prompt": STORY, "seed": 7, "n": 3, "logprobs": 2, **DRAWN},
    {"prompt": STORY, "seed": 21, "temperature": 0.9, "structured_outputs": {"choice": ["storm", "sea", "stairs"]}},
    {"prompt": STORY, "temperature": 0, "prompt_logprobs": 1},
]
TOKENS = 40
SALTS = count()


def group(ranks: int, first: int) -> str:
    """Return a device item of so many ranks on two cores."""
    return "+".join(f"cpu:{(first + rank) % 2}" for rank in range(ranks))


def mixture(folder: Path) -> tuple[str, ...]:
    """Write a DeepSeek V3 with eight experts, three for each token, and a shared one. Return the options that serve
    it."""
    sizes = {"max_position_embeddings": 2048, "moe_intermediate_size": 64}
    write_tiny_deepseek(folder / "mixture", "bfloat16", by_kernels=True, **sizes)
    named = ("--model", str(folder / "mixture"), "--served-model-name", MODEL)
    return (*named, *OPTIONS, "--kv-cache-memory", "32MiB")


def answers(served: Served) -> list[dict[str, Any]]:
    """Ask everything at once, streamed nowhere; return ids, logprobs, finish and usage."""
    salt = f"ranks {next(SALTS)} "

    def ask(number: int) -> dict[str, Any]:
        body = {"model": MODEL, "max_tokens": TOKENS, "cache_salt": f"{salt}{number}", "return_token_ids": True}
        reply = served.request("POST", "/v1/completions", body | {"ignore_eos": True} | ASKED[number])
        answer = reply.json()
        assert reply.status == 200, answer
        kept = ("token_ids", "logprobs", "finish_reason", "prompt_logprobs")
        choices = [{name: choice.get(name) for name in kept} for choice in answer["choices"]]
        return {"choices": choices, "usage": answer["usage"]}

    with ThreadPoolExecutor(len(ASKED)) as threads:
        return list(threads.map(ask, range(len(ASKED))))
