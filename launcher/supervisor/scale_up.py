# SPDX-License-Identifier: Apache-2.0
"""One more worker for a running launch: its name, its placement on free devices, and a configuration like the
others'."""

from collections.abc import Collection, Sequence

from pontil.launcher.config.plan_checks import EMBED
from pontil.launcher.config.topology import ChildPlan
from pontil.launcher.errors import LaunchError
from pontil.launcher.host.devices import HostDevices, Placement
from pontil.runtime.foundation.number_ranges import spell


def another(role: str, workers: Sequence[ChildPlan], machine: HostDevices, *, share: bool) -> ChildPlan:
    """Plan one more worker of this role beside these. Raises LaunchError if no device is free, or none of its model
    exists to copy."""
    alike = [plan for plan in workers if (plan.role == EMBED) == (role == EMBED)]
    if not alike:
        raise LaunchError(f"This launch has no worker of the model that {role} workers have: launch with --{role}.")
    like = next((plan for plan in alike if plan.role == role), alike[0])
    name = free_name(role, {plan.name for plan in workers})
    placement = free_gpu(workers, machine, share) if like.device.startswith("cuda") else free_cores(
        like, workers, machine, share
    )  # fmt: skip
    if placement is None:
        raise LaunchError(
            f"Nothing is free for another {role} worker ({taken(workers, machine)}): stop a worker with `scale`, or "
            "launch with --share-devices."
        )
    told = {"name": name, "role": role, "device": placement.device, "cores": list(placement.cores)}
    endpoint = meeting_point(like, name)
    return ChildPlan(name, role, placement.device, placement.cores, {**like.config, **told, "peer_endpoint": endpoint})


def free_name(role: str, names: Collection[str]) -> str:
    """Return the name with the first free number: a worker keeps its name as long as it exists."""
    return next(name for number in range(len(names) + 1) if (name := f"{role}:{number}") not in names)


def free_gpu(workers: Sequence[ChildPlan], machine: HostDevices, share: bool) -> Placement | None:
    """Return a free GPU. Its feeding cores may be shared: they are only a preference."""
    held = [plan.device for plan in workers]
    gpus = sorted((f"cuda:{number}" for number in range(machine.gpus)), key=held.count)
    if not gpus or (gpus[0] in held and not share):
        return None
    return Placement(gpus[0], machine.affordable)


def free_cores(like: ChildPlan, workers: Sequence[ChildPlan], machine: HostDevices, share: bool) -> Placement | None:
    """Return as many cores as another worker of its kind has, or those left; where cores are shared, those with the
    fewest workers."""
    claims = [core for plan in workers if plan.device == "cpu" for core in plan.cores]
    free = [core for core in machine.affordable if core not in claims]
    if not free and share:
        free = sorted(machine.affordable, key=claims.count)
    return Placement("cpu", tuple(sorted(free[: len(like.cores)]))) if free else None


def taken(workers: Sequence[ChildPlan], machine: HostDevices) -> str:
    held = ", ".join(f"{plan.name} has {where(plan)}" for plan in workers)
    return f"{held}; this process may use cores {spell(machine.affordable)}"


def where(plan: ChildPlan) -> str:
    return plan.device if plan.device != "cpu" else f"cores {spell(plan.cores)}"


def meeting_point(like: ChildPlan, name: str) -> str:
    """Return the new worker's address: a socket file beside the other worker's. A network address contains no name."""
    endpoint = str(like.config["peer_endpoint"])
    if not endpoint.startswith("ipc://"):
        return endpoint
    return f"{endpoint.rpartition('/')[0]}/{name.replace(':', '-')}"
