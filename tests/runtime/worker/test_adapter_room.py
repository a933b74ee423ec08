# SPDX-License-Identifier: Apache-2.0
"""Two workers with room for one adapter each, which compute prompts for each other, as they do when roles change."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_adapters import write_adapter
from workers import PromptWorker, ScriptedProxy, drawn, everyone_clean, open_worker, prompt

from pontil.gpu_ops.parameters.adapters import LowRank

NAMES = ("one", "two")
PARAMS, PROMPT = drawn(6), prompt(70)


@pytest.fixture
def adapters(model: Path, tmp_path: Path) -> tuple[str, ...]:
    """Write an adapter of each name; return the options of a worker for them."""
    weights = load_file(model / "model.safetensors")
    shapes = {name.removesuffix(".weight"): one.shape for name, one in weights.items() if "q_proj" in name}
    torch.manual_seed(0)
    for name in NAMES:
        layers = {layer: LowRank(torch.randn(4, size[1]), torch.randn(size[0], 4)) for layer, size in shapes.items()}
        write_adapter(tmp_path / name, layers)
    return tuple(f"{name}={tmp_path / name}" for name in NAMES)


def keep_only(worker: PromptWorker, name: str) -> None:
    """Leave one adapter in a worker's memory, and room for no other one beside it."""
    known, loads = worker.machine.adapters, worker.worker.adapters.loads
    known.memory = known.nbytes // 2
    for other in {*NAMES} - {name}:
        loads.leave(known.by_name[other])


def test_workers_that_wait_for_each_other_give_room_to_the_other_ones_prompts(
    proxy: ScriptedProxy, model: Path, tmp_path: Path, adapters: tuple[str, ...]
) -> None:
    """Each has in use, for a request whose prompt the other one is to compute, the adapter that takes all its room."""
    pair = [open_worker(model, tmp_path, f"decode:{number}", "decode", adapter=adapters) for number in range(2)]
    proxy.admit(*pair)
    digests = pair[0].machine.adapters.by_name
    for name in NAMES:
        proxy.submit(pair[0], f"{name} alone", PROMPT, PARAMS, adapter=digests[name])
    alone = dict(zip(NAMES, proxy.finish("one alone", "two alone"), strict=True))
    assert alone["one"].ids != alone["two"].ids
    asked = list(zip(NAMES, pair, reversed(pair), strict=True))
    for name, decode, _ in asked:
        keep_only(decode, name)
    for name, decode, prefill in asked:
        fields = {"request_id": name, "attempt": 0, "prompt": PROMPT, "sampling": PARAMS.to_wire()}
        fields |= {"cache_salt": name, "adapter": digests[name]}
        proxy.submit_halves(prefill, decode, fields, fields)
    for name, answer in zip(NAMES, proxy.finish(*NAMES), strict=True):
        assert not answer.failures and answer.ids == alone[name].ids, name
    everyone_clean(proxy)
    for worker in pair:
        known = worker.machine.adapters
        assert known.memory is not None and known.nbytes <= known.memory and not len(worker.worker.adapters.loads)
