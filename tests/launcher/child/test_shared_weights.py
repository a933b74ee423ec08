# SPDX-License-Identifier: Apache-2.0
"""The launcher's memory for packed weights: one file for all processes whose weights are equal."""

import fcntl
import os
from collections.abc import Iterator

import pytest
from open_resources import nothing_left_open

from pontil.launcher.child.kept_memory import SharedWeights
from pontil.launcher.host.devices import Placement
from pontil.launcher.plan.child_plan import ChildPlan, plan_ranks


@pytest.fixture
def weights() -> Iterator[SharedWeights]:
    with nothing_left_open():
        made = SharedWeights()
        yield made
        made.close()


def worker(name: str, devices: str = "cpu", **config: object) -> ChildPlan:
    places = [Placement(device, (0,)) for device in devices.split("+")]
    return plan_ranks(name, name.split(":")[0], places, {"model": "m", "quantization": "gguf", **config}, "ipc:///x")


def inodes(weights: SharedWeights, plan: ChildPlan) -> list[list[int]]:
    """Return the files of each rank."""
    handed = [weights.handed(member).get("weights_memory", []) for member in plan.members]
    return [[os.fstat(file).st_ino for file in files] for files in handed]


def test_workers_of_a_model_share_a_file_and_others_have_their_own(weights: SharedWeights) -> None:
    first = inodes(weights, worker("prefill:0"))
    assert first == inodes(weights, worker("decode:0")) == inodes(weights, worker("prefill:0").in_role("decode"))
    assert [len(files) for files in first] == [1]
    others = [{"model": "n"}, {"quantization": "int8"}, {"dtype": "float32"}, {"kernels": "avx2"}, {"node": "talker"}]
    assert all(inodes(weights, worker("decode:1", **one)) != first for one in others)


def test_each_rank_shares_a_file_with_that_rank_of_other_workers(weights: SharedWeights) -> None:
    pair = inodes(weights, worker("prefill:0", "cpu+cpu"))
    assert pair == inodes(weights, worker("decode:0", "cpu+cpu"))
    assert len({file for files in [*pair, *inodes(weights, worker("decode:1"))] for file in files}) == 3
    assert inodes(weights, worker("decode:2", "cpu+cpu", tensor_parallel_arithmetic="fast")) != pair


def test_ranks_that_share_experts_have_files_of_their_own(weights: SharedWeights) -> None:
    places = [Placement("cpu", (0,))] * 2
    group = plan_ranks("decode:0", "decode", places, {"model": "m", "data_parallel_size": 2}, "ipc:///x")
    first, second = inodes(weights, group)
    assert first != second and len(first) == len(second) == 1


def test_a_draft_has_a_file_of_its_own(weights: SharedWeights) -> None:
    ((target, draft),) = inodes(weights, worker("decode:0", speculative_model="d"))
    assert [[target]] == inodes(weights, worker("prefill:0")) and draft != target
    ((_, same),) = inodes(weights, worker("decode:1", speculative_model="m"))
    assert same not in (target, draft)


def test_a_stage_has_files_for_the_parts_beside_its_model(weights: SharedWeights) -> None:
    (files,) = inodes(weights, worker("decode:0", node="talker"))
    assert len(set(files)) == 3 and [files] == inodes(weights, worker("decode:1", node="talker"))


def test_proxies_and_workers_on_gpus_have_none(weights: SharedWeights) -> None:
    assert inodes(weights, worker("decode:0", "cuda:0")) == [[]]
    assert weights.handed(ChildPlan("proxy", "proxy", "cpu", (0,), {"model": "m"})) == {}
    assert not weights.files


def test_a_file_can_be_sealed_and_is_inherited_by_nobody_else(weights: SharedWeights) -> None:
    (file,) = weights.handed(worker("decode:0"))["weights_memory"]
    assert not os.get_inheritable(file)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)


def test_where_the_system_gives_no_files_workers_start_without(
    weights: SharedWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str, flags: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", fail)
    assert weights.handed(worker("decode:0")) == {}
