# SPDX-License-Identifier: Apache-2.0
"""A model with recurrent layers in real workers: of several ranks, with the responses of one process, also after a
kill; and what turns of recorded conversations find."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bench_states import recorded, replayed
from disturbed import MODEL, OPTIONS, DisturbedSite
from oracle import at_rest
from rank_answers import TOKENS, answers, group
from served import launched, wait_for
from streams import Streams
from tiny_hybrid import write_tiny_hybrid

pytestmark = pytest.mark.long


MAMBA = {
    "model_type": "bamba", "attn_layer_indices": [2], "mamba_n_heads": 4, "mamba_n_groups": 2, "mamba_d_state": 16,
}  # fmt: skip


def hybrid(folder: Path, kind: str) -> tuple[str, ...]:
    write_tiny_hybrid(folder / "hybrid", "bfloat16", **(MAMBA if kind == "mamba" else {}))
    named = ("--model", str(folder / "hybrid"), "--served-model-name", MODEL)
    return (*named, *OPTIONS, "--kv-cache-memory", "32MiB")


@dataclass(frozen=True)
class KnownAnswers:
    """The responses of one process of a model of this kind."""

    kind: str
    answers: list[dict[str, Any]]


@pytest.fixture(scope="module", params=["delta", "mamba"])
def alone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> KnownAnswers:
    folder = tmp_path_factory.mktemp("alone")
    with launched(folder, "--role", "mixed", "--mixed", "cpu:0", *hybrid(folder, request.param)) as served:
        return KnownAnswers(request.param, answers(served))


@pytest.mark.parametrize(("ranks", "guesses"), [(1, 0), (1, 4), (2, 4)])
def test_pairs_of_workers_answer_like_one_process(
    alone: KnownAnswers, tmp_path: Path, ranks: int, guesses: int
) -> None:
    """H4, H5."""
    lists = ("--prefill", group(ranks, 0), "--decode", group(ranks, 1), "--share-devices", "--disagg", "always")
    guessing = ("--speculative-tokens", str(guesses))
    with launched(tmp_path, *lists, *guessing, *hybrid(tmp_path, alone.kind)) as served:
        assert answers(served) == alone.answers
        at_rest(served)
        site = DisturbedSite(served, TOKENS, is_real=False)

        def harm(streams: Streams) -> None:
            wait_for(lambda: streams.all_have(4), 60, "tokens of every stream")
            served.kill("decode:0", rank=ranks - 1)

        site.survives(harm, "decode:0")


@pytest.mark.parametrize("way", ["mixed", "always"])
def test_turns_find_what_the_worker_of_their_prompts_has(tmp_path: Path, way: str) -> None:
    """All but the last token of each answer, which nobody computed; with `--disagg always` all but the newest one."""
    chosen = recorded(8)
    found = replayed(tmp_path, way, chosen, blocks=256, users=4, pause=0.1)
    turns = sum(map(len, chosen))
    assert (found["turns"], found["failures"]) == (turns, 0)
    assert found["reusable"] - found["hit"] == (turns - len(chosen) if way == "mixed" else found["newest"])
