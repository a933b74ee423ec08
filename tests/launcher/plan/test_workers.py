# SPDX-License-Identifier: Apache-2.0
"""Launches of one host share out its devices, each by what the others have stated."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from pontil.launcher.control.local_proxy import at_home
from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.foundation.held_devices import HeldDevices
from pontil.launcher.host.devices import HostDevices
from pontil.launcher.options.options import read_options
from pontil.launcher.plan.child_plan import ChildPlan, devices_of
from pontil.launcher.plan.topology import plan

BASE = Path("/run/pontil")
ALL, PREFILL, DECODE = {"role": "all"}, {"role": "prefill"}, {"role": "decode"}
Flags = dict[str, Any]


def workers(machine: HostDevices, flags: Flags) -> list[ChildPlan]:
    made = plan(at_home(read_options(flags), BASE), machine, BASE / "7", BASE)
    return [child for child in made.children if not child.is_proxy]


def launched(machine: HostDevices, *launches: Flags) -> dict[str, ChildPlan]:
    """Return the workers of launches that live at the same time, begun in this order."""
    found: dict[str, ChildPlan] = {}
    for flags in launches:
        made = workers(machine, flags)
        machine = replace(machine, held=machine.held | devices_of(made, machine))
        found.update({child.name: child for child in made})
    return found


def where(found: dict[str, ChildPlan]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (child.device, child.cores) for name, child in found.items()}


@pytest.mark.parametrize("order", [(PREFILL, DECODE), (DECODE, PREFILL)])
@pytest.mark.parametrize("gpus", [0, 2, 4])
def test_launches_of_one_phase_each_have_what_one_of_both_has(order: tuple[Flags, ...], gpus: int) -> None:
    for cores in (2, 3, 8):
        machine = HostDevices(tuple(range(cores)), cores, gpus)
        both, first = where(launched(machine, ALL)), where(launched(machine, order[0]))
        assert first.items() <= both.items()
        found = where(launched(machine, *order))
        assert {name: device for name, (device, _) in found.items()} == {
            name: device for name, (device, _) in both.items()
        }
        assert gpus or found == both


def test_no_phase_is_awaited_that_runs_or_that_another_host_has() -> None:
    two = HostDevices((0, 1), 2, 0)
    assert launched(two, DECODE | {"join": "tcp://10.0.0.1:7000", "insecure": True})["decode:0"].cores == (0, 1)
    assert launched(two, DECODE | {"join": "tcp://127.0.0.1:7000"})["decode:0"].cores == (1,)
    assert launched(two, DECODE | {"http": 8200})["decode:0"].cores == (1,)
    assert launched(two, {"role": "mixed"})["mixed:0"].cores == (0, 1)
    eight = HostDevices(tuple(range(8)), 8, 0)
    found = launched(eight, PREFILL | {"prefill": "cpu:0-1"}, DECODE)
    assert found["decode:0"].cores == (2, 3, 4, 5, 6, 7)
    found = launched(eight, DECODE, DECODE | {"first_number": 1}, PREFILL)
    assert [child.cores for child in found.values()] == [(4, 5, 6, 7), (2, 3), (0, 1)]


def test_where_there_is_room_for_one_phase_it_has_all_of_it() -> None:
    one = HostDevices((0,), 1, 0)
    assert launched(one, PREFILL)["prefill:0"].cores == (0,)
    assert where(launched(HostDevices((0, 1), 2, 1), DECODE)) == {"decode:0": ("cuda:0", (0, 1))}


def test_cores_that_nobody_leaves_are_shared() -> None:
    two = HostDevices((0, 1), 2, 0)
    assert launched(two, {"role": "mixed"}, PREFILL)["prefill:0"].cores == (0, 1)
    found = launched(two, {"role": "mixed", "mixed": "cpu:0"}, ALL)
    assert (found["prefill:0"].cores, found["decode:0"].cores) == ((0,), (1,)), "one core is too few for two"
    found = launched(two, {"role": "mixed"}, PREFILL | {"prefill": "cpu:0"})
    assert found["prefill:0"].cores == (0,), "named devices are taken"


def test_workers_that_may_share_cores_share_them_all_rather_than_few() -> None:
    two, shares = HostDevices((0, 1), 2, 0), {"share_devices": True}
    assert launched(two, {"role": "mixed"}, PREFILL | shares)["prefill:0"].cores == (0, 1)
    found = launched(two, {"role": "mixed", "mixed": "cpu:0"}, ALL | shares)
    assert (found["prefill:0"].cores, found["decode:0"].cores) == ((0,), (1,))
    stages = {"model": "tiny-speech", "role": "mixed"}
    found = launched(two, {"role": "mixed", "mixed": "cpu:0", "first_number": 1}, stages)
    assert {found["mixed:0"].cores, found["speaker:0"].cores} == {(0,), (1,)}
    found = launched(HostDevices((0, 1, 2), 3, 0), {"role": "mixed", "mixed": "cpu:0", "first_number": 1}, stages)
    assert {found["mixed:0"].cores, found["speaker:0"].cores} == {(1,), (2,)}


def test_cores_of_others_count_against_the_quota() -> None:
    eight = HostDevices(tuple(range(8)), 3, 0)
    found = launched(eight, {"role": "mixed", "mixed": "cpu:5"}, PREFILL, DECODE)
    assert [child.cores for child in found.values()] == [(5,), (0,), (1,)]


def test_gpus_that_nobody_leaves_are_refused() -> None:
    two = HostDevices(tuple(range(8)), 8, 2)
    held = launched(two, {"role": "mixed"}, PREFILL)
    assert [child.device for child in held.values()] == ["cuda:0", "cuda:1"]
    with pytest.raises(OptionError, match=r"this machine has 2, and other launches have 0-1\): use --role mixed"):
        launched(two, {"role": "mixed"}, PREFILL, DECODE)
    shared = launched(two, {"role": "mixed"}, PREFILL, DECODE | {"share_devices": True})
    assert shared["decode:0"].device == "cuda:0"
    assert launched(two, {"role": "mixed"}, PREFILL, DECODE | {"decode": "cpu"})["decode:0"].device == "cpu"


def test_gpus_are_known_by_their_names() -> None:
    """CUDA_VISIBLE_DEVICES numbers them for each launch anew."""
    held = devices_of(workers(HostDevices((0, 1), 2, 2), DECODE), HostDevices((0, 1), 2, 2))
    assert held.gpus == {"1"} and held.cores == set()
    renumbered = HostDevices((0, 1), 2, 2, gpu_names=("1", "0"), held=held)
    (worker,) = workers(renumbered, PREFILL)
    assert worker.device == "cuda:1" and devices_of([worker], renumbered).gpus == {"0"}


def test_ranks_have_all_of_their_devices() -> None:
    eight = HostDevices(tuple(range(8)), 8, 4)
    found = workers(eight, ALL | {"prefill": "0+2", "decode": "cpu:0+cpu:1-2"})
    assert devices_of(found, eight) == HeldDevices(
        frozenset({0, 1, 2}), frozenset({"0", "2"}), frozenset({"prefill", "decode"})
    )


@settings(max_examples=examples(36, 1000))
@given(
    cores=st.integers(1, 9),
    quota=st.integers(1, 9),
    gpus=st.integers(0, 3),
    launches=st.lists(
        st.sampled_from([PREFILL, DECODE, ALL, {"role": "mixed"}, DECODE | {"decode": "cpu*2"}]), min_size=1, max_size=5
    ),
)
def test_no_device_is_taken_twice_while_there_are_enough(
    cores: int, quota: int, gpus: int, launches: list[Flags]
) -> None:
    machine = HostDevices(tuple(range(cores)), min(cores, quota), gpus)
    for number, flags in enumerate(launches):
        try:
            made = workers(machine, flags | {"first_number": number})
        except OptionError as error:
            few = "GPU is left" if gpus else "free core"
            assert few in error.message or "free core" in error.message
            continue
        own, held = devices_of(made, machine), machine.held
        left = min(len(set(machine.cores) - held.cores), machine.quota - len(held.cores))
        plain = sum(rank.device == "cpu" for child in made for rank in child.members)
        assert not own.gpus & held.gpus
        assert not own.cores & held.cores or plain > left
        assert len(own.cores) <= machine.quota
        machine = replace(machine, held=held | own)
