# SPDX-License-Identifier: Apache-2.0
"""The cores near each GPU, from files as Linux shows them, and their share among the workers of those GPUs."""

from pathlib import Path

import pytest

from pontil.launcher.host.device_list import parse_list
from pontil.launcher.host.devices import HostDevices, assign
from pontil.launcher.host.numa import cores_near

ADDRESSES = ("00000000:17:00.0", "00000000:18:00.0", "00000000:97:00.0", "00000001:C2:00.0")
FIRST, SECOND = frozenset({0, 1, 2, 3, 8, 9, 10, 11}), frozenset({4, 5, 6, 7, 12, 13, 14, 15})


def pci(devices: Path, address: str, node: str, cores: str) -> None:
    device = devices / address
    device.mkdir(parents=True)
    (device / "numa_node").write_text(f"{node}\n")
    (device / "local_cpulist").write_text(f"{cores}\n")


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    """A host of two processors, with two GPUs each."""
    for address in ("0000:17:00.0", "0000:18:00.0"):
        pci(tmp_path, address, "0", "0-3,8-11")
    for address in ("0000:97:00.0", "0001:c2:00.0"):
        pci(tmp_path, address, "1", "4-7,12-15")
    return tmp_path


def test_a_gpu_has_the_cores_of_its_node(devices: Path) -> None:
    assert cores_near(ADDRESSES, devices) == (FIRST, FIRST, SECOND, SECOND)


@pytest.mark.parametrize("address", [None, "", "0", "gpu:17:00.0", "00000000:33:00.0", "../..:1"])
def test_of_a_gpu_that_is_not_found_nothing_is_known(devices: Path, address: str | None) -> None:
    assert cores_near([address], devices) == (frozenset(),)


@pytest.mark.parametrize(("node", "cores"), [("-1", "0-15"), ("0", "0-x"), ("", "0-3"), ("0", "")])
def test_a_host_that_names_no_node_has_no_near_cores(tmp_path: Path, node: str, cores: str) -> None:
    pci(tmp_path, "0000:17:00.0", node, cores)
    assert cores_near(ADDRESSES[:1], tmp_path) == (frozenset(),)


def places(text: str, machine: HostDevices) -> list[tuple[int, ...]]:
    return [rank.cores for ranks in assign(parse_list(text), machine, share=False) for rank in ranks]


def test_workers_of_a_node_share_out_its_cores(devices: Path) -> None:
    machine = HostDevices(tuple(range(16)), 16, 4, near=cores_near(ADDRESSES, devices))
    assert places("0,2", machine) == [tuple(sorted(FIRST)), tuple(sorted(SECOND))]
    assert places("0+1,3", machine) == [(0, 1, 2, 3), (8, 9, 10, 11), tuple(sorted(SECOND))]
    assert places("3,cpu:4-7,2", machine) == [(12, 13), (4, 5, 6, 7), (14, 15)]
    assert machine.feeding(3) == tuple(sorted(SECOND))


def test_cores_that_this_process_may_not_use_are_not_near(devices: Path) -> None:
    """Any will do where none is left there, and no more than a container pays for."""
    near = cores_near(ADDRESSES, devices)
    assert places("2", HostDevices((0, 1, 2, 3), 4, 4, near=near)) == [(0, 1, 2, 3)]
    assert places("2", HostDevices((0, 1, 4, 5), 4, 4, near=near)) == [(4, 5)]
    assert places("2,0", HostDevices(tuple(range(16)), 2, 4, near=near)) == [(4, 5), (0, 1)]


def test_without_nodes_all_is_as_it_was() -> None:
    assert places("0,1", HostDevices(tuple(range(4)), 4, 2, near=(frozenset(), frozenset()))) == [(0, 1), (2, 3)]
    assert places("0,1", HostDevices(tuple(range(4)), 4, 2)) == [(0, 1), (2, 3)]
