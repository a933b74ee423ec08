# SPDX-License-Identifier: Apache-2.0
"""Plans of workers of several kinds: each has the times of its own profile, and its own price."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from recorded_profile import small_profile
from virtual_fork import in_virtual_time

from pontil.launcher.cli import cli
from pontil.runtime.planner.coarse import CoarseFleet, CoarseModel, MeanRequest, WorkerSplit, splits, ways
from pontil.runtime.planner.device_profile import DeviceProfile
from pontil.runtime.planner.step_costs import StepCosts

LOAD = ("--requests", "16", "--prompt-tokens", "64", "--output-tokens", "8")
LIMITS = ("--ttft-limit", "300", "--tpot-limit", "25")
# A big device takes a quarter of the time of a small one.
SMALL, BIG = small_profile(), small_profile().slower(0.25)
PAIR = ("--disagg", "always", "--concurrency", "1", *LOAD)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with the profiles big and small."""
    (tmp_path / "big.json").write_text(BIG.text())
    (tmp_path / "small.json").write_text(SMALL.text())
    return tmp_path


def both(folder: Path) -> tuple[str, ...]:
    return ("--profile", str(folder / "big.json"), "--profile", str(folder / "small.json"))


def run(commands: Sequence[Sequence[str]]) -> Any:
    """Run plans in one process; return the exit code and the output of each."""

    def work() -> list[Any]:
        done = [CliRunner().invoke(cli, ["plan", *words]) for words in commands]
        return [[one.exit_code, one.output] for one in done]

    return in_virtual_time(work)


def rows_of(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def test_a_slow_worker_beside_a_fast_one_is_hardly_a_loss(files: Path) -> None:
    """Until the proxy has seen what each takes they get as much. Without that the rate would be 0.4 of the fast one's:
    half of the answers take four times as long to their end."""
    load = ("--concurrency", "1", "--requests", "60", "--prompt-tokens", "64", "--output-tokens", "32", "--json")
    told = run(
        [(*both(files), "--prefill", "big:1", "--decode", decode, *load) for decode in ("big:1", "big:1,small:1")]
    )
    alone, beside = (rows_of(output)[0] for _, output in told)
    assert alone["failures"] == beside["failures"] == 0
    assert beside["output_tokens_per_second"] > 0.85 * alone["output_tokens_per_second"]


def test_each_worker_takes_the_time_of_its_own_profile(files: Path) -> None:
    names = ("big", "small")
    told = run(
        [
            (*both(files), "--prefill", f"{first}:1", "--decode", f"{second}:1", *PAIR, "--json")
            for first, second in product(names, names)
        ]
    )
    assert [code for code, _ in told] == [0] * 4
    rows = dict(zip(product(names, names), (rows_of(output)[0] for _, output in told), strict=True))
    # The first token is prefill's, and the others are decode's, whatever the other one is.
    for first, second in rows:
        row = rows[first, second]
        assert row["server"] == f"1 {first} prefill 1 {second} decode" and row["failures"] == 0
        assert row["busy"].keys() == {f"{first} prefill", f"{second} decode"}
        assert row["ttft_ms_median"] == pytest.approx(rows[first, first]["ttft_ms_median"], rel=0.05)
        assert row["tpot_ms_median"] == pytest.approx(rows[second, second]["tpot_ms_median"], rel=0.05)
    assert rows["small", "small"]["ttft_ms_median"] > 3 * rows["big", "small"]["ttft_ms_median"]
    assert rows["small", "small"]["tpot_ms_median"] > 3 * rows["small", "big"]["tpot_ms_median"]


def test_a_plan_of_one_profile_is_the_same_among_several(files: Path) -> None:
    alone, beside = run(
        [
            ("--profile", str(files / "small.json"), "--mixed", "2", "--concurrency", "3", *LOAD, "--json"),
            (*both(files), "--mixed", "small:2", "--concurrency", "3", *LOAD, "--json"),
        ]
    )
    (one,), (other,) = rows_of(alone[1]), rows_of(beside[1])
    assert (one["server"], other["server"]) == ("2 mixed", "2 small mixed")
    # Only what the proxy does is that of another host.
    assert other["ttft_ms_median"] < one["ttft_ms_median"]
    assert other["tpot_ms_median"] == pytest.approx(one["tpot_ms_median"], rel=0.02)


def test_a_worker_that_dies_is_back_after_the_start_of_its_own_profile(files: Path) -> None:
    words = ("--prefill", "small:1", "--decode", "big:1,small:1", "--kill", "prefill", "--concurrency", "2", *LOAD)
    ((code, output),) = run([(*both(files), *words, "--json")])
    (row,) = rows_of(output)
    assert code == 0 and row["failures"] == 0 and row["output_tokens"] == 16 * 8
    assert row["start_s"] == SMALL.host.start_seconds


def test_a_search_mixes_kinds_and_ranks_them_by_their_prices(files: Path) -> None:
    search = ("--devices", "big:1,small:3", "--request-rate", "30", *LIMITS, *LOAD, "--json")
    dear, cheap = run([(*both(files), *search, "--price", prices) for prices in ("big:9,small:1", "big:1.5,small:1")])
    assert dear[0] == cheap[0] == 0
    for output, price in ((dear[1], 9.0), (cheap[1], 1.5)):
        rows = rows_of(output)
        assert len({row["server"] for row in rows}) == len(rows) == 10
        good = [row["kept_share"] >= 0.9 for row in rows]
        assert good == sorted(good, reverse=True) and good[0]
        costs = [row["cost_per_hour"] for row, is_good in zip(rows, good, strict=True) if is_good]
        assert costs == sorted(costs)
        for row in rows:
            devices = [int(word) for word in row["server"].split()[::3]]
            big = [count for count, kind in zip(devices, row["server"].split()[1::3], strict=True) if kind == "big"]
            assert row["devices"] == sum(devices)
            assert row["cost_per_hour"] == sum(devices) - sum(big) + price * sum(big)
    # At nine times the price of a small device three small ones are cheaper, and else the big one is.
    first_dear, first_cheap = rows_of(dear[1])[0], rows_of(cheap[1])[0]
    assert "big" not in first_dear["server"] and first_cheap["server"] == "1 big mixed"
    assert any("big" in row["server"] and "small" in row["server"] for row in rows_of(cheap[1]))


def test_splits_of_two_kinds_use_each_device_once_at_most() -> None:
    found = list(splits((2, 1)))
    assert len(set(found)) == len(found) <= ways((2, 1))
    for one in found:
        used = one.by_kind
        assert used[0] <= 2 and used[1] <= 1 and any(used)
        assert any(one.mixed) != (any(one.prefill) and any(one.decode))
    assert WorkerSplit((2, 0), (0, 1), (0, 0)) in found and WorkerSplit((0, 1), (2, 0), (0, 0)) in found
    # Workers are told apart by kind alone: of one big and one small one there are two pairs.
    assert sum(one.by_kind == (1, 1) for one in found) == 3


def test_a_coarse_pair_has_time_for_what_its_slower_half_has() -> None:
    request = MeanRequest(64, 16)
    big, small = (CoarseModel(StepCosts(one.times), one.sizes, request) for one in (BIG, SMALL))
    fleet = CoarseFleet([big, small])
    assert fleet.rate(WorkerSplit((1, 0), (0, 1), (0, 0))) == min(big.prompts, small.answers)
    assert fleet.rate(WorkerSplit((0, 0), (0, 0), (1, 2))) == pytest.approx(big.both + 2 * small.both)


def of_model(profile: DeviceProfile, **about: Any) -> str:
    return replace(profile, about=replace(profile.about, **about)).text()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--mixed", "2"), "--mixed 2 does not say of which profile: give it like big:2"),
        (("--devices", "3"), "--devices 3 does not say of which profile"),
        (("--mixed", "tiny:1"), "--mixed has tiny, and no profile of that name was given: there is big, small"),
        (("--mixed", "big:1,big:2"), "with each profile once"),
        (("--mixed", "big:1,small"), "is no number of workers"),
        (("--mixed", "big:1", "--price", "big:2"), "--price says nothing of small"),
        (("--mixed", "big:1", "--price", "big:nan,small:1"), "'nan' is no number to count with"),
        (("--mixed", "big:1", "--price", "inf"), "'inf' is no number to count with"),
        (("--mixed", "big:1", "--price", "big:0,small:1"), "is not in the range x>0"),
        (("--mixed", ":"), "is no list like big:1,small:2"),
        (("--prefill", "big:1", "--mixed", "small:1"), "--prefill and --decode go together"),
        (("--devices", "big:60,small:60"), "so give fewer, or fewer profiles"),
        (("--mixed", "big:1", "--kv-tier", "disk:/tmp/x:1GiB"), "--profile big: --kv-tier disk needs the times"),
    ],
)
def test_what_says_nothing_of_a_profile_is_one_sentence(words: tuple[str, ...], reason: str, files: Path) -> None:
    assert_refused((*both(files), *words), reason)


