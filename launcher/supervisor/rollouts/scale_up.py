# SPDX-License-Identifier: Apache-2.0
"""One more worker for a running launch: its name, its placement on free devices, and a configuration like the
others'."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import count

from pontil.launcher.foundation.errors import LaunchError, OptionError
from pontil.launcher.host.devices import CPU, HostDevices, Placement, even_runs
from pontil.launcher.options.stage_list import PHASES, stem
from pontil.launcher.options.worker_roles import GENERATING_ROLES, LISTED_ROLES, NODE, TEXT_ROLES
from pontil.launcher.plan.child_plan import ChildPlan, plan_ranks, rank_endpoint
from pontil.launcher.plan.models import further_stem
from pontil.runtime.foundation.number_ranges import spell


@dataclass(frozen=True, slots=True)
class WorkerKind:
    """Workers of one role that stand in for each other (`group`, as in ChildPlan). `stem` is their name without a
    number, `asked` what an operator calls them."""

    role: str
    group: str
    stem: str
    asked: str

    def covers(self, plan: ChildPlan) -> bool:
        return (plan.role, plan.group) == (self.role, self.group)


def kind_named(name: object, workers: Sequence[ChildPlan]) -> WorkerKind:
    """Return the workers that are meant by a role, by a stage of a model of several or a further model, or by one and
    one of its phases (`talker.decode`). Raises OptionError."""
    first = next((plan.group for plan in workers if plan.name.partition(":")[0] in GENERATING_ROLES), "")
    if name in LISTED_ROLES:
        return WorkerKind(str(name), str(name) if name in TEXT_ROLES else first, str(name), f"--{name}")
    groups = {plan.group for plan in workers} - {"", *TEXT_ROLES}
    # Names of models may have dots in them.
    stage, _, phase = (str(name), "", "") if name in groups else str(name).rpartition(".")
    alike = [plan for plan in workers if plan.group == stage and stage in groups]
    roles = {plan.role for plan in alike}
    if not roles:
        raise OptionError(f"A worker's role is one of {', '.join(LISTED_ROLES)}, not {name!r}{named_hint(workers)}.")
    if phase and (roles == {NODE} or phase not in PHASES):
        has = "no prefill and decode" if roles == {NODE} else f"the walks {' and '.join(PHASES)}"
        raise OptionError(f"The stage {stage} has {has}: there are no workers {name!r}.")
    role = NODE if roles == {NODE} else phase or "mixed"
    if alike[0].further_model is not None:
        return WorkerKind(role, stage, further_stem(stage, role), f"--model {stage}")
    return WorkerKind(role, stage, role if stage == first else stem(stage, role), f"--place {name}")


def named_hint(workers: Sequence[ChildPlan]) -> str:
    """Return what else than a role may be named: the stages of a model of several, or further models."""
    stages = dict.fromkeys(plan.group for plan in workers if plan.config.get("node"))
    models = dict.fromkeys(plan.further_model for plan in workers if plan.further_model)
    hints = (("a stage of the model", stages), ("a further model", models))
    return "".join(f", or {what}: {', '.join(names)}" for what, names in hints if names)


def another(
    kind_name: str,
    workers: Sequence[ChildPlan],
    machine: HostDevices,
    *,
    share: bool,
    known: Sequence[ChildPlan] = (),
    first_number: int = 0,
) -> ChildPlan:
    """Plan one more worker of the wanted kind beside these, like one of these or of the `known` ones, with as many
    ranks as that has, in a launch that counts workers from this number on. Raises LaunchError if no device is free, or
    none of its model exists to copy."""
    models = (*workers, *known)
    kind = kind_named(kind_name, models)
    alike = [plan for plan in models if plan.group == kind.group]
    if not alike:
        raise LaunchError(
            f"This launch has no worker of the model that {kind.stem} workers have: launch with {kind.asked}."
        )
    like = next((plan for plan in alike if plan.role == kind.role), alike[0])
    if like.nodes > 1:
        raise LaunchError(f"{like.name} is on {like.nodes} hosts: start another by a launch on each of them.")
    name = free_name(kind.stem, {plan.name for plan in workers}, first_number)
    used_ranks = [rank for plan in workers for rank in plan.members]
    find = free_cores if like.device == CPU else free_gpus
    ranks = find(like, used_ranks, machine, share)
    if not ranks:
        lack = f"No {like.ranks} devices are" if like.followers else "Nothing is"
        raise LaunchError(
            f"{lack} free for another {kind.stem} worker ({taken(workers, machine)}): stop a worker with `scale`, or "
            "launch with --share-devices."
        )
    config = {**like.config, "peer_endpoint": meeting_point(like, name)}
    return plan_ranks(
        name, kind.role, ranks, config, rank_endpoint(folder_of(str(like.config.get("rank_endpoint"))), name)
    )


def free_name(worker_stem: str, names: Collection[str], first: int) -> str:
    """Return the name with the first free number from this one on: a worker keeps its name as long as it exists."""
    return next(f"{worker_stem}:{number}" for number in count(first) if f"{worker_stem}:{number}" not in names)


def free_gpus(like: ChildPlan, used_ranks: Sequence[ChildPlan], machine: HostDevices, share: bool) -> list[Placement]:
    """Return a GPU for each rank that neither these workers nor other launches have, or nothing. Feeding cores may be
    shared: they are only a preference."""
    devices = [*(f"cuda:{gpu}" for gpu in machine.held_gpus), *(rank.device for rank in used_ranks)]
    gpus = sorted((f"cuda:{number}" for number in range(machine.gpus)), key=devices.count)[: like.ranks]
    if len(gpus) < like.ranks or (not share and any(gpu in devices for gpu in gpus)):
        return []
    return [Placement(gpu, machine.feeding(int(gpu.removeprefix("cuda:")))) for gpu in gpus]


def free_cores(like: ChildPlan, used_ranks: Sequence[ChildPlan], machine: HostDevices, share: bool) -> list[Placement]:
    """Return as many cores as another worker of its kind has, or those that other launches too leave, divided over its
    ranks; where cores are shared, those with the fewest ranks. Return nothing if a rank would have none."""
    claims = [*machine.held.cores, *(core for rank in used_ranks if rank.device == CPU for core in rank.cores)]
    free = [core for core in machine.affordable if core not in claims]
    if len(free) < like.ranks and share:
        free = sorted(machine.affordable, key=claims.count)
    cores = sorted(free[: sum(len(rank.cores) for rank in like.members)])
    if share and cores:
        cores += [cores[place % len(cores)] for place in range(like.ranks - len(cores))]
    return [Placement(CPU, run) for run in even_runs(cores, like.ranks)] if len(cores) >= like.ranks else []


def taken(workers: Sequence[ChildPlan], machine: HostDevices) -> str:
    workers_text = ", ".join(f"{plan.name} has {where(plan)}" for plan in workers)
    launches_text = f", other launches have {machine.held}" if str(machine.held) else ""
    return f"{workers_text}{launches_text}; this process may use cores {spell(machine.affordable)}"


def where(plan: ChildPlan) -> str:
    return plan.place if plan.place != CPU else f"cores {spell(plan.cores)}"


def meeting_point(like: ChildPlan, name: str) -> str:
    """Return the new worker's address: a socket file beside the other worker's. A network address contains no name."""
    endpoint = str(like.config["peer_endpoint"])
    if not endpoint.startswith("ipc://"):
        return endpoint
    return f"ipc://{folder_of(endpoint)}/{name.replace(':', '-')}"


def folder_of(endpoint: str) -> str:
    """Return the folder of a socket file."""
    return endpoint.removeprefix("ipc://").rpartition("/")[0]
