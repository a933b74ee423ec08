# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from typing import Any

import pytest

from pontil.launcher.foundation.errors import LaunchError, OptionError
from pontil.launcher.foundation.held_devices import HeldDevices
from pontil.launcher.host.devices import HostDevices, Placement
from pontil.launcher.plan.child_plan import ChildPlan, plan_ranks
from pontil.launcher.supervisor.rollouts.scale_up import another, free_name
from pontil.runtime.config.worker_config import worker_config

EIGHT = HostDevices(tuple(range(8)), 8, 2)


def worker(name: str, cores: tuple[int, ...] = (), device: str = "cpu", **config: Any) -> ChildPlan:
    told = {
        "name": name, "role": name.partition(":")[0], "device": device, "cores": list(cores), "model": "/m",
        "served_model_name": "m", "control": "ipc:///run/control", "block_size": 32,
        "peer_endpoint": f"ipc:///run/{name.replace(':', '-')}", **config,
    }  # fmt: skip
    return ChildPlan(name, told["role"], device, cores, told)


def test_another_worker_is_like_its_kind_but_for_name_seat_and_meeting_point() -> None:
    made = another("decode", [worker("prefill:0", (0, 1, 2)), worker("decode:0", (3, 4))], EIGHT, share=False)
    assert (made.name, made.role, made.device, made.cores) == ("decode:1", "decode", "cpu", (5, 6))
    config = worker_config(made.config)
    assert (config.name, config.role, config.cores, config.block_size) == ("decode:1", "decode", (5, 6), 32)
    assert config.peer_endpoint == "ipc:///run/decode-1"


def test_a_role_that_nobody_has_yet_is_like_anybody() -> None:
    made = another("mixed", [worker("decode:0", (0,))], EIGHT, share=False)
    assert (made.name, made.config["role"], made.cores) == ("mixed:0", "mixed", (1,))


def test_what_is_left_is_taken_though_it_is_less() -> None:
    assert another("decode", [worker("decode:0", tuple(range(7)))], EIGHT, share=False).cores == (7,)


def test_nothing_free_says_who_has_what() -> None:
    full = [worker("prefill:0", (0, 1, 2, 3)), worker("decode:0", (4, 5, 6, 7))]
    with pytest.raises(LaunchError, match=r"decode:0 has cores 4-7.*--share-devices"):
        another("decode", full, EIGHT, share=False)
    assert another("decode", [*full, worker("decode:1", (4, 5, 6, 7))], EIGHT, share=True).cores == (0, 1, 2, 3)


def test_gpus_go_one_to_each_worker_and_are_shared_evenly() -> None:
    one = worker("decode:0", (0,), "cuda:0")
    assert another("decode", [one], EIGHT, share=False).device == "cuda:1"
    both = [one, worker("prefill:0", (1,), "cuda:1")]
    with pytest.raises(LaunchError, match="prefill:0 has cuda:1"):
        another("prefill", both, EIGHT, share=False)
    assert another("prefill", [*both, worker("decode:1", (), "cuda:0")], EIGHT, share=True).device == "cuda:1"


def test_what_other_launches_have_is_not_free() -> None:
    elsewhere = replace(EIGHT, held=HeldDevices(frozenset({1, 2, 3}), frozenset({"0"})))
    one = worker("decode:0", (0,))
    assert another("decode", [one], elsewhere, share=False).cores == (4,)
    full = worker("decode:0", (0, 4, 5, 6, 7))
    with pytest.raises(LaunchError, match=r"decode:0 has cores 0,4-7, other launches have cores 1-3 and GPU 0;"):
        another("decode", [full], elsewhere, share=False)
    assert another("decode", [full, worker("decode:1", (0, 4, 5, 6))], elsewhere, share=True).cores == (0, 1, 2, 3, 7)
    gpu = worker("prefill:0", (0,), "cuda:1")
    with pytest.raises(LaunchError, match="other launches have cores 1-3 and GPU 0"):
        another("prefill", [gpu], elsewhere, share=False)
    assert another("prefill", [], replace(elsewhere, gpus=3), share=False, known=[gpu]).device == "cuda:1"


