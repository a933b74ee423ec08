# SPDX-License-Identifier: Apache-2.0
"""Draws of few rows are divided over programs in as many starts as their kinds need. Their ids are those of one program
(`tests/support/gpu/sampling_cases.py`)."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from pretend_device import PretendDevice

from pontil.gpu_ops.draws import sampling
from pontil.gpu_ops.parameters.draws import ALL_KINDS, DeviceDraws, DrawKinds
from pontil.gpu_ops.triton import launch
from pontil.gpu_ops.triton.chunked_sampling import CHUNK

WARM, BY_MASS = DrawKinds(by_count=False, by_mass=False), DrawKinds(by_count=False)


def started(work: Callable[[], None]) -> list[tuple[str, dict[str, Any]]]:
    """Return what some work starts: kernels and what they are compiled for."""
    calls = []

    def note(kernel: Any, grid: launch.Grid, arguments: tuple[Any, ...], constants: dict[str, Any]) -> None:
        calls.append((kernel.fn.__name__ if hasattr(kernel, "fn") else str(kernel), constants))

    with patch.object(launch, "starter", note):
        work()
    return calls


def drawn(there: PretendDevice, count: int, vocabulary: int, kinds: DrawKinds) -> list[tuple[str, dict[str, Any]]]:
    with there:
        logits = torch.empty(count, vocabulary, device=there.device)
        whole = torch.empty(count, dtype=torch.int32, device=there.device)
        real = torch.empty(count, dtype=torch.float64, device=there.device)
        draws = DeviceDraws(whole, real, whole, real, real, real)
        return started(lambda: sampling.draw(logits, draws, whole, kinds))


@pytest.mark.parametrize(
    ("kinds", "passes"),
    [(DrawKinds(False, False, False), 0), (WARM, 1), (BY_MASS, 7), (ALL_KINDS, 13)],
)
def test_a_step_starts_what_its_draws_need(kinds: DrawKinds, passes: int) -> None:
    names = [name for name, _ in drawn(PretendDevice(), 3, 5 * CHUNK - 7, kinds)]
    assert names == ["highest_kernel", *["pass_kernel"] * passes, "choose_kernel"]


@pytest.mark.parametrize(("count", "vocabulary"), [(sampling.FEW_DRAWS + 1, 2 * CHUNK), (1, CHUNK)])
def test_many_draws_and_small_rows_have_a_program_each(count: int, vocabulary: int) -> None:
    assert [name for name, _ in drawn(PretendDevice(), count, vocabulary, ALL_KINDS)] == ["draw_kernel"]


def test_a_start_compiles_all_that_draws_of_any_kind_start() -> None:
    """A request would wait for a compiler otherwise."""
    there, vocabulary = PretendDevice(), 2 * CHUNK
    kinds = [DrawKinds(*(bool(bits >> place & 1) for place in range(3))) for bits in range(8)]
    needed = [call for one in kinds for call in drawn(there, 1, vocabulary, one)]
    with there:
        ready = started(lambda: sampling.prepare(vocabulary, there.device))
    assert needed and all(call in ready for call in needed)
    with there:
        assert not started(lambda: sampling.prepare(CHUNK, there.device))
