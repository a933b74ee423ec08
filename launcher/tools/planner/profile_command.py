# SPDX-License-Identifier: Apache-2.0
"""The command `profile`: the times of one model on one device, measured into a file."""

import json
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from pontil.launcher.child.child import child_command
from pontil.launcher.commands.launch import LaunchCommand, config_flag, launch_flags
from pontil.launcher.control.run_directory import RunDirectory
from pontil.launcher.foundation.errors import LaunchError, OptionError
from pontil.launcher.host.devices import find_machine
from pontil.launcher.options.options import read_environment, read_options
from pontil.launcher.plan.child_plan import ChildPlan
from pontil.launcher.plan.topology import plan
from pontil.launcher.receipts.rank_processes import rank_processes
from pontil.launcher.tools.bench.extra import require
from pontil.launcher.tools.planner.companion import be_companion, companion
from pontil.runtime.errors import PontilError
from pontil.runtime.planner.profile_loads import ReplayedLoad, worker_times

# The rest is imported where it is used: no other command needs asyncio.
if TYPE_CHECKING:
    from pontil.launcher.tools.planner.profiled_launch import LaunchMeter
    from pontil.runtime.planner.device_profile import DeviceProfile, DraftTimes

MIXED = "mixed"
# Runs of each load on a launch that is measured once.
RUNS = 3
# Of a worker without guesses: those are measured for themselves, or cost nothing.
NO_GUESSES: dict[str, Any] = {"speculative_model": None, "speculative_tokens": 0}


@click.command(cls=LaunchCommand, short_help="Measure a model on a device, for `plan`.")
@launch_flags
@config_flag
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, metavar="FILE", help="The profile.")
@click.option(
    "--rounds",
    type=click.IntRange(2, 1000),
    default=3,
    show_default=True,
    help="Steps of each kind in a pass.",
)
@click.option("--company", is_flag=True, hidden=True)
def profile(output: Path, rounds: int, company: bool, config: Path | None, **given: Any) -> None:
    """Measure what the worker of a launch with these flags takes for its steps, and what its host adds, into FILE.

    One worker is measured, on the device of --mixed, or on several that divide its model: a launch of it from outside,
    then its engine in this process. It takes minutes, and other work on the machine makes it wrong. `plan` needs the
    file alone, on any machine.
    """
    if company:
        be_companion()
        return
    require("aiohttp", "profile sends its requests")
    from pontil.launcher.tools.planner.other_programs import MOST_OTHERS, OtherPrograms
    from pontil.launcher.tools.planner.profiled_launch import LaunchMeter, words_of

    check_output(output)
    environment = read_environment()
    given |= {"role": MIXED}
    options = read_options(given, config or environment.config_file, environment.variables)
    machine = find_machine(environment.visible_gpus)
    topology = plan(options, machine, RunDirectory(environment.run_base).path, environment.cache_directory)
    worker = measured_of(topology.children)
    if options.speculative_model is not None and given["speculative_model"] is None:
        raise OptionError("a profile knows --speculative-model as a flag: leave it out of files and the environment.")
    with_file = {} if config is None else {"config": config}
    watch = OtherPrograms()
    launches = LaunchMeter(words_of(given | NO_GUESSES | with_file), topology.served, worker)
    tell("a launch under loads")
    launches.measure(1 if launches.is_alone else RUNS)
    text = measured(worker, rounds, launches, machine.cores)
    output.write_text(text)
    click.echo(f"wrote {output}")
    if (cores := watch.cores()) > MOST_OTHERS:
        click.echo(
            f"other programs used {cores:.1f} cores meanwhile: measure again when the machine is quiet", err=True
        )


def tell(what: str) -> None:
    click.echo(f"measuring: {what}", err=True)


def measured_of(children: Sequence[ChildPlan]) -> ChildPlan:
    """Return the worker that is to be measured. Raises OptionError for others than one of this host."""
    workers = [child for child in children if child.role == MIXED]
    if len(workers) != 1 or workers[0].nodes > 1 or workers[0].is_data_parallel:
        raise OptionError(
            "a profile is that of one worker, of a device or of some of this host that divide its model: name it by "
            "--mixed, like cpu:0, cuda:0 or 0+1."
        )
    return workers[0]


