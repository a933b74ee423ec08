# SPDX-License-Identifier: Apache-2.0
"""Real workers with a disk below their KV cache: prefixes come back after eviction and after a kill, and damage costs
no answer."""

import os
from pathlib import Path

import pytest
from served import Served, launched, wait_for

TIER = 64 << 20
PROMPT = [5 + (11 * place) % 200 for place in range(300)]

# The last block, which the answer filled, has the answer's key by now.
FOUND = len(PROMPT) // 16 * 16


def ask(served: Served, prompt: list[int]) -> tuple[list[int], int]:
    """Return the tokens of the answer, and the number of cached ones of the prompt."""
    answer = served.complete(prompt, model="tiny", max_tokens=8, ignore_eos=True)
    return answer["choices"][0]["token_ids"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def evict(served: Served) -> None:
    """Fill the KV cache, of 640 tokens, with other prompts."""
    stored = served.metric(STORED)
    for number in range(1, 4):
        ask(served, PROMPT[number:] + PROMPT[:number])
    wait_for(lambda: served.metric(STORED) >= stored, 60, "a heartbeat")


STORED, HITS, DAMAGED = (
    f'pontil_kv_tier_{name}_total{{worker="mixed:0"}}' for name in ("stored_blocks", "hit_tokens", "damaged_blocks")
)


@pytest.mark.long
def test_a_disk_below_the_cache_outlives_its_worker_and_its_damage(tmp_path: Path, model: str) -> None:
    tier = f"disk:{tmp_path}/kv:64MiB"
    flags = ("--model", model, "--role", "mixed", "--kv-cache-memory", "320KiB", "--kv-tier", tier)
    # Small steps, so that computing takes long enough for any disk.
    with launched(tmp_path, *flags, "--max-num-batched-tokens", "4") as served:
        tokens, cached = ask(served, PROMPT)
        assert cached == 0
        evict(served)
        assert ask(served, PROMPT) == (tokens, FOUND)
        wait_for(lambda: served.metric(HITS) == FOUND, 60, "a heartbeat with the hit")
        evict(served)
        served.kill("mixed:0")
        restarted = 'pontil_process_restarts_total{process="mixed:0"}'
        wait_for(lambda: served.metric(restarted) == 1 and served.is_ready(), 60, "the restart")
        assert ask(served, PROMPT) == (tokens, FOUND)
        evict(served)
        with (tmp_path / "kv" / "mixed-0" / "blocks").open("r+b") as file:
            file.write(os.urandom(TIER // 2))
        assert ask(served, PROMPT)[0] == tokens
        wait_for(lambda: served.metric(DAMAGED) > 0, 60, "a heartbeat with the damage")
        assert "prefixes are read from" in served.output.read_text()
