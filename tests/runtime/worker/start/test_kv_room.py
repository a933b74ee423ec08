# SPDX-License-Identifier: Apache-2.0
"""The KV memory of a worker on a CPU, where none is configured."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.config.worker_config import StepSize
from pontil.runtime.probe.host_memory import FreeMemory
from pontil.runtime.worker.start import loading
from pontil.runtime.worker.start.loading import count_blocks

LAYOUT = KVLayout(16, 2, 2, 64, "bfloat16")


def blocks(
    monkeypatch: pytest.MonkeyPatch, free: int, seats: int, context: int, given: int | None = None, mapped: int = 0
) -> int:
    monkeypatch.setattr(loading, "host_room", lambda: FreeMemory(free))
    config: Any = SimpleNamespace(kv_cache_memory=given, step_size=StepSize(seats, 256))
    model: Any = SimpleNamespace(device=torch.device("cpu"), config=SimpleNamespace(max_model_len=context))
    return count_blocks(config, model, LAYOUT, mapped)


def test_no_more_is_taken_than_all_seats_can_use(monkeypatch: pytest.MonkeyPatch) -> None:
    assert blocks(monkeypatch, 1 << 40, 8, 100) == 8 * 7 + 1
    assert blocks(monkeypatch, 1 << 40, 1, 16) == 2


def test_a_fifth_of_the_free_memory_is_the_limit_and_at_most_4_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    assert blocks(monkeypatch, 1 << 30, 64, 1 << 20) == (1 << 30) // 5 // LAYOUT.block_bytes
    assert blocks(monkeypatch, 1 << 40, 64, 1 << 20) == (4 << 30) // LAYOUT.block_bytes


def test_a_configured_size_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert blocks(monkeypatch, 1 << 30, 1, 16, 1 << 29) == (1 << 29) // LAYOUT.block_bytes


def test_pages_of_mapped_weights_are_no_room_for_keys_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system counts them as free, as it could read them again: in each step."""
    left = (1 << 30) // 5 // LAYOUT.block_bytes
    assert blocks(monkeypatch, 3 << 30, 64, 1 << 20, mapped=2 << 30) == left
    assert blocks(monkeypatch, 1 << 30, 64, 1 << 20, mapped=2 << 30) == 0
