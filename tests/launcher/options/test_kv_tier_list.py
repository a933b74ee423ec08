# SPDX-License-Identifier: Apache-2.0
"""Tiers below the KV cache, from the option to the configuration of each worker."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from pontil.launcher.cli import cli
from pontil.launcher.commands.units import unit_of
from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.host.devices import HostDevices
from pontil.launcher.host.disk_room import check_folder
from pontil.launcher.options.kv_tier_list import TierItem, kv_tiers
from pontil.launcher.options.options import read_options
from pontil.launcher.plan.child_plan import ChildPlan
from pontil.launcher.plan.topology import Topology, plan
from pontil.runtime.config.worker_config import worker_config
from pontil.runtime.probe.footprint import MemoryDemand

BOTH = "memory:8GiB,disk:/var/cache/kv:64GiB"
CORES = HostDevices((0, 1, 2, 3), 4, 0)


def topology(**flags: Any) -> Topology:
    return plan(read_options(flags), CORES, Path("/run/pontil/7"), Path("/cache"))


def tiers(children: Sequence[ChildPlan]) -> dict[str, tuple[int, str | None, int]]:
    made = {one.name: worker_config(one.config) for one in children if not one.is_proxy}
    return {name: (one.kv_tier_memory, one.kv_tier_disk, one.kv_tier_disk_size) for name, one in made.items()}


@pytest.mark.parametrize(
    "value",
    [BOTH, "disk:/var/cache/kv:64GiB, memory:8GiB", ["memory:8GiB", "disk:/var/cache/kv:68719476736"]],
)
def test_tiers_are_read_in_any_order(value: Any) -> None:
    found = sorted(kv_tiers(value), key=lambda one: one.kind)
    assert found == [TierItem("disk", 64 << 30, "/var/cache/kv"), TierItem("memory", 8 << 30)]
    assert kv_tiers(",".join(map(str, found))) == tuple(found)


@given(st.text(alphabet="memorydisk:/,0GiB.- \n", max_size=40))
def test_any_text_is_tiers_or_one_sentence(text: str) -> None:
    try:
        found = kv_tiers(text)
    except ValueError as error:
        assert str(error).startswith("m") and "\n" not in str(error)
        return
    assert found and all(one.size > 0 and (one.path or "/").startswith("/") for one in found)


def test_each_worker_that_answers_has_the_tiers() -> None:
    made = topology(kv_tier=BOTH, embed="cpu", prefill="cpu", decode="cpu*2")
    wanted = (8 << 30, "/var/cache/kv", 64 << 30)
    assert tiers(made.children) == {
        "prefill:0": wanted, "decode:0": wanted, "decode:1": wanted, "embed:0": (0, None, 0),
    }  # fmt: skip
    (demand,) = made.prepare.config["demands"].values()
    assert MemoryDemand(**demand).kv_tier_memory == 8 << 30
    (demand,) = topology().prepare.config["demands"].values()
    assert MemoryDemand(**demand).kv_tier_memory == 0 and set(tiers(topology().children).values()) == {(0, None, 0)}


def test_what_cannot_have_a_tier_is_refused() -> None:
    with pytest.raises(OptionError, match="prefill:0 has 2 devices joined by .*, and --kv-tier is for workers of one"):
        topology(kv_tier=BOTH, prefill="cpu:0+cpu:1", decode="cpu:2")
    with pytest.raises(OptionError, match="--no-prefix-caching keeps none: leave one of them out"):
        topology(kv_tier=BOTH, prefix_caching=False)


def test_a_unit_may_write_where_the_tier_is() -> None:
    text = unit_of(["/bin/pontil"], ("--role", "mixed", "--kv-tier", BOTH), None).text()
    assert "ReadWritePaths=/var/cache/kv\n" in text and f"--kv-tier {BOTH}" in text


def test_room_is_checked_before_anything_starts(tmp_path: Path) -> None:
    check_folder("--kv-tier", tmp_path / "a" / "b", 1 << 20)
    assert not (tmp_path / "a").exists()
    with pytest.raises(OptionError, match=r"--kv-tier: .* MiB left, and the workers here need .* MiB: name a smaller"):
        check_folder("--kv-tier", tmp_path, 1 << 60)
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OptionError, match="cannot be used") as refusal:
            check_folder("--kv-tier", path, 1)
        assert refusal.value.exit_code == 2 and refusal.value.message.count(". ") == 0
    # Root may write to it, and it has no room.
    with pytest.raises(OptionError, match="cannot be used|0 MiB left"):
        check_folder("--kv-tier", Path("/proc/kv"), 1)


def test_a_launch_without_room_ends_before_it_starts(tmp_path: Path) -> None:
    flags = ["launch", "--role", "mixed", "--kv-tier", f"disk:{tmp_path}/kv:4096TiB"]
    done = CliRunner().invoke(cli, flags, env={"XDG_RUNTIME_DIR": str(tmp_path)})
    assert done.exit_code == 2 and "name a smaller size" in done.output and not (tmp_path / "kv").exists()
