# SPDX-License-Identifier: Apache-2.0
"""With keys and values in 8 bits a sequence's tokens depend on nothing else either (C16)."""

import kernels
import pytest
import torch
from architectures import read_model
from company import TOKENS, alone_in_company_and_again, handed_over
from effort import by_default
from tiny import check_free, drain, rig, sequence
from tiny_llama import write_tiny_llama

from pontil.runtime.models.model import Model

CELLS = ("int8", "fp8")
PROMPT = torch.randint(3, 250, (333,), generator=torch.Generator().manual_seed(4)).tolist()
Models = dict[str, Model]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder = tmp_path_factory.mktemp("model")
    write_tiny_llama(folder)
    fused = read_model(folder, torch.bfloat16, kernels=kernels.opened())
    return {"kernels": fused, "torch": read_model(folder, torch.bfloat16)}


@pytest.mark.parametrize(("computed", "cells"), [("kernels", "int8"), ("kernels", "fp8"), ("torch", "int8")])
def test_company_chunks_replay_and_a_handoff_change_nothing(models: Models, computed: str, cells: str) -> None:
    expected = alone_in_company_and_again(models[computed], PROMPT, cells)
    assert handed_over(models[computed], PROMPT[:150], TOKENS, cells) == expected


@pytest.mark.parametrize("cells", by_default({"int8"}, CELLS))
def test_neither_do_preemption_and_cached_prefixes(models: Models, cells: str) -> None:
    crowd = {f"n{number}": PROMPT[: 20 + 5 * number] for number in range(6)}
    alone: dict[str, list[int]] = {}
    for name, ids in crowd.items():
        roomy = rig(models["kernels"], cells=cells)
        roomy.engine.add(sequence(name, ids, 60, temperature=1.3, seed=4))
        alone |= drain(roomy.engine)
    tight = rig(models["kernels"], blocks=14, cells=cells)
    for _ in range(2):
        for name, ids in crowd.items():
            tight.engine.add(sequence(name, ids, 60, temperature=1.3, seed=4))
        assert drain(tight.engine) == alone
    assert tight.scheduler.preemptions > 0 and tight.scheduler.recomputed > 0
    check_free(tight)


@pytest.mark.parametrize("computed", ["kernels", "torch"])
def test_cells_of_8_bits_are_really_used_and_change_little(models: Models, computed: str) -> None:
    """The chunk that computes a key reads it as it was stored, so the first logprobs differ already."""
    found = {}
    for cells in ("auto", *CELLS):
        ours = rig(models[computed], cells=cells)
        ours.engine.add(sequence("a", PROMPT[:100], 1, logprobs=3))
        (output,) = ours.engine.step()
        (top,) = output.logprobs
        found[cells] = top.entries[0]
    assert len(set(found.values())) == 3
    assert all(one[0] == found["auto"][0] and abs(one[1] - found["auto"][1]) < 0.1 for one in found.values())
