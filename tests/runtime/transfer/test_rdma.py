# SPDX-License-Identifier: Apache-2.0
"""The choice of RDMA devices by a tree of files as Linux shows it, and of NIXL by `auto` where there are such."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated_nixl import EmulatedAgent
from pools import LAYOUT, EmulatedNixl, Pool, wait_for
from staged import EmulatedMemory, StagedStorage

from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.errors import TransferError
from pontil.runtime.transfer import auto_connector, rdma
from pontil.runtime.transfer.connector import ConnectorOptions
from pontil.runtime.transfer.security import TransferSecurity

Host = tuple[Path, Callable[..., None]]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A host with two processors. Below the first, one switch has two GPUs and two ports, another has a GPU and a port;
    below the second are a GPU and a device with two ports, of which one has no link. A management controller has a
    display."""

    system, files = tmp_path / "sys", tmp_path / "dev" / "infiniband"
    files.mkdir(parents=True)

    def pci(path: str, node: int, kind: str, vendor: str = "0x15b3") -> Path:
        made = system / "devices" / path
        made.mkdir(parents=True)
        (made / "class").write_text(kind + "\n")
        (made / "vendor").write_text(vendor + "\n")
        (made / "numa_node").write_text(f"{node}\n")
        links = system / "bus" / "pci" / "devices"
        links.mkdir(parents=True, exist_ok=True)
        (links / made.name).symlink_to(made)
        return made

    def port(path: str, node: int, name: str, states: list[str], interface: str) -> None:
        made = pci(path, node, "0x020700")
        folder = made / "infiniband" / name
        for number, state in enumerate(states, 1):
            (folder / "ports" / str(number)).mkdir(parents=True)
            (folder / "ports" / str(number) / "state").write_text(state + "\n")
        (made / "net" / interface).mkdir(parents=True)
        (folder / "device").symlink_to(made)
        (made / "infiniband_verbs" / f"u{name}").mkdir(parents=True)
        (files / f"u{name}").touch()
        (system / "class" / "infiniband").mkdir(parents=True, exist_ok=True)
        (system / "class" / "infiniband" / name).symlink_to(folder)

    near, far, other = "pci0000:00/0000:01:00.0", "pci0000:00/0000:02:00.0", "pci0000:80/0000:81:00.0"
    for path, node in ((f"{near}/0000:17:00.0", 0), (f"{near}/0000:18:00.0", 0), (f"{far}/0000:27:00.0", 0)):
        pci(path, node, "0x030200", "0x10de")
    pci(f"{other}/0000:97:00.0", 1, "0x120000", "0x1002")
    pci("pci0000:00/0000:03:00.0", 0, "0x030000", "0x1a03")
    port(f"{near}/0000:19:00.0", 0, "mlx5_0", ["4: ACTIVE"], "ib0")
    port(f"{near}/0000:1a:00.0", 0, "mlx5_1", ["4: ACTIVE"], "ib1")
    port(f"{far}/0000:28:00.0", 0, "mlx5_2", ["4: ACTIVE"], "eth2")
    port("pci0000:80/0000:82:00.0", 1, "mlx5_3", ["1: DOWN", "4: ACTIVE"], "ib3")
    return tmp_path, port


@pytest.mark.parametrize(
    ("gpu", "device"),
    [
        # Two GPUs below one switch take turns with its two ports.
        ("0000:17:00.0", "mlx5_0:1"),
        ("0000:18:00.0", "mlx5_1:1"),
        ("0000:27:00.0", "mlx5_2:1"),
        ("0000:97:00.0", "mlx5_3:2"),
        # Memory of the host goes by the device of the interface that has the worker's address.
        (None, "mlx5_2:1"),
    ],
)
def test_each_gpu_has_the_port_that_is_nearest(host: Host, gpu: str | None, device: str) -> None:
    assert rdma.net_device("eth2", gpu, host[0]) == device


def test_without_rdma_there_is_the_interface(tmp_path: Path, host: Host) -> None:
    assert rdma.net_device("eth0", "0000:17:00.0", tmp_path / "nothing") == "eth0"
    assert rdma.net_device("eth0", None, host[0]) == "eth0", "the interface's own device has no RDMA"
    assert rdma.rdma_devices(tmp_path / "nothing") == []


def test_a_gpu_that_no_port_is_near_to_has_one_of_its_processor(host: Host) -> None:
    (near,) = rdma.nearest(rdma.rdma_devices(host[0]), "0000:97:00.0", host[0])
    assert near.node == "1"


def test_management_controllers_are_no_gpus(host: Host) -> None:
    assert rdma.gpus(host[0]) == ["0000:17:00.0", "0000:18:00.0", "0000:27:00.0", "0000:97:00.0"]


