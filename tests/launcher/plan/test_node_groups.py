# SPDX-License-Identifier: Apache-2.0
"""The plan of a worker whose ranks are on several hosts, each with a launch of its own (docs/decisions/099)."""

from pathlib import Path
from typing import Any

import pytest

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.host import interfaces
from pontil.launcher.host.devices import HostDevices
from pontil.launcher.host.interfaces import collective_variables, interface_towards
from pontil.launcher.options.environment import LaunchEnvironment
from pontil.launcher.options.options import read_options
from pontil.launcher.plan.child_plan import ChildPlan
from pontil.launcher.plan.node_checks import network_lines
from pontil.launcher.plan.topology import Topology, plan
from pontil.runtime.config.worker_config import worker_config

FLAGS: dict[str, Any] = {
    "role": "prefill", "prefill": "cuda:0+cuda:1", "nnodes": "2", "master_addr": "127.0.0.1",
    "join": "tcp://127.0.0.1:7000",
}  # fmt: skip
MACHINE = HostDevices(tuple(range(8)), 8, 4)


def planned(**flags: Any) -> Topology:
    return plan(read_options({**FLAGS, **flags}), MACHINE, Path("/run/pontil/7"), Path("/cache"))


def worker(**flags: Any) -> ChildPlan:
    (only,) = (child for child in planned(**flags).children if not child.is_proxy)
    return only


def test_each_host_starts_its_ranks_of_one_worker() -> None:
    hosts = [worker(node_rank=str(number)) for number in range(2)]
    ranks = [worker_config(member.config) for host in hosts for member in host.members]
    assert [(one.name, one.rank, one.ranks, one.device) for one in ranks] == [
        ("prefill:0", 0, 4, "cuda:0"),
        ("prefill:0+1", 1, 4, "cuda:1"),
        ("prefill:0+2", 2, 4, "cuda:0"),
        ("prefill:0+3", 3, 4, "cuda:1"),
    ]
    assert {one.rank_endpoint for one in ranks} == {"tcp://127.0.0.1:29500"} and all(one.spans_hosts for one in ranks)
    assert [host.is_follower for host in hosts] == [False, True]
    assert hosts[1].describe().splitlines()[0] == "prefill:0+2  4 ranks, here 2-3, each with 1/4 of the model"


def test_one_rank_on_each_host_is_a_group_too() -> None:
    made = planned(prefill="cpu:1", node_rank="1", keep_kv=True)
    only = worker(prefill="cpu:1", node_rank="1")
    config = worker_config(only.config)
    assert (config.rank, config.ranks, config.lent_cores, only.keeps_memory) == (1, 2, None, False)
    assert only.divisions == 2 and "2 ranks, here 1" in only.describe()
    (demand,) = made.prepare.config["demands"].values()
    assert (demand["nnodes"], demand["has_kernels"], demand["workers"]) == (2, False, [["cpu"]])


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("10.0.0.1:7001", "tcp://10.0.0.1:7001"),
        ("10.0.0.1", "tcp://10.0.0.1:29500"),
        ("node-0.pool:7001", "tcp://node-0.pool:7001"),
        ("fd00::1", "tcp://[fd00::1]:29500"),
        ("[fd00::1]:7001", "tcp://[fd00::1]:7001"),
    ],
)
def test_a_meeting_address_may_have_a_port(text: str, endpoint: str) -> None:
    assert read_options({"master_addr": text}).master_addr == endpoint


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"nnodes": "1"}, "--master-addr is for a worker on several hosts"),
        ({"nnodes": "1", "node_rank": "1"}, "--node-rank is for a worker on several hosts"),
        ({"master_addr": None}, "name an address of it with --master-addr"),
        ({"master_addr": "0.0.0.0"}, "must be HOST or HOST:PORT"),
        ({"node_rank": "2"}, "numbered from 0 to 1"),
        ({"prefill": "cuda:0,cuda:1"}, "2 are planned here"),
        ({"role": "proxy", "prefill": None, "join": None}, "not proxy"),
        ({"role": "mixed", "prefill": None, "join": None, "node_rank": "1"}, "name the proxy's --control with --join"),
        ({"data_parallel_attention": "prefill"}, "--data-parallel-attention prefill"),
        ({"master_addr": "10.0.0.1"}, "known on this host alone"),
        ({"master_addr": "10.0.0.1", "join": "tcp://10.0.0.1:7000"}, "crosses a network"),
        ({"prefill": "cpu:0", "kernels": "avx2"}, "shared memory"),
        ({"kv_tier": "memory:1GiB"}, "4 devices"),
        ({"rendezvous_timeout": "600"}, "raise --start-timeout"),
    ],
)
def test_what_is_not_possible_is_refused(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        planned(**flags)


def test_a_launch_says_what_keys_do_not_protect() -> None:
    def lines(**flags: Any) -> list[str]:
        return network_lines(read_options({**FLAGS, **flags}))

    assert "not encrypted" in lines(master_addr="10.0.0.1", keys="/k")[0]
    assert not lines(keys="/k") and not lines(master_addr="10.0.0.1", insecure=True)


def test_collectives_take_the_interface_to_the_other_hosts() -> None:
    """Unless the user has named one."""
    assert interface_towards("127.0.0.1", "--master-addr") == interface_towards("127.0.0.7", "--master-addr")
    found = LaunchEnvironment({"NCCL_SOCKET_IFNAME": "ib0"}, 0).with_defaults(collective_variables("eth1"))
    assert found.variables == {"NCCL_SOCKET_IFNAME": "ib0", "GLOO_SOCKET_IFNAME": "eth1"}
    assert not collective_variables(None)


def test_an_address_of_no_interface_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interfaces, "address_towards", lambda host, flag: "192.0.2.77")
    assert interface_towards("10.0.0.1", "--master-addr") is None
