# SPDX-License-Identifier: Apache-2.0
"""The plan of workers of which each device has sequences of its own."""

from pathlib import Path
from typing import Any

import pytest

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.host.devices import HostDevices
from pontil.launcher.options.options import read_options
from pontil.launcher.plan.topology import Topology, plan
from pontil.runtime.probe.footprint import MemoryDemand, RankLayout

TWO_CORES = HostDevices((0, 1), 2, 0)


def topology(machine: HostDevices = TWO_CORES, **flags: Any) -> Topology:
    return plan(read_options(flags), machine, Path("/run/pontil/7"), Path("/cache"))


def test_devices_with_sequences_of_their_own_are_workers() -> None:
    four = HostDevices((0, 1, 2, 3), 4, 0)
    made = topology(four, prefill="cpu:0+cpu:1", decode="cpu:2+cpu:3", data_parallel_attention="decode")
    prefill, decode = made.children[1:]
    assert (prefill.is_data_parallel, prefill.divisions, len(prefill.workers)) == (False, 2, 1)
    assert (decode.is_data_parallel, decode.divisions, len(decode.workers)) == (True, 1, 2)
    configs = [member.config for member in decode.members]
    assert [config["name"] for config in configs] == ["decode:0", "decode:0+1"]
    assert [config["data_parallel_rank"] for config in configs] == [0, 1]
    assert all("rank" not in config and config["data_parallel_size"] == 2 for config in configs)
    assert (
        len({config["peer_endpoint"] for config in configs}) == 2 == len(set(decode.endpoints) - {decode.endpoints[1]})
    )
    assert [member.is_follower for member in decode.members] == [False, True]
    assert "2 ranks, each with 1/2 of the experts" in decode.describe()
    (demand,) = made.prepare.config["demands"].values()
    assert MemoryDemand(**demand).layouts == [RankLayout(2), RankLayout(2, data_parallel=True)]


def test_devices_that_cannot_have_sequences_of_their_own_are_refused() -> None:
    with pytest.raises(OptionError, match="--data-parallel-attention all gives each device .* has one: join devices"):
        topology(data_parallel_attention="all")
    with pytest.raises(OptionError, match="is for workers on CPUs in this version, and decode:0 has GPUs"):
        topology(HostDevices((0, 1), 2, 2), prefill="cpu:0", decode="0+1", data_parallel_attention="decode")
    with pytest.raises(OptionError, match=r"decode:0 has 2 devices joined by \+, and --kv-tier is for workers of one"):
        devices: dict[str, Any] = {"prefill": "cpu:0", "decode": "cpu:0+cpu:1", "share_devices": True}
        topology(**devices, data_parallel_attention="decode", kv_tier="memory:1GiB")
    # The half of a launch that has no such workers.
    topology(role="prefill", prefill="cpu:0", join="tcp://127.0.0.1:1", data_parallel_attention="decode")
    fast: dict[str, Any] = {"tensor_parallel_arithmetic": "fast", "share_devices": True}
    topology(prefill="cpu:0", decode="cpu:0+cpu:1", data_parallel_attention="decode", **fast)