def test_a_port_that_cannot_be_opened_is_none(host: Host) -> None:
    """A container sees the ports of its host in /sys, also without their files."""
    for path in (host[0] / "dev" / "infiniband").iterdir():
        path.unlink()
    assert rdma.rdma_devices(host[0]) == []
    assert rdma.net_device("eth2", "0000:17:00.0", host[0]) == rdma.net_device("eth2", None, host[0]) == "eth2"


def opened(
    monkeypatch: pytest.MonkeyPatch, options: ConnectorOptions, nixl: Any = EmulatedNixl, kind: Any = StagedStorage
) -> list[str]:
    found = auto_connector.opener
    monkeypatch.setattr(auto_connector, "missing_package", lambda row: None)
    monkeypatch.setattr(auto_connector, "opener", lambda name: nixl if name == "nixl" else found(name))
    made = auto_connector.AutoConnector(kind(LAYOUT, 4, torch.device("cpu")), lambda: None, options)
    made.close()
    return [name for name in made.ways if name != "cuda"]


def no_ucx(*given: Any) -> Any:
    raise TransferError("NIXL cannot open UCX")


def test_auto_takes_nixl_where_it_and_rdma_are_there_and_the_network_is_trusted(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # An address of this machine that is not loopback is not to be had everywhere.
    monkeypatch.setattr(auto_connector, "is_loopback", lambda address: address == "::1")
    monkeypatch.setattr(EmulatedMemory, "pci_address", lambda memory: "0000:17:00.0")
    monkeypatch.setattr(auto_connector, "rdma_devices", list)
    trusted, keys = ConnectorOptions("127.0.0.1"), ConnectorOptions("127.0.0.1", guard=TransferSecurity(b"s" * 32))
    assert opened(monkeypatch, trusted) == ["shm", "tcp"], "no RDMA here"
    devices = rdma.rdma_devices(host[0])
    monkeypatch.setattr(auto_connector, "rdma_devices", lambda: devices)
    assert opened(monkeypatch, trusted) == ["shm", "nixl", "tcp"]
    assert opened(monkeypatch, keys) == ["shm", "tcp"]
    assert opened(monkeypatch, trusted, kind=KVStorage) == ["shm", "tcp"], "idle memory of hosts is given back"
    monkeypatch.setattr(auto_connector, "is_loopback", lambda address: True)
    assert opened(monkeypatch, trusted) == ["shm", "tcp"]
    monkeypatch.setattr(auto_connector, "is_loopback", lambda address: False)
    with caplog.at_level(logging.WARNING):
        assert opened(monkeypatch, trusted, no_ucx) == ["shm", "tcp"]
    monkeypatch.setattr(EmulatedMemory, "pci_address", lambda memory: None)
    assert opened(monkeypatch, trusted) == ["shm", "tcp"], "no port is known to be near"
    assert "blocks go over TCP and not over RDMA: NIXL cannot open UCX" in caplog.text


def unreachable(*given: Any) -> Any:
    raise TransferError("no transport reaches the peer")


def test_a_peer_that_nixl_never_reached_is_read_over_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    found = auto_connector.opener
    monkeypatch.setattr(auto_connector, "has_rdma", lambda *given: True)
    monkeypatch.setattr(auto_connector, "opener", lambda name: EmulatedNixl if name == "nixl" else found(name))
    ours, theirs = Pool(auto_connector.AutoConnector), Pool(auto_connector.AutoConnector)
    made, descriptor = ours.connector, theirs.connector.register() | {"shm": {}}
    assert isinstance(made, auto_connector.AutoConnector)
    try:
        made.attach("P", descriptor)
        assert made.chosen["P"] == "nixl" and ours.finish(ours.pull("P", [(1, 1)], 0))[0].error is None
        with monkeypatch.context() as broken:
            broken.setattr(EmulatedAgent, "read", unreachable)
            assert ours.finish(ours.pull("P", [(1, 1)], 0))[0].error is not None
            made.ways["nixl"].peers["P"].lost = True  # type: ignore[attr-defined]
            assert made.lost() == ["P"]
            made.detach("P")
            made.attach("P", descriptor)
            assert made.chosen["P"] == "nixl", "which reached it before"
            assert ours.finish(ours.pull("P", [(1, 1)], 0))[0].error is not None
            wait_for(lambda: made.lost() == ["P"])
            made.detach("P")
            made.attach("P", descriptor)
            assert made.chosen["P"] == "tcp"
            assert ours.finish(ours.pull("P", [(2, 2)], 0))[0].error is None and ours.has([2], theirs, [2])
            made.detach("P")
            made.attach("P", {key: value for key, value in descriptor.items() if key != "tcp"})
            assert made.chosen["P"] == "nixl", "where nothing else is left"
    finally:
        made.close()
        theirs.connector.close()
