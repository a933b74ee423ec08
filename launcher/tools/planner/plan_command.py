# SPDX-License-Identifier: Apache-2.0
"""The command `plan`: what a launch would do under a load, from a profile."""

import json
import os
from collections.abc import Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

import click

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.tools.bench.command import LIMIT, bench
from pontil.launcher.tools.planner.launch_options import LAUNCH_OPTIONS
from pontil.launcher.tools.planner.profile_kinds import OfEachProfile, of_each, profiles_of

if TYPE_CHECKING:
    from pontil.launcher.tools.bench.figures import Figures
    from pontil.runtime.planner.coarse import WorkerSplit
    from pontil.runtime.planner.device_profile import DeviceProfile
    from pontil.runtime.planner.profile_loads import ReplayedLoad

# The options that describe a load and its limits, as `bench` has them.
OF_BENCH = (
    "concurrency", "request_rate", "find_rate", "share", "ttft_limit", "tpot_limit", "itl_limit", "requests",
    "requests_per_stream", "prompt_tokens", "output_tokens", "lengths", "longest", "seed", "as_json",
)  # fmt: skip
MOST_WORKERS, MOST_CORES, MOST_REPEATS = 64, 1024, 100
# Ways to share out devices of several profiles that a search looks at: a second or two.
MOST_WAYS = 500_000


