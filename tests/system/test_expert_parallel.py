# SPDX-License-Identifier: Apache-2.0
"""Launches whose rows travel to their experts answer like one process, whatever the layouts of the workers (H4, H5)."""

from pathlib import Path
from typing import Any

import pytest
from disturbed import DisturbedSite
from oracle import at_rest
from rank_answers import TOKENS, answers, group, mixture
from served import launched, wait_for
from streams import Streams


def lists(prefill: int, decode: int) -> tuple[str, ...]:
    devices = ("--prefill", group(prefill, 0), "--decode", group(decode, 1), "--share-devices")
    return (*devices, "--disagg", "always", "--expert-parallel")


@pytest.mark.parametrize(
    ("prefill", "decode"), [(2, 1), *(pytest.param(*pair, marks=pytest.mark.long) for pair in ((1, 4), (2, 4), (4, 2)))]
)
def test_workers_of_different_layouts_answer_like_one_process(
    mixture_alone: list[dict[str, Any]], tmp_path: Path, prefill: int, decode: int
) -> None:
    with launched(tmp_path, *lists(prefill, decode), *mixture(tmp_path)) as served:
        assert answers(served) == mixture_alone
        at_rest(served)


@pytest.mark.long
def test_a_rank_that_holds_experts_dies_with_its_worker(mixture_alone: list[dict[str, Any]], tmp_path: Path) -> None:
    """H7: streams go on exactly, nothing leaks, and the new worker answers as the one before."""
    with launched(tmp_path, *lists(1, 2), *mixture(tmp_path)) as served:
        site, victim = DisturbedSite(served, TOKENS, is_real=False), served.living("decode:0", 1)

        def harm(streams: Streams) -> None:
            wait_for(lambda: streams.all_have(4), 60, "4 tokens of every stream")
            victim.kill()

        site.survives(harm, "decode:0")
        assert served.living("decode:0", 1) != victim
        assert answers(served) == mixture_alone
