# SPDX-License-Identifier: Apache-2.0
"""The plan of a launch on a cluster: what each worker needs, which cores it gets, and the words of its own launch."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.launcher.cluster import entry
from pontil.launcher.cluster.cluster_plan import ClusterNode, PlacedWorker, neighbours, plan_cluster, words_for
from pontil.launcher.commands.launch import launch
from pontil.launcher.foundation.errors import LaunchError, OptionError
from pontil.launcher.host.device_list import parse_list
from pontil.launcher.host.devices import HostDevices
from pontil.launcher.options.options import LaunchOptions, read_options
from pontil.launcher.plan.topology import plan

CONTROL = "tcp://127.0.0.1:7000"
NODE = ClusterNode("n", "10.0.0.2", (0, 1, 2, 3, 6, 7))


def parsed(words: list[str]) -> LaunchOptions:
    """Read words as the command line does."""
    with launch.make_context("launch", words) as context:
        return read_options(
            {name: value for name, value in context.params.items() if name not in ("config", "dry_run")}
        )


def worker(item: str, role: str = "decode", number: int = 0) -> PlacedWorker:
    return PlacedWorker(role, number, parse_list(item)[0])


@pytest.mark.parametrize(
    ("item", "bundle"),
    [
        ("cpu", {"CPU": 1}),
        ("cpu:0-3", {"CPU": 4}),
        ("cpu:0+cpu:1", {"CPU": 2}),
        ("cpu+cpu", {"CPU": 2}),
        ("cuda:5", {"CPU": 1, "GPU": 1}),
        ("0+1", {"CPU": 2, "GPU": 2}),
    ],
)
def test_a_worker_asks_for_as_much_as_its_devices(item: str, bundle: dict[str, float]) -> None:
    assert worker(item).bundle == bundle


@pytest.mark.parametrize(
    ("item", "taken", "devices"),
    [
        ("cpu:8-9", [], "cpu:0-1"),
        ("cpu:8-9", [0, 1], "cpu:2-3"),
        ("cpu", [0, 1, 2, 3], "cpu:6"),
        ("cpu:0+cpu:1", [], "cpu:0+cpu:1"),
        ("cpu:0-3", [0], "cpu:0-3"),
        ("cpu:0-5", [], "cpu:0-3"),
        ("cpu:0-1+cpu:2-3", [], "cpu:0-1+cpu:2-3"),
        ("7", [], "0"),
        ("2+3", [], "0+1"),
    ],
)
def test_cores_are_neighbours_that_nobody_has_and_gpus_are_numbered_by_ray(
    item: str, taken: list[int], devices: str
) -> None:
    assert worker(item).devices(NODE, taken)[0] == devices


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=12, unique=True).map(sorted),
    st.integers(1, 12),
    st.lists(st.integers(0, 30)),
)
def test_a_run_of_cores_is_one_that_a_device_list_can_name(cores: list[int], count: int, taken: list[int]) -> None:
    found = neighbours(cores, count, Counter(taken))
    assert set(found) <= set(cores) and 1 <= len(found) <= count
    assert list(found) == list(range(found[0], found[0] + len(found)))
    used = sum(taken.count(core) for core in found)
    for start in cores:
        run = range(start, start + len(found))
        assert not set(run) <= set(cores) or sum(taken.count(core) for core in run) >= used
    longer = len(found) + 1
    assert longer > count or not [one for one in cores if set(range(one, one + longer)) <= set(cores)]


def test_workers_are_planned_by_role_and_number() -> None:
    def names(**flags: Any) -> list[str]:
        return [one.name for one in plan_cluster(read_options({"on": "ray", **flags})).workers]

    assert names() == ["prefill:0", "decode:0"]
    assert names(prefill="cpu*2", decode="none") == ["prefill:0", "prefill:1"]
    assert names(role="mixed", mixed="0,1", first_number=4, embed="cpu") == ["mixed:4", "mixed:5", "embed:4"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"role": "decode"}, "not with --role decode"),
        ({"role": "proxy"}, "not with --role proxy"),
        ({"role": "mixed", "join": CONTROL}, "give one"),
        ({"model": "speech-demo"}, "models of one stage only"),
        ({"place": "talker=0"}, "models of one stage only"),
        ({"ray_address": "ray://head:10001"}, "run the launch on a node of the cluster"),
        ({"prefill": "none", "decode": "none"}, "No worker is left"),
        ({"mixed": "cpu"}, "--mixed has no meaning"),
        ({"worker_ttl": "1"}, "--worker-ttl"),
        ({"http": "8100"}, "--http is for workers that another router drives"),
        ({"proxies": "2", "control": "tcp://127.0.0.1:65535"}, "2 proxies need as many ports"),
        ({"nnodes": "2", "master_addr": "10.0.0.1"}, "places each worker on one host"),
    ],
)
def test_what_has_no_meaning_on_a_cluster_is_refused(flags: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        plan_cluster(read_options({"on": "ray", **flags}))


def test_a_workers_words_are_a_launch_that_joins(tmp_path: Path) -> None:
    flags: dict[str, Any] = {
        "on": "ray", "decode": "cpu:0-1,cpu:2-3", "model": str(tmp_path), "kv_cache_memory": "64MiB",
        "usage_log": "u.db", "api_keys": "a.keys", "restart_delay": "0.25", "prefix_caching": False, "port": "9000",
    }  # fmt: skip
    made = plan_cluster(read_options(flags))
    chosen = made.workers[2]
    devices, _ = chosen.devices(NODE, [])
    options = parsed(made.worker_words(chosen, devices, CONTROL))
    assert (options.on, options.role, options.join, options.first_number) == ("host", "decode", CONTROL, 1)
    assert options.model == (str(tmp_path),) and options.kv_cache_memory == 64 << 20 and not options.prefix_caching
    assert options.usage_log is options.api_keys is options.keys is None and options.restart_delay == 0.25
    (child,) = plan(options, HostDevices((0, 1), 2, 0), tmp_path, tmp_path).children
    assert (child.name, child.cores) == ("decode:1", (0, 1))


def test_workers_join_every_proxy(tmp_path: Path) -> None:
    made = plan_cluster(read_options({"on": "ray", "proxies": "3", "decode": "cpu"}))
    options = parsed(made.worker_words(made.workers[1], "cpu:0", CONTROL))
    (child,) = plan(options, HostDevices((0,), 1, 0), tmp_path, tmp_path).children
    ports = [f"tcp://127.0.0.1:{port}" for port in (7000, 7001, 7002)]
    assert [child.config["control"], *child.config["more_controls"]] == ports
    proxies = parsed(made.proxy_words(CONTROL))
    assert list(plan(proxies, HostDevices((0,), 1, 0), tmp_path, tmp_path).controls) == ports


def test_each_proxy_gets_a_free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program may have the port after one that is free."""
    taken = [LaunchError("in use")]

    def usable(flag: str, host: str, port: int) -> int:
        if port == 7001 and taken:
            raise taken.pop()
        return port or 7000

    monkeypatch.setattr(entry, "usable_port", usable)
    assert entry.own_control("::1", 3) == "tcp://[::1]:7000" and not taken
    taken = [LaunchError("in use")] * 1000
    with pytest.raises(LaunchError, match="in use"):
        entry.own_control("::1", 2)


