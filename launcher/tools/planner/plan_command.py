# SPDX-License-Identifier: Apache-2.0
"""The command `plan`: what a launch would do under a load, from a profile."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.tools.bench.command import LIMIT, bench
from pontil.launcher.tools.planner.launch_options import LAUNCH_OPTIONS

if TYPE_CHECKING:
    from pontil.launcher.tools.bench.figures import Figures
    from pontil.runtime.planner.device_profile import DeviceProfile
    from pontil.runtime.planner.planned_site import PlannedTopology
    from pontil.runtime.planner.profile_loads import ReplayedLoad

# The options that describe a load and its limits, as `bench` has them.
OF_BENCH = (
    "concurrency", "request_rate", "find_rate", "share", "ttft_limit", "tpot_limit", "itl_limit", "requests",
    "requests_per_stream", "prompt_tokens", "output_tokens", "lengths", "longest", "seed", "as_json",
)  # fmt: skip
MOST_WORKERS, MOST_CORES = 64, 1024


class WorkerCount(click.IntRange):
    """A number of workers. Devices, as `launch` takes them, are refused with the reason."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and not value.strip().lstrip("-").isdecimal():
            self.fail(
                f"{value!r:.60} is no number of workers, each like the profile's: for workers of several devices "
                "measure one of them with `pontil profile --mixed 0+1`.", param, ctx,
            )  # fmt: skip
        return super().convert(value, param, ctx)


WORKERS, DEVICES = WorkerCount(0, MOST_WORKERS), click.IntRange(1, MOST_WORKERS)


@click.command(
    short_help="Predict what a launch would do under a load.",
    params=[*(option for option in bench.params if option.name in OF_BENCH), *LAUNCH_OPTIONS],
)
@click.option(
    "--profile", "file", type=click.Path(path_type=Path), required=True, metavar="FILE", help="Made by `profile`."
)
@click.option("--model", metavar="NAME", help="The model that the profile must be of.")
@click.option("--prefill", type=WORKERS, default=0, metavar="COUNT", help="Prefill workers.")
@click.option("--decode", type=WORKERS, default=0, metavar="COUNT", help="Decode workers.")
@click.option("--mixed", type=WORKERS, default=0, metavar="COUNT", help="Workers for both phases.")
@click.option("--devices", type=DEVICES, metavar="COUNT", help="Search the best use of up to so many instead.")
@click.option(
    "--kill",
    type=click.Choice(["prefill", "decode", "mixed"]),
    help="A worker of this role dies in the middle of each load, and comes back after the profile's start.",
)
@click.option("--price", type=LIMIT, metavar="AMOUNT", help="Price of a device for an hour.")
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
def plan(file: Path, model: str | None, replay: bool, **given: Any) -> int:
    """Predict what clients of a launch would see, as `bench` shows it, from the measured times of one device.

    The real proxy, scheduler, KV cache and handoff run in virtual time: another machine will do, and other work on it
    changes nothing. Each worker is like the profile's, of one device or several. With --devices, a coarse model ranks
    topologies and the ten best are simulated: the best comes first. Exit code 1 when a request would fail.
    """
    from pontil.runtime.wire.simulated.install import install

    # Before anything else of pontil is imported that keeps a clock: this process has a virtual world from here on.
    install()
    profile = profile_of(file, model)
    if replay:
        click.echo(json.dumps(replayed_loads(profile)))
        return 0
    return predict(profile, given)


def predict(profile: "DeviceProfile", given: dict[str, Any]) -> int:
    """Print the predictions, best first; return the exit code. Raises OptionError."""
    from pontil.launcher.tools.planner.prediction import Predictor
    from pontil.launcher.tools.planner.topology_search import candidates, ranked

    named = named_topology(given)
    check_cores(profile, given)
    if named is None and given["devices"] < (each := profile.about.ranks):
        raise OptionError(f"--devices {given['devices']} is none of the profile's workers: give {each} or more.")
    predictor = Predictor(profile, given)
    found = [predictor.rows(one) for one in ([named] if named else candidates(predictor, given["devices"]))]
    rows = [row for some in ranked(found, given["share"]) for row in some]
    show(rows, as_json=given["as_json"])
    return 1 if any(row.get("failures") for row in rows) else 0


def replayed_loads(profile: "DeviceProfile") -> "list[ReplayedLoad]":
    from pontil.launcher.tools.planner.prediction import enter_virtual_time
    from pontil.runtime.planner.host_times import replayed

    enter_virtual_time()
    return replayed(profile)


def profile_of(file: Path, model: str | None) -> "DeviceProfile":
    """Return the profile in a file. Raises OptionError for one that cannot be used."""
    from pontil.runtime.planner.device_profile import MOST_BYTES, ProfileError, read_profile

    try:
        with file.open("rb") as opened:
            made = read_profile(opened.read(MOST_BYTES + 1))
    except OSError as error:
        raise OptionError(f"--profile {file} cannot be read: {error.strerror}.") from None
    except ProfileError as error:
        raise OptionError(f"--profile {file}: {error}.") from None
    if model is not None and model != made.about.model:
        raise OptionError(
            f"--profile {file} is of {made.about.model}, and not of {model}: measure that with `pontil profile`."
        )
    return made


def named_topology(given: dict[str, Any]) -> "PlannedTopology | None":
    """Return the workers that were asked for; None where they are to be searched. Raises OptionError for those that
    could serve nothing."""
    from pontil.runtime.planner.planned_site import PlannedTopology

    made = PlannedTopology(given["prefill"], given["decode"], given["mixed"], given["disagg"])
    if bool(made.workers) == (given["devices"] is not None):
        raise OptionError("name workers by --prefill and --decode or --mixed, or have them searched by --devices.")
    if bool(made.prefill) != bool(made.decode):
        raise OptionError("--prefill and --decode go together: a prompt's KV comes from one to the other.")
    if given["kill"] is not None and not made.roles[given["kill"]]:
        raise OptionError(f"--kill {given['kill']} needs a worker of that role: name some by --{given['kill']}.")
    if given["balance"] == "auto" and (given["disagg"] == "never" or made.mixed and not made.prefill):
        raise OptionError("--balance auto moves workers between prefill and decode, and there would be none of either.")
    return made if made.workers else None


def check_cores(profile: "DeviceProfile", given: dict[str, Any]) -> None:
    """Raise OptionError for cores that are not those of the workers."""
    if given["clients_here"] and given["cores"] is None:
        raise OptionError("--clients-here goes with --cores: say how many the machine has.")
    if given["cores"] is not None and profile.about.device != "cpu":
        raise OptionError(f"--cores is for workers on a processor, and the profile is of {profile.about.processor}.")
    if given["cores"] is not None and profile.about.ranks > 1:
        raise OptionError(f"--cores is for workers of one device, and the profile's has {profile.about.ranks}.")


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
        for name, figures in row.get("tenants", {}).items():
            own = ", ".join(f"{one} {value}" for one, value in figures.items())
            click.echo(f"{row['server']}, {row['load']}, {name}: {own}")


# Figures beside those of the table of `bench`, and what they are called.
ABOUT = {
    "cached_share": "cached", "busy": "busy", "kv_share": "KV used", "memory_gib": "GiB", "start_s": "seconds to start",
    "cost_per_million_tokens": "cost of a million tokens", "highest_request_rate": "highest rate within the limits",
    "role_changes": "role changes", "breaks_first": "then breaks", "at_request_rate": "at a rate of",
    "busiest": "and busiest is",
}  # fmt: skip


def spelled(value: Any) -> str:
    return " ".join(f"{name} {share:.0%}" for name, share in value.items()) if isinstance(value, dict) else str(value)