def test_names_are_the_first_that_are_free() -> None:
    assert free_name("decode", {"decode:0", "decode:2", "prefill:1"}, 0) == "decode:1"
    assert free_name("decode", {"decode:1", "prefill:0"}, 0) == "decode:0"
    assert free_name("decode", {"decode:7", "decode:8", "prefill:1"}, 7) == "decode:9"
    assert free_name("decode", {"decode:8", "prefill:7"}, 7) == free_name("decode", set(), 7) == "decode:7"


def test_over_a_network_everybody_has_the_same_kind_of_address() -> None:
    far = worker("decode:0", (0,), peer_endpoint="tcp://10.0.0.1:0")
    assert another("decode", [far], EIGHT, share=False).config["peer_endpoint"] == "tcp://10.0.0.1:0"


def test_workers_that_embed_are_like_their_own_kind_only() -> None:
    both = [worker("mixed:0", (0,)), worker("embed:0", (1,), model="/e")]
    assert another("embed", both, EIGHT, share=False).config["model"] == "/e"
    assert another("decode", both[::-1], EIGHT, share=False).config["model"] == "/m"
    with pytest.raises(LaunchError, match="no worker of the model that embed workers have"):
        another("embed", both[:1], EIGHT, share=False)


def stage(name: str, role: str, node: str, *cores: int) -> ChildPlan:
    return replace(worker(name, cores, node=node, model=f"/{node}"), role=role)


STAGES = [
    stage("prefill:0", "prefill", "thinker", 0), stage("decode:0", "decode", "thinker", 1),
    stage("talker-prefill:0", "prefill", "talker", 2), stage("talker-decode:0", "decode", "talker", 3),
    stage("code2wav:0", "node", "code2wav", 4),
]  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "name", "role", "model"),
    [
        ("decode", "decode:1", "decode", "/thinker"), ("mixed", "mixed:0", "mixed", "/thinker"),
        ("thinker.decode", "decode:1", "decode", "/thinker"), ("talker.decode", "talker-decode:1", "decode", "/talker"),
        ("talker", "talker:0", "mixed", "/talker"), ("code2wav", "code2wav:1", "node", "/code2wav"),
    ],
)  # fmt: skip
def test_stages_have_workers_of_their_own_kind(wanted: str, name: str, role: str, model: str) -> None:
    made = another(wanted, STAGES, EIGHT, share=False)
    assert (made.name, made.role, made.config["model"]) == (name, role, model)
    assert made.cores == (5,) and made.config["role"] == role
    # Also where those who could be copied are about to go.
    assert another(wanted, [], EIGHT, share=False, known=STAGES).config["model"] == model


def test_a_stage_that_is_not_here_has_no_workers() -> None:
    with pytest.raises(OptionError, match="not 'lips', or a stage of the model: thinker, talker, code2wav"):
        another("lips", STAGES, EIGHT, share=False)
    with pytest.raises(OptionError, match="code2wav has no prefill and decode"):
        another("code2wav.decode", STAGES, EIGHT, share=False)
    with pytest.raises(OptionError, match="talker has the walks prefill and decode"):
        another("talker.sing", STAGES, EIGHT, share=False)
    with pytest.raises(LaunchError, match="no worker of the model that embed workers have: launch with --embed"):
        another("embed", STAGES, EIGHT, share=False)


MODELS = [
    worker("mixed:0", (0,)),
    worker("coder-1.5b-mixed:0", (1,), role="mixed", further_model="coder-1.5b", model="/coder"),
    worker("a-b-prefill:0", (2,), role="prefill", further_model="a/b", model="/ab"),
    worker("a-b-decode:0", (3,), role="decode", further_model="a/b", model="/ab"),
]


