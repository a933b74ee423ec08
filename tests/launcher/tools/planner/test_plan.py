# SPDX-License-Identifier: Apache-2.0
"""The commands `profile` and `plan`: predictions in virtual time, their search, and what they refuse."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from command_line import CORE, ROOT
from plan_options import options
from recorded_profile import small_profile
from tiny_llama import write_tiny_llama
from virtual_fork import in_virtual_time

from pontil.launcher.cli import cli
from pontil.launcher.tools.planner import other_programs
from pontil.launcher.tools.planner.plan_command import predict
from pontil.launcher.tools.planner.prediction import Predictor, first_to_break
from pontil.launcher.tools.planner.profiled_launch import launched, words_of
from pontil.launcher.tools.planner.topology_search import ranked
from pontil.runtime.planner.coarse import CoarseFleet, CoarseModel, MeanRequest, WorkerSplit, splits
from pontil.runtime.planner.device_profile import DeviceProfile, LendingTimes, read_profile
from pontil.runtime.planner.planned_site import PlannedTopology
from pontil.runtime.planner.step_costs import StepCosts

TURNS = "conversation,turn,prompt_tokens,output_tokens,shared_prefix_tokens\n"
SHORT = ("--prompt-tokens", "32", "--output-tokens", "4")
LOAD = ("--requests", "12", *SHORT)
GUESSES = ("--speculative-tokens", "2", "--accepted", "1")
LIMITS = ("--ttft-limit", "300", "--tpot-limit", "25")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "profile.json"
    made.write_text(small_profile().text())
    return made


def of_one(profile: DeviceProfile) -> dict[str, DeviceProfile]:
    return {"small": profile}


def rows_of(given: dict[str, Any], profile: DeviceProfile | None = None) -> list[dict[str, Any]]:
    predictor = Predictor(of_one(profile or small_profile()), given, given["slowdown"][0])
    return predictor.rows(PlannedTopology(given["prefill"], given["decode"], given["mixed"], given["disagg"]))


def test_a_prediction_has_the_figures_of_bench_and_never_more_goodput_than_is_offered() -> None:
    def work() -> Any:
        given = options("--mixed", "1", *LOAD, *LIMITS, "--request-rate", "1,20,400")
        search = options("--mixed", "1", *LOAD, *LIMITS, "--find-rate", "--request-rate", "20")
        pair = options("--prefill", "1", "--decode", "1", *LOAD, "--concurrency", "3", "--disagg", "always")
        return [rows_of(given), rows_of(given), rows_of(search), rows_of(pair)]

    rows, again, search, pair = in_virtual_time(work)
    assert rows == again
    assert [row["request_rate"] for row in rows] == [1.0, 20.0, 400.0]
    for row in rows:
        assert (row["requests"], row["failures"], row["output_tokens"]) == (12, 0, 48)
        assert row["goodput_per_second"] <= row["requests_per_second"] + 1e-3
        assert {"ttft_ms_p99", "tpot_ms_median", "cached_share", "busy", "kept_by"} <= row.keys()
    assert rows[0]["kept_share"] == 1.0 > rows[2]["kept_share"] and rows[2]["busy"]["mixed"] > 0.8
    found = search[-1]
    assert found["highest_request_rate"] is not None and found["breaks_first"] in ("ttft", "tpot")
    assert found["at_request_rate"] > found["highest_request_rate"] and found["busiest"] == "mixed"
    assert pair[0]["server"] == "1 prefill 1 decode" and set(pair[0]["busy"]) == {"prefill", "decode"}


def test_everything_takes_longer_on_a_machine_that_is_slower() -> None:
    words = ("--prefill", "1", "--decode", "1", *LOAD, "--concurrency", "3", "--disagg", "always")

    def work() -> Any:
        return [rows_of(options(*words)), rows_of(options(*words, "--slowdown", "3"))]

    (known,), (slow,) = in_virtual_time(work)
    for name in ("ttft_ms_median", "tpot_ms_median", "e2e_ms_p99"):
        assert slow[name] == pytest.approx(3 * known[name], rel=0.05)
    assert slow["output_tokens"] == known["output_tokens"]


def test_a_topology_is_ranked_by_the_slowest_of_several_speeds(capfd: pytest.CaptureFixture[str]) -> None:
    """At the measured speed one worker keeps the limits, and at two thirds of it two do."""
    words = ("--devices", "2", *LOAD, *LIMITS, "--request-rate", "12", "--json")

    def work() -> Any:
        return [predict(of_one(small_profile()), options(*words, *more)) for more in ((), ("--slowdown", "1,1.5"))]

    assert in_virtual_time(work) == [0, 0]
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    once, each = [row for row in rows if "slowdown" not in row], [row for row in rows if "slowdown" in row]
    assert once[0]["server"] == "1 mixed" and once[0]["load"] == "12 requests/s" and once[0]["kept_share"] == 1.0
    assert each[0]["devices"] == 2 and each[0]["server"] == each[1]["server"]
    assert [row["load"] for row in each[:2]] == ["12 requests/s, 1 times as slow", "12 requests/s, 1.5 times as slow"]
    alone = {row["slowdown"]: row for row in each if row["server"] == "1 mixed"}
    # The same requests: what the load of one speed says is what it says beside another.
    assert {**alone[1.0], "load": "12 requests/s"} == {**once[0], "slowdown": 1.0}
    assert alone[1.5]["kept_share"] < 0.9 <= each[1]["kept_share"]


def test_idle_workers_lend_their_cores_unless_they_are_told_not_to() -> None:
    """One worker of a pair always waits under one stream. Workers with devices of their own lend nothing."""
    profile = replace(small_profile(), lending=LendingTimes(((1.0, 0.0, 0.5), (0.0, 64.0, 0.5))))
    words = ("--prefill", "1", "--decode", "1", *LOAD, "--concurrency", "1", "--disagg", "always")

    def work() -> Any:
        more: tuple[tuple[str, ...], ...] = (("--cores", "2"), ("--cores", "2", "--no-lend-cores"), ())
        return [rows_of(options(*words, *one), profile)[0] for one in more]

    lent, kept, apart = in_virtual_time(work)
    for name in ("ttft_ms_median", "tpot_ms_median"):
        assert 0.45 * kept[name] < lent[name] < 0.65 * kept[name]
        assert kept[name] == pytest.approx(apart[name], rel=0.1)


def test_keys_have_their_classes_and_guesses_save_steps(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"chat={'a' * 20} class=interactive\nnight={'b' * 20} class=batch\n")
    keys.chmod(0o600)

    def work() -> Any:
        loads = (("--api-keys", str(keys), "--request-rate", "100", "--requests", "60"), (), GUESSES)
        return [rows_of(options("--mixed", "1", *LOAD, "--concurrency", "2", *more))[0] for more in loads]

    tenants, plain, guessing = in_virtual_time(work)
    chat, night = tenants["tenants"]["chat"], tenants["tenants"]["night"]
    assert chat["requests"] == night["requests"] == 30
    assert chat["ttft_ms_p99"] < night["ttft_ms_p99"] / 2
    assert "tenants" not in plain
    # Of three tokens behind the first two are guessed, all of them right.
    assert guessing["wall_s"] < plain["wall_s"] and guessing["output_tokens"] == plain["output_tokens"]


def test_a_search_shows_the_cheapest_topology_that_keeps_the_limits_first(capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        given = options("--devices", "3", *LOAD, *LIMITS, "--request-rate", "30", "--price", "2", "--json")
        return predict(of_one(small_profile()), given)

    assert in_virtual_time(work) == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert len({row["server"] for row in rows}) == len(rows) == 6
    good = [row["kept_share"] >= 0.9 for row in rows]
    assert good == sorted(good, reverse=True) and good[0]
    devices = [row["devices"] for row, is_good in zip(rows, good, strict=True) if is_good]
    assert devices == sorted(devices)
    assert all(row["cost_per_million_tokens"] > 0 for row in rows)


def of_two_devices(profile: DeviceProfile) -> DeviceProfile:
    return replace(profile, about=replace(profile.about, ranks=2))


def test_all_devices_of_a_worker_are_counted_and_paid_for(capfd: pytest.CaptureFixture[str]) -> None:
    profile = small_profile()

    def work() -> int:
        given = options("--devices", "5", *LOAD, *LIMITS, "--request-rate", "30", "--price", "2", "--json")
        return predict(of_one(of_two_devices(profile)), given) + predict(of_one(profile), given | {"devices": 2})

    assert in_virtual_time(work) == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    doubled, single = ({row["server"]: row for row in some} for some in (rows[:3], rows[3:]))
    assert doubled.keys() == single.keys() == {"1 mixed", "2 mixed", "1 prefill 1 decode"}
    for name, row in doubled.items():
        one = single[name]
        assert row["devices"] == 2 * one["devices"] and row["ttft_ms_median"] == one["ttft_ms_median"]
        assert row["cost_per_million_tokens"] == pytest.approx(2 * one["cost_per_million_tokens"], rel=1e-3)
    # The ranks divide the weights, and each has a part of every block.
    sizes = profile.sizes
    both = sizes.weight_bytes + 2 * sizes.blocks * sizes.block_bytes
    assert doubled["1 mixed"]["memory_gib"] == round(both / (1 << 30), 2)


def test_roles_follow_the_load_in_a_plan_too() -> None:
    """Prompts for two and a half workers, of four, and answers for less than one: of two fixed ones half come late."""

    def work() -> Any:
        site = ("--prefill", "2", "--decode", "2", "--disagg", "always", "--ttft-limit", "2500", "--tpot-limit", "50")
        load = ("--requests", "240", "--prompt-tokens", "256", "--output-tokens", "2", "--request-rate", "15")
        return [rows_of(options(*site, *load, "--balance", balance)) for balance in ("none", "auto")]

    (fixed,), (balanced,) = in_virtual_time(work)
    assert "role_changes" not in fixed and balanced["role_changes"] >= 1
    assert balanced["kept_share"] > fixed["kept_share"]


def test_splits_share_out_all_devices() -> None:
    found = [(one.prefill[0], one.decode[0], one.mixed[0]) for one in splits((3,))]
    assert found == [(0, 0, 1), (0, 0, 2), (1, 1, 0), (0, 0, 3), (1, 2, 0), (2, 1, 0)]


def coarse(request: MeanRequest) -> CoarseModel:
    return CoarseModel(StepCosts(small_profile().times), small_profile().sizes, request)


def test_the_coarse_model_has_more_time_with_more_devices_and_none_for_a_missing_phase() -> None:
    fleet = CoarseFleet([coarse(MeanRequest(64, 16))])
    rates = [fleet.rate(WorkerSplit((0,), (0,), (count,))) for count in (1, 2, 4)]
    assert rates == pytest.approx([rates[0], 2 * rates[0], 4 * rates[0]])
    assert fleet.rate(WorkerSplit((2,), (0,), (0,))) == 0.0
    assert coarse(MeanRequest(64, 16, 0.012)).both < rates[0]


def test_those_that_keep_the_limits_are_ranked_by_devices_and_others_by_what_they_do() -> None:
    rows = [
        {"kept_share": kept, "devices": devices, "goodput_per_second": kept, "ttft_ms_p99": 1.0, "failures": 0}
        for kept, devices in ((0.5, 1), (1.0, 4), (0.95, 2), (0.1, 8))
    ]
    assert [one[0]["devices"] for one in ranked([[row] for row in rows], 0.9)] == [2, 4, 1, 8]
    found = [[{"highest_request_rate": rate}] for rate in (1.0, None, 3.0)]
    assert [one[0]["highest_request_rate"] for one in ranked(found, 0.9)] == [3.0, 1.0, None]
    # Of several speeds the worst counts.
    found += [[{"highest_request_rate": 9.0}, {"highest_request_rate": 2.0}]]
    assert [one[0]["highest_request_rate"] for one in ranked(found, 0.9)] == [3.0, 9.0, 1.0, None]


def test_what_breaks_first_is_the_limit_that_the_fewest_keep() -> None:
    row = {"kept_by": {"ttft": 0.9, "tpot": 0.4}, "busy": {"prefill": 0.2, "decode": 0.9}, "request_rate": 4.0}
    assert first_to_break(row) == {"breaks_first": "tpot", "at_request_rate": 4.0, "busiest": "decode"}


def test_flags_of_a_launch_are_words_again() -> None:
    given = {"model": "x", "prefix_caching": False, "deterministic": True, "max_num_seqs": None, "mixed": "cpu:0"}
    assert words_of(given) == ["--model", "x", "--no-prefix-caching", "--deterministic", "--mixed", "cpu:0"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--mixed", "1", "--model", "other"), "is of small, and not of other"),
        ((), "name workers by --prefill and --decode or --mixed, or have them searched by --devices"),
        (("--mixed", "1", "--devices", "2"), "name workers by"),
        (("--prefill", "1", "--decode", "0+1"), "measure one of them with `pontil profile --mixed 0+1`"),
        (("--prefill", "1"), "--prefill and --decode go together"),
        (("--mixed", "1", "--kill", "decode"), "--kill decode needs a worker of that role"),
        (("--prefill", "1", "--decode", "1", "--balance", "auto", "--disagg", "never"), "--balance auto moves workers"),
        (("--mixed", "2", "--balance", "auto"), "--balance auto moves workers"),
        (("--mixed", "1", "--find-rate"), "--find-rate goes by limits"),
        (("--mixed", "1", "--clients-here"), "--clients-here goes with --cores"),
        (("--mixed", "1", "--kv-cache-memory", "much"), "must be a size like 2GiB"),
        (("--mixed", "1", "--kv-cache-memory", "4KiB"), "two of them are more than was given"),
        (("--mixed", "1", "--kv-tier", "disk:/tmp/x:1GiB"), "needs the times of a disk, and the profile has none"),
        (("--mixed", "1", "--kv-tier", "tape:1GiB"), "must be tiers like memory:8GiB"),
        (("--mixed", "1", "--speculative-model", "x"), "needs its times, and the profile has none"),
        (("--mixed", "1", "--accepted", "1.5"), "--accepted"),
        (("--mixed", "1", "--lengths", "no-such-file"), "--lengths: "),
        *((("--mixed", "1", "--slowdown", one), "write numbers from 0.01 to 100") for one in ("0", "1,", "1e9", "nan")),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(words: tuple[str, ...], reason: str, file: Path) -> None:
    assert_refused(["plan", "--profile", str(file), *words], reason)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--devices", "1"), "none of the profile's workers: give 2 or more"),
        (("--mixed", "1", "--cores", "2"), "--cores is for workers of one device, and the profile's has 2"),
    ],
)
def test_workers_of_two_devices_need_both(words: tuple[str, ...], reason: str, file: Path) -> None:
    file.write_text(of_two_devices(small_profile()).text())
    assert_refused(["plan", "--profile", str(file), *words], reason)


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        ("0,0,10,5,0\n0,1,40,5,16\n", "has a hole before line 3, whose prompt begins with 16 tokens"),
        ("0,0,10,5,3\n", "has a hole before line 2"),
        ("0,0,10,,0\n", "something else than whole numbers in line 2"),
        ("0,0,0,5,0\n", "sizes that no turn can have"),
        ("0,0,10,5,11\n", "sizes that no turn can have"),
        ("", "has no turn of at most"),
    ],
)
def test_recorded_turns_with_holes_are_one_sentence(turns: str, reason: str, file: Path, tmp_path: Path) -> None:
    (tmp_path / "turns.csv").write_text(TURNS + turns)
    assert_refused(["plan", "--profile", str(file), "--mixed", "1", "--lengths", str(tmp_path / "turns.csv")], reason)


@pytest.mark.parametrize("content", [None, "{}", "\x00"])
def test_a_file_that_is_no_profile_is_one_sentence(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "file").write_text(content)
    assert_refused(["plan", "--profile", str(tmp_path / "file"), "--mixed", "1"], "--profile ")


def assert_refused(words: list[str], reason: str) -> None:
    def work() -> list[Any]:
        done = CliRunner().invoke(cli, words)
        return [done.exit_code, done.output]

    code, said = in_virtual_time(work)
    assert code == 2 and reason in said and said.count("\n") <= 4 and "Traceback" not in said, said


def test_a_profile_is_not_measured_where_it_could_not_be_written(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["profile", "-o", str(tmp_path / "none" / "file")])
    assert done.exit_code == 2 and "there is no folder" in done.output


def test_other_programs_are_those_whose_time_is_not_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = SimpleNamespace(busy=10.0, own=2.0, now=0.0)
    monkeypatch.setattr(other_programs, "busy_seconds", lambda: seen.busy)
    monkeypatch.setattr(other_programs, "own_seconds", lambda: seen.own)
    monkeypatch.setattr(other_programs, "time", SimpleNamespace(monotonic=lambda: seen.now))
    watch = other_programs.OtherPrograms()
    seen.busy, seen.own, seen.now = 19.0, 6.0, 10.0
    assert watch.cores() == pytest.approx(0.5)
    seen.own = 12.0
    assert watch.cores() == 0.0


@pytest.mark.long
def test_a_real_profile_predicts_the_figures_of_a_real_bench(tmp_path: Path) -> None:
    """The same requests under the same names. The times are no verdict: they are those of a busy machine."""
    write_tiny_llama(tmp_path / "tiny", max_model_len=1024)
    file, load = tmp_path / "profile.json", ("--concurrency", "1,4", "--output-tokens", "16", "--json")
    flags, disk = ("--model", str(tmp_path / "tiny"), "--mixed", f"cpu:{CORE}"), f"disk:{tmp_path}:64MiB"
    drafts = ("--speculative-model", str(tmp_path / "tiny"))
    real("profile", *flags, *drafts, "--kv-tier", disk, "--rounds", "2", "-o", str(file))
    made = read_profile(file.read_bytes())
    assert made.host.restart_seconds > 0
    assert made.disk.read > 0 and made.disk.write > 0 and made.draft.model == drafts[1] and made.draft.ratio == 1.0
    assert made.draft.block_bytes == made.sizes.block_bytes and [rows for rows, _ in made.draft.reads][:3] == [1, 2, 4]
    # Lent cores are measured where there are others, with rows and with prompts.
    kinds = {bool(tokens) for _, tokens, _ in made.lending.factors}
    assert kinds == ({False, True} if len(os.sched_getaffinity(0)) > 1 else set())
    assert not list(tmp_path.glob("profile-*"))
    more = ("--kv-tier", disk, *drafts, "--accepted", "0.8", "--requests", "4")
    for line in real("plan", "--profile", str(file), "--mixed", "1", *more, "--json").splitlines():
        assert json.loads(line)["failures"] == 0
    planned = real("plan", "--profile", str(file), "--mixed", "1", *load)
    with launched(["--role", "mixed", *flags]) as launch:
        measured = real("bench", launch.url, "--vocabulary", "250", *load)
    for ours, theirs in zip(planned.splitlines(), measured.splitlines(), strict=True):
        predicted, seen = json.loads(ours), json.loads(theirs)
        assert seen.keys() <= predicted.keys()
        for name in ("load", "requests", "failures", "prompt_tokens", "output_tokens"):
            assert predicted[name] == seen[name]
        assert predicted["ttft_ms_median"] > 0 and predicted["tpot_ms_median"] > 0


@pytest.mark.long
def test_a_worker_of_two_devices_is_measured_with_all_its_ranks(tmp_path: Path) -> None:
    config = write_tiny_llama(tmp_path / "tiny", max_model_len=1024)
    # Where there is one core, both ranks share it.
    file, devices = tmp_path / "profile.json", f"cpu:{CORE}+cpu:{max(os.sched_getaffinity(0))}"
    flags = ("--model", str(tmp_path / "tiny"), "--mixed", devices, "--share-devices")
    real("profile", *flags, "--rounds", "2", "-o", str(file))
    made = read_profile(file.read_bytes())
    assert made.about.ranks == 2 and made.times.steps and made.times.pulls and made.host.worker_turn >= 0
    assert made.host.restart_seconds > 0
    # A rank has one of the model's two KV heads: so many bytes of keys and values in each layer.
    assert made.sizes.block_bytes == config.num_layers * 2 * made.sizes.block_tokens * config.head_dim * 4
    for line in real("plan", "--profile", str(file), "--devices", "4", "--requests", "4", "--json").splitlines():
        row = json.loads(line)
        assert row["failures"] == 0 and row["devices"] in (2, 4)


def real(*words: str) -> str:
    """Return the output of a command that takes minutes at most."""
    command = [sys.executable, str(ROOT / "app.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
