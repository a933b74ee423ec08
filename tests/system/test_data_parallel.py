# SPDX-License-Identifier: Apache-2.0
"""Launches whose workers share experts and have sequences of their own answer like one process (H4, H5)."""

import signal
from pathlib import Path
from typing import Any

import pytest
from command_line import obeyed
from disturbed import DisturbedSite
from oracle import at_rest
from rank_answers import TOKENS, answers, group, mixture
from served import launched, wait_for
from streams import Streams


def lists(prefill: int, decode: int, shared: str) -> tuple[str, ...]:
    devices = ("--prefill", group(prefill, 0), "--decode", group(decode, 1), "--share-devices")
    return (*devices, "--disagg", "always", "--data-parallel-attention", shared)


@pytest.mark.parametrize(
    ("prefill", "decode", "shared"),
    [(1, 2, "decode"), *(pytest.param(*one, marks=pytest.mark.long) for one in ((2, 2, "decode"), (2, 2, "all")))],
)
def test_workers_of_different_layouts_answer_like_one_process(
    mixture_alone: list[dict[str, Any]], tmp_path: Path, prefill: int, decode: int, shared: str
) -> None:
    with launched(tmp_path, *lists(prefill, decode, shared), *mixture(tmp_path)) as served:
        assert answers(served) == mixture_alone
        at_rest(served)


@pytest.mark.long
def test_ranks_that_meet_over_gloo_answer_alike(tmp_path: Path) -> None:
    """Without kernels."""
    (tmp_path / "one").mkdir()
    by_torch = (*mixture(tmp_path), "--kernels", "torch")
    with launched(tmp_path / "one", "--role", "mixed", "--mixed", "cpu:0", *by_torch) as served:
        expected = answers(served)
    with launched(tmp_path, *lists(1, 2, "decode"), *by_torch) as served:
        assert answers(served) == expected
        at_rest(served)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_rank_that_ends_takes_its_group_with_it(
    mixture_alone: list[dict[str, Any]], tmp_path: Path, number: signal.Signals
) -> None:
    """H7: streams go on exactly, nothing leaks, and the new group answers as the one before."""
    with launched(tmp_path, *lists(1, 2, "decode"), *mixture(tmp_path)) as served:
        site, victim = DisturbedSite(served, TOKENS, is_real=False), served.living("decode:0+1")

        def harm(streams: Streams) -> None:
            wait_for(lambda: streams.all_have(4), 60, "4 tokens of every stream")
            victim.send_signal(number)

        site.survives(harm, "decode:0", "decode:0+1")
        assert served.living("decode:0+1") != victim
        assert answers(served) == mixture_alone


@pytest.mark.long
def test_a_group_changes_as_one(mixture_alone: list[dict[str, Any]], tmp_path: Path) -> None:
    """An order for one of its workers is one for all of them, and the answers stay."""
    with launched(tmp_path, *lists(1, 2, "decode"), *mixture(tmp_path)) as served:

        def seen(value: str) -> list[str]:
            return [row[value] for name, row in sorted(served.topology().items()) if name.startswith("decode")]

        obeyed(served.port, "drain", "decode:0+1")
        assert seen("state") == ["DRAINED", "DRAINED"]
        obeyed(served.port, "undrain", "decode:0")
        obeyed(served.port, "role", "decode:0", "mixed")
        assert seen("role") == ["mixed", "mixed"] and answers(served) == mixture_alone
        before = seen("pid")
        obeyed(served.port, "restart", "decode:0")
        assert seen("state") == ["READY", "READY"] and not set(before) & set(seen("pid"))
        # The group is mixed now, so that this is a worker of its own.
        obeyed(served.port, "scale", "--decode", "1")
        assert len(seen("pid")) == 3 and answers(served) == mixture_alone
        at_rest(served)
