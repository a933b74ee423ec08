# SPDX-License-Identifier: Apache-2.0
"""AMD GPUs, from files like those of their driver."""

from pathlib import Path

import pytest

from pontil.launcher.host import gpus
from pontil.launcher.host.gpus import HostGpu, find_amd_gpus

GIB = 1 << 30


def make_node(root: Path, number: int, simds: int, minor: int) -> None:
    node = root / "nodes" / str(number)
    node.mkdir(parents=True)
    node.joinpath("properties").write_text(f"cpu_cores_count 0\nsimd_count {simds}\ndrm_render_minor {minor}\nname x\n")


def make_card(root: Path, minor: int, total: int, used: int) -> None:
    device, link = root / f"0000:{minor:02x}:00.0", root / "cards" / f"renderD{minor}" / "device"
    device.mkdir()
    link.parent.mkdir(parents=True)
    link.symlink_to(device)
    device.joinpath("mem_info_vram_total").write_text(f"{total}\n")
    device.joinpath("mem_info_vram_used").write_text(f"{used}\n")


def test_nodes_with_compute_units_are_gpus_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number, simds, minor in ((0, 0, 0), (2, 1216, 136), (10, 1216, 128), (1, 304, 129)):
        make_node(tmp_path, number, simds, minor)
    make_card(tmp_path, 136, 192 * GIB, 2 * GIB)
    make_card(tmp_path, 129, 16 * GIB, 17 * GIB)
    found = find_amd_gpus(tmp_path / "nodes", tmp_path / "cards")
    assert [gpu.free for gpu in found] == [0, 190 * GIB, None]
    assert [gpu.address for gpu in found[:2]] == ["0000:81:00.0", "0000:88:00.0"]


@pytest.mark.parametrize("text", ["", "simd_count", "simd_count many", "simd_count -3"])
def test_a_node_that_cannot_be_read_is_no_gpu(tmp_path: Path, text: str) -> None:
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "properties").write_text(text)
    (tmp_path / "4").mkdir()
    (tmp_path / "generation_id").write_text("1")
    assert find_amd_gpus(tmp_path, tmp_path) == find_amd_gpus(tmp_path / "none", tmp_path) == ()


def test_they_are_looked_for_where_there_are_none_of_nvidias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "find_amd_gpus", lambda: (HostGpu(3 * GIB), HostGpu()))
    monkeypatch.setattr(gpus, "find_nvidia_gpus", lambda: [])
    assert gpus.find_gpus(None) == (HostGpu(3 * GIB), HostGpu())
    assert gpus.find_gpus("1,0") == (HostGpu(), HostGpu(3 * GIB))
    monkeypatch.setattr(gpus, "find_nvidia_gpus", lambda: [HostGpu(GIB)])
    assert gpus.find_gpus(None) == (HostGpu(GIB),)
