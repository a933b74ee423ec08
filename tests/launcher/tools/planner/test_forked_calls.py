# SPDX-License-Identifier: Apache-2.0
"""Calls in forks: their order, their errors, and the ends of the forks."""

import os
import signal
from functools import partial
from typing import Any

import pytest
from plan_options import options
from recorded_profile import small_profile
from virtual_fork import in_virtual_time

from pontil.launcher.foundation.errors import LaunchError, OptionError
from pontil.launcher.tools.planner.forked_calls import ForkedCalls
from pontil.launcher.tools.planner.plan_command import named_workers
from pontil.launcher.tools.planner.prediction import Predictor, at_each_speed
from pontil.launcher.tools.planner.topology_search import candidates


def told(number: int) -> list[int]:
    return [number, os.getpid()]


def fail(error: BaseException) -> None:
    raise error


def test_results_are_in_the_order_of_the_calls_and_of_so_many_forks() -> None:
    made = ForkedCalls(3).results([partial(told, number) for number in range(20)])
    assert [number for number, _ in made] == list(range(20))
    pids = {pid for _, pid in made}
    assert os.getpid() not in pids and 1 <= len(pids) <= 3


@pytest.mark.parametrize(("jobs", "count"), [(1, 5), (4, 1), (4, 0)])
def test_nothing_is_forked_for_one_at_a_time(jobs: int, count: int) -> None:
    made = ForkedCalls(jobs).results([partial(told, number) for number in range(count)])
    assert made == [[number, os.getpid()] for number in range(count)]


def test_a_fork_makes_its_own_calls_itself() -> None:
    calls = ForkedCalls(2)

    def inner() -> list[int]:
        return [pid for _, pid in calls.results([partial(told, 0), partial(told, 1)])]

    for pids in calls.results([inner, inner]):
        assert pids[0] == pids[1] != os.getpid()


@pytest.mark.parametrize("error", [LaunchError("it is not there."), OptionError("--price says nothing.")])
def test_an_error_of_a_user_is_told_as_it_was(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)):
        ForkedCalls(2).results([partial(told, 0), partial(fail, error), partial(told, 2)])


def test_any_other_error_is_shown_and_ends_all(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LaunchError, match="ended without a result"):
        ForkedCalls(2).results([partial(told, 0), partial(fail, ValueError("odd"))])
    assert "ValueError: odd" in capfd.readouterr().err


def test_a_fork_that_is_killed_is_missed() -> None:
    with pytest.raises(LaunchError, match="ended without a result"):
        ForkedCalls(2).results([partial(told, 0), lambda: os.kill(os.getpid(), signal.SIGKILL)])


def test_what_breaks_off_ends_all_forks() -> None:
    """An error of one is heard while the other goes on, whichever was begun first."""
    begun, seen = os.pipe(), os.pipe()

    def go_on() -> None:
        os.write(begun[1], os.getpid().to_bytes(4, "big"))
        signal.pause()

    def fail_beside_it() -> None:
        os.write(seen[1], os.read(begun[0], 4))
        raise LaunchError("it is not there.")

    for calls in ([go_on, fail_beside_it], [fail_beside_it, go_on]):
        with pytest.raises(LaunchError, match="it is not there"):
            ForkedCalls(2).results(calls)
        with pytest.raises(ProcessLookupError):
            os.kill(int.from_bytes(os.read(seen[0], 4), "big"), 0)


def test_simulations_at_a_time_have_the_same_figures() -> None:
    """Topologies are shared out to processes, and of a single one its loads."""
    words = ("--request-rate", "2,8", "--requests", "12", "--repeats", "2", "--slowdown", "1,1.5")

    def work() -> list[Any]:
        found = list[Any]()
        for workers in ("--devices", "--mixed"):
            for jobs in ("1", "3"):
                given = options(*words, workers, "2", "--jobs", jobs)
                predictors = [Predictor({"small": small_profile()}, given, slowdown) for slowdown in given["slowdown"]]
                named = named_workers(given, ["small"])
                found.append(at_each_speed(predictors, [named] if named else candidates(predictors[0], (2,))))
        return found

    one, many, load, loads = in_virtual_time(work)
    assert one == many and len(one) > 1 and load == loads and len(load[0]) == 4
