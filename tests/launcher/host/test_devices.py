# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.host.device_list import DeviceItem, RankDevice
from pontil.launcher.host.devices import (
    HostDevices,
    Placement,
    assign,
    cpu_quota,
    even_runs,
    find_machine,
)
from pontil.runtime.foundation.number_ranges import spell

TWO_CORES = HostDevices((0, 1), 2, 0)
GPUS = HostDevices(tuple(range(8)), 8, 2)


def gpus(*numbers: int) -> DeviceItem:
    return DeviceItem(tuple(RankDevice(gpu=number) for number in numbers))


def cores(*ranks: tuple[int, ...]) -> DeviceItem:
    return DeviceItem(tuple(RankDevice(cores=rank) for rank in ranks))


def placed(*ranks: tuple[str, tuple[int, ...]]) -> tuple[Placement, ...]:
    """Return the placements of one worker."""
    return tuple(Placement(*rank) for rank in ranks)


@given(st.lists(st.integers(0, 500), unique=True, min_size=1).map(sorted), st.integers(1, 40))
def test_runs_share_out_every_core_once_and_evenly(cores: list[int], count: int) -> None:
    runs = even_runs(cores, count)
    assert [core for run in runs for core in run] == cores
    assert max(map(len, runs)) - min(map(len, runs)) <= 1


def test_two_cores_are_split_between_two_workers_and_given_whole_to_one() -> None:
    assert assign([DeviceItem()] * 2, TWO_CORES, share=False) == (placed(("cpu", (0,))), placed(("cpu", (1,))))
    assert assign([DeviceItem()], TWO_CORES, share=False) == (placed(("cpu", (0, 1))),)


def test_plain_items_split_what_the_named_ones_leave() -> None:
    placements = assign([cores((2, 3)), DeviceItem(), DeviceItem()], HostDevices(tuple(range(8)), 8, 0), share=False)
    assert [rank.cores for (rank,) in placements] == [(2, 3), (0, 1, 4), (5, 6, 7)]


def test_named_cores_count_against_what_is_paid_for() -> None:
    placements = assign([cores((2, 3)), DeviceItem()], HostDevices((0, 1, 2, 3), 3, 0), share=False)
    assert [rank.cores for (rank,) in placements] == [(2, 3), (0,)]


def test_a_worker_over_two_gpus_has_both() -> None:
    placements = assign([gpus(0, 1)], GPUS, share=False)
    assert placements == (placed(("cuda:0", (0, 1, 2, 3)), ("cuda:1", (4, 5, 6, 7))),)


def test_the_ranks_of_a_worker_have_cores_of_their_own() -> None:
    machine = HostDevices(tuple(range(8)), 8, 0)
    named = assign([cores((0, 1), (2, 3)), DeviceItem()], machine, share=False)
    assert named == (placed(("cpu", (0, 1)), ("cpu", (2, 3))), placed(("cpu", (4, 5, 6, 7))))
    plain = assign([DeviceItem((RankDevice(),) * 2), DeviceItem()], HostDevices((0, 1, 2), 3, 0), share=False)
    assert plain == (placed(("cpu", (0,)), ("cpu", (1,))), placed(("cpu", (2,))))
    assert assign([cores((0,), (0,))], TWO_CORES, share=True) == (placed(("cpu", (0,)), ("cpu", (0,))),)


def test_gpu_workers_get_cores_that_no_cpu_worker_was_given() -> None:
    placements = assign([gpus(0), cores((0, 1)), gpus(1)], GPUS, share=False)
    assert placements == (placed(("cuda:0", (2, 3, 4))), placed(("cpu", (0, 1))), placed(("cuda:1", (5, 6, 7))))


@pytest.mark.parametrize(
    ("items", "machine", "words"),
    [
        ([DeviceItem()] * 3, TWO_CORES, "3 CPU workers and 2 free cores"),
        ([DeviceItem()] * 2, HostDevices((5,), 1, 0), "--role mixed"),
        ([DeviceItem()] * 2, HostDevices((0, 1, 2, 3), 1, 0), "1 free core:"),
        ([cores((0,)), cores((0, 1))], TWO_CORES, "Core 0 is planned for two"),
        ([gpus(1)] * 2, GPUS, "cuda:1 is planned for two"),
        ([gpus(0, 1), gpus(1)], GPUS, "cuda:1 is planned for two"),
        ([cores((0, 1))], HostDevices((0, 1), 1, 0), "2 cores are planned and .* pays for 1"),
        ([cores((0,)), DeviceItem()], HostDevices((0, 1), 1, 0), "1 CPU worker and 0 free cores"),
        (
            [cores((0,), (0,))],
            TWO_CORES,
            r"Core 0 is planned for two ranks of one worker \(cpu:0\+cpu:0\).*--share-dev",
        ),
        ([cores((0,), (1,)), cores((1,))], TWO_CORES, "Core 1 is planned for two workers"),
        ([DeviceItem((RankDevice(),) * 3)], TWO_CORES, "3 ranks and 2 free cores.*fewer devices"),
        ([gpus(2)], GPUS, r"it has 0-1"),
        ([gpus(0)], TWO_CORES, "use cpu"),
        ([cores((7,))], TWO_CORES, "may run on 0-1"),
    ],
)
def test_a_plan_the_machine_cannot_hold_is_refused(items: list[DeviceItem], machine: HostDevices, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        assign(items, machine, share=False)


def test_sharing_gives_every_worker_something() -> None:
    assert assign([DeviceItem()] * 2, HostDevices((5,), 1, 0), share=True) == (placed(("cpu", (5,))),) * 2
    assert [rank.cores for (rank,) in assign([DeviceItem()] * 3, TWO_CORES, share=True)] == [(0,), (1,), (0,)]
    assert assign([gpus(0)] * 2, GPUS, share=True)[1][0].device == "cuda:0"


def test_numbers_are_spelt_as_runs() -> None:
    assert spell([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"


@pytest.mark.parametrize(
    ("line", "files", "limit"),
    [
        ("0::/a/b", {"a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"}, 1.5),
        ("0::/a/b", {"a/cpu.max": "400000 100000", "a/b/cpu.max": "200000 100000"}, 2.0),
        ("0::/", {"cpu.max": "max 100000"}, None),
        ("4:cpu:/x", {"cpu/x/cpu.cfs_quota_us": "300000\n", "cpu/x/cpu.cfs_period_us": "100000\n"}, 3.0),
        ("4:cpu:/x", {"cpu/x/cpu.cfs_quota_us": "-1\n", "cpu/x/cpu.cfs_period_us": "100000\n"}, None),
        ("7:memory:/x", {}, None),
    ],
)  # fmt: skip
def test_the_tightest_limit_of_the_control_groups_counts(
    tmp_path: Path, line: str, files: dict[str, str], limit: float | None
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "membership").write_text(line + "\n")
    assert cpu_quota(tmp_path / "membership", tmp_path) == limit


def test_this_machine_has_cores() -> None:
    machine = find_machine(visible_gpus="")
    assert machine.affordable and machine.gpus == 0