class WorkerCount(click.IntRange):
    """A number of workers. Devices, as `launch` takes them, are refused with the reason."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and not value.strip().lstrip("-").isdecimal():
            self.fail(
                f"{value!r:.60} is no number of workers, each like the profile's: for workers of several devices "
                "measure one of them with `pontil profile --mixed 0+1`.", param, ctx,
            )  # fmt: skip
        return super().convert(value, param, ctx)


WORKERS, DEVICES = OfEachProfile(WorkerCount(0, MOST_WORKERS)), OfEachProfile(click.IntRange(1, MOST_WORKERS))


@click.command(
    short_help="Predict what a launch would do under a load.",
    params=[*(option for option in bench.params if option.name in OF_BENCH), *LAUNCH_OPTIONS],
)
@click.option(
    "--profile",
    "files",
    required=True,
    multiple=True,
    metavar="[NAME=]FILE",
    help="Made by `profile`. Several, for workers of several kinds, are called by the names of their files, or NAME.",
)
@click.option("--model", metavar="NAME", help="The model that the profile must be of.")
@click.option("--prefill", type=WORKERS, default=0, metavar="COUNT", help="Prefill workers; of profiles big:1,small:2.")
@click.option("--decode", type=WORKERS, default=0, metavar="COUNT", help="Decode workers.")
@click.option("--mixed", type=WORKERS, default=0, metavar="COUNT", help="Workers for both phases.")
@click.option("--devices", type=DEVICES, metavar="COUNT", help="Search the best use of up to so many instead.")
@click.option(
    "--kill",
    type=click.Choice(["prefill", "decode", "mixed"]),
    help="A worker of this role dies in the middle of each load, and is back as fast as the profile says.",
)
@click.option(
    "--repeats",
    type=click.IntRange(1, MOST_REPEATS),
    default=1,
    show_default=True,
    metavar="COUNT",
    help="Simulate each load so often, each time with other chances of what a step takes: figures are medians.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, MOST_CORES),
    default=lambda: len(os.sched_getaffinity(0)),
    show_default="one for each core",
    metavar="COUNT",
    help="Simulations at a time. The figures are the same.",
)
@click.option("--price", type=OfEachProfile(LIMIT), metavar="AMOUNT", help="Price of a device for an hour.")
@click.option(
    "--disagg",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="Whether prefill and decode are split, as with `launch`.",
)
@click.option(
    "--cores",
    type=click.IntRange(1, MOST_CORES),
    metavar="COUNT",
    help="All workers and the proxy share one machine with so many cores.",
)
@click.option("--clients-here", is_flag=True, help="Clients run on these cores too, as `bench` does beside a launch.")
@click.option("--replay", is_flag=True, hidden=True)
def plan(files: Sequence[str], model: str | None, replay: bool, **given: Any) -> int:
    """Predict what clients of a launch would see, as `bench` shows it, from the measured times of its devices.

    The real proxy, scheduler, KV cache and handoff run in virtual time: another machine will do, and other work on it
    changes nothing. Each worker is like the profile's, of one device or several. With --devices, a coarse model ranks
    topologies and the ten best are simulated: the best comes first. Options that count, or price, devices of several
    profiles name each, like big:2,small:4. Exit code 1 when a request would fail.
    """
    from pontil.runtime.wire.simulated.install import install

    # Before anything else of pontil is imported that keeps a clock: this process has a virtual world from here on.
    install()
    profiles = profiles_of(files, model)
    if replay:
        click.echo(json.dumps(replayed_loads(next(iter(profiles.values())))))
        return 0
    return predict(profiles, given)


def predict(profiles: "Mapping[str, DeviceProfile]", given: dict[str, Any]) -> int:
    """Print the predictions, best first; return the exit code. Raises OptionError."""
    from pontil.launcher.tools.planner.prediction import Predictor, at_each_speed
    from pontil.launcher.tools.planner.topology_search import candidates, ranked

    workers = named_workers(given, list(profiles))
    check_cores(list(profiles.values()), given)
    most = () if workers else most_workers(profiles, given["devices"])
    predictors = [Predictor(profiles, given, slowdown) for slowdown in given["slowdown"]]
    # A topology that has time on the slowest machine has time on all.
    slowest = max(predictors, key=lambda one: one.slowdown)
    found = at_each_speed(predictors, [workers] if workers else candidates(slowest, most))
    best_first = ranked(found, given["share"])
    show([row for rows in best_first for row in rows], as_json=given["as_json"])
    return 1 if fails(best_first[0]) else 0


def fails(rows: "Sequence[Figures]") -> bool:
    """Return whether a topology loses requests of the loads that it is for: of rates that were tried, up to the highest
    within the limits."""
    most = min((row["highest_request_rate"] or inf for row in rows if "highest_request_rate" in row), default=inf)
    return any(row.get("failures") and row.get("request_rate", 0.0) <= most for row in rows)


def most_workers(profiles: "Mapping[str, DeviceProfile]", devices: Any) -> tuple[int, ...]:
    """Return how many workers of each profile a search may use. Raises OptionError for none, or too many to search."""
    from pontil.runtime.planner.coarse import ways

    each = [one.about.ranks for one in profiles.values()]
    found = of_each("devices", devices, list(profiles))
    most = tuple(count // ranks for count, ranks in zip(found, each, strict=True))
    if not any(most):
        raise OptionError(f"--devices {max(found)} is none of the profile's workers: give {min(each)} or more.")
    if sum(found) > MOST_WORKERS or ways(most) > MOST_WAYS:
        raise OptionError(
            f"--devices gives {sum(found)} devices, which can be shared out in {ways(most)} ways: a search takes at "
            f"most {MOST_WORKERS} devices and {MOST_WAYS} ways, so give fewer, or fewer profiles."
        )
    return most


def replayed_loads(profile: "DeviceProfile") -> "list[ReplayedLoad]":
    from pontil.launcher.tools.planner.prediction import enter_virtual_time
    from pontil.runtime.planner.host_times import replayed

    enter_virtual_time()
    return replayed(profile)


def named_workers(given: dict[str, Any], names: Sequence[str]) -> "WorkerSplit | None":
    """Return the workers that were asked for; None where they are to be searched. Raises OptionError for those that
    could serve nothing."""
    from pontil.runtime.planner.coarse import WorkerSplit

    made = WorkerSplit(*(of_each(role, given[role], names) for role in ("prefill", "decode", "mixed")))
    prefill, decode, mixed = map(any, (made.prefill, made.decode, made.mixed))
    if any(made.by_kind) == (given["devices"] is not None):
        raise OptionError("name workers by --prefill and --decode or --mixed, or have them searched by --devices.")
    if prefill != decode:
        raise OptionError("--prefill and --decode go together: a prompt's KV comes from one to the other.")
    if given["kill"] is not None and not any(getattr(made, given["kill"])):
        raise OptionError(f"--kill {given['kill']} needs a worker of that role: name some by --{given['kill']}.")
    if given["balance"] == "auto" and (given["disagg"] == "never" or mixed and not prefill):
        raise OptionError("--balance auto moves workers between prefill and decode, and there would be none of either.")
    return made if any(made.by_kind) else None


def check_cores(profiles: "Sequence[DeviceProfile]", given: dict[str, Any]) -> None:
    """Raise OptionError for cores that are not those of the workers."""
    if given["clients_here"] and given["cores"] is None:
        raise OptionError("--clients-here goes with --cores: say how many the machine has.")
    if given["cores"] is None:
        return
    for about in (one.about for one in profiles):
        if about.device != "cpu":
            raise OptionError(f"--cores is for workers on a processor, and the profile is of {about.processor}.")
        if about.ranks > 1:
            raise OptionError(f"--cores is for workers of one device, and the profile's has {about.ranks}.")
    if len(processors := sorted({one.about.processor for one in profiles})) > 1:
        raise OptionError(f"--cores is for workers of one machine, and the profiles are of {' and '.join(processors)}.")


def show(rows: "Sequence[Figures]", *, as_json: bool) -> None:
    """Print the figures of all loads, and what searches for a rate have found."""
    from pontil.launcher.tools.bench.report import table

    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
        return
    for line in table([row for row in rows if "load" in row]):
        click.echo(line)
    for row in rows:
        about = {name: value for name, value in row.items() if name in ABOUT}
        told = ", ".join(f"{ABOUT[name]} {spelled(value)}" for name, value in about.items())
        click.echo(f"{row['server']}, {row['load']}: {told}" if "load" in row else f"{row['server']}: {told}")
        for reason, count in row.get("failure_reasons", {}).items():
            click.echo(f"{row['server']}, {row['load']}: {count} failed: {reason}", err=True)
        for name, figures in row.get("tenants", {}).items():
            own = ", ".join(f"{one} {value}" for one, value in figures.items())
            click.echo(f"{row['server']}, {row['load']}, {name}: {own}")


# Figures beside those of the table of `bench`, and what they are called.
ABOUT = {
    "cached_share": "cached", "busy": "busy", "kv_share": "KV used", "memory_gib": "GiB", "start_s": "seconds to start",
    "cost_per_hour": "cost of an hour", "cost_per_million_tokens": "cost of a million tokens",
    "highest_request_rate": "highest rate within the limits",
    "role_changes": "role changes", "breaks_first": "then breaks", "at_request_rate": "at a rate of",
    "busiest": "and busiest is", "slowdown": "slowdown", "spread": "of all repeats",
}  # fmt: skip


def spelled(value: Any) -> str:
    return " ".join(f"{name} {share_of(one)}" for name, one in value.items()) if isinstance(value, dict) else str(value)


def share_of(value: Any) -> str:
    """Return a share, or the least and the greatest of some figures, as text."""
    return f"{value:.0%}" if isinstance(value, float) else " to ".join(map(str, value))