def measured(worker: ChildPlan, rounds: int, launches: "LaunchMeter", cores: Sequence[int]) -> str:
    """Return the profile's text, of a worker on a machine with these cores. Raises LaunchError."""
    try:
        made = measured_worker(worker.configured(**NO_GUESSES), rounds, launches, cores)
        if worker.config["speculative_model"] is not None:
            made = replace(made, draft=measured_draft(worker.config, rounds))
    except PontilError as error:
        raise LaunchError(f"{error}.") from None
    tell("a worker's turns")
    turn, row, token = (round(1e3 * one, 5) for one in worker_times(replayed(made), launches.result().worker))
    return replace(made, host=replace(made.host, worker_turn=turn, worker_row=row, worker_token=token)).text()


def measured_worker(plan: ChildPlan, rounds: int, launches: "LaunchMeter", cores: Sequence[int]) -> "DeviceProfile":
    """Measure a worker's own engine in this process, and in one for each further rank. Raises ModelError."""
    from pontil.runtime.planner.company import company_times, lender_at, lending_times
    from pontil.runtime.planner.device_profile import CompanyTimes, DeviceProfile, DiskTimes, LendingTimes
    from pontil.runtime.planner.measuring import (
        StepMeter,
        about,
        clock_of,
        machine_of,
        measure_disk,
        measure_pulls,
        measured_config,
    )

    company, lending, disk = CompanyTimes(), LendingTimes(), DiskTimes()
    tell("loading the model")
    others = cores_beside(plan, cores)
    with ExitStack() as stack:
        table = Path(stack.enter_context(TemporaryDirectory())) / "cores" if others else None
        ranks = [measured_config(member.config, table) for member in plan.members]
        worker = stack.enter_context(rank_processes()).run(ranks)
        machine, sizes = stack.enter_context(machine_of(worker))
        meter = StepMeter(machine, sizes, rounds, clock_of(worker), tell)
        steps = meter.measure(launches.measure if launches.is_alone else lambda: None)
        if table is not None:
            tell("steps beside another process")
            with companion(plan.config, others) as on_other, ExitStack() as own:
                # Of one core the meter's clock is that of its own processor time.
                on_own = own.enter_context(companion(plan.config, plan.cores)) if launches.is_alone else None
                company = company_times(meter, on_other, on_own)
            tell("steps with lent cores")
            lending = lending_times(meter, lender_at(others, worker))
        tell("pulls of KV blocks")
        times = replace(steps, pulls=measure_pulls(machine))
        if worker.kv_tier_disk is not None:
            tell("blocks on the disk")
            disk = measure_disk(worker, machine)
        host = launches.result().host
        return DeviceProfile(about(worker, machine), sizes, times, host, company, disk, lending=lending)


def cores_beside(plan: ChildPlan, cores: Sequence[int]) -> list[int]:
    """Return as many other cores as a worker has, on which others compute or which they lend. None where there are
    fewer, and for a worker of several ranks or on a GPU."""
    others = [core for core in cores if core not in plan.cores][: len(plan.cores)]
    return others if plan.device == "cpu" and plan.ranks == 1 and len(others) == len(plan.cores) else []


def measured_draft(config: dict[str, Any], rounds: int) -> "DraftTimes":
    """Measure the model that guesses beside the worker's. Raises ModelError."""
    from pontil.runtime.planner.measuring import machine_of, measure_draft, measured_config

    tell("loading the draft model")
    with machine_of(worker := measured_config(config)) as (machine, _):
        tell("steps of the draft model")
        return measure_draft(config["speculative_model"], worker, machine, rounds)


def replayed(profile: "DeviceProfile") -> list[ReplayedLoad]:
    """Return the loads of a profile in virtual time, which needs a process of its own. Raises LaunchError."""
    command = [*child_command("plan"), "--profile", "/dev/stdin", "--replay"]
    done = subprocess.run(command, input=profile.text(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise LaunchError(f"a worker's turns could not be measured: {done.stderr.strip()[-300:]}")
    return [ReplayedLoad(*one) for one in json.loads(done.stdout)]


def check_output(output: Path) -> None:
    """Raise OptionError where no file can be written, before anything is measured."""
    if not output.resolve().parent.is_dir():
        raise OptionError(f"--output {output}: there is no folder {output.resolve().parent}")
    is_new = not output.exists()
    try:
        output.open("a").close()
    except OSError as error:
        raise OptionError(f"--output {output} cannot be written: {error.strerror}") from None
    if is_new:
        output.unlink()