def test_profiles_that_do_not_go_together_are_one_sentence(files: Path) -> None:
    (files / "other.json").write_text(of_model(SMALL, model="other"))
    (files / "fine tuned.json").write_text(SMALL.text())
    (files / "half.json").write_text(of_model(SMALL, kv_cache_dtype="fp8"))
    (files / "pages.json").write_text(small_profile(block_tokens=32).text())
    big, mixed = ("--profile", str(files / "big.json")), ("--mixed", "big:1")
    for file, reason in (
        (f"big={files}/small.json", "two profiles are called big"),
        (f"{files}/other.json", "--profile other is of other, and big of small"),
        (f"{files}/half.json", "has KV blocks of 16 tokens in fp8, and big blocks of 16 tokens in auto"),
        (f"{files}/pages.json", "has KV blocks of 32 tokens in auto"),
        (f"{files}/fine tuned.json", "needs a plain name, so give it one, like big="),
        (f"{files}/none.json", "cannot be read"),
    ):
        assert_refused((*big, "--profile", file, *mixed), reason)
    (files / "away.json").write_text(of_model(SMALL, processor="another"))
    reason = f"--cores is for workers of one machine, and the profiles are of {BIG.about.processor} and another"
    assert_refused((*big, "--profile", f"{files}/away.json", *mixed, "--cores", "2"), reason)


def test_workers_of_two_kinds_share_the_cores_of_a_machine(files: Path) -> None:
    """On one core they take turns, so that both together do less in a second than on two."""
    load = ("--concurrency", "4", "--requests", "40", "--prompt-tokens", "64", "--output-tokens", "16", "--json")
    told = run([(*both(files), "--mixed", "big:1,small:1", "--cores", cores, *load) for cores in ("1", "2")])
    one, two = (rows_of(output)[0]["output_tokens_per_second"] for _, output in told)
    assert one < 0.9 * two


def assert_refused(words: tuple[str, ...], reason: str) -> None:
    ((code, said),) = run([words])
    assert code == 2 and reason in said and said.count("\n") <= 4 and "Traceback" not in said, said
