# SPDX-License-Identifier: Apache-2.0
"""The figures of a load that was simulated several times."""

from dataclasses import replace
from typing import Any

from plan_options import options
from recorded_profile import small_profile
from virtual_fork import in_virtual_time

from pontil.launcher.tools.planner.prediction import Predictor
from pontil.launcher.tools.planner.repeats import typical
from pontil.runtime.planner.planned_site import PlannedTopology

MIXED_TWO = PlannedTopology(0, 0, 2, "never")


def row(ttft: float, failures: int = 0, **more: Any) -> dict[str, Any]:
    return {"server": "1 mixed", "ttft_ms_median": ttft, "failures": failures, **more}


def test_one_simulation_is_what_it_says() -> None:
    only = row(5.0)
    assert typical([only]) is only


def test_each_figure_is_in_the_middle_and_its_ends_are_told() -> None:
    some = [row(ttft, output_tokens_per_second=tokens) for ttft, tokens in ((9.0, 70), (5.0, 90), (7.0, 80))]
    made = typical(some)
    assert (made["server"], made["ttft_ms_median"], made["output_tokens_per_second"]) == ("1 mixed", 7.0, 80)
    assert made["spread"] == {"output_tokens_per_second": [70, 90], "ttft_ms_median": [5.0, 9.0]}
    assert typical(some[:2])["ttft_ms_median"] == 5.0


def test_parts_have_their_middle_too() -> None:
    some = [
        row(1.0, busy={"mixed": share}, tenants={"a": {"requests": 4, "ttft_ms_p99": share}})
        for share in (0.2, 0.6, 0.4)
    ]
    made = typical(some)
    assert made["busy"] == {"mixed": 0.4}
    assert made["tenants"] == {"a": {"requests": 4, "ttft_ms_p99": 0.4}}


def test_a_failure_of_any_simulation_is_told() -> None:
    """One in which all requests fail has no times."""
    lost = {"server": "1 mixed", "failures": 4, "failure_reasons": {"too long": 4}, "role_changes": 1}
    made = typical([row(5.0), lost, row(7.0)])
    assert made["failures"] == 4 and made["failure_reasons"] == {"too long": 4}
    assert (
        made["ttft_ms_median"] == 5.0 and made["role_changes"] == 1 and made["spread"] == {"ttft_ms_median": [5.0, 7.0]}
    )


def test_a_load_is_simulated_several_times_with_other_chances() -> None:
    """The same requests: the first time is that without repeats, and the figures are those in the middle."""
    profile = small_profile()
    varied = replace(profile, times=replace(profile.times, decode_variation=0.1, prompt_variation=0.2))
    words = ("--mixed", "2", "--concurrency", "6", "--requests", "24", "--output-tokens", "24")

    def work() -> list[dict[str, Any]]:
        return [
            Predictor({"small": varied}, options(*words, "--repeats", count), 1.0).rows(MIXED_TWO)[0]
            for count in ("1", "3")
        ]

    once, thrice = in_virtual_time(work)
    assert "spread" not in once and once["prompt_tokens"] == thrice["prompt_tokens"]
    for name, (least, most) in thrice["spread"].items():
        assert least <= once[name] <= most and least <= thrice[name] <= most
        assert least < most