def test_the_proxys_words_are_a_launch_of_it_alone(tmp_path: Path) -> None:
    flags: dict[str, Any] = {
        "on": "ray", "decode": "cpu*2", "allowed_hosts": "a.example,b.example", "usage_log": "u.db", "port": "9000",
        "log_format": "json", "response_store_size": "0",
    }  # fmt: skip
    options = parsed(plan_cluster(read_options(flags)).proxy_words(CONTROL))
    wanted = replace(read_options(flags), on="host", role="proxy", decode=None, control=CONTROL)
    assert options == wanted
    assert [one.name for one in plan(options, HostDevices((0,), 1, 0), tmp_path, tmp_path).children] == ["proxy"]


@given(st.floats(0, 3600, allow_nan=False), st.integers(1, 2**40), st.booleans())
def test_values_are_spelled_as_they_are_read(delay: float, size: int, switch: bool) -> None:
    delay = round(delay, 9)
    options = LaunchOptions(restart_delay=delay, kv_cache_memory=size, lend_cores=switch, self_test=not switch)
    words = words_for(options, {"restart_delay", "kv_cache_memory", "lend_cores", "self_test"})
    assert parsed(words) == options


def test_no_word_is_a_secret_or_unknown() -> None:
    options = read_options({"on": "ray", "keys": "pontil.keys", "admin_key": "admin.key"})
    made = plan_cluster(options)
    words = made.worker_words(made.workers[0], "cpu:0", CONTROL)
    assert not [word for word in words if "key" in word] and "--admin-key=admin.key" in made.proxy_words(CONTROL)
    with pytest.raises(click.UsageError):
        parsed([*words, "--no-such-option"])
