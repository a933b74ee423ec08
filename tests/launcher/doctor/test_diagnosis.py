# SPDX-License-Identifier: Apache-2.0
"""Findings from facts: which are fine, which warn, and which are broken."""

from typing import Any

import pytest

from pontil.launcher.doctor import diagnosis
from pontil.launcher.doctor.finding import Finding
from pontil.launcher.host.devices import HostDevices
from pontil.runtime.foundation import connectors

CPU_TORCH: dict[str, Any] = {"version": "2.13.0+cpu", "cuda": None, "gpus": []}
CUDA_TORCH: dict[str, Any] = {"version": "2.13.0", "cuda": "13.0", "gpus": ["H200"]}
KERNELS: dict[str, Any] = {"compiler": "/usr/bin/g++", "chosen": "amx", "refused": {}}
GIB = 1 << 30
PLENTY = {"bytes": 9 * GIB, "limit": None, "total": 16 * GIB}


def kernels(**changes: Any) -> Finding:
    return diagnosis.judge_kernels(KERNELS | changes)[-1]


@pytest.mark.parametrize(
    ("finding", "state", "words"),
    [
        (diagnosis.judge_python("3.11.2", []), "fine", "3.11.2"),
        (diagnosis.judge_python("3.11.2", ["sanic", "zmq"]), "broken", "without sanic, zmq"),
        (diagnosis.judge_torch(CPU_TORCH, 0, True), "fine", "no GPU here"),
        (diagnosis.judge_torch(CPU_TORCH, 2, True), "broken", "built without CUDA, beside 2 GPUs"),
        (diagnosis.judge_torch(CPU_TORCH, 2, False), "warning", "built without CUDA"),
        (diagnosis.judge_torch(CUDA_TORCH, 1, True), "fine", "H200"),
        (diagnosis.judge_torch(CUDA_TORCH, 2, True), "broken", "with CUDA 13.0 sees 1 of 2 GPUs"),
        (diagnosis.judge_torch(CUDA_TORCH, 0, True), "warning", "sees 1 GPU, nvidia-smi 0"),
        (kernels(), "fine", "amx, the fastest"),
        (kernels(chosen="avx2", refused={"amx": "refused them"}), "warning", "avx2, not amx: refused them"),
        (kernels(chosen=None, refused={"avx2": "wrong"}), "warning", "avx2: wrong"),
        (kernels(chosen=None, compiler=None), "warning", "none"),
        (diagnosis.judge_cores(HostDevices((0, 1), 2, 0), 2, None), "fine", "0-1"),
        (diagnosis.judge_cores(HostDevices((0, 1), 2, 0), 8, None), "fine", "0-1 of 8"),
        (diagnosis.judge_cores(HostDevices((0, 1), 1, 0), 2, 1.5), "warning", "pays for 1.5"),
        (diagnosis.judge_cores(HostDevices((3,), 1, 0), 4, None), "warning", "only 3 of 4"),
        (diagnosis.judge_cores(HostDevices((3,), 1, 1), 4, None), "fine", "3 of 4"),
        (diagnosis.judge_files(1 << 20, 1 << 20), "fine", "1048576"),
        (diagnosis.judge_files(-1, -1), "fine", "no limit"),
        (diagnosis.judge_files(512, 4096), "warning", "512"),
        (diagnosis.judge_files(64, -1), "broken", "64"),
        (diagnosis.judge_memory(PLENTY, -1), "fine", "9.0 GiB left of 16.0 GiB"),
        (diagnosis.judge_memory(PLENTY | {"bytes": 1, "limit": GIB}, -1), "warning", "of 1.0 GiB, the limit of its"),
        (diagnosis.judge_memory(PLENTY, GIB), "warning", "address space of 1.0 GiB"),
        (diagnosis.judge_cache("/c", True, 9 * GIB), "fine", "/c, 9.0 GiB free"),
        (diagnosis.judge_cache("/c", True, 1), "warning", "0.0 GiB free"),
        (diagnosis.judge_cache("/c", False, 9 * GIB), "broken", "/c cannot be written to"),
        (diagnosis.judge_connector("shm", 4.2e9), "fine", "4.2 GB/s"),
        (diagnosis.judge_connector("shm", 0.5e9), "warning", "0.5 GB/s"),
        (diagnosis.judge_connector("shm", "forbidden"), "warning", "forbidden"),
        (diagnosis.judge_connector("tcp", 0.5e9), "fine", "0.5 GB/s"),
        (diagnosis.judge_connector("tcp", "forbidden"), "broken", "forbidden"),
    ],
)
def test_a_fact_has_one_finding(finding: Finding, state: str, words: str) -> None:
    assert (finding.state, words in finding.found) == (state, True), finding
    assert (finding.state == "fine") == (not finding.meaning) == (not finding.mend)


def test_a_limit_that_can_be_raised_is_raised_as_far_as_it_can() -> None:
    assert "ulimit -n 4096 " in diagnosis.judge_files(512, 4096).mend
    assert "LimitNOFILE=65536" in diagnosis.judge_files(64, -1).mend


def test_connectors_and_compilers_are_findings_of_their_own() -> None:
    assert [one.subject for one in diagnosis.judge_connectors({"shm": 1e10, "tcp": 1e10})] == [
        "kv over shm",
        "kv over tcp",
    ]
    assert [one.subject for one in diagnosis.judge_kernels(KERNELS)] == ["compiler", "kernels"]
    (compiler, _) = diagnosis.judge_kernels(KERNELS | {"compiler": None, "chosen": None})
    assert compiler.state == "warning" and "install g++" in compiler.mend
    ready = diagnosis.judge_kernels(KERNELS | {"compiler": None})
    assert [one.state for one in ready] == ["fine", "fine"] and "compiled in advance" in ready[0].found


def test_a_connector_whose_package_is_missing_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connectors, "find_spec", lambda name: None)
    told = connectors.missing_package(connectors.CONNECTORS["nixl"])
    (found,) = diagnosis.judge_connectors({"nixl": told})
    assert found.state == "absent" and "run `pip install nixl-cu12`, if you want --kv-connector nixl" in found.found
    (found,) = diagnosis.judge_connectors({"nixl": "NIXL cannot open UCX"})
    assert found.state == "warning" and "--kv-connector nixl cannot hand over" in found.meaning
