# SPDX-License-Identifier: Apache-2.0
from typing import Any

import pytest

from pontil.launcher.config.child_plan import ChildPlan
from pontil.launcher.errors import LaunchError
from pontil.launcher.host.devices import HostDevices
from pontil.launcher.supervisor.scale_up import another, free_name
from pontil.runtime.config import worker_config

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


def test_names_are_the_first_that_are_free() -> None:
    assert free_name("decode", {"decode:0", "decode:2", "prefill:1"}) == "decode:1"
    assert free_name("decode", set()) == "decode:0"


def test_over_a_network_everybody_has_the_same_kind_of_address() -> None:
    far = worker("decode:0", (0,), peer_endpoint="tcp://10.0.0.1:0")
    assert another("decode", [far], EIGHT, share=False).config["peer_endpoint"] == "tcp://10.0.0.1:0"


def test_workers_that_embed_are_like_their_own_kind_only() -> None:
    both = [worker("mixed:0", (0,)), worker("embed:0", (1,), model="/e")]
    assert another("embed", both, EIGHT, share=False).config["model"] == "/e"
    assert another("decode", both[::-1], EIGHT, share=False).config["model"] == "/m"
    with pytest.raises(LaunchError, match="no worker of the model that embed workers have"):
        another("embed", both[:1], EIGHT, share=False)