@pytest.mark.parametrize(
    ("wanted", "name", "role", "model"),
    [
        ("mixed", "mixed:1", "mixed", "/m"), ("coder-1.5b", "coder-1.5b-mixed:1", "mixed", "/coder"),
        ("a/b.decode", "a-b-decode:1", "decode", "/ab"),
        ("coder-1.5b.decode", "coder-1.5b-decode:0", "decode", "/coder"),
    ],
)  # fmt: skip
def test_a_further_model_is_scaled_by_its_name(wanted: str, name: str, role: str, model: str) -> None:
    made = another(wanted, MODELS, EIGHT, share=False)
    assert (made.name, made.role, made.config["model"], made.cores) == (name, role, model, (4,))
    assert made.group == wanted.removesuffix(".decode") * (wanted != "mixed")
    with pytest.raises(OptionError, match="not 'lips', or a further model: coder-1.5b, a/b"):
        another("lips", MODELS, EIGHT, share=False)


def group(name: str, *ranks: tuple[str, tuple[int, ...]]) -> ChildPlan:
    shared = worker(name).config
    places = [Placement(device, cores) for device, cores in ranks]
    return plan_ranks(name, name.partition(":")[0], places, shared, f"ipc:///run/{name.replace(':', '-')}-ranks")


def test_no_device_of_a_group_is_handed_out() -> None:
    gpus = group("decode:0", ("cuda:0", (0,)), ("cuda:1", (1,)))
    with pytest.raises(LaunchError, match=r"decode:0 has cuda:0\+cuda:1"):
        another("prefill", [worker("prefill:0", (2,), "cuda:2"), gpus], HostDevices((0, 1, 2), 3, 3), share=False)
    cores = group("decode:0", ("cpu", (0, 1)), ("cpu", (2, 3)))
    made = another("prefill", [worker("prefill:0", (4,)), cores], EIGHT, share=False)
    assert made.cores == (5,) and not made.followers


def test_a_worker_like_a_group_has_as_many_ranks_elsewhere() -> None:
    cores = group("decode:0", ("cpu", (0, 1)), ("cpu", (2, 3)))
    made = another("decode", [cores], EIGHT, share=False)
    assert [(one.name, one.cores) for one in made.members] == [("decode:1", (4, 5)), ("decode:1+1", (6, 7))]
    assert {one.config["rank_endpoint"] for one in made.members} == {"ipc:///run/decode-1-ranks"}
    assert [(one.config["rank"], one.config["ranks"]) for one in made.members] == [(0, 2), (1, 2)]
    with pytest.raises(LaunchError, match="No 2 devices are free for another decode worker"):
        another("decode", [cores, worker("prefill:0", (4, 5, 6))], EIGHT, share=False)
    one_core = HostDevices((0,), 1, 0)
    shared = another("decode", [group("decode:0", ("cpu", (0,)), ("cpu", (0,)))], one_core, share=True)
    assert [one.cores for one in shared.members] == [(0,), (0,)]
    gpus = group("decode:0", ("cuda:0", (0,)), ("cuda:1", (1,)))
    four = HostDevices((0, 1), 2, 4)
    assert another("decode", [gpus], four, share=False).place == "cuda:2+cuda:3"
    with pytest.raises(LaunchError, match="No 2 devices are free"):
        another("decode", [gpus, worker("mixed:0", (), "cuda:3")], four, share=False)


def test_no_worker_like_one_on_several_hosts_is_started_here() -> None:
    one = worker("decode:0", (0,), nnodes=2, rank_endpoint="tcp://127.0.0.1:29500")
    with pytest.raises(LaunchError, match="decode:0 is on 2 hosts: start another by a launch on each"):
        another("decode", [one], EIGHT, share=False)


def test_a_worker_of_a_gpu_gets_the_cores_near_it() -> None:
    near = replace(EIGHT, near=(frozenset({0, 1, 2, 3}), frozenset({4, 5, 6, 7})))
    made = another("decode", [worker("decode:0", (0,), "cuda:0")], near, share=False)
    assert (made.device, made.cores) == ("cuda:1", (4, 5, 6, 7))
